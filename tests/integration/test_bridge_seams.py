"""Every seam of the bridge trainer is in the released Megatron Bridge and Megatron Core, read from their sources."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.trial.bridge.seams import SEAMS, SPECIAL, Place, Seam

pytestmark = pytest.mark.integration

BRIDGE = "0.3.1"
NOT_HERE = ("torch.", "transformer_engine.")
"""Packages that are not read: torch is tested by running, Transformer Engine builds for a GPU."""


@pytest.fixture(scope="module")
def roots() -> list[Path]:
    """Folders with the sources: Bridge installed without what it needs, Megatron Core as it is installed."""
    folder = Path(os.environ.get("ORCHESTRATOR_BRIDGE_SOURCE") or Path(sys.prefix) / f"megatron-bridge-{BRIDGE}")
    if not (folder / "megatron" / "bridge").is_dir():
        wanted = f"megatron-bridge=={BRIDGE}"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), wanted], check=True
        )
    core = importlib.util.find_spec("megatron.core")
    assert core is not None
    assert core.origin is not None
    return [folder, Path(core.origin).parents[2]]


def test_every_required_seam_has_a_place(roots: list[Path]) -> None:
    missing = [
        f"{seam.stage}: {', '.join(map(str, seam.places))}"
        for seam in (*SEAMS, *SPECIAL)
        if seam.required and not any(is_there(roots, place) for place in readable(seam))
        if readable(seam)
    ]
    assert missing == []


def test_a_renamed_function_would_be_noticed(roots: list[Path]) -> None:
    assert not is_there(roots, Place("megatron.core.pipeline_parallel.schedules", "forward_step_renamed"))
    assert not is_there(roots, Place("megatron.core.optimizer.optimizer", "ChainedOptimizer.renamed"))


def readable(seam: Seam) -> list[Place]:
    return [place for place in seam.places if not place.module.startswith(NOT_HERE)]


def is_there(roots: list[Path], place: Place) -> bool:
    relative = Path(*place.module.split("."))
    for root in roots:
        for file in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
            if file.is_file():
                return _has(ast.parse(file.read_text(encoding="utf-8")), place.name.split("."))
    return False


def _has(node: ast.AST, path: list[str]) -> bool:
    names = _bound(node)
    if path[0] not in names:
        return False
    return len(path) == 1 or _has(names[path[0]], path[1:])


def _bound(node: ast.AST) -> dict[str, ast.AST]:
    """Names that a module or class binds, also under `if` and `try`."""
    found: dict[str, ast.AST] = {}
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef):
            found.setdefault(inner.name, inner)
        elif isinstance(inner, ast.ImportFrom):
            found.update({alias.asname or alias.name: inner for alias in inner.names})
    return found
