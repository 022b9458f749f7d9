"""What runs on a rank, as a folder of its own: it enters a container without anything that could shadow its torch."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

import orchestrator
from orchestrator.config.errors import EnvironmentFailure
from orchestrator.records import layout

_PACKAGES = ("vocabulary", "records", "trial")
_FOLDER = "rank-packages"


def rank_package(results_dir: Path) -> Path:
    """A copy of `orchestrator` with vocabulary, records and trial alone, and `rank.sh`, below the results folder.

    Its name is a hash of its content, so jobs that wait keep what they were submitted with.

    Raises:
        OSError: the results folder cannot be written.
    """
    files = _files()
    parent = results_dir / _FOLDER
    layout.make_private_dir(parent)
    layout.check_private(parent)
    folder = parent / package_digest()
    if folder.exists():
        return folder
    building = Path(tempfile.mkdtemp(dir=parent, prefix=".building-"))
    try:
        for parent_name in {str(Path(name).parent) for name in files}:
            (building / parent_name).mkdir(parents=True, exist_ok=True)
        for name, path in files.items():
            shutil.copyfile(path, building / name)
        building.replace(folder)
    except OSError:
        shutil.rmtree(building, ignore_errors=True)
        if not folder.exists():  # another command was faster
            raise
    return folder


def package_digest() -> str:
    """A hash of what that folder holds, 16 hex digits."""
    digest = hashlib.sha256()
    for name, path in sorted(_files().items()):
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def slurm_files() -> Path:
    """The folder with `rank.sh` and the sbatch templates: of the checkout, or of the installed package.

    Raises:
        EnvironmentFailure: the installation lacks it.
    """
    package = Path(orchestrator.__file__).parent
    for folder in (package / "share" / "slurm", package.parent / "slurm"):
        if (folder / "rank.sh").is_file():
            return folder
    raise EnvironmentFailure(f"rank.sh is missing from the installation in {package}: install the package again.")


def _files() -> dict[str, Path]:
    package = Path(orchestrator.__file__).parent
    files = {"rank.sh": slurm_files() / "rank.sh", "orchestrator/__init__.py": package / "__init__.py"}
    for name in _PACKAGES:
        for path in sorted((package / name).rglob("*.py")):
            files[f"orchestrator/{path.relative_to(package)}"] = path
    return files
