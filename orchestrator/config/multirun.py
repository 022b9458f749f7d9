"""A grid: swept overrides and `study.candidates`, expanded to one request a candidate.

Hydra refuses launcher plugins from outside a `hydra_plugins` package, its multirun returns only rank 0 and stops at the
first crash, so the expansion is done here, with Hydra's own parser and in its order: the last axis moves fastest.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.config.errors import UsageError
from orchestrator.config.names import flattened, names_of
from orchestrator.config.overrides import parsed, swept_values

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from orchestrator.config.compose import Composer

MOST_POINTS = 20_000

OF_THE_COMMAND = ("study", "results_dir", "store", "dry_run", "strict", "hydra")
"""Groups and settings that belong to the whole command, so no candidate can have its own."""

OF_A_CANDIDATE = "cluster.environment"
"""All that a candidate may have of its own of the cluster: jobs are made from the first one's."""


@dataclass(frozen=True)
class Point:
    """One candidate before it is composed: its overrides, and what they set, by bare key."""

    overrides: tuple[str, ...]
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Composed:
    """One candidate of a study: its name there, the overrides that made it, and its request."""

    name: str
    overrides: tuple[str, ...]
    request: dict[str, Any]


def expand(
    words: Sequence[str], composer: Composer, multirun: bool, tell: Callable[[int], None] = lambda count: None
) -> list[Composed]:
    """Every candidate that a command line asks for, in order. `tell` hears how many are composed, after each.

    Raises:
        UsageError: an empty grid, a sweep without `-m`, and every override that would silently do something else.
    """
    overrides = parsed([*_sweeper_params(composer, multirun), *words], composer.loader)
    _check_axes(overrides, multirun)
    points: list[Point] = []
    requests: list[dict[str, Any]] = []
    for point in axis_points(overrides):
        base = composer.compose(point.overrides)
        candidates = base["study"]["candidates"]
        if not candidates:
            points.append(point)
            requests.append(base)
            tell(len(requests))
            continue
        if len(requests) + len(candidates) > MOST_POINTS:
            raise UsageError(
                f"study.candidates has {len(candidates)} candidates for each point of the grid; {MOST_POINTS} are the "
                "most that one command takes."
            )
        for number, candidate in enumerate(candidates, start=1):
            whole = _with_candidate(point, candidate, number, overrides, composer)
            points.append(whole)
            requests.append(_composed_candidate(composer, whole, number))
            tell(len(requests))
    _refuse_differences(requests)
    count = len(requests) * max(request["study"]["repeats"] for request in requests)
    if count > MOST_POINTS:
        raise UsageError(
            f"{len(requests)} candidates with study.repeats={requests[0]['study']['repeats']} are {count} trials; "
            f"{MOST_POINTS} is the most that one command takes."
        )
    names = names_of([point.settings for point in points], requests)
    return [
        Composed(name, point.overrides, request) for name, point, request in zip(names, points, requests, strict=True)
    ]


def axis_points(overrides: Sequence[Override]) -> list[Point]:
    """The product of the swept overrides, as Hydra's own sweeper splits them.

    Raises:
        UsageError: an axis without values, or more points than anybody means.
    """
    axes: dict[str, list[tuple[str, str]]] = {}
    for override in overrides:
        key = override.get_key_element()
        values = (
            swept_values(override, MOST_POINTS)
            if override.is_sweep_override()
            else [override.get_value_element_as_str()]
        )
        axes[key] = [(override.key_or_group, value) for value in values]
    count = 1
    for values_of_axis in axes.values():
        count *= len(values_of_axis)
    if count > MOST_POINTS:
        raise UsageError(f"The grid has {count} points; {MOST_POINTS} is the most that one command takes.")
    points = []
    for choice in itertools.product(*axes.values()):
        texts = tuple(f"{key}={value}" for key, (_, value) in zip(axes, choice, strict=True))
        points.append(Point(texts, dict(choice)))
    return points


def _check_axes(overrides: Sequence[Override], multirun: bool) -> None:
    swept: dict[str, str] = {}
    for override in overrides:
        key = override.key_or_group
        written = override.input_line or ""
        if key in swept:
            raise UsageError(f"{key} is swept by {swept[key]} and set again by {written}: one of them would be lost.")
        if not override.is_sweep_override():
            continue
        if any(other.key_or_group == key for other in overrides if other is not override):
            raise UsageError(f"{key} is swept by {written} and set a second time: one of them would be lost.")
        if not multirun:
            raise UsageError(
                f"{written} is a sweep: add -m to run every value, or quote the value, as '{key}=\"…\"', if it is one."
            )
        if _is_of_the_command(key):
            raise UsageError(f"{key} cannot be swept: it is one for the whole command. Run the command once for each.")
        swept[key] = written


def _is_of_the_command(key: str) -> bool:
    group = re.split(r"[./@]", key)[0]
    if group == "cluster":
        return key != OF_A_CANDIDATE and not key.startswith(f"{OF_A_CANDIDATE}.")
    return group in OF_THE_COMMAND


def _refuse_differences(requests: Sequence[Mapping[str, Any]]) -> None:
    """A file that is swept may set anything, also what is one for the whole command."""
    first = _of_the_command(requests[0])
    for request in requests:
        other = _of_the_command(request)
        if other != first:
            ours, theirs = flattened(first), flattened(other)
            key = next(key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key))
            raise UsageError(
                f"{key} is {ours.get(key)} in one candidate and {theirs.get(key)} in another, and it is one for the "
                "whole command. Run the command once for each."
            )


def _of_the_command(request: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: request[key] for key in OF_THE_COMMAND if key in request}
    cluster = {key: value for key, value in request["cluster"].items() if key != "environment"}
    return found | {"cluster": cluster}


def _sweeper_params(composer: Composer, multirun: bool) -> list[str]:
    """Sweeps that a configuration file declares in `hydra.sweeper.params`, as Hydra's own sweeper reads them."""
    if not multirun:
        return []
    return [f"{key}={value}" for key, value in composer.sweeper_params().items()]


def _with_candidate(
    point: Point, candidate: Sequence[str], number: int, given: Sequence[Override], composer: Composer
) -> Point:
    where = f"study.candidates[{number}]"
    try:
        overrides = parsed(candidate, composer.loader)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    on_the_command_line = {override.key_or_group: override.input_line for override in given}
    for override in overrides:
        key = override.key_or_group
        if override.is_sweep_override():
            raise UsageError(
                f"{where}: {override.input_line} is a sweep inside a sweep; write one candidate for each value, or "
                "sweep it on the command line."
            )
        if key in on_the_command_line:
            raise UsageError(
                f"{where} sets {key}, and so does {on_the_command_line[key]} on the command line: one would be lost."
            )
        if _is_of_the_command(key):
            raise UsageError(f"{where}: {key} is one for the whole command, so a candidate cannot set it.")
    texts = tuple(override.input_line or "" for override in overrides)
    settings = {override.key_or_group: override.get_value_element_as_str() for override in overrides}
    return Point((*point.overrides, *texts), {**point.settings, **settings})


def _composed_candidate(composer: Composer, point: Point, number: int) -> dict[str, Any]:
    try:
        return composer.compose(point.overrides)
    except UsageError as error:
        raise UsageError(f"study.candidates[{number}]: {error}") from error
