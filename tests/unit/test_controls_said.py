"""A study runs controls beside what was asked: the user is told how many, since progress counts them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.running import submit


def batches(runs: list[int], asked: int) -> list[SimpleNamespace]:
    """The trials asked for, in order, over batches of so many runs; what a batch holds beyond them is a control."""
    names = [f"t{number}" for number in range(asked)] + [f"control{number}" for number in range(sum(runs) - asked)]
    start, made = 0, []
    for number, count in enumerate(runs):
        trials = [SimpleNamespace(trial=name) for name in names[start : start + count]]
        made.append(SimpleNamespace(batch=f"b{number}", trials=trials))
        start += count
    return made


@pytest.mark.parametrize(
    ("asked", "elsewhere", "runs", "said"),
    [
        (8, {}, [9], "9 runs: 1 more of controls"),
        (4, {}, [5, 3], "8 runs: 4 more of controls"),
        (3, {"t0": "other"}, [2], ""),
        (2, {}, [2], ""),
    ],
)
def test_controls_that_run_beside_the_trials_are_announced(
    asked: int,
    elsewhere: dict[str, str],
    runs: list[int],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    submitted = SimpleNamespace(batches=batches(runs, asked), elsewhere=elsewhere)
    monkeypatch.setattr("orchestrator.dispatch.handover.hand_over", lambda *_, **__: submitted)
    monkeypatch.setattr("orchestrator.dispatch.submit.live_batches", lambda _: [])
    monkeypatch.setattr("orchestrator.dispatch.batch.Ask.of", lambda entry: entry)
    entries = [SimpleNamespace(trial=f"t{number}", label=None) for number in range(asked)]
    plan: Any = SimpleNamespace(new=entries, known=[], study="s", software="f", refused_controls={})
    place: Any = SimpleNamespace(request={}, results_dir=tmp_path)
    submit(place, plan)
    shown = capsys.readouterr().err
    assert said in shown
    assert bool(shown) is bool(said)
