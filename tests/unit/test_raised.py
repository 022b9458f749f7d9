"""What is kept of an exception."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import orchestrator.trial
from orchestrator.outcome.raised import judge_exception
from orchestrator.trial.bridge.gpu import SharedGpuError, wait_until_empty
from orchestrator.trial.raised import exception_record, type_name
from orchestrator.vocabulary import Cause, Stage


def own_exceptions() -> Iterator[str]:
    """Dotted names of the exceptions that a trainer of ours can end with."""
    root = Path(orchestrator.trial.__file__).parent
    for file in sorted(root.rglob("*.py")):
        module = ".".join(("orchestrator", "trial", *file.relative_to(root).with_suffix("").parts))
        for node in ast.parse(file.read_text()).body:
            bases = node.bases if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "").endswith("Error") for base in bases):
                yield f"{module}.{node.name}"


OWN = [name for name in own_exceptions() if not name.endswith(".CompileError")]


def raised_by(function: object) -> BaseException:
    try:
        function()  # type: ignore[operator]
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def recursive() -> None:
    recursive()


def test_frames_are_outermost_first() -> None:
    def inner() -> None:
        raise ValueError("no")

    def outer() -> None:
        inner()

    record = exception_record(raised_by(outer))
    assert [frame.function for frame in record.frames] == ["raised_by", "outer", "inner"]
    assert record.frames[-1].file == __file__


def test_an_endless_recursion_keeps_its_innermost_frames() -> None:
    record = exception_record(raised_by(recursive))
    assert record.type == "RecursionError"
    assert len(record.frames) == 200
    assert {frame.function for frame in record.frames} == {"recursive"}


def test_a_class_of_a_package_is_named_with_it() -> None:
    class BrokenError(RuntimeError):
        pass

    assert type_name(BrokenError()) == f"{__name__}.test_a_class_of_a_package_is_named_with_it.<locals>.BrokenError"
    assert type_name(KeyError()) == "KeyError"


def test_a_message_that_cannot_be_made_is_said_so() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert "ZeroDivisionError" in exception_record(SilentError()).message


def test_what_lies_behind_is_nearest_first_and_ends() -> None:
    first, second, third = ValueError("first"), KeyError("second"), OSError("third")
    second.__context__, third.__cause__ = first, second
    first.__context__ = third  # a circle
    assert exception_record(third).chain == ["KeyError: 'second'", "ValueError: first"]


def test_a_context_that_was_disowned_is_left_out() -> None:
    error = ValueError("x")
    error.__context__, error.__suppress_context__ = KeyError("y"), True
    assert exception_record(error).chain == []


def test_the_members_of_a_group_are_named() -> None:
    group = builtins.ExceptionGroup("two ranks", [ValueError("a"), KeyError("b")])
    assert exception_record(group).chain == ["ValueError: a", "KeyError: 'b'"]


def test_an_exception_that_left_no_stage_has_none() -> None:
    record = exception_record(ValueError("x"))
    assert (record.stage, record.iteration, record.at) == (None, None, None)


def test_our_own_exceptions_are_found() -> None:
    assert len(OWN) >= 9


@pytest.mark.parametrize("name", OWN)
def test_every_exception_of_our_own_has_a_cause(name: str) -> None:
    verdict = judge_exception(name, "said in words that no rule has read", (), Stage.STARTUP)
    assert verdict.cause is not Cause.UNKNOWN


def test_a_gpu_that_another_process_holds_is_a_shared_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (128 * 10**9, 150 * 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    error = raised_by(lambda: wait_until_empty(0, 0.0))
    assert "other processes hold about 22.0 of 150.0 GB" in str(error)
    assert judge_exception(type_name(error), str(error), (), Stage.STARTUP).cause is Cause.SHARED_GPU
    assert isinstance(error, SharedGpuError)
