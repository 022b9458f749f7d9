"""Where a database is, and that nothing secret of it is said."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import ProgrammingError

from orchestrator.cli.main import main
from orchestrator.config.errors import EnvironmentFailure, UsageError
from orchestrator.records import layout
from orchestrator.store.address import parse_url, secrets_of, shown_url
from orchestrator.store.database import open_store
from orchestrator.store.failures import explained

SECRET = "hunter2pw"


@pytest.mark.parametrize(
    "name", ["password", "passwd", "pwd", "token", "sslpassword", "sslkey", "passphrase", "Pasword"]
)
def test_no_value_of_a_query_that_could_be_a_secret_is_shown(name: str) -> None:
    url = f"postgresql://u:{SECRET}@h/x?{name}={SECRET}&sslmode=require"
    shown = shown_url(url)
    assert SECRET not in shown
    assert f"{name}=***" in shown
    assert "sslmode=require" in shown
    assert shown.startswith("postgresql+psycopg://u:***@h/x?")


def test_a_password_with_an_at_sign_must_be_quoted_and_is_not_shown() -> None:
    with pytest.raises(UsageError, match="write %40") as refused:
        parse_url("postgresql://u:hunter2@pw@h/x")
    assert "hunter2" not in str(refused.value)
    assert "pw" not in str(refused.value).replace("password", "")
    assert shown_url("postgresql://u:hunter2%40pw@h/x") == "postgresql+psycopg://u:***@h/x"


def test_what_a_driver_says_is_repeated_without_the_secrets_of_the_url() -> None:
    secrets = secrets_of(parse_url(f"postgresql://u:s3cret@h/x?options={SECRET}"))
    with pytest.raises(EnvironmentFailure) as refused, explained("x", 5.0, secrets):
        raise ProgrammingError("SELECT", None, Exception(f"invalid option {SECRET!r} of s3cret"))
    assert str(refused.value) == "The database x failed: invalid option '***' of ***"


@pytest.mark.parametrize(
    "url",
    [
        f"u:{SECRET}@host/db",
        f"u:{SECRET}/x@host/db",
        f"postgresql:/u:{SECRET}@h/x",
        f"postgresql:u:{SECRET}@h/x",
        f"//u:{SECRET}@h/x",
        f"sqlite://u:{SECRET}@h/x",
        "sqlite:/x.db",
        "sqlite:x.db",
        "sqlite://folder/x.db",
    ],
)
def test_a_mistyped_url_is_no_path_and_makes_no_folder(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["db", "path"], ["db", "upgrade"], ["compare"], ["collect"], ["query"]):
        assert main([*words, "--db", url]) == 2
        printed = capsys.readouterr()
        assert SECRET not in printed.out + printed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["x.db", "./u:pw@host", "/a:b@c/x.db", "a@b/x.db", "folder/a:b.db"])
def test_a_path_stays_a_path(path: str) -> None:
    assert parse_url(path).database == path


def test_a_verb_that_only_asks_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import recorded

    monkeypatch.chdir(tmp_path)
    layout.make_private_dir(tmp_path / "results")
    recorded.demo(tmp_path / "results")
    assert main(["compare", "--db", str(tmp_path / "mistyped" / "x.db")]) == 1
    assert "There is no database at" in capsys.readouterr().err
    assert not (tmp_path / "mistyped").exists()


def test_an_overwritten_database_is_said_to_be_damaged_and_how_to_rebuild_it(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    open_store(path, write=True).close()
    with path.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xa5" * 60_000)
    for write in (False, True):
        with pytest.raises(EnvironmentFailure, match=r"is damaged\. It can be rebuilt"):
            open_store(path, write=write)


def test_a_database_of_another_program_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(EnvironmentFailure, match="holds other tables"):
        open_store(path)
