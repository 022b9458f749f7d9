from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.publish import import_rows
from orchestrator.analysis.published_tables import published_rows, published_tables
from orchestrator.analysis.stored import study_rows
from orchestrator.store.database import open_store


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite", write=True) as opened:
        yield opened


def read(store, study):
    with store.reading() as connection:
        return study_rows(connection, study)


@pytest.mark.parametrize("table", published_tables())
def test_a_published_table_comes_out_of_the_database_as_it_went_in(store, table):
    rows = published_rows(table)
    assert import_rows(store, rows) == (len(rows), 0)
    read_back = [replace(row, ranks_reported=None) for row in read(store, f"published/{table}")]
    assert compare(read_back) == compare(rows)


def test_importing_twice_doubles_nothing(store):
    rows = published_rows("moonlight-16b")
    import_rows(store, rows)
    assert import_rows(store, list(reversed(rows))) == (0, 6)
    assert len(read(store, "published/moonlight-16b")) == 6


def test_a_study_that_nobody_asked_for_has_no_rows(store):
    assert read(store, "'; DROP TABLE trials; --") == []
