"""A real Slurm of four nodes on this machine, brought up for these tests and taken down after them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import FAKE, Bed

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The test cluster needs root, to install and start Slurm's daemons: without it these tests are not selected."""
    if os.geteuid() == 0:
        return
    ours = [item for item in items if HERE in item.path.parents]
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    found = Bed(Path("/tmp/orchestrator-test-slurm"), port=18800)
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def pyxis(bed: Bed) -> Iterator[Bed]:
    """The cluster with a stand-in for pyxis; without it again afterwards."""
    bed.start(SLURMBED_PYXIS="fake")
    yield bed
    bed.start()


@pytest.fixture
def results(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A results folder whose jobs are gone when the test is over."""
    folder = tmp_path / "results"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [FAKE, os.environ.get("PYTHONPATH")])))
    yield folder
    bed.cancel_all()
    shutil.rmtree(folder, ignore_errors=True)
