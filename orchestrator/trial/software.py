"""What a trial ran on: versions and commits, and how each was found."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_INSTALLED_INTO = frozenset({"site-packages", "dist-packages"})
_GIT_SECONDS = 20.0
_DRIVER = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_IMAGE_VARIABLES = ("ORCHESTRATOR_IMAGE", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_DIGEST_VARIABLES = ("ORCHESTRATOR_IMAGE_DIGEST",)


def software(packages: Iterable[str]) -> dict[str, Any]:
    """What is installed here, by name: each entry has a `version` where there is one, and `found`.

    `packages` are import names; `megatron.core` stands under `megatron_core`. Of an imported torch, its libraries
    are listed too. What cannot be found out is left out or None, never guessed.
    """
    found: dict[str, Any] = {
        "python": {"version": platform.python_version(), "found": "sys.version"},
        "kernel": {"version": platform.release(), "found": "uname"},
    }
    for name in packages:
        found[name.replace(".", "_")] = package(name)
    if "torch" in sys.modules:
        found |= _torch(sys.modules["torch"])
    driver = driver_version()
    if driver is not None:
        found["driver"] = {"version": driver, "found": "/proc/driver/nvidia/version"}
    image = container(os.environ)
    if image is not None:
        found["container"] = image
    return found


def package(name: str) -> dict[str, Any]:
    """Version, commit and dirty flag of one importable package.

    A checkout says its commit, whether tracked files of the package differ from it (`dirty`), and by what (`diff`, a
    hash). An installed distribution says its version, and its commit where it was installed from a repository.
    """
    origin = _origin(name)
    if origin is None:
        return {"version": None, "found": "cannot be imported"}
    installed = _distribution(name, origin)
    checked_out = _checkout(origin)
    version = getattr(sys.modules.get(name), "__version__", None) or installed.get("version")
    ways = [said["found"] for said in (checked_out, installed) if "found" in said]
    if not ways:
        ways = [f"{name}.__version__" if version else "a folder on the import path"]
    return {**installed, **checked_out, "version": version, "found": ", ".join(ways), "path": str(origin)}


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """NVIDIA's kernel module, as the kernel reports it; None without one."""
    try:
        match = _DRIVER.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return match.group(1) if match else None


def container(environ: Mapping[str, str], podman: Path = Path("/run/.containerenv")) -> dict[str, Any] | None:
    """Image and digest of the container around this process, where its runtime or our launcher says them."""
    image = next((name for name in _IMAGE_VARIABLES if environ.get(name)), None)
    digest = next((name for name in _DIGEST_VARIABLES if environ.get(name)), None)
    if image or digest:
        return {
            "image": environ[image] if image else None,
            "digest": environ[digest] if digest else None,
            "found": ", ".join(name for name in (image, digest) if name),
        }
    try:
        said = dict(re.findall(r'^(image|imageid)="?([^"\n]+)', podman.read_text(encoding="utf-8"), re.MULTILINE))
    except OSError:
        return None
    if not said:
        return None
    return {"image": said.get("image"), "digest": said.get("imageid"), "found": str(podman)}


def _origin(name: str) -> Path | None:
    """The folder, or the file, that an import of `name` takes."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None


def _distribution(name: str, origin: Path) -> dict[str, Any]:
    """The installed distribution, if it is the one that an import takes: a checkout on the path may hide it."""
    try:
        distribution = importlib.metadata.distribution(name.replace(".", "-").replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return {}
    source = _direct_url(distribution)
    editable = source.get("dir_info", {}).get("editable", False)
    home = Path(str(source.get("url", "")).removeprefix("file://")) if editable else distribution.locate_file("")
    if not origin.is_relative_to(Path(str(home)).resolve()):
        return {}
    said: dict[str, Any] = {"version": distribution.version, "found": "installed distribution"}
    if editable:
        said["found"] = "editable installation"
    commit = source.get("vcs_info", {}).get("commit_id")
    if commit:
        said |= {"commit": commit, "found": "installed from a repository (direct_url.json)"}
    digest = source.get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest:
        said |= {"archive_sha256": digest, "found": "installed from an archive (direct_url.json)"}
    return said


def _direct_url(distribution: importlib.metadata.Distribution) -> dict[str, Any]:
    text = distribution.read_text("direct_url.json")
    try:
        source = json.loads(text) if text else {}
    except json.JSONDecodeError:
        return {}
    return source if isinstance(source, dict) else {}


def _checkout(origin: Path) -> dict[str, Any]:
    """Commit and changes of the repository that tracks this package; nothing of one that only lies around it."""
    root = _repository(origin)
    if root is None:
        return {}
    tracked = _git(root, "ls-files", "--error-unmatch", "--", str(origin))
    if tracked is None:
        return {}
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = _git(root, "diff", "HEAD", "--no-ext-diff", "--binary", "--", str(origin))
    said: dict[str, Any] = {"commit": commit.decode().strip(), "dirty": None, "found": "git checkout"}
    if changes is not None:
        said["dirty"] = bool(changes)
    if changes:
        said["diff"] = hashlib.sha256(changes).hexdigest()[:12]
    return said


def _repository(origin: Path) -> Path | None:
    for folder in (origin, *origin.parents):
        if folder.name in _INSTALLED_INTO:
            return None
        if (folder / ".git").exists():
            return folder
    return None


def _git(root: Path, *arguments: str) -> bytes | None:
    """What git prints; None where there is no git, or it fails or takes too long."""
    # A container runs as another user than the owner of a mounted checkout, which git calls dubious.
    command = ["git", "-c", "safe.directory=*", "-C", str(root), *arguments]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout


def _torch(torch: Any) -> dict[str, Any]:
    """An imported torch, and the libraries that it was built with. Does not initialise CUDA."""
    found: dict[str, Any] = {
        "torch": {
            "version": str(torch.__version__),
            "commit": getattr(torch.version, "git_version", None),
            "found": "torch.__version__",
        }
    }
    if torch.version.cuda is not None:
        found["cuda"] = {"version": str(torch.version.cuda), "found": "torch.version.cuda"}
        found["nccl"] = _asked("torch.cuda.nccl.version", lambda: ".".join(map(str, torch.cuda.nccl.version())))
        found["cudnn"] = _cudnn(torch)
    return found


def _cudnn(torch: Any) -> dict[str, Any]:
    """The cuDNN that is loaded. Where it is not the one that torch was built with, torch's public call only says so."""
    public = _asked("torch.backends.cudnn.version", lambda: str(torch.backends.cudnn.version()))
    if public["version"] is not None:
        return public
    loaded = _asked(
        "torch._C._cudnn.getRuntimeVersion", lambda: ".".join(map(str, torch._C._cudnn.getRuntimeVersion()))
    )
    return public if loaded["version"] is None else loaded | {"found": f"{loaded['found']}; {public['found']}"}


def _asked(name: str, ask: Any) -> dict[str, Any]:
    try:
        return {"version": ask(), "found": name}
    except (AttributeError, OSError, RuntimeError, TypeError) as error:
        return {"version": None, "found": f"{name}: {error}"}
