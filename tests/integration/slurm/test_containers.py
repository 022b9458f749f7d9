"""Steps in containers, with stand-ins: for pyxis, that takes its options and imports no image; for apptainer, that runs
ranks in a root of their own, in which of /tmp and the home only what is bound can be seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bed import FAKE, ROOT, Bed, ask, attempts, failing, job_of, labels, submit, wait_over

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


def test_every_step_of_a_job_uses_the_same_named_container(bed: Bed, results: Path) -> None:
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


def test_an_image_that_cannot_be_pulled_is_a_launch_failure(bed: Bed, results: Path) -> None:
    more = container("no-such-image")
    submitted = submit(results, "control", **more)
    wait_over(results, submitted.batches[0].batch)
    trial = ask(results, "control", **more).trial
    assert labels(results, trial) == ["failed:launch"]
    assert "failed to import docker image" in (attempts(results, trial)[0].launch_error or "")


@pytest.fixture
def apptainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An image for the stand-in, and a home that it hides."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "of-the-host").touch()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(__file__).parent / "containers"), os.environ["PATH"]]))
    image = tmp_path / "nemo.sif"
    image.touch()
    return image


def in_apptainer(image: Path, local: Path) -> dict[str, Any]:
    return {
        "cluster": {
            "local_dir": str(local),
            "setup": [
                "echo in $STAND_IN_IMAGE, of /tmp: $(find /tmp -type f | wc -l), of home: $(ls -A $HOME | wc -l)"
            ],
            "container": {
                "kind": "apptainer",
                "image": str(image),
                "python": sys.executable,
                # The interpreter too, and what it has installed: a clone may lie below /tmp, which the stand-in hides.
                "mounts": [f"{FAKE}:/fake", f"{sys.prefix}:{sys.prefix}", f"{ROOT}:{ROOT}"],
            },
        }
    }


def test_ranks_in_apptainer_need_only_what_is_bound(bed: Bed, results: Path, apptainer: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    more = in_apptainer(apptainer, local)
    submitted = submit(results, "control", "mlp", fake={"mlp": failing("kill_supervisor")}, **more)
    wait_over(results, submitted.batches[0].batch)
    trial = ask(results, "control", **more).trial
    (folder,) = attempt_dirs(results, trial)
    assert labels(results, trial) == ["pass"]
    assert f"in {apptainer}" in (folder / "launch.log").read_text()
    assert "of home: 0" in (folder / "launch.log").read_text()
    assert labels(results, ask(results, "mlp", **more).trial) == ["failed:crash"]
    assert not list(local.glob("orchestrator-*")), "the beacon was found outside of the container, and removed"


def test_an_image_that_apptainer_cannot_open_is_a_launch_failure(
    bed: Bed, results: Path, apptainer: Path, tmp_path: Path
) -> None:
    more = in_apptainer(tmp_path / "missing.sif", tmp_path)
    submitted = submit(results, "control", **more)
    wait_over(results, submitted.batches[0].batch)
    trial = ask(results, "control", **more).trial
    assert labels(results, trial) == ["failed:launch"]
    assert "could not open image" in (attempts(results, trial)[0].launch_error or "")


@pytest.mark.parametrize("preset", ["slurm", "h100_bare", "h100_pyxis", "apptainer"])
def test_sbatch_itself_accepts_the_presets_scripts(bed: Bed, results: Path, preset: str) -> None:
    text = (ROOT / "tests" / "data" / "slurm" / f"{preset}.sbatch").read_text()
    # Names that only their own site has.
    site = ("--account", "--partition", "--exclude", "--gres-flags")
    known = "\n".join(line for line in text.splitlines() if not any(f"{word}=" in line for word in site))
    layout.make_private_dir(results)
    script = results / "job.sbatch"
    script.write_text(known)
    done = subprocess.run(["sbatch", "--test-only", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
