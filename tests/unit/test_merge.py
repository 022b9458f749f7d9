from __future__ import annotations

import pytest
from sqlalchemy import text
from written_results import write_study

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.stored import study_rows, trial_rows
from orchestrator.store.collect import collect
from orchestrator.store.database import open_store
from orchestrator.store.merge import merge

TABLES = (
    "studies",
    "trials",
    "study_trials",
    "batches",
    "batch_trials",
    "attempts",
    "ranks",
    "stage_memory",
    "iterations",
)


def open_with(tmp_path, who, *studies):
    """A user's database with these studies."""
    results = tmp_path / who
    for number, (study, modules) in enumerate(studies):
        write_study(results, study, modules, batch=f"{who}-{number}", started=1000.0 + 100 * number)
    store = open_store(results / "store.sqlite" if studies else tmp_path / f"{who}.sqlite", write=True)
    if studies:
        assert not collect(store, results).problems
    return store


def counts(store):
    with store.reading() as connection:
        return {table: connection.execute(text(f"SELECT COUNT(*) FROM {table}")).scalar() for table in TABLES}


def shown(store, study):
    with store.reading() as connection:
        comparison = compare(study_rows(connection, study))
    return [
        (line.text, line.label, line.peak, line.step_ms, line.loss_difference, len(line.runs))
        for group in comparison.groups
        for line in group.lines
    ]


def test_a_collected_study_is_compared_from_all_ranks(tmp_path):
    with open_with(tmp_path, "ann", ("demo", [[], ["moe"]])) as store, store.reading() as connection:
        (group,) = compare(study_rows(connection, "demo")).groups
        assert [line.text for line in group.lines] == ["[]", "moe"]
        moe = group.lines[1]
        assert (moe.label, moe.peak.allocated, moe.peak.rank, str(moe.peak.stage)) == ("pass", 900_001, 1, "forward")
        assert moe.step_ms == pytest.approx(11.025)
        assert moe.runs[0].replays == 6
        assert str(moe.peak_scope) == "all_ranks"
        assert not moe.time_delta.other_nodes


def test_two_users_databases_merge_without_losing_or_doubling(tmp_path):
    with (
        open_with(tmp_path, "ann", ("demo", [[], ["moe"]])) as ann,
        open_with(tmp_path, "bob", ("demo", [[], ["mlp"]]), ("other", [[], ["core_attn"]])) as bob,
        open_with(tmp_path, "all") as team,
    ):
        one, two = counts(ann), counts(bob)
        assert (merge(team, ann).new, merge(team, bob).new) == (2, 4)
        both = counts(team)
        for table in ("batches", "attempts", "ranks", "stage_memory", "iterations"):
            assert both[table] == one[table] + two[table]
        assert both["studies"] == 2
        assert shown(team, "other") == shown(bob, "other")
        again = merge(team, bob)
        assert (again.new, again.known) == (0, 4)
        assert counts(team) == both


def test_the_order_of_merging_changes_no_answer(tmp_path):
    with (
        open_with(tmp_path, "ann", ("demo", [[], ["moe"]])) as ann,
        open_with(tmp_path, "bob", ("demo", [[], ["mlp"]])) as bob,
        open_with(tmp_path, "first") as first,
        open_with(tmp_path, "second") as second,
    ):
        for store in (ann, bob):
            merge(first, store)
        for store in (bob, ann):
            merge(second, store)
        assert shown(first, "demo") == shown(second, "demo")
        assert {line[0] for line in shown(first, "demo")} == {"[]", "mlp", "moe"}


def test_what_was_measured_elsewhere_is_marked_as_imported(tmp_path):
    with open_with(tmp_path, "ann", ("demo", [[], ["moe"]])) as ann, open_with(tmp_path, "team") as team:
        merge(team, ann)
        with team.reading() as connection:
            assert {row.origin for row in trial_rows(connection, ["moe".ljust(20, "0")])} == {"imported"}
