"""Completion in a shell: our verbs and their options, and Hydra's own answer for groups, files and keys."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Iterable

from orchestrator.cli.verbs import VERBS

LINE = "COMP_LINE"
"""Where Hydra's scripts put what was typed; in fish as well."""


def query(flags: argparse.Namespace) -> int:
    """Answer `--shell-completion query=SHELL` for the line in COMP_LINE: one candidate a line."""
    words, is_new_word = _typed(os.environ.get(LINE, ""))
    verb = next((word for word in words[:-1] or words[: 1 if is_new_word else 0] if word in VERBS), None)
    beginning = "" if is_new_word or not words else words[-1]
    if verb is not None:
        _show(option for option in _options(verb) if option.startswith(beginning))
        return 0
    if len(words) <= (0 if is_new_word else 1):
        _show(name for name in VERBS if name.startswith(beginning))
    if beginning.startswith("-"):
        return 0
    # Hydra reads every word after the first as an override.
    kept = [word for word in words if "=" in word or word == beginning]
    os.environ[LINE] = " ".join(["orchestrator", *kept]) + (" " if is_new_word else "")
    from orchestrator.config.display import display

    return display(flags)


def _typed(line: str) -> tuple[list[str], bool]:
    """The words after the program's name, and whether the next one has not begun."""
    words = line.split()
    if words[1:3] == ["-m", "orchestrator"]:
        words = words[2:]
    return words[1:], line.endswith(" ") or len(words) <= 1


def _options(verb: str) -> list[str]:
    from orchestrator.cli.main import add_common_flags

    parser = argparse.ArgumentParser(add_help=False)
    subparsers = parser.add_subparsers()
    importlib.import_module(VERBS[verb].module).add_parser(subparsers)
    chosen: argparse.ArgumentParser = subparsers.choices[verb]
    add_common_flags(chosen, database=VERBS[verb].database)
    return [option for action in chosen._actions for option in action.option_strings if option.startswith("--")]


def _show(candidates: Iterable[str]) -> None:
    for candidate in candidates:
        print(candidate)
