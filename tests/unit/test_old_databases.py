"""Databases of every release open in this one, with everything that was in them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import recorded

from orchestrator.store.database import describe, open_store
from orchestrator.store.detail import rank_records, trial_detail
from orchestrator.store.merge import merge
from orchestrator.store.overview import studies, trial_lines
from orchestrator.store.reclassify import reclassify
from orchestrator.store.schema import REVISIONS

OLD = sorted((Path(__file__).parent.parent / "data").glob("store-v*.sqlite"))


def test_there_is_one_for_every_schema() -> None:
    assert [path.name for path in OLD] == [f"store-v{int(revision)}.sqlite" for revision in REVISIONS]


@pytest.mark.parametrize("old", OLD, ids=lambda path: path.stem)
def test_old_database_opens_with_all_that_was_in_it(old: Path, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    shutil.copy(old, path)
    with open_store(path, write=True) as store, store.reading() as connection:
        (study,) = studies(connection)
        assert study.states == {"ended": 3, "rejected": 1, "running": 1}
        assert study.labels == {"pass": 2, "OOM-fwd": 1}
        lines = {one.trial[0]: one for one in trial_lines(connection, "demo")}
        assert lines["c"].step_ms == pytest.approx(100.5)
        assert lines["c"].peak_allocated == 1_501_024
        assert lines["d"].name == "it's [bold]\x1b[31m"
        detail = trial_detail(connection, "c" * 20)
        assert detail is not None
        assert len(detail.attempts[0].iterations) == recorded.ITERATIONS
        records = rank_records(connection, detail.attempts[0].id)
        assert records[1].stages == recorded.rank_record("c" * 20, 1).stages
    assert describe(path)[1] == REVISIONS[-1]
    with open_store(path, write=True) as store:
        assert reclassify(store).unreadable == []


@pytest.mark.parametrize("old", OLD, ids=lambda path: path.stem)
def test_old_database_can_be_merged_after_its_upgrade(old: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    shutil.copy(old, path)
    open_store(path, write=True).close()
    with open_store(tmp_path / "new.sqlite", write=True) as store, open_store(path) as other:
        assert merge(store, other).new == 4
