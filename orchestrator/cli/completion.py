"""Completion in a shell: our verbs and their options, and Hydra's own answer for groups, files and keys."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import os
from collections.abc import Iterable, Sequence
from typing import Any, get_args, get_origin, get_type_hints

from orchestrator.cli.verbs import VERBS

LINE = "COMP_LINE"
"""Where Hydra's scripts put what was typed; in fish as well."""


def query(flags: argparse.Namespace) -> int:
    """Answer `--shell-completion query=SHELL` for the line in COMP_LINE: one candidate a line."""
    words, is_new_word = _typed(os.environ.get(LINE, ""))
    verb = next((word for word in words[:-1] or words[: 1 if is_new_word else 0] if word in VERBS), None)
    beginning = "" if is_new_word or not words else words[-1]
    if verb is not None:
        before = words if is_new_word else words[:-1]
        _show(one for one in _of_verb(verb, before, beginning) if one.startswith(beginning))
        return 0
    if len(words) <= (0 if is_new_word else 1):
        _show(name for name in VERBS if name.startswith(beginning))
    if beginning.startswith("-"):
        return 0
    # Hydra reads every word after the first as an override.
    kept = [word for word in words if "=" in word or word == beginning]
    os.environ[LINE] = " ".join(["orchestrator", *kept]) + (" " if is_new_word else "")
    from orchestrator.config.display import display

    answer = io.StringIO()
    with contextlib.redirect_stdout(answer):
        code = display(flags)
    _show(_spelt(one) for one in answer.getvalue().split())
    return code


def _typed(line: str) -> tuple[list[str], bool]:
    """The words after the program's name, and whether the next one has not begun."""
    words = line.split()
    if words[1:3] == ["-m", "orchestrator"]:
        words = words[2:]
    return words[1:], line.endswith(" ") or len(words) <= 1


def _spelt(candidate: str) -> str:
    """Hydra takes a list for a group of keys, and would have its elements named behind a dot."""
    if not candidate.endswith("."):
        return candidate
    from orchestrator.config.schema import Request

    kinds: list[Any] = [Request]
    for name in candidate[:-1].split("."):
        hints = [get_type_hints(one).get(name) for one in kinds if dataclasses.is_dataclass(one)]
        kinds = [kind for hint in hints for kind in (hint, *get_args(hint))]
    is_list = any(get_origin(kind) in (list, tuple) for kind in kinds)
    return candidate[:-1] + "=" if is_list else candidate


def _of_verb(verb: str, before: Sequence[str], beginning: str) -> list[str]:
    """What may come behind these words: a value of the option before, else options, names of studies, and choices."""
    parser = _parser(verb)
    options = {option: action for action in parser._actions for option in action.option_strings}
    asked = options.get(before[-1]) if before else None
    if asked is not None and asked.nargs != 0:
        return [str(choice) for choice in asked.choices or ()]
    if beginning.startswith("-"):
        return [option for option in options if option.startswith("--")]
    offered = [option for option in options if option.startswith("--")]
    for action in parser._actions:
        if not action.option_strings:
            offered += [str(choice) for choice in action.choices or ()]
            if "STUDY" in str(action.metavar):
                offered += _studies(before)
    return offered


def _studies(words: Sequence[str]) -> list[str]:
    """The studies of the database that the words name, else of the one that they leave open; none where it cannot be
    read: a completion has nobody to tell."""
    from orchestrator.cli.storage import locate
    from orchestrator.config.errors import OrchestratorError
    from orchestrator.store.database import open_store
    from orchestrator.store.overview import studies

    place = argparse.ArgumentParser(add_help=False)
    for flag in ("--db", "--results"):
        place.add_argument(flag)
    try:
        with open_store(locate(place.parse_known_args(words)[0]).url) as store, store.reading() as connection:
            return [one.name for one in studies(connection) if len(one.name.split()) == 1]
    except (OrchestratorError, SystemExit):
        return []


def _parser(verb: str) -> argparse.ArgumentParser:
    from orchestrator.cli.main import add_common_flags

    parser = argparse.ArgumentParser(add_help=False)
    subparsers = parser.add_subparsers()
    importlib.import_module(VERBS[verb].module).add_parser(subparsers)
    chosen: argparse.ArgumentParser = subparsers.choices[verb]
    add_common_flags(chosen, database=VERBS[verb].database)
    return chosen


def _show(candidates: Iterable[str]) -> None:
    for candidate in candidates:
        print(candidate)
