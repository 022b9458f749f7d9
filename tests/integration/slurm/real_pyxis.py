"""Steps in containers of the real pyxis and enroot, by hand: they are no packages that the tests could install.

    python tests/integration/slurm/real_pyxis.py SPANK_PYXIS.so IMAGE.sqsh

As root, with enroot on the PATH. The image needs Python 3.10 or newer as `python3`, and nothing else: a Debian will do
(`debootstrap --variant=minbase --include=python3 bookworm ROOT`, then `mksquashfs ROOT IMAGE.sqsh`). Brings the test
cluster up with the plugin, runs two trials of one job in the image and one in an image that is not there, and takes
the cluster down. Last run: pyxis 0.24.0, enroot 4.1.2, Slurm 22.05.8.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bed import FAKE, Bed, ask, attempts, job_of, labels, submit, wait_over

from orchestrator.dispatch.attempt import attempt_dirs


def main() -> None:
    plugin, image = (Path(word).absolute() for word in sys.argv[1:])
    bed = Bed(Path("/tmp/orchestrator-test-slurm"), port=18800)
    with tempfile.TemporaryDirectory(prefix="real-pyxis-") as folder:
        os.environ["PYTHONPATH"] = FAKE
        (Path(folder) / "pyxis").mkdir()
        bed.start(SLURMBED_PYXIS=f"{plugin} runtime_path={folder}/pyxis")
        try:
            in_the_image(Path(folder) / "results", str(image))
            without_an_image(Path(folder) / "results", f"{folder}/no-such.sqsh")
        finally:
            bed.cancel_all()
            bed.stop()


def more(image: str) -> dict[str, Any]:
    setup = ['echo "in the image: $(. /etc/os-release; echo $PRETTY_NAME)"', "export PYTHONPATH=/fake"]
    container = {"kind": "pyxis", "image": image, "python": "python3", "mounts": [f"{FAKE}:/fake:ro"]}
    return {"world_size": 2, "cluster": {"gpus_per_node": 2, "setup": setup, "container": container}}


def in_the_image(results: Path, image: str) -> None:
    submitted = submit(results, "control", "mlp", **more(image))
    wait_over(results, submitted.batches[0].batch)
    for name in ("control", "mlp"):
        trial = ask(results, name, **more(image)).trial
        found = labels(results, trial)
        print(name, found, (attempt_dirs(results, trial)[0] / "launch.log").read_text(), flush=True)
        assert found == ["pass"], found
    left = subprocess.run(["enroot", "list"], capture_output=True, text=True, check=True).stdout
    assert job_of(results, submitted) not in left, "the job's container is still there"


def without_an_image(results: Path, image: str) -> None:
    submitted = submit(results, "control", **more(image))
    wait_over(results, submitted.batches[0].batch)
    trial = ask(results, "control", **more(image)).trial
    said = attempts(results, trial)[0].launch_error or ""
    print(labels(results, trial), said, flush=True)
    assert labels(results, trial) == ["failed:launch"]
    assert "failed to create container filesystem" in said


if __name__ == "__main__":
    main()
