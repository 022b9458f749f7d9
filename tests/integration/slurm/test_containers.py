"""Steps in containers, with a stand-in for pyxis that takes its options: no image is pulled here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bed import FAKE, ROOT, Bed, ask, attempts, job_of, labels, submit, wait_over

from orchestrator.dispatch.attempt import attempt_dirs
from orchestrator.records import layout

pytestmark = pytest.mark.integration


def container(image: str) -> dict[str, Any]:
    return {
        "cluster": {
            "setup": ["env | grep FAKE_PYXIS_ | sort", f"export PYTHONPATH={FAKE}"],
            "container": {"kind": "pyxis", "image": image, "python": sys.executable, "mounts": ["/data:/data:ro"]},
        },
        "trainer": {"environment": {"NCCL_DEBUG": "WARN"}},
    }


def test_every_step_of_a_job_uses_the_same_named_container(pyxis: Bed, results: Path) -> None:
    more = container("nemo")
    submitted = submit(results, "control", "mlp", **more)
    wait_over(results, submitted.batches[0].batch)
    for name in ("control", "mlp"):
        trial = ask(results, name, **more).trial
        assert labels(results, trial) == ["pass"]
        (folder,) = attempt_dirs(results, trial)
        said = (folder / "launch.log").read_text()
        assert f"FAKE_PYXIS_NAME=orchestrator-{job_of(results, submitted)}" in said
        assert "FAKE_PYXIS_IMAGE=nemo" in said
        assert "FAKE_PYXIS_NO_MOUNT_HOME=1" in said
        assert "FAKE_PYXIS_ENV=NCCL_DEBUG" in said
        assert f"FAKE_PYXIS_MOUNTS={results}:{results},/tmp:/tmp,/data:/data:ro" in said


def test_an_image_that_cannot_be_pulled_is_a_launch_failure(pyxis: Bed, results: Path) -> None:
    more = container("no-such-image")
    submitted = submit(results, "control", **more)
    wait_over(results, submitted.batches[0].batch)
    trial = ask(results, "control", **more).trial
    assert labels(results, trial) == ["failed:launch"]
    assert "failed to import docker image" in (attempts(results, trial)[0].launch_error or "")


@pytest.mark.parametrize("preset", ["slurm", "h100_bare", "h100_pyxis", "apptainer"])
def test_sbatch_itself_accepts_the_presets_scripts(pyxis: Bed, results: Path, preset: str) -> None:
    text = (ROOT / "tests" / "data" / "slurm" / f"{preset}.sbatch").read_text()
    # Names that only their own site has.
    site = ("--account", "--partition", "--exclude", "--gres-flags")
    known = "\n".join(line for line in text.splitlines() if not any(f"{word}=" in line for word in site))
    layout.make_private_dir(results)
    script = results / "job.sbatch"
    script.write_text(known)
    done = subprocess.run(["sbatch", "--test-only", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
