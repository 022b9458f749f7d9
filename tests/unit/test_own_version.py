from __future__ import annotations

from orchestrator import __version__
from orchestrator.report import own_version


def test_a_source_tree_says_its_commit_and_a_plain_folder_none(tmp_path):
    assert own_version._checked_out(tmp_path) is None
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert own_version._checked_out(tmp_path) is None
    (tmp_path / ".git" / "refs" / "heads" / "main").write_text("1a" * 20 + "\n")
    assert own_version._checked_out(tmp_path) == "1a" * 20
    (tmp_path / ".git" / "HEAD").write_text("2b" * 20 + "\n")
    assert own_version._checked_out(tmp_path) == "2b" * 20


def test_the_version_stands_before_the_commit(monkeypatch):
    monkeypatch.setattr(own_version, "_installed_from", lambda: "3c" * 20)
    assert own_version.own_version() == f"{__version__}, commit {'3c' * 6}"
    monkeypatch.setattr(own_version, "_installed_from", lambda: None)
    monkeypatch.setattr(own_version, "_checked_out", lambda root: None)
    assert own_version.own_version() == __version__
