from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from traitlets.config import Config

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in ("index.html", "reference/keys/index.html", "reference/verbs/index.html", "notebook/index.html"):
        text = (tmp_path / "site" / page).read_text()
        assert 'src="http' not in text
        assert "fonts.googleapis" not in text


def test_the_notebook_runs_on_the_published_evidence(tmp_path, monkeypatch):
    monkeypatch.setenv("EVIDENCE", str(tmp_path / "evidence.sqlite"))
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    # Over Unix sockets (`kernel-1` and so on, in the folder that both work in): a port that is free when Jupyter looks
    # may be another test's when the kernel binds it.
    monkeypatch.chdir(tmp_path)
    sockets = Config({"ConnectionFileMixin": {"transport": "ipc", "ip": "kernel"}})
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", config=sockets)
    done = client.execute(cwd=str(tmp_path))
    outputs = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
    printed = "".join(output.get("text", "") for output in outputs)
    assert "moe_act" in printed
    assert "is over 36.000 GB" in printed
