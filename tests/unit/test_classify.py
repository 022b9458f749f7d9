"""`classify` on the command line: one screen, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wordings import BACKWARD, OOM, iterations, prefixed, raised

from orchestrator.cli.main import main
from orchestrator.outcome.next_step import next_steps
from orchestrator.vocabulary import Cause, Stage


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    secret = "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz"
    path.write_text(
        f"{iterations(1, 2)}\n{secret}\n{prefixed('[rank3]: ', raised(OOM, *BACKWARD))} {secret}\n", encoding="utf-8"
    )
    return path


def test_one_screen_says_what_where_which_rank_the_numbers_the_lines_and_what_next(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", str(log)]) == 0
    shown = capsys.readouterr().out
    for part in ("device_oom (OOM-bwd)", "backward, after iteration 2", "rank   3", "requested 2.147 GB", f"{log}:"):
        assert part in shown
    assert "device.torch-oom" in shown
    assert "recompute_modules=[]" in shown
    assert len(shown.splitlines()) < 25


def test_json_is_one_object_with_bytes_and_places(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", "--json", str(log)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["label"], found["cause"], found["stage"]) == ("OOM-bwd", "device_oom", "backward")
    assert (found["rank"], found["iteration"], found["consequence"]) == (3, 2, "result")
    assert found["memory"]["requested"] == 2 * 2**30
    assert found["evidence"][0]["file"] == str(log)
    assert found["evidence"][0]["text"].startswith("torch.OutOfMemoryError")


def test_secrets_in_a_log_are_not_repeated(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in ([], ["--json"]):
        main(["classify", *flags, str(log)])
        assert "hf_abc" not in capsys.readouterr().out


def test_terminal_escapes_in_a_log_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.log"
    path.write_text("RuntimeError: CUDA error: out of memory \x1b]0;owned\x07 \u202e evil\n", encoding="utf-8")
    main(["classify", str(path)])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_a_healthy_log_has_no_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.log"
    path.write_text(iterations(*range(1, 21)), encoding="utf-8")
    assert main(["classify", "--json", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["label"], found["cause"], found["iteration"]) == (None, "none", 20)
    assert main(["classify", str(path)]) == 0
    assert "cannot show a pass" in capsys.readouterr().out


def test_a_missing_file_and_no_file_are_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", str(tmp_path / "absent.log")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["classify"]) == 2


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.NONE])
def test_every_cause_has_a_next_step_in_every_stage(cause: Cause) -> None:
    for stage in Stage:
        assert next_steps(cause, stage)
