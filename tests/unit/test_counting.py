"""How many candidates are composed is said to a terminal only."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from orchestrator.cli.counting import MANY, counting, saying_if_slow
from orchestrator.config.compose import composing
from orchestrator.config.multirun import expand


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_sees_the_count_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with counting("composed {} candidates") as tell:
        for count in range(MANY + 2):
            tell(count)
    said = capsys.readouterr().err
    assert said == (f"\r\x1b[Kcomposed {MANY} candidates\r\x1b[K" if terminal else "")


@pytest.mark.parametrize(
    ("terminal", "takes", "said"), [(True, 0.3, "still here\n"), (True, 0.0, ""), (False, 0.3, "")]
)
def test_a_terminal_is_told_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, takes: float, said: str
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with saying_if_slow("still here", seconds=0.1 if takes else 60.0):
        time.sleep(takes)
    assert capsys.readouterr().err == said


def test_every_composed_candidate_counts(tmp_path: Path) -> None:
    heard: list[int] = []
    with composing(working_dir=tmp_path) as composer:
        expand(["training.train_iters=11,12,13"], composer, multirun=True, tell=heard.append)
    assert heard == [1, 2, 3]
