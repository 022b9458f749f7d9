"""What of Bridge's configuration cannot be converted to plain values is listed by name, without process handles."""

from __future__ import annotations

import functools

from orchestrator.trial.bridge.effective import public


class Tokenizer:
    """An object of a setting, such as a framework's tokenizer."""


def test_functions_and_objects_are_listed_by_name() -> None:
    shown = public({"model.init_method": functools.partial(functools.reduce), "dataset.tokenizer": Tokenizer()})
    assert shown == {"model.init_method": "_functools.reduce", "dataset.tokenizer": f"{__name__}.Tokenizer"}


def test_the_handles_of_the_running_process_are_left_out() -> None:
    assert public({"model._pg_collection.tp": object(), "_private": print, "model.a": print}) == {
        "model.a": "builtins.print"
    }
