"""The host's memory limit, enforced by the kernel. It kills the trainer alone, so that Slurm 22.05 may call the step
COMPLETED: the rank's own record knows better."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import Bed, ask, labels, memory_cgroup, submit, wait_over

pytestmark = pytest.mark.integration


@pytest.fixture
def limited(bed: Bed) -> Iterator[Bed]:
    """The cluster with memory limits that the kernel enforces; without them again afterwards."""
    bed.start(SLURMBED_CGROUP=str(memory_cgroup()))
    yield bed
    bed.start()


def test_a_rank_over_the_hosts_memory_is_a_host_oom(limited: Bed, results: Path) -> None:
    fake = {"control": {"stage": "forward", "iteration": 1, "what": "eat", "ranks": [0]}}
    more = {"world_size": 2, "cluster": {"mem": "600M", "gpus_per_node": 2, "cpus_per_task": 1}}
    submitted = submit(results, "control", fake=fake, **more)
    wait_over(results, submitted.batches[0].batch)
    trial = ask(results, "control", **more).trial
    assert labels(results, trial) == ["failed:host_oom"]
