"""What integration tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def fake_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ranks of this machine import `fake_trainer`."""
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(Path(__file__).parent), inherited])))
