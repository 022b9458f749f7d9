"""What every back end has to do. SQLite in the unit suite; PostgreSQL, where a server is installed, in integration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recorded
from postgresql import BINARIES, Server
from sqlalchemy import text

from orchestrator.cli.main import main
from orchestrator.config.errors import EnvironmentFailure, UsageError
from orchestrator.records import layout
from orchestrator.records.jsonfile import read_json
from orchestrator.records.rank import LastBeacon
from orchestrator.store import query
from orchestrator.store.collect import Collected, collect, open_problems
from orchestrator.store.database import Store, describe, open_store
from orchestrator.store.detail import rank_records, trial_detail
from orchestrator.store.find import find
from orchestrator.store.find_study import find_study
from orchestrator.store.merge import merge
from orchestrator.store.models import Base
from orchestrator.store.overview import running, studies, trial_lines, waiting
from orchestrator.store.plans import PlannedRow, PlanRecord, known_results, new_plan, record_plan, trials_with_prefix
from orchestrator.store.reclassify import reclassify
from orchestrator.store.schema import REVISIONS
from orchestrator.vocabulary import Stage

BACK_ENDS = ["sqlite", *([pytest.param("postgresql", marks=pytest.mark.integration)] if BINARIES else [])]

CONTROL, MLP, ATTENTION = "c" * 20, "a" * 20, "b" * 20


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture(params=BACK_ENDS)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Makes URLs of databases that are not there yet (SQLite) or are empty (PostgreSQL)."""
    if request.param == "postgresql":
        with request.getfixturevalue("postgresql_server").lend() as new_database:
            yield new_database
    else:
        numbers = iter(range(100))
        yield lambda: f"sqlite:///{tmp_path}/db{next(numbers)}.sqlite"


@pytest.fixture
def url(new_url: Any) -> str:
    return str(new_url())


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    layout.make_private_dir(folder)
    return folder


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url, write=True) as opened:
        yield opened


def contents(store: Store, *, derived: bool = True) -> dict[str, list[Any]]:
    """Every row of every table, without what differs between two collections of the same files."""
    left_out = {"first_seen", "stamp"} | (set() if derived else {"id", "attempt_id", "rank_id", "study_id"})
    found = {}
    with store.reading() as connection:
        for table in Base.metadata.sorted_tables:
            columns = [column for column in table.columns if column.name not in left_out]
            rows = connection.execute(table.select().with_only_columns(*columns)).all()
            found[table.name] = sorted(map(repr, rows))
    return found


def outcomes(store: Store) -> dict[str, tuple[str, str | None]]:
    with store.reading() as connection:
        return {one.trial: (one.state, one.label) for one in trial_lines(connection, "demo")}


def test_collected_study_has_labels_peaks_and_step_times(store: Store, results: Path) -> None:
    recorded.demo(results)
    found = collect(store, results)
    assert (found.new, found.ranks, found.batches, found.problems) == (3, 6, 1, [])
    with store.reading() as connection:
        lines = {one.trial: one for one in trial_lines(connection, "demo")}
    control, mlp, attention = lines[CONTROL], lines[MLP], lines[ATTENTION]
    assert (control.label, mlp.label, attention.label) == ("pass", "pass", "OOM-fwd")
    assert (control.modules, mlp.modules) == ("[]", "[mlp]")
    # Iterations 3 and 4 are the window: 101 and 100 ms, the odd one a millisecond longer.
    assert control.step_ms == pytest.approx(100.5)
    assert mlp.step_ms == pytest.approx(110.5)
    assert attention.step_ms is None
    assert (control.peak_allocated_rank, control.peak_allocated_stage) == (0, "between_steps")
    assert control.peak_allocated == 1_500_000 + 2 * 512
    assert (attention.iteration, attention.state) == (1, "ended")


def test_collecting_again_changes_nothing(store: Store, results: Path) -> None:
    recorded.demo(results)
    collect(store, results)
    before = contents(store)
    again = collect(store, results)
    assert not again.changed
    assert contents(store) == before


def test_database_can_be_rebuilt_from_the_results_folder(new_url: Any, results: Path) -> None:
    trials = recorded.demo(results)
    with open_store(new_url(), write=True) as first:
        record_plan(first, results, plan_of(trials))
        collect(first, results)
        lived = contents(first, derived=False)
    with open_store(new_url(), write=True) as second:
        collect(second, results)
        assert contents(second, derived=False) == lived
        with second.reading() as connection:
            assert studies(connection)[0].states == {"ended": 3, "rejected": 1}


def test_running_attempt_becomes_its_outcome_when_it_ends(store: Store, results: Path) -> None:
    trial = recorded.batch_trial(MLP, ["mlp"])
    recorded.write_batch(results, recorded.batch(results, [trial, recorded.batch_trial(CONTROL, [])]))
    ended = recorded.attempt_record(trial)
    run_dir = recorded.write_attempt(results, trial, [], record=replace(ended, ended_at=None))
    assert collect(store, results).new == 1
    assert outcomes(store) == {MLP: ("running", None), CONTROL: ("pending", None)}
    with store.reading() as connection:
        assert [one.trial for one in running(connection)] == [MLP]
        assert [one.trial for one in waiting(connection)] == [CONTROL]
    recorded.write_attempt(results, trial, record=ended)
    found = collect(store, results)
    assert (found.new, found.updated, found.ranks) == (0, 1, 2)
    assert outcomes(store)[MLP] == ("ended", "pass")
    assert run_dir.is_dir()


def test_trial_of_a_finished_batch_that_never_ran_is_planned_not_pending(store: Store, results: Path) -> None:
    trial = recorded.batch_trial(MLP, ["mlp"])
    path = recorded.write_batch(results, recorded.batch(results, [trial]))
    recorded.write(path.parent / "driver.json", {"batch": "b1", "state": "cancelled", "host": "here", "heartbeat": 1.0})
    collect(store, results)
    assert outcomes(store) == {MLP: ("planned", None)}


def test_attempt_that_its_job_cut_short_is_unfinished(store: Store, results: Path) -> None:
    trial = recorded.batch_trial(MLP, ["mlp"])
    record = replace(recorded.attempt_record(trial), cut_short="job_time_limit")
    terminated = [
        replace(recorded.rank_record(MLP, rank, iterations=1), ended="terminated", measured=False) for rank in range(2)
    ]
    recorded.write_attempt(results, trial, terminated, record=record)
    collect(store, results)
    assert outcomes(store)[MLP] == ("unfinished", None)
    with store.reading() as connection:
        states = connection.execute(text("SELECT state FROM v_attempts WHERE trial = :trial"), {"trial": MLP}).scalars()
        assert list(states) == ["unfinished"]


def test_unreadable_files_are_named_and_hold_up_nothing_else(store: Store, results: Path) -> None:
    trials = recorded.demo(results)
    broken = layout.attempt_dir(results, MLP, "001")
    layout.rank_file(broken, 1).write_text("{ not json")
    newer = recorded.encode(recorded.rank_record(ATTENTION, 0)) | {"schema": 99}
    recorded.write(layout.rank_file(layout.attempt_dir(results, ATTENTION, "001"), 0), newer)
    moved = recorded.write_attempt(results, recorded.batch_trial("d" * 20, ["moe"]))
    recorded.write(moved / layout.ATTEMPT_FILE, recorded.attempt_record(trials[0]))
    found = collect(store, results)
    assert found.new == 3
    messages = sorted(problem.message for problem in open_problems(store))
    assert len(messages) == 3
    assert "rank-00001.json: not a JSON file" in messages[0]
    assert "schema 99 is newer than" in messages[1]
    assert "in the wrong folder" in messages[2]
    assert outcomes(store)[CONTROL] == ("ended", "pass")
    assert outcomes(store)[MLP][1] != "pass"
    recorded.write(layout.rank_file(broken, 1), recorded.rank_record(MLP, 1))
    assert collect(store, results).updated == 1
    assert outcomes(store)[MLP] == ("ended", "pass")
    assert len(open_problems(store)) == 2


def test_what_only_the_database_refuses_holds_up_no_other_attempt(new_url: Any, results: Path) -> None:
    recorded.demo(results)
    run_dir = recorded.write_attempt(results, recorded.batch_trial("f" * 20, ["mlp"]))
    path = layout.rank_file(run_dir, 0)
    record = read_json(path)
    record["iterations"][0]["milliseconds"] = "nan"  # SQLite stores it as NULL, where a number must be
    recorded.write(path, record)
    with open_store(new_url(), write=True) as store:
        found = collect(store, results)
        assert outcomes(store)[CONTROL] == ("ended", "pass")
        assert found.new >= 3
        if store.is_sqlite:
            assert [problem.path for problem in found.problems] == [str(run_dir)]


@pytest.mark.parametrize("batch", ["\ud800", "nul \0"])
def test_an_id_that_no_column_can_hold_is_a_problem_of_its_attempt_alone(
    store: Store, results: Path, batch: str
) -> None:
    recorded.demo(results)
    trial = recorded.batch_trial("f" * 20, ["mlp"])
    recorded.write_attempt(results, trial, record=replace(recorded.attempt_record(trial), batch=batch))
    found = collect(store, results)
    assert found.new == 3
    assert ["is no name that a database can hold" in problem.message for problem in found.problems] == [True]


@pytest.mark.parametrize("file", ["plan", "batch", "spec"])
def test_a_number_that_no_column_can_hold_is_a_problem_of_its_file_alone(
    store: Store, results: Path, file: str
) -> None:
    recorded.demo(results)
    one = PlannedRow("e" * 20, "x", "mcore_cpu", 2, {}, "new", steady_window=(1, 2), train_iters=2**70)
    huge = replace(recorded.batch_trial("f" * 20, ["mlp"]), train_iters=2**70)
    if file == "plan":
        path = results / "plans" / "p.json"
        layout.make_private_dir(path.parent)
        recorded.write(path, new_plan("demo", [one]))
    elif file == "batch":
        path = recorded.write_batch(results, replace(recorded.batch(results, [huge]), batch="f" * 12))
    else:
        path = recorded.write_attempt(results, huge)
    found = collect(store, results)
    assert found.new == 3
    assert [(problem.path.startswith(str(path)), "plan" in problem.path) for problem in found.problems] == [
        (True, file == "plan")
    ]
    assert outcomes(store)[CONTROL] == ("ended", "pass")


@pytest.mark.parametrize(
    "damage",
    [
        {"iterations": [{"number": 1, "milliseconds": 1.0, "stages": [{"stage": "forward"}]}]},
        {"iterations": [{"number": 1, "milliseconds": 1.0, "stages": 7}]},
        {"iterations": 7},
        {"iterations": [7]},
        {"stages": [{"stage": "forward", "entries": 2**70}]},
        {"stages": [{"stage": "nowhere", "entries": 1}]},
        {"exit_code": 2**80},
        {"software": {"deep": None}, "stages": None},
        {"rank": 5},
    ],
    ids=str,
)
def test_damaged_rank_record_is_a_problem_of_that_rank_alone(store: Store, results: Path, damage: Any) -> None:
    trial = recorded.batch_trial(MLP, ["mlp"])
    run_dir = recorded.write_attempt(results, trial)
    raw = recorded.encode(recorded.rank_record(MLP, 1)) | damage
    recorded.write(layout.rank_file(run_dir, 1), raw)
    found = collect(store, results)
    assert (found.new, len(found.problems)) == (1, 1)
    assert found.problems[0].path.endswith("rank-00001.json")
    with store.reading() as connection:
        detail = trial_detail(connection, MLP)
    assert detail is not None
    assert [one.rank for one in detail.attempts[0].ranks] == [0]


def test_text_that_a_database_refuses_is_spelt_out(store: Store, results: Path) -> None:
    trial = replace(recorded.batch_trial(MLP, ["mlp"]), name="nul \0 and \ud800 and '; DROP TABLE trials; --")
    recorded.write_batch(results, recorded.batch(results, [trial], study="it's [bold]\x1b[31m"))
    record = replace(recorded.attempt_record(trial), study="it's [bold]\x1b[31m")
    rank = recorded.out_of_memory(replace(recorded.rank_record(MLP, 0), host="n\0de", notes=["\ud800"]))
    recorded.write_attempt(results, trial, [rank], record=record)
    assert collect(store, results).problems == []
    with store.reading() as connection:
        assert [one.name for one in studies(connection)] == ["it's [bold]\x1b[31m"]
        detail = trial_detail(connection, MLP)
    assert detail is not None
    assert detail.attempts[0].hosts == ["n\\x00de"]


def test_secrets_never_reach_the_database(url: str, results: Path) -> None:
    secret = "hf_" + "Q7x" * 10
    trial = replace(recorded.batch_trial(MLP, ["mlp"]), environment={"HF_TOKEN": secret, "A": f"x {secret}"})
    config = {**trial.config, "trainer": {"name": "bridge", "wandb_api_key": secret}}
    trial = replace(trial, config=config, name=f"n={secret}")
    made = replace(recorded.batch(results, [trial]), launcher={"kind": "local", "setup": [f"export T={secret}"]})
    recorded.write_batch(results, made)
    rank = replace(
        recorded.out_of_memory(recorded.rank_record(MLP, 0)),
        stderr_tail=f"login {secret}",
        software={"token": secret, "torch": secret},
        effective={"logger": {"wandb_key": secret}},
        notes=[secret],
        host=secret,
    )
    assert rank.exception is not None
    rank = replace(rank, exception=replace(rank.exception, message=f"{rank.exception.message} {secret}"))
    record = replace(recorded.attempt_record(trial), launch_error=f"no {secret}", scheduler={"comment": secret})
    recorded.write_attempt(results, trial, [rank], record=record)
    plan = PlanRecord("demo", 1.0, [PlannedRow("e" * 20, secret, "bridge", 2, config, reasons=[secret])])
    with open_store(url, write=True) as store:
        record_plan(store, results, plan)
        assert collect(store, results).problems == []
        everything = str(contents(store))
        assert secret not in everything
        with store.reading() as connection:
            detail = trial_detail(connection, MLP)
            assert detail is not None
            records = rank_records(connection, detail.attempts[0].id)
    assert secret not in str(records)
    assert secret not in "".join(path.read_text() for path in (results / "plans").iterdir())


def test_another_users_results_are_not_read(store: Store, results: Path) -> None:
    recorded.demo(results)
    results.chmod(0o777)
    with pytest.raises(layout.UntrustedFolderError, match="chmod go-w"):
        collect(store, results)
    results.chmod(0o700)
    layout.attempt_dir(results, MLP, "001").chmod(0o770)
    layout.rank_file(layout.attempt_dir(results, CONTROL, "001"), 0).chmod(0o666)
    found = collect(store, results)
    assert sorted(Path(one.path).name for one in found.problems) == ["001", "rank-00000.json"]
    assert MLP in outcomes(store)
    assert outcomes(store)[MLP] == ("pending", None)


def test_newest_result_speaks_for_a_trial(store: Store, results: Path) -> None:
    trial = recorded.batch_trial(MLP, ["mlp"])
    hang = [
        replace(recorded.rank_record(MLP, rank, attempt="002"), ended="stall", exit_code=None, measured=False)
        for rank in range(2)
    ]
    recorded.write_attempt(results, trial)
    second = replace(recorded.attempt_record(trial), attempt="002", started_at=recorded.START + 500)
    recorded.write_attempt(results, trial, hang, record=second)
    collect(store, results)
    with store.reading() as connection:
        detail = trial_detail(connection, MLP)
    assert detail is not None
    assert [(one.number, one.label, one.decides) for one in detail.attempts] == [
        ("001", "pass", True),
        ("002", "failed:hang", False),
    ]
    assert known_results(store, [MLP, CONTROL]) == {MLP: "pass"}


def test_trial_that_failed_without_a_result_is_not_known(store: Store, results: Path) -> None:
    trial = recorded.batch_trial(MLP, ["mlp"])
    record = replace(recorded.attempt_record(trial), cancelled=True)
    recorded.write_attempt(results, trial, [], record=record)
    collect(store, results)
    assert outcomes(store)[MLP] == ("ended", "failed:cancelled")
    assert known_results(store, [MLP]) == {}
    assert trials_with_prefix(store, ["a" * 14]) == {}


def test_same_request_with_other_software_is_found_by_its_prefix(store: Store, results: Path) -> None:
    recorded.demo(results)
    collect(store, results)
    assert trials_with_prefix(store, ["a" * 14, "_" * 14, "%"]) == {MLP: "pass"}


def plan_of(trials: list[Any]) -> PlanRecord:
    rows = [PlannedRow(one.trial, one.name, one.trainer, one.world_size, one.config, role=one.role) for one in trials]
    refused = PlannedRow("e" * 20, "mlpp", "mcore_cpu", 2, recorded.config(["mlpp"]), "rejected", ["no label mlpp"])
    return PlanRecord("demo", recorded.START, [*rows, refused], {"target_gb": 40})


def test_plan_keeps_its_order_its_refusals_and_is_one_plan_twice(store: Store, results: Path) -> None:
    trials = recorded.demo(results)
    plan = plan_of(trials)
    path = record_plan(store, results, plan)
    before = contents(store)
    assert record_plan(store, results, replace(plan, created_at=recorded.START + 99)) == path
    assert contents(store) == before
    collect(store, results)
    with store.reading() as connection:
        lines = trial_lines(connection, "demo")
        refused = trial_detail(connection, "e" * 20)
    assert [one.trial for one in lines] == [CONTROL, MLP, ATTENTION, "e" * 20]
    assert (lines[3].state, lines[3].label) == ("rejected", "rejected")
    assert refused is not None
    assert refused.studies[0].reasons == ["no label mlpp"]


def test_plan_in_an_unwritable_folder_is_refused_and_nothing_is_stored(store: Store, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(EnvironmentFailure, match="results_dir"):
        record_plan(store, blocked / "results", plan_of([]))
    with store.reading() as connection:
        assert studies(connection) == []


def test_reader_cannot_write_by_any_statement(url: str, store: Store, results: Path) -> None:
    recorded.demo(results)
    collect(store, results)
    with open_store(url) as reader:
        for statement in ("DELETE FROM trials", "CREATE TABLE mine (x INTEGER)", "UPDATE attempts SET label = 'pass'"):
            with pytest.raises(EnvironmentFailure), reader.reading() as connection:
                connection.execute(text(statement))
        with pytest.raises(RuntimeError), reader.writing():
            pass
    assert outcomes(store)[MLP] == ("ended", "pass")


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM trials",
        "WITH x AS (SELECT 1) DELETE FROM trials",
        "SELECT 1; DROP TABLE trials",
        "UPDATE trials SET trainer = 'x' RETURNING id",
        "CREATE TEMP TABLE t AS SELECT 1",
        "ATTACH DATABASE '{folder}/query.db' AS other",
        "PRAGMA query_only = OFF",
        "VACUUM INTO '{folder}/query.db'",
        "SELECT load_extension('x')",
        "SET TRANSACTION READ WRITE",
        "COPY trials TO '/tmp/query-copy.csv'",
        "BEGIN",
        "",
        ";",
        "SELECT '",
        "SELECT * FROM nowhere",
    ],
)
def test_query_that_is_no_select_is_refused(url: str, store: Store, results: Path, tmp_path: Path, sql: str) -> None:
    recorded.demo(results)
    collect(store, results)
    before = contents(store)
    with open_store(url) as reader:
        with pytest.raises(UsageError):
            query.ask(reader, sql.format(folder=tmp_path))
        assert query.ask(reader, "SELECT COUNT(*) FROM v_trials").rows == [(3,)]
    assert contents(store) == before
    assert not (tmp_path / "query.db").exists()
    assert not Path("/tmp/query-copy.csv").exists()


def test_query_reads_the_documented_views(url: str, store: Store, results: Path) -> None:
    recorded.demo(results)
    collect(store, results)
    with open_store(url) as reader:
        columns = query.view_columns(reader, [view.name for view in query_views()])
        assert all(columns.values())
        answer = query.ask(
            reader,
            "SELECT name, peak_allocated_delta, step_ms_delta FROM v_compare WHERE label = 'pass' ORDER BY name; ",
        )
        assert answer.columns == ("name", "peak_allocated_delta", "step_ms_delta")
        assert answer.rows == [("recompute_modules=[]", 0, 0.0), ("recompute_modules=[mlp]", -300_000, 10.0)]
        forward = "SELECT MAX(window_allocated) FROM v_stage_memory WHERE stage = 'forward' AND trial LIKE 'c%'"
        assert query.ask(reader, forward).rows == [(1_000_000 + 2 * 512,)]
        assert query.ask(reader, "SELECT COUNT(*) FROM v_iterations").rows == [(2 * 4 * 2 + 1,)]


def query_views() -> Any:
    from orchestrator.store.views import VIEWS

    return VIEWS


def test_named_questions_say_where_memory_ran_out_and_which_ranks_are_hot(
    url: str, store: Store, results: Path
) -> None:
    recorded.demo(results)
    collect(store, results)
    with open_store(url) as reader:
        stages = query.question(reader, query.OOM_BY_STAGE, None)
        assert [row[:3] for row in stages.rows] == [("OOM-fwd", "forward", 1)]
        assert query.question(reader, query.OOM_BY_STAGE, "other").rows == []
        hot = query.question(reader, query.HOT_RANKS, "demo")
        ranks = [dict(zip(hot.columns, row, strict=True)) for row in hot.rows]
    assert [(row["rank"], row["trials"], row["hottest_in"]) for row in ranks] == [(0, 3, 3), (1, 3, 0)]


def test_names_may_be_cut_short_where_that_is_clear(store: Store, results: Path) -> None:
    recorded.demo(results)
    other = recorded.batch_trial("ab" * 10, ["moe"])
    recorded.write_batch(results, recorded.batch(results, [other], name="b2", study="demonstration"))
    collect(store, results)
    with store.reading() as connection:
        assert find(connection, "demo").kind == "study"
        assert find(connection, "demons").name == "demonstration"
        assert find(connection, "aa").name == MLP
        assert find(connection, "recompute_modules=[mlp]").name == MLP
        assert find_study(connection, "demons") == "demonstration"
        for word, said in (("dem", "not clear"), ("a", "not clear"), ("%", "Nothing is called"), ("_", "Nothing")):
            with pytest.raises(UsageError, match=said):
                find(connection, word)
        with pytest.raises(UsageError, match="did you mean demo"):
            find(connection, "demoo")
        with pytest.raises(UsageError, match="there is demo"):
            find_study(connection, "dmo")


def test_labels_are_a_name_as_tables_print_them(store: Store, results: Path) -> None:
    names = {"11" * 10: "[moe]", "22" * 10: "[layernorm,moe]"}
    trials = [replace(recorded.batch_trial(trial, ["moe"]), name=name) for trial, name in names.items()]
    recorded.write_batch(results, recorded.batch(results, trials, name="b2", study="other"))
    collect(store, results)
    with store.reading() as connection:
        for word in ("moe", "[moe]", "other/moe"):
            assert find(connection, word).name == "11" * 10
        assert find(connection, "layernorm, moe").name == "22" * 10


def test_two_databases_merge_without_losing_or_doubling(new_url: Any, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        layout.make_private_dir(folder)
    recorded.demo(one)
    extra = recorded.batch_trial("d" * 20, ["moe"])
    again = recorded.batch_trial(MLP, ["mlp"])
    recorded.write_batch(two, recorded.batch(two, [extra, again], name="b2"))
    recorded.write_attempt(two, extra, record=replace(recorded.attempt_record(extra), batch="b2"))
    # The same trial and attempt number, and another execution.
    other = replace(recorded.attempt_record(again), batch="b2", started_at=recorded.START + 900)
    recorded.write_attempt(two, again, record=other)
    urls = [str(new_url()) for _ in range(4)]
    for url, folder in zip(urls[:2], (one, two), strict=True):
        with open_store(url, write=True) as store:
            collect(store, folder)
    merged = []
    for target, order in ((urls[2], urls[:2]), (urls[3], reversed(urls[:2]))):
        with open_store(target, write=True) as store:
            for source in [*order, urls[0]]:
                with open_store(source) as reader:
                    merge(store, reader)
            with store.reading() as connection:
                rows = connection.execute(
                    text("SELECT trial, attempt, batch, label, decides FROM v_attempts ORDER BY trial, batch")
                ).all()
                ranks = connection.execute(text("SELECT COUNT(*) FROM stage_memory")).scalar_one()
            merged.append((rows, ranks, sorted(outcomes(store).items())))
    assert merged[0] == merged[1]
    rows = merged[0][0]
    assert len(rows) == 5
    assert [row.decides for row in rows if row.trial == MLP] == [False, True]
    with open_store(urls[2], write=True) as store, open_store(urls[1]) as reader:
        before = contents(store)
        found = merge(store, reader)
        assert (found.new, found.updated, found.known) == (0, 0, 2)
        assert contents(store) == before


def test_merging_brings_the_end_of_an_attempt_that_was_known_running(new_url: Any, results: Path) -> None:
    trial = recorded.batch_trial(MLP, ["mlp"])
    recorded.write_attempt(results, trial, [], record=replace(recorded.attempt_record(trial), ended_at=None))
    early, late = str(new_url()), str(new_url())
    with open_store(early, write=True) as store:
        collect(store, results)
    recorded.write_attempt(results, trial)
    with open_store(late, write=True) as store:
        collect(store, results)
    with open_store(early, write=True) as store, open_store(late) as reader:
        found = merge(store, reader)
        assert (found.new, found.updated) == (0, 1)
        assert outcomes(store)[MLP] == ("ended", "pass")
    with open_store(late, write=True) as store, open_store(early) as reader:
        assert merge(store, reader).known == 1


def test_reclassify_derives_labels_from_the_kept_evidence(store: Store, results: Path) -> None:
    recorded.demo(results)
    collect(store, results)
    before = contents(store)
    assert reclassify(store).changed == []
    assert contents(store) == before
    with store.writing() as connection:
        connection.execute(text("UPDATE attempts SET label = 'failed:unknown', cause = 'unknown', rules = NULL"))
    found = reclassify(store)
    assert (found.examined, len(found.changed)) == (3, 3)
    assert contents(store) == before


def test_evidence_of_a_rank_comes_back_whole(store: Store, results: Path) -> None:
    recorded.demo(results)
    collect(store, results)
    with store.reading() as connection:
        detail = trial_detail(connection, CONTROL)
        assert detail is not None
        records = rank_records(connection, detail.attempts[0].id)
    assert records == {rank: recorded.rank_record(CONTROL, rank) for rank in range(2)}


def test_detail_shows_stages_iterations_and_ranks(store: Store, results: Path) -> None:
    recorded.demo(results)
    collect(store, results)
    with store.reading() as connection:
        detail = trial_detail(connection, ATTENTION)
        assert trial_detail(connection, "nothing") is None
    assert detail is not None
    attempt = detail.deciding
    assert attempt is not None
    assert (attempt.rank, attempt.stage, attempt.iteration) == (1, "forward", 1)
    assert {(one.stage, one.iteration) for one in attempt.ranks if one.exception_type} == {("forward", 2)}
    assert "Tried to allocate 2.00 GiB" in attempt.evidence[0]
    forward = next(one for one in attempt.stages if one.stage == "forward")
    assert (forward.ranks, forward.peak_allocated_rank) == (2, 0)
    assert forward.lowest_allocated is not None
    assert forward.peak_allocated is not None
    assert forward.peak_allocated - forward.lowest_allocated == 1000
    assert [one.number for one in attempt.iterations] == [1]
    assert [one.stage for one in attempt.stages][:2] == ["startup", "model_build"]


def test_loss_that_is_not_finite_is_absent_and_marked(store: Store, results: Path) -> None:
    trial = recorded.batch_trial(MLP, ["mlp"])
    record = recorded.rank_record(MLP, 0)
    bad = replace(record.iterations[1], loss=float("nan"), grad_norm=float("inf"))
    iterations = [record.iterations[0], bad, *record.iterations[2:]]
    recorded.write_attempt(results, trial, [replace(record, iterations=iterations), recorded.rank_record(MLP, 1)])
    collect(store, results)
    with store.reading() as connection:
        detail = trial_detail(connection, MLP)
    assert detail is not None
    attempt = detail.attempts[0]
    assert attempt.label == "failed:non_finite"
    assert [one.nan for one in attempt.iterations] == [False, True, False, False]


def test_opening_again_finds_the_newest_schema(url: str, store: Store) -> None:
    where, revision, _ = describe(url)
    assert revision == REVISIONS[-1]
    assert "tester" in where or where.endswith(".sqlite")
    with open_store(url, write=True), open_store(url):
        pass


def test_newer_schema_is_refused_with_what_would_help(url: str, store: Store) -> None:
    with store.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0999'"))
    for write in (True, False):
        with pytest.raises(EnvironmentFailure, match=r"newer release.*Upgrade recompute-orchestrator"):
            open_store(url, write=write)


def test_older_schema_is_left_to_its_owner_by_a_reader(url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.schema.REVISIONS", (*REVISIONS, "0999"))
    with pytest.raises(EnvironmentFailure, match=r"older schema .* `db upgrade`"):
        open_store(url)


def test_database_of_another_program_is_refused(url: str, tmp_path: Path) -> None:
    import sqlalchemy

    from orchestrator.store.database import parse_url

    engine = sqlalchemy.create_engine(parse_url(url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE invoices (id INTEGER)"))
    engine.dispose()
    for write in (True, False):
        with pytest.raises(EnvironmentFailure, match="other tables"):
            open_store(url, write=write)


def test_migrations_make_what_the_models_say(store: Store) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_locked_database_says_so_and_nothing_is_lost(url: str, store: Store, results: Path) -> None:
    recorded.demo(results)
    lock = "SELECT 1" if store.is_sqlite else "LOCK TABLE studies, batches, sources IN EXCLUSIVE MODE"
    with open_store(url, write=True, busy_seconds=0.2) as second:
        with store.writing() as connection:
            connection.execute(text(lock))
            with pytest.raises(EnvironmentFailure, match="database is locked"):
                collect(second, results)
        assert collect(second, results).new == 3


def test_many_results_are_read_by_worker_processes_with_the_same_outcome(new_url: Any, results: Path) -> None:
    recorded.demo(results)
    kept: list[Any] = []
    for workers in (0, 2):
        with open_store(new_url(), write=True) as store:
            found = collect(store, results, workers=workers)
            assert isinstance(found, Collected)
            kept.append(contents(store))
    assert kept[0] == kept[1]


def test_supervisor_that_left_no_iterations_still_has_its_stages(store: Store, results: Path) -> None:
    trial = recorded.batch_trial(MLP, ["mlp"])
    lost = replace(
        recorded.rank_record(MLP, 0),
        ended="lost",
        exit_code=None,
        measured=False,
        iterations=[],
        beacon=LastBeacon(Stage.BACKWARD, 1, 2, recorded.START + 5),
    )
    recorded.write_attempt(results, trial, [lost])
    collect(store, results)
    with store.reading() as connection:
        detail = trial_detail(connection, MLP)
    assert detail is not None
    assert detail.attempts[0].peak_allocated is not None
    assert detail.attempts[0].step_ms is None


def test_verbs_answer_from_either_back_end(url: str, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded.demo(results)
    where = ["--db", url, "--results", str(results)]
    for words, said in (
        (["status", "demo"], "OOM-fwd"),
        (["show", "bbbb"], "cause device_oom in forward"),
        (["show", "demo"], "recompute_modules=[mlp]"),
        (["compare", "demo"], "mlp"),
        (["query", "hot-ranks", "demo"], "hottest_in"),
        (["query"], "v_stage_memory: "),
        (["collect", "--reclassify"], "3 attempts classified again, 0 labels changed"),
        (["db", "upgrade"], "up to date"),
    ):
        assert main([*words, *where]) == 0
        assert said in capsys.readouterr().out
    assert main(["status", "other", *where]) == 2
    assert "there is demo" in capsys.readouterr().err


def test_other_user_of_a_team_database_reads_what_is_there(
    url: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.demo(results)
    with open_store(url, write=True) as store:
        collect(store, results)
    results.chmod(0o755)
    (results / "runs").chmod(0o777)  # as if others could have written there: nothing of it is read
    assert main(["status", "--db", url, "--results", str(results)]) == 0
    shown = capsys.readouterr()
    assert "demo" in shown.out
    assert "nothing was collected" in shown.err
