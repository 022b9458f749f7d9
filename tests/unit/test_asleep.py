"""What the kernel says of a thread that sleeps."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from orchestrator.trial.asleep import Sleep, sleep_of, slept_in


def folder(
    proc: Path, name: bytes = b"python", state: str = "S", call: str = "219 0x3 0x7f", wakes: str = "40"
) -> Path:
    """What /proc says of process 7."""
    made = proc / "7"
    made.mkdir()
    (made / "stat").write_bytes(b"7 (" + name + b") " + state.encode() + b" 1 7 7 0 -1")
    (made / "syscall").write_text(call + "\n")
    (made / "status").write_bytes(b"Name:\t" + name + f"\nvoluntary_ctxt_switches:\t{wakes}\n".encode())
    return proc


@pytest.mark.parametrize("name", [b"python", b"data) R (loader", b"\xff\xfe) S"])
def test_the_name_that_a_trainer_gives_itself_changes_nothing(tmp_path: Path, name: bytes) -> None:
    assert sleep_of(7, folder(tmp_path, name)) == Sleep("219", 40)


@pytest.mark.parametrize(("machine", "number", "name"), [("x86_64", 230, "clock_nanosleep"), ("aarch64", 260, "wait4")])
def test_a_call_is_known_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, number: int, name: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert sleep_of(7, folder(tmp_path, call=f"{number} 0x0")) == Sleep(name, 40)


@pytest.mark.parametrize(
    "said", [{"state": "R"}, {"state": "Z"}, {"call": "running"}, {"call": "-1 0x7f"}, {"call": ""}, {"wakes": ""}]
)
def test_what_runs_or_cannot_be_read_does_not_sleep(tmp_path: Path, said: dict[str, str]) -> None:
    assert sleep_of(7, folder(tmp_path, **said)) is None


def test_nobody_says_of_a_process_that_is_gone(tmp_path: Path) -> None:
    assert sleep_of(8, tmp_path) is None


@pytest.mark.parametrize(
    ("before", "after", "call"),
    [
        (Sleep("flock", 4), Sleep("flock", 4), "flock"),
        (Sleep("nanosleep", 4), Sleep("nanosleep", 5), "nanosleep"),
        (Sleep("nanosleep", 4), Sleep("nanosleep", 34), None),
        (Sleep("nanosleep", 4), Sleep("futex", 5), None),
        (Sleep("nanosleep", 4), None, None),
        (None, Sleep("nanosleep", 4), None),
    ],
)
def test_who_naps_does_not_sleep(before: Sleep | None, after: Sleep | None, call: str | None) -> None:
    assert slept_in(before, after) == call
