"""`status`, `show`, `query`, `collect` and `db` as a user sees them."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import recorded

from orchestrator.cli.main import main
from orchestrator.dispatch.liveness import take_driver_lock
from orchestrator.records import layout
from orchestrator.records.beacon import BeaconWriter
from orchestrator.store.database import open_store
from orchestrator.store.plans import PlannedRow, PlanRecord, record_plan
from orchestrator.vocabulary import Stage

HOSTILE = "x[bold red]\x1b[31m\u202eevil\n'; DROP TABLE trials; --"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    results = tmp_path / "results"
    layout.make_private_dir(results)
    recorded.demo(results)
    return results


def test_status_collects_and_counts(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert dict(zip(header.split(), row.split(), strict=True)) == {
        **dict.fromkeys(
            ("failed", "rejected", "running", "pending", "planned", "left-out", "unfinished", "no-outcome"), "-"
        ),
        "study": "demo",
        "trials": "3",
        "pass": "2",
        "OOM": "1",
    }


def test_status_of_one_study_lists_its_trials(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "de"]) == 0
    shown = capsys.readouterr().out
    assert "recompute_modules=[core_attn]" in shown
    assert "OOM-fwd" in shown
    assert main(["status", "nothing"]) == 2
    assert "there is demo" in capsys.readouterr().err


def test_status_as_json_can_be_read_by_a_program(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["studies"][0]["labels"] == {"pass": 2, "OOM-fwd": 1}
    assert [one["label"] for one in found["trials"]] == ["pass", "pass", "OOM-fwd"]


def test_status_where_nothing_was_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert "No study has been run here yet" in capsys.readouterr().out
    assert not Path("results").exists()
    assert main(["status", "--db", "nowhere.sqlite"]) == 1
    assert "There is no database at" in capsys.readouterr().err
    assert not Path("nowhere.sqlite").exists()


@pytest.mark.parametrize(
    "words", [["--label", "OOM-bwd"], ["--state", "waiting"], ["--label", "pass", "--state", "no"]]
)
def test_retry_of_nothing_says_what_there_is(demo: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retry", "demo", *words]) == 3
    said = capsys.readouterr().err
    assert words[-1] in said
    assert "the labels OOM-fwd (1), pass (2)" in said


def test_retry_says_which_controls_come_along_and_what_to_do_next(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.dispatch.handover.hand_over_again", lambda *given: [])
    assert main(["retry", "demo", "--label", "OOM-fwd"]) == 0
    first, controls, after = capsys.readouterr().out.splitlines()
    assert first.startswith("1 trial runs again, in batch ")
    assert controls.startswith("with 1 run of a control (recompute_modules=[]), whatever came of it before")
    assert "`watch`" in after
    assert main(["retry", "demo", "--label", "pass", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["trials"], said["controls"]) == (["a" * 20, "c" * 20], [])


@pytest.mark.parametrize(
    "word", ["demo/recompute_modules=[core_attn]", "demo/recompute_modules=[c", "recompute_modules=[core_attn]"]
)
def test_a_trial_may_be_named_by_its_study_and_name(
    demo: Path, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.dispatch.handover.hand_over_again", lambda *given: [])
    layout.rank_log(layout.runs_dir(demo) / ("b" * 20) / "001", 1).write_text("said")
    assert main(["logs", word, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trial"] == "b" * 20
    assert main(["retry", word, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == ["b" * 20]


def test_a_name_that_two_trials_of_a_study_have_is_answered_with_their_ids(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "demo/recompute_modules=["]) == 2
    said = capsys.readouterr().err
    assert all(letter * 20 in said for letter in "abc")


def test_a_piped_watch_is_silent_while_nothing_but_the_clock_moves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ["backward, 3 s", "backward, 4 s", "backward, 5 s", "forward, 6 s", "forward, 7 s"]
    looks = iter([([f"  [mlp]: {place}"], place != shown[-1]) for place in shown])
    monkeypatch.setattr("orchestrator.cli.watch._look", lambda given: next(looks))
    assert main(["watch", "--every", "0"]) == 0
    assert capsys.readouterr().out == "  [mlp]: backward, 3 s\n  [mlp]: forward, 6 s\n"


def test_a_watch_ends_with_what_became_of_the_last_trial(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may end after its record was looked for, and before it is asked what runs."""
    trial = recorded.batch_trial("d" * 20, ["moe"])
    recorded.write_batch(demo, recorded.batch(demo, [trial], name="b2"))

    def nothing_runs(answering: object) -> list[object]:
        if not layout.trial_dir(demo, trial.trial).exists():
            recorded.write_attempt(demo, trial)
        return []

    monkeypatch.setattr("orchestrator.cli.watch.live", nothing_runs)
    assert main(["watch"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["demo", "4", "3"]


@pytest.mark.parametrize("verb", ["status", "compare"])
def test_a_database_one_folder_below_is_pointed_to(
    demo: Path, verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["collect"]) == 0
    above = demo.parent / "above" / "results"
    layout.make_private_dir(above)
    demo.rename(above / "demo")
    monkeypatch.chdir(above.parent)
    main([verb])
    shown = capsys.readouterr()
    assert "--results results/demo" in shown.out + shown.err


def test_status_says_where_a_running_trial_is(demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beacons = tmp_path / "beacons"
    layout.make_private_dir(beacons)
    for rank, stage in ((0, Stage.BACKWARD), (1, Stage.FORWARD)):
        writer = BeaconWriter(layout.beacon_file(beacons, rank), 4)
        writer.at(stage, 3 - rank, 1)
        writer.close()
    trial = recorded.batch_trial("d" * 20, ["moe"])
    record = replace(recorded.attempt_record(trial), ended_at=None)
    recorded.write_attempt(demo, trial, [], record=record, beacon_dir=str(beacons))
    assert main(["status"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("running"))
    assert "recompute_modules=[moe]  iteration 2/4, backward x1, forward x1" in line
    beacons.chmod(0o777)
    assert main(["status"]) == 0
    assert "recompute_modules=[moe]  started" in capsys.readouterr().out


def test_status_names_what_waits(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = [recorded.batch_trial(f"{number:020x}", [f"m{number}"]) for number in range(12)]
    path = recorded.write_batch(demo, recorded.batch(demo, waiting, name="b9"))
    lock = take_driver_lock(path.parent)  # a driver that has said nothing yet, and lives
    assert lock is not None
    assert main(["status"]) == 0
    os.close(lock)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("pending"))
    assert line.startswith("pending  12 ")
    assert "recompute_modules=[m0], " in line
    assert line.endswith("and 4 more")


def test_status_names_files_that_cannot_be_read(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout.rank_file(layout.attempt_dir(demo, "a" * 20, "001"), 0).write_text("{")
    for _ in range(2):
        assert main(["status"]) == 0
        assert "rank-00000.json: not a JSON file" in capsys.readouterr().err


def test_status_imports_neither_torch_nor_hydra_nor_alembic(demo: Path) -> None:
    assert main(["status"]) == 0
    code = (
        "import sys; from orchestrator.cli.main import main; assert main(['status', 'demo']) == 0; "
        "print([name for name in ('torch', 'hydra', 'alembic', 'sqlalchemy.orm', 'megatron') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_show_tells_where_a_trial_stopped_and_why(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "bbbb"]) == 0
    shown = capsys.readouterr().out
    assert "outcome  OOM-fwd, cause device_oom in forward, rank 1, 1 iterations completed" in shown
    assert "> rank 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." in shown
    assert "results/runs/bbbbbbbbbbbbbbbbbbbb/001" in shown


def test_show_says_which_rank_failed_first_and_what_each_ones_forwards_held(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "bbbb"]) == 0
    first, other = capsys.readouterr().out.partition("\nranks\n")[2].splitlines()[1:3]
    assert first.split()[:5] == ["1", "node0", "exit", "1,", "first"]
    assert other.split()[:4] == ["0", "node0", "terminated,", "cascade"]
    assert main(["show", "aaaa", "--json"]) == 0
    ranks = json.loads(capsys.readouterr().out)["attempts"][0]["ranks"]
    records = [recorded.rank_record("a" * 20, rank, base=800_000, ms=110.0) for rank in (0, 1)]
    for rank, record in zip(ranks, records, strict=True):
        stages = {stage.stage: stage for stage in record.stages}
        held = (stages[Stage.FORWARD].peak_allocated or 0) - (stages[Stage.BACKWARD].end_allocated or 0)
        assert rank["forward_adds"] == held > 0


def test_show_puts_requested_beside_effective(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "aaaa", "--brief"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["recompute_modules", '["mlp"]', "[]"] in lines
    assert ["recompute_granularity", "selective", "-"] in lines
    assert not any("peak memory by stage" in " ".join(line) for line in lines)


def test_show_lists_the_trials_of_a_study(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trials"][0]["name"] == "recompute_modules=[]"
    assert main(["show", "demo"]) == 0
    assert "aaaaaaaaaaaa  recompute_modules=[mlp]" in capsys.readouterr().out


def test_show_of_a_refused_trial_gives_the_reason(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = PlannedRow("e" * 20, "mlpp", "mcore_cpu", 2, recorded.config(["mlpp"]), "rejected", ["no label mlpp"])
    with open_store(demo / "store.sqlite", write=True) as store:
        record_plan(store, demo, PlanRecord("demo", recorded.START, [refused]))
    assert main(["show", "mlpp"]) == 0
    shown = capsys.readouterr().out
    assert "[rejected]\n         no label mlpp\n" in shown
    assert "outcome  not run" in shown


def test_names_from_outside_are_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    layout.make_private_dir(results)
    trial = replace(recorded.batch_trial("d" * 20, [HOSTILE]), name=HOSTILE)
    recorded.write_batch(results, recorded.batch(results, [trial], study=HOSTILE))
    rank = recorded.out_of_memory(replace(recorded.rank_record("d" * 20, 0), host=HOSTILE, software={HOSTILE: HOSTILE}))
    record = replace(recorded.attempt_record(trial), name=HOSTILE, study=HOSTILE, launch_error=HOSTILE)
    recorded.write_attempt(results, trial, [rank], record=record)
    for words in (["status"], ["show", "dddd"], ["query", "SELECT * FROM v_trials"], ["status", "x[bold"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert "x[bold red]\\x1b[31m\\u202eevil\\n'; DROP TABLE trials; --" in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    assert main(["show", "dddd", "--json"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert main(["show", HOSTILE + "?"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_query_prints_tables_csv_and_json(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT name, peak_allocated, label FROM v_trials ORDER BY name"
    assert main(["query", sql]) == 0
    assert "recompute_modules=[mlp]               1201024  pass" in capsys.readouterr().out
    assert main(["query", sql, "--csv"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["name", "peak_allocated", "label"]
    assert ["recompute_modules=[mlp]", "1201024", "pass"] in rows
    assert main(["query", sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[2]["peak_allocated"] == 1201024


def test_query_refuses_to_change_anything(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "DELETE FROM trials"]) == 2
    assert "A query can only read" in capsys.readouterr().err
    assert main(["query", "SELECT * FROM trails"]) == 2
    assert "lists the views" in capsys.readouterr().err
    assert main(["query", "SELECT", "name", "FROM", "v_trials"]) == 2
    capsys.readouterr()


def test_query_answers_questions_by_name(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "oom-by-stage"]) == 0
    assert "OOM-fwd  forward" in capsys.readouterr().out
    assert main(["query", "hot-ranks", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["hottest_in"] == 3
    assert main(["query", "hot-rank", "demo"]) == 2
    assert "did you mean hot-ranks?" in capsys.readouterr().err
    assert main(["query", "hot-ranks"]) == 2
    assert "name it" in capsys.readouterr().err
    assert main(["query"]) == 0
    shown = capsys.readouterr().out
    for name in ("v_trials", "v_stage_memory", "v_iterations", "v_compare", "oom-by-stage", "regressions"):
        assert name in shown


def test_query_regressions_names_a_revision_that_no_trial_ran_with(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "regressions"]) == 2
    assert "--from REV and --to REV" in capsys.readouterr().err
    assert main(["query", "regressions", "--from", "aaaa", "--to", "ffff"]) == 2
    assert "No trial ran with ffff" in capsys.readouterr().err


def test_collect_says_what_it_took_in(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect"]) == 0
    assert capsys.readouterr().out.startswith("3 new attempts, 0 updated, 6 rank records, into ")
    assert main(["collect", "--json", "--reclassify"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["new"], found["reclassified"]["examined"]) == (0, 3)


def test_database_beside_results_finds_them(demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert main(["status", "--db", str(demo / "store.sqlite"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["studies"][0]["trials"] == 3


def test_db_path_and_upgrade_name_the_database(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(demo / "store.sqlite")
    assert not (demo / "store.sqlite").exists()
    assert main(["db", "upgrade"]) == 0
    assert "schema none -> " in capsys.readouterr().out
    assert main(["db", "upgrade"]) == 0
    assert "up to date" in capsys.readouterr().out
    assert main(["db", "path", "--db", "postgresql://me:secret@nowhere/x", "--json"]) == 1
    assert "secret" not in "".join(capsys.readouterr())


def test_database_that_cannot_be_used_is_one_line_and_exit_code_1(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    garbage = tmp_path / "garbage.sqlite"
    garbage.write_text("this is no database, and long enough to be taken for a header of one" * 20)
    assert main(["status", "--db", str(garbage)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a SQLite database" in line
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    assert main(["collect", "--db", f"sqlite:///{blocked}/store.sqlite"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "set results_dir or store.url" in line
    assert main(["status", "--db", "mysql://me:secret@host/x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "postgresql://" in line
    assert "secret" not in line


def test_full_disk_is_one_line_and_what_was_stored_stays(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect"]) == 0
    trial = recorded.batch_trial("d" * 20, ["moe"], world_size=64)
    recorded.write_attempt(demo, trial)
    capsys.readouterr()
    with open_store(demo / "store.sqlite", write=True) as store:
        from sqlalchemy import event

        from orchestrator.config.errors import EnvironmentFailure
        from orchestrator.store.collect import collect

        event.listen(store.engine, "connect", lambda raw, _: raw.execute("PRAGMA max_page_count = 1"))
        store.engine.dispose()
        with pytest.raises(EnvironmentFailure, match=r"The disk that holds .* is full"):
            collect(store, demo)
    assert main(["collect", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["new"] == 1


@pytest.mark.parametrize(
    "words", ["status", "compare", "diagnose", "export", "query oom-by-stage", "show x", "db path"]
)
def test_a_verb_that_only_asks_leaves_no_empty_database(
    tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)
    layout.make_private_dir(tmp_path / "results" / "runs")
    assert main(words.split()) in (0, 1)
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["runs"]


def test_collect_without_a_results_folder_says_so_and_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)
    assert main(["collect"]) == 2
    assert "--results names one" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
