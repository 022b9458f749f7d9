"""Which labels a revision allows, asked of that revision."""

from __future__ import annotations

import argparse
import json
import stat
from pathlib import Path

import pytest

from orchestrator.cli import labels as verb
from orchestrator.config.errors import EnvironmentFailure, UsageError
from orchestrator.plan.installation import Installation
from orchestrator.plan.labels import LABELS, allowed_labels, ask_labels
from orchestrator.plan.verdict import Revision


def environment(folder: Path, said: str) -> Path:
    """An environment whose interpreter answers as a revision would."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{said}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return folder


def test_a_revisions_own_labels_are_shown_with_what_each_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = '{"version": "0.20.0rc0", "labels": ["core_attn", "gdn_norm_out", "mhc"]}'
    place = environment(tmp_path / "env", f"echo a banner; echo '{answer}'")
    assert verb.run(argparse.Namespace(revision=str(place), json=False)) == 0
    text = capsys.readouterr().out
    assert "Megatron Core 0.20.0rc0 allows 3 labels" in text
    assert "gated_delta_net" in text
    assert "not known to this tool" in text
    assert "not in this revision: moe_act" in text
    assert verb.run(argparse.Namespace(revision=str(place), json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert [item["label"] for item in told["labels"]] == ["core_attn", "gdn_norm_out", "mhc"]


def test_a_revision_that_does_not_answer_is_an_environment_failure(tmp_path: Path) -> None:
    silent = environment(tmp_path / "env", "echo ImportError: no torch >&2; exit 1")
    with pytest.raises(EnvironmentFailure, match="no torch"):
        ask_labels(Installation.at(str(silent)))


def test_what_is_no_revision_is_refused_with_what_would_be_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Megatron-LM"):
        Installation.at(str(tmp_path))


def test_a_checkout_is_found_by_its_megatron_folder(tmp_path: Path) -> None:
    (tmp_path / "3rdparty" / "Megatron-LM" / "megatron" / "core").mkdir(parents=True)
    (tmp_path / "src" / "megatron" / "bridge").mkdir(parents=True)
    path = Installation.at(str(tmp_path)).path()
    assert [Path(folder).name for folder in path[:2]] == ["src", "Megatron-LM"]


def test_without_megatron_core_the_labels_of_the_newest_checked_release_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_: Installation) -> Revision:
        raise EnvironmentFailure("It has no Megatron Core.")

    monkeypatch.setattr("orchestrator.plan.labels.ask_labels", missing)
    assert verb.run(argparse.Namespace(revision=None, json=False)) == 0
    text = capsys.readouterr().out
    assert "Megatron Core 0.16.1 allows 7 labels" in text
    assert "note: It has no Megatron Core." in text


def test_a_label_of_newer_releases_is_not_allowed_in_an_older_one() -> None:
    assert "gdn_norm_out" not in allowed_labels(Revision("0.16.1"))
    assert allowed_labels(Revision("0.20.0")) == frozenset(LABELS)
    assert allowed_labels(Revision("0.16.1", frozenset({"x"}))) == {"x"}
