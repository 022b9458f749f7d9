"""What the command line answers before anything runs."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import verbs
from orchestrator.cli.main import main
from orchestrator.config.errors import EnvironmentFailure, NothingQualifies


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_names_every_verb_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    shown = capsys.readouterr().out
    for name, verb in verbs.VERBS.items():
        assert f"  {name} " in shown
        assert verb.summary in shown
    assert "exit codes" in shown
    assert "study=demo" in shown


def test_no_words_at_all_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage:" in capsys.readouterr().out


def test_every_verb_can_explain_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name, verb in verbs.VERBS.items():
        with pytest.raises(SystemExit) as ended:
            main([name, "-h"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert name in shown
        assert "--json" in shown
        assert ("--db" in shown) is verb.database


def test_a_misspelt_verb_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["statsu"]) == 2
    assert capsys.readouterr().err == ("error: 'statsu' is no verb and no override KEY=VALUE; did you mean status?\n")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--nonsense"], "--nonsense"),
        (["-m", "--jsn"], "did you mean --json?"),
        (["watch", "--evry=3"], "did you mean --every? (see python -m orchestrator watch -h)"),
        (["status", "demo", "two"], "unrecognized arguments: two (see python -m orchestrator status -h)"),
        (["import"], "are required: published|TABLE.json|DIR|DATABASE (see"),
        (["db"], "are required: path|upgrade"),
        (["-m", "--cfg", "job"], "Only one of -m, --cfg"),
        (["--resolve", "study=demo"], "--resolve needs --cfg"),
        (["--cfg", "jobs"], "invalid choice"),
        (["-cd", "nowhere", "study=demo"], "nowhere"),
        (["trainin.seed=1"], "did you mean training.seed?"),
        (["training.seed=1,2"], "add -m"),
        (["-m", "training.seed=range(1,1)"], "the grid is empty"),
        (["--cfg", "job", "trainin.seed=1"], "did you mean training.seed?"),
        (["-cn", "nowhere", "study=demo"], "nowhere"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert part in captured.err
    assert list(tmp_path.iterdir()) == []


def test_hydras_flag_shows_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "-p", "training", "training.seed=7"]) == 0
    shown = capsys.readouterr().out
    assert "# @package training" in shown
    assert "seed: 7" in shown


def test_hydras_flag_shows_where_the_configuration_comes_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine" / "model").mkdir(parents=True)
    assert main(["--info", "searchpath", "-cd", "mine"]) == 0
    shown = capsys.readouterr().out
    assert shown.index(str(tmp_path / "mine")) < shown.index("| main ")


def test_hydras_completion_knows_our_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_LINE", "orchestrator model=tiny_d")
    assert main(["-sc", "query=bash"]) == 0
    assert "model=tiny_dense" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (EnvironmentFailure("The disk has left."), 1, "The disk has left."),
        (NothingQualifies("None of them."), 3, "None of them."),
        (OSError(28, "No space left on device", "/x/file"), 1, "The disk is full: /x/file"),
        (PermissionError(13, "Permission denied", "/x/file"), 1, "/x/file"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_every_end_has_its_exit_code(
    error: BaseException, code: int, part: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr("orchestrator.cli.main._dispatch", fail)
    assert main(["study=demo"]) == code
    shown = capsys.readouterr().err
    assert part in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_traceback_and_nothing_is_printed_into_the_database(tmp_path: Path, closed: str) -> None:
    (tmp_path / "results" / "runs").mkdir(parents=True, mode=0o700)
    (tmp_path / "results").chmod(0o700)
    ended = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m orchestrator collect {closed}'], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    with sqlite3.connect(f"file:{tmp_path}/results/store.sqlite?mode=ro", uri=True) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("folder", ["what?mode=memory", "a#b%20c", "it's {} $HOME \u2603", "x:y"])
def test_a_results_folder_of_any_name_has_its_database_inside(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(mode=0o700)
    assert main(["collect", "--results", folder]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [folder]
    assert (tmp_path / folder / "store.sqlite").is_file()


def test_a_results_folder_that_no_record_can_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--results", "caf\udce9"]) == 2
    assert "not UTF-8" in capsys.readouterr().err
    assert main(["results_dir='caf\udce9'"]) == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_the_home_of_nobody_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results_dir='~nobody-of-this-name/x'"]) == 2
    assert "write the path in full" in capsys.readouterr().err


def test_an_empty_variable_names_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_DB", "")
    (tmp_path / "results").mkdir(mode=0o700)
    assert main(["collect"]) == 0
    assert (tmp_path / "results" / "store.sqlite").is_file()


@pytest.mark.parametrize("words", ["--cfg all study=demo", "--info all study=demo", "-h", "labels -h"])
def test_a_reader_that_goes_away_is_no_traceback(words: str) -> None:
    command = f"{sys.executable} -m orchestrator {words} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("words", [["status"], ["compare"], ["db", "path"], ["-m", "dry_run=true"], ["--cfg", "job"]])
def test_a_python_without_our_packages_says_how_to_get_them(words: list[str]) -> None:
    bare = subprocess.run(
        [sys.executable, "-S", "-m", "orchestrator", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert bare.returncode == 1
    assert bare.stderr.startswith("error: The package ")
    assert sys.executable in bare.stderr
    assert "-m pip install" in bare.stderr or "activate" in bare.stderr
    assert "Traceback" not in bare.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from orchestrator.cli.main import main; main(['-h']); "
        "print(sorted({'hydra', 'omegaconf', 'torch', 'sqlalchemy', 'rich', 'alembic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_setting_written_as_a_flag_is_answered_with_how_to_write_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry-run"]) == 2
    assert "settings have no dashes: dry_run=true" in capsys.readouterr().err


def test_a_script_of_a_study_has_all_its_candidates_or_the_one_that_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["sbatch", "model=tiny_dense", "recompute_modules=[],[core_attn],[mlp]"]
    assert main(asked) == 0
    whole = capsys.readouterr().out
    assert all(f'"name": "{name}"' in whole for name in ("[]", "[core_attn]", "[mlp]"))
    assert main([*asked, "--candidate", "mlp"]) == 0
    one = capsys.readouterr().out
    assert '"name": "[mlp]"' in one
    assert '"name": "[core_attn]"' not in one
    assert main([*asked, "--candidate", "moe"]) == 2
    assert "There is no candidate 'moe' here; there is [], [core_attn], [mlp]." in capsys.readouterr().err
    assert main([*asked, "study.repeats=2", "--candidate", "[mlp] (repeat 1)"]) == 0
    assert capsys.readouterr().out.count('"repeat": 1') == 1
    assert main([*asked, "--candidate", "[mlp] (repeat 1)"]) == 2
    assert "study.repeats is 1" in capsys.readouterr().err


def test_a_script_leaves_out_what_a_run_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sbatch", "model=tiny_dense", "recompute_modules=[],[mlpx]"]) == 0
    said = capsys.readouterr()
    assert "left out: [mlpx]: " in said.err
    assert "mlpx" not in said.out
    assert main(["sbatch", "model=tiny_dense", "recompute_modules=[mlpx]"]) == 2
    assert "There is no job to print" in capsys.readouterr().err


def test_a_script_to_submit_by_hand_has_the_trials_of_the_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Else what it leaves would be another trial's, and run again."""
    asked = ["model=tiny_dense", "recompute_modules=[mlp]"]
    assert main([*asked, "dry_run=true", "--json"]) == 0
    (planned,) = json.loads(capsys.readouterr().out)["trials"]
    assert main(["sbatch", *asked]) == 0
    script = capsys.readouterr().out
    assert f'"trial": "{planned["trial"]}"' in script
    assert not planned["trial"].endswith("0" * 8), "this test needs a framework that is found"
