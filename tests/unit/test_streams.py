"""What the console script does with streams that lack characters or room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import recorded

from orchestrator.records import layout


def command(words: list[str], folder: Path, stdout: int | None = None, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != "ORCHESTRATOR_DB"} | environment,
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        check=False,
    )
    return done.returncode, (done.stdout or b"").decode("ascii", "replace"), done.stderr.decode("ascii", "replace")


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "ascii:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_what_ascii_lacks_is_printed_as_its_escape(environment: dict[str, str], tmp_path: Path) -> None:
    layout.make_private_dir(tmp_path / "results")
    recorded.demo(tmp_path / "results")
    code, out, err = command(["query", "select char(97, 32, 183, 32, 8230) as said"], tmp_path, **environment)
    assert (code, err) == (0, "")
    assert "a \\xb7 \\u2026" in out
    code, _, err = command(["compare", "demo"], tmp_path, **environment)
    assert (code, err) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [["-h"], ["query"]])
def test_a_full_standard_output_is_named_in_one_line(words: list[str], tmp_path: Path) -> None:
    layout.make_private_dir(tmp_path / "results")
    recorded.demo(tmp_path / "results")
    with Path("/dev/full").open("wb") as full:
        code, _, err = command(words, tmp_path, full.fileno())
    assert code == 1
    assert err == "error: The standard output could not be written: No space left on device.\n"
