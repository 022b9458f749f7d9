"""A primary configuration of the user's own that stands before ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.compose import composing
from orchestrator.config.errors import UsageError


def test_an_empty_config_that_shadows_ours_is_named(tmp_path: Path) -> None:
    own = tmp_path / "conf" / "config.yaml"
    own.parent.mkdir()
    own.write_text("")
    with composing(working_dir=tmp_path) as composer:
        with pytest.raises(UsageError, match=f"{own} is read as the primary configuration") as caught:
            composer.compose(["dry_run=true"])
        with pytest.raises(UsageError, match=str(own)):
            composer.check(["dry_run=true"])
    assert "\n" not in str(caught.value)


def test_a_mistake_beside_a_config_with_defaults_is_not_laid_on_it(tmp_path: Path) -> None:
    own = tmp_path / "conf" / "config.yaml"
    own.parent.mkdir()
    own.write_text("defaults:\n  - orchestrator\n  - study: default\n  - _self_\n")
    with composing(working_dir=tmp_path) as composer, pytest.raises(UsageError) as caught:
        composer.compose(["nothing_like_it=1"])
    assert str(own) not in str(caught.value)
