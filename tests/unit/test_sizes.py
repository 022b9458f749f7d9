"""Sizes in GB that are none are refused where they enter, by the name of what was given."""

from __future__ import annotations

from pathlib import Path

import pytest
import recorded

from orchestrator.cli.main import main
from orchestrator.config.compose import compose
from orchestrator.config.errors import UsageError
from orchestrator.records import layout

NO_SIZES = ["1e308", "1e10", "0", "-1", "nan", "inf", "-inf"]


@pytest.mark.parametrize("verb", ["recommend", "report"])
@pytest.mark.parametrize("size", NO_SIZES)
def test_a_flag_that_is_no_size_is_named(verb: str, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, f"--target-gb={size}"]) == 2
    said = capsys.readouterr().err
    assert "--target-gb" in said
    assert "--headroom-gb" not in said
    if size != "0":
        assert main([verb, "--target-gb=2", f"--headroom-gb={size}"]) == 2
        assert "argument --headroom-gb" in capsys.readouterr().err


@pytest.mark.parametrize("size", [size for size in NO_SIZES if size not in ("nan", "inf", "-inf")])
def test_a_setting_that_is_no_size_is_named(size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"study\.target_gb"):
        compose([f"study.target_gb={size}"])


def test_a_target_that_an_older_release_took_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sqlalchemy import update

    from orchestrator.store.database import open_store
    from orchestrator.store.models import Study

    monkeypatch.chdir(tmp_path)
    layout.make_private_dir(tmp_path / "results")
    recorded.demo(tmp_path / "results")
    assert main(["collect"]) == 0
    with open_store(tmp_path / "results" / "store.sqlite", write=True) as store, store.writing() as connection:
        connection.execute(update(Study).values(settings={"target_gb": 1e308}))
    capsys.readouterr()
    assert main(["recommend", "demo"]) == 2
    assert "needs --target-gb" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [("-x", "begins with a dash"), ("x" * 201, "201 characters"), ("hf_" + "a1B2" * 8, "looks like a secret")],
)
def test_a_name_that_no_verb_could_take_or_show_is_refused(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said) as refused:
        compose([f"study.name={name}"])
    assert "hf_a1B2" not in str(refused.value)
    assert compose(["study.name=" + "x" * 200])["study"]["name"] == "x" * 200
