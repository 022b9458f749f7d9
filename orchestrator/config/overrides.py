"""One override on the command line: parsed by Hydra, refused where it would silently do something else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

from orchestrator.config.errors import UsageError
from orchestrator.config.nearest import did_you_mean
from orchestrator.config.typecheck import as_alternatives, check_shape, nearest_setting, type_at

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override

HYDRA_KEYS = ("hydra.searchpath", "hydra.verbose")
"""What may be set of Hydra's own: the rest steers a job runner that is not used here."""


def parsed(words: Sequence[str], loader: ConfigLoader, with_hydra: bool = False) -> list[Override]:
    """The overrides as Hydra reads them, each with a key that exists.

    Values of settings that are text stay the text that was written: a commit `12e4567` is not read as infinity.
    `with_hydra` admits settings of Hydra's own.

    Raises:
        UsageError: an override that cannot be read, or whose key or option does not exist (with the nearest that does).
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create(config_loader=loader)
    groups = _groups(loader)
    overrides = []
    for word in words:
        try:
            (override,) = parser.parse_overrides([word])
        except (HydraException, ValueError) as error:
            raise UsageError(_unreadable(word, error)) from error
        quoted = _quoted(override)
        if quoted is not None:
            (override,) = parser.parse_overrides([quoted])
        if not (with_hydra and override.is_hydra_override()):
            _check_key(override, groups, loader)
        overrides.append(override)
    return overrides


def first_line(error: BaseException) -> str:
    """What an error of Hydra or OmegaConf says, as one line without its pointers to documentation."""
    lines = [line.strip().rstrip(".") for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("See http", "full_key:", "object_type=", "^"))]
    return "; ".join(said[:2]) if said else type(error).__name__


def is_group(override: Override, loader: ConfigLoader) -> bool:
    """Whether it chooses a file of a group, rather than setting a value."""
    return override.key_or_group in _groups(loader)


def swept_values(override: Override, most: int = 20_000) -> list[str]:
    """The values of a sweep as they are written, at most so many and one.

    Raises:
        UsageError: it has none, or is no list of values at all.
    """
    from hydra.errors import HydraException

    written = override.input_line
    if override.is_interval_sweep():
        raise UsageError(f"{written}: an interval has no grid points; use range(start,stop,step) or choice(a,b,…).")
    try:
        values = list(itertools.islice(override.sweep_string_iterator(), most + 1))
    except (HydraException, ValueError, ArithmeticError) as error:
        raise UsageError(f"{written}: {first_line(error)}.") from error
    if not values:
        raise UsageError(f"{written} has no values, so the grid is empty.")
    return values


def check_value(override: Override) -> None:
    """Whether it sets a list, a dictionary or one value where that is asked: Hydra's own refusal names no type.

    Raises:
        UsageError: it does not.
    """
    value, kind = override.value(), type_at(override.key_or_group)
    if kind is None or override.is_delete() or (isinstance(value, str) and "${" in value):
        return
    check_shape(override.key_or_group, value)


def is_environment(key: str) -> bool:
    """Whether a key is one variable of an environment."""
    return "environment" in key.split(".")[:-1]


def _groups(loader: ConfigLoader) -> frozenset[str]:
    if loader not in _GROUPS:
        _GROUPS.clear()  # one search path is open at a time
        _GROUPS[loader] = _find_groups(loader)
    return _GROUPS[loader]


_GROUPS: dict[ConfigLoader, frozenset[str]] = {}


def _find_groups(loader: ConfigLoader) -> frozenset[str]:
    found: list[str] = []
    pending = [name for name in loader.list_groups("") if name != "hydra"]
    while pending:
        name = pending.pop()
        found.append(name)
        pending.extend(f"{name}/{inner}" for inner in loader.list_groups(name))
    return frozenset(name for name in found if loader.get_group_options(name))


def _quoted(override: Override) -> str | None:
    """The override with its value in quotes, where Hydra would read a number or a truth value out of text."""
    from hydra.core.override_parser.types import Quote, QuotedString, ValueType

    value = override.value()
    if override.value_type is not ValueType.ELEMENT or not isinstance(value, (bool, int, float)):
        return None
    kinds = as_alternatives(type_at(override.key_or_group))
    accepted: tuple[Any, ...] = (bool,) if isinstance(value, bool) else (int, float)
    if isinstance(value, float):
        accepted = (float,)
    if str not in kinds or Any in kinds or any(kind in kinds for kind in accepted):
        return None
    text = QuotedString(text=override.get_value_string().strip(), quote=Quote.single).with_quotes()
    return f"{override.get_key_element()}={text}"


_KEY = re.compile(r"(?:\+\+?|~)?[A-Za-z_][\w-]*(?:[./][\w-]+)*(?:@[\w.]*(?::[\w.]*)?)?")


def _unreadable(word: str, error: Exception) -> str:
    key, equals, value = word.partition("=")
    if not equals and not word.startswith("~"):
        return f"{word!r} is no override KEY=VALUE."
    if not key.isascii() or not _KEY.fullmatch(key):
        return f"{word!r} is no override KEY=VALUE: {key!r} is no name of a setting, such as training.seed."
    if key.lstrip("+") == "study.candidates":
        return (
            f"Cannot read {word!r}: each candidate is a list of overrides in quotes, as "
            'study.candidates=[["recompute=off"],["recompute_modules=[mlp]","training.seed=2"]].'
        )
    said = re.sub(r"^Error parsing override .*?; |^\w+ while evaluating '.*?': ", "", first_line(error))
    said = re.sub(r"^\w+ while evaluating '.*?': ", "", said).partition(" expecting ")[0]
    if value[:1] in ("'", '"'):
        said = "its quotes do not close, or something follows them"
    elif said.startswith("Lexer") or not value.isascii():
        said = "it has a character that Hydra takes only in quotes"
    takes_text = str in as_alternatives(type_at(key.lstrip("+"))) and value[:1] not in ("'", '"')
    hint = f""". Write '{key}="{_unquotable(value)}"'""" if takes_text else ""
    return f"Cannot read {word!r} as an override KEY=VALUE: {said}{hint}."


def _check_key(override: Override, groups: Set[str], loader: ConfigLoader) -> None:
    key = override.key_or_group
    if override.is_delete() and (key in groups or "." not in key):
        raise UsageError(f"{override.input_line}: {key} cannot be left out; give it another value, as {key}=….")
    if not key:
        raise UsageError(f"{override.input_line!r} is no override KEY=VALUE.")
    if key in groups:
        _check_option(override, loader)
    elif key == "hydra" or key.startswith(("hydra.", "hydra/")):
        if key not in HYDRA_KEYS:
            raise UsageError(
                f"{key} would have no effect: trials are started by this program, not by Hydra's launcher; "
                "choose with cluster=local, cluster=here or cluster=slurm."
            )
    elif type_at(key) is None:
        match = nearest_setting(key)
        hint = f"; did you mean {match}?" if match is not None else did_you_mean(key, groups)
        group = key.partition(".")[0]
        if match is None and group != key and group in groups:
            hint = f", and no setting of {group} is like it."
        raise UsageError(f"{key} is not a setting{hint}")
    elif is_environment(key):
        _check_commas(override)


def _check_option(override: Override, loader: ConfigLoader) -> None:
    from hydra.core.override_parser.types import Glob

    options = loader.get_group_options(override.key_or_group)
    chosen: Any = override._value
    if isinstance(chosen, Glob):
        if not chosen.filter(options):
            pattern = override.get_value_string()
            raise UsageError(f"{override.key_or_group}={pattern} matches nothing; there is {', '.join(options)}.")
        return
    for name in _chosen(override):
        if isinstance(name, str) and "${" in name:
            raise UsageError(
                f"{override.key_or_group}={name}: a group's file cannot be an interpolation on the command line; "
                f"there is {', '.join(options)}."
            )
        if not isinstance(name, str) or name.removesuffix(".yaml") not in options:
            shown = "null" if name is None else str(name)
            raise UsageError(f"There is no {override.key_or_group}={shown}{did_you_mean(shown, options)}")


def _chosen(override: Override) -> list[Any]:
    from hydra.core.override_parser.types import QuotedString

    values: list[Any] = [override.value()]
    if override.is_delete() and override.value() is None:
        values = []
    if override.is_sweep_override():
        values = [value.strip("'\"") for value in swept_values(override)]
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [value.text if isinstance(value, QuotedString) else value for value in flat]


def _check_commas(override: Override) -> None:
    from hydra.core.override_parser.types import ValueType

    if override.value_type is ValueType.SIMPLE_CHOICE_SWEEP:
        key, text = override.key_or_group, override.get_value_string()
        raise UsageError(
            f"{key} has an unquoted comma, which Hydra reads as a sweep over two values: "
            f"write '{key}=\"{_unquotable(text)}\"' for one value, or {key}=choice({text}) for a sweep."
        )


def _unquotable(text: str) -> str:
    return re.sub(r'"', r"\"", text)
