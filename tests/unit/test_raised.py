"""What is kept of an exception."""

from __future__ import annotations

import builtins

from orchestrator.trial.raised import exception_record, type_name


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
