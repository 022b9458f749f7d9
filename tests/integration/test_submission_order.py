"""What the database says while sbatch is being called. Slurm's commands are stand-ins here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SBATCH = """#!{python}
import json, os, sqlite3
rows = sqlite3.connect(os.environ["DATABASE"]).execute("SELECT state, (SELECT COUNT(*) FROM batch_trials) FROM batches")
open(os.environ["SEEN"], "w").write(json.dumps(rows.fetchall()))
print("Submitted batch job 7")
"""


def test_the_database_says_submitting_before_sbatch_is_called(tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"sbatch": SBATCH.format(python=sys.executable), "srun": "#!/bin/sh\nexit 1\n"}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    results, seen = tmp_path / "results", tmp_path / "seen"
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "recompute=control", "cluster=slurm", f"results_dir={results}"],
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(commands), os.environ["PATH"]]),
            "DATABASE": str(results / "store.sqlite"),
            "SEEN": str(seen),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(seen.read_text()) == [["submitting", 1]]
    assert "job 7 has batch" in done.stdout
