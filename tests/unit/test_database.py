"""Where databases lie, and SQLite's own ways."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.errors import EnvironmentFailure, UsageError
from orchestrator.store import database
from orchestrator.store.clean import clean, clean_text
from orchestrator.store.database import open_store, parse_url, shown_url
from orchestrator.store.failures import explained
from orchestrator.store.filesystem import may_use_wal, mounted_type

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/me/scratch tmpfs rw 0 0
/dev/sdb /mnt/my\\040disk xfs rw 0 0
lustre /mnt/lustre lustre rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind", "wal"),
    [
        ("/var/x.sqlite", "ext4", True),
        ("/home/me/results/store.sqlite", "nfs4", False),
        ("/home/me/scratch/store.sqlite", "tmpfs", True),
        ("/homework/store.sqlite", "ext4", True),
        ("/mnt/my disk/store.sqlite", "xfs", True),
        ("/mnt/lustre/store.sqlite", "lustre", False),
    ],
)
def test_write_ahead_log_is_for_file_systems_of_one_machine(path: str, kind: str, wal: bool) -> None:
    assert mounted_type(Path(path), MOUNTS) == kind
    assert may_use_wal(kind) is wal


def test_database_on_a_shared_file_system_says_that_it_has_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.sqlite"
    with open_store(path, write=True) as store:
        assert store.notes == ()
        with store.reading() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    monkeypatch.setattr(database, "mounted_type", lambda path: "nfs4")
    with open_store(path, write=True) as store:
        assert "write-ahead log is off (file system nfs4)" in store.notes[0]
        with store.reading() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"
    with open_store(path) as store, store.reading() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM trials").scalar() == 0


def test_database_is_its_users_alone_and_checks_foreign_keys(tmp_path: Path) -> None:
    path = tmp_path / "made" / "for it" / "a?b#c%20.sqlite"
    with open_store(path, write=True) as store, store.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with open_store(path) as store, store.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA query_only").scalar() == 1


def test_reader_does_not_make_a_database(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="There is no database at"):
        open_store(tmp_path / "none.sqlite")
    (tmp_path / "empty.sqlite").touch()
    with pytest.raises(EnvironmentFailure, match="still empty"):
        open_store(tmp_path / "empty.sqlite")
    assert list(tmp_path.iterdir()) == [tmp_path / "empty.sqlite"]


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "sqlite://", "sqlite:///:memory:", "nonsense://x", "://"])
def test_url_of_another_kind_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError, match="sqlite:///PATH") as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+psycopg2"])
def test_postgresql_urls_use_one_driver_and_hide_their_password(scheme: str) -> None:
    assert parse_url(f"{scheme}://me:secret@host/db").drivername == "postgresql+psycopg"
    assert shown_url(f"{scheme}://me:secret@host/db") == "postgresql+psycopg://me:***@host/db"


@given(st.text())
def test_stored_text_has_neither_nul_nor_surrogates(text: str) -> None:
    cleaned = clean_text(text)
    assert "\0" not in cleaned
    cleaned.encode("utf-8")
    assert clean_text(cleaned) == cleaned


def test_lone_surrogates_are_spelt_out() -> None:
    assert clean({"a\0": ["\ud800", 1, None, 2.5, True]}) == {"a\\x00": ["\\ud800", 1, None, 2.5, True]}


def test_a_disk_that_fails_under_the_database_is_said_to_be_full_or_gone() -> None:
    with pytest.raises(EnvironmentFailure, match="its disk may be full"), explained("x.sqlite", 5.0):
        raise sqlite3.OperationalError("disk I/O error")
