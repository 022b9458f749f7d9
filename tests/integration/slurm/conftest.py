"""A real Slurm of four nodes on this machine, brought up for these tests and taken down after them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import FAKE, Bed, memory_cgroup

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The test cluster needs root, to install and start Slurm's daemons, and the kernel's memory limits a cgroup that
    root may write: what cannot be had is not selected."""
    ours = [item for item in items if HERE in item.path.parents]
    if os.geteuid() == 0:
        ours = [item for item in ours if "limited" in getattr(item, "fixturenames", ()) and memory_cgroup() == "no"]
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """On a laptop `make test` is no failure for want of root. Continuous integration has to run these tests."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and os.geteuid() != 0 and not os.environ.get("CI"):
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture(scope="session")
def cluster() -> Iterator[Bed]:
    found = Bed(Path("/tmp/orchestrator-test-slurm"), port=18800)
    yield found
    found.stop()


@pytest.fixture
def bed(cluster: Bed) -> Bed:
    """The cluster as most are: with accounts, and with a stand-in for pyxis."""
    cluster.start(SLURMBED_PYXIS="fake")
    return cluster


@pytest.fixture
def limited(cluster: Bed) -> Bed:
    """With memory limits that the kernel enforces."""
    cluster.start(SLURMBED_CGROUP=memory_cgroup())
    return cluster


@pytest.fixture
def bare(cluster: Bed) -> Bed:
    """Without accounts."""
    cluster.start(SLURMBED_ACCOUNTING="none")
    return cluster


@pytest.fixture
def results(cluster: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A results folder whose jobs are gone when the test is over; its name is one that nobody quotes."""
    folder = tmp_path / "my results"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [FAKE, os.environ.get("PYTHONPATH")])))
    yield folder
    cluster.cancel_all()
    shutil.rmtree(folder, ignore_errors=True)
