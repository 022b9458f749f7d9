"""What a trial ran on: the package that an import takes, not one that lies near."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.trial.software import _torch, container, driver_version, package, software


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose package `probed` is importable."""
    root = tmp_path / "checkout"
    (root / "probed").mkdir(parents=True)
    (root / "probed" / "__init__.py").write_text("VALUE = 1\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "One")
    use(root, monkeypatch)
    return root


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, "probed", raising=False)


def test_a_checkout_says_its_commit(checkout: Path) -> None:
    said = package("probed")
    assert (said["commit"], said["dirty"], said["found"]) == (git(checkout, "rev-parse", "HEAD"), False, "git checkout")
    assert said["path"] == str(checkout / "probed")
    assert "diff" not in said


def test_changes_make_it_dirty_and_different_changes_differ(checkout: Path) -> None:
    diffs = []
    for value in (2, 3):
        (checkout / "probed" / "__init__.py").write_text(f"VALUE = {value}\n")
        said = package("probed")
        assert said["dirty"] is True
        diffs.append(said["diff"])
    assert diffs[0] != diffs[1]


def test_changes_elsewhere_in_the_repository_do_not_count(checkout: Path) -> None:
    (checkout / "README").write_text("x")
    git(checkout, "add", "README")
    assert package("probed")["dirty"] is False


def test_a_repository_that_only_lies_around_a_package_says_nothing(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment inside of somebody's project, and a vendored folder that git ignores."""
    for below in (("venv", "lib", "site-packages"), ("vendored",)):
        folder = checkout.joinpath(*below)
        (folder / "probed").mkdir(parents=True)
        (folder / "probed" / "__init__.py").write_text("")
        use(folder, monkeypatch)
        said = package("probed")
        assert said["path"] == str(folder / "probed")
        assert "commit" not in said


def installed(folder: Path, direct_url: object = None) -> Path:
    (folder / "probed").mkdir(parents=True)
    (folder / "probed" / "__init__.py").write_text("")
    info = folder / "probed-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probed\nVersion: 1.5\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    return folder


def test_an_installed_distribution_says_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(installed(tmp_path / "site-packages"), monkeypatch)
    said = package("probed")
    assert (said["version"], said["found"]) == ("1.5", "installed distribution")


def test_an_installation_from_a_repository_says_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"url": "https://example.org/probed", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}
    use(installed(tmp_path / "site-packages", source), monkeypatch)
    said = package("probed")
    assert (said["version"], said["commit"]) == ("1.5", "abc123")
    assert "direct_url.json" in said["found"]


def test_a_checkout_on_the_path_hides_the_installed_version(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path / "site-packages")))
    use(checkout, monkeypatch)
    said = package("probed")
    assert said["version"] is None
    assert said["commit"] == git(checkout, "rev-parse", "HEAD")


def test_an_editable_installation_has_version_and_commit(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"url": f"file://{checkout}", "dir_info": {"editable": True}}
    installed(tmp_path / "site-packages", source)
    (tmp_path / "site-packages" / "probed" / "__init__.py").unlink()
    (tmp_path / "site-packages" / "probed").rmdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    use(checkout, monkeypatch)
    said = package("probed")
    assert (said["version"], said["dirty"]) == ("1.5", False)
    assert said["found"] == "git checkout, editable installation"


def test_what_cannot_be_imported_is_said_so() -> None:
    assert package("no_such_package.inner") == {"version": None, "found": "cannot be imported"}


def test_every_entry_says_how_it_was_found() -> None:
    found = software(["orchestrator.trial", "no_such_package"])
    assert set(found) >= {"python", "kernel", "orchestrator_trial", "no_such_package"}
    assert all(entry["found"] for entry in found.values())


def test_the_driver_is_what_the_kernel_reports(tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs@x)  Sun Jul 27\n"
        "GCC version:  gcc version 12.2.0\n"
    )
    assert driver_version(path) == "580.65.06"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n")
    assert driver_version(path) == "535.183.01"
    assert driver_version(tmp_path / "absent") is None


def test_an_image_is_known_from_its_launcher_or_runtime(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert container({}, absent) is None
    said = container({"ORCHESTRATOR_IMAGE": "nvcr.io/x:1", "ORCHESTRATOR_IMAGE_DIGEST": "sha256:ab"}, absent)
    assert said == {
        "image": "nvcr.io/x:1",
        "digest": "sha256:ab",
        "found": "ORCHESTRATOR_IMAGE, ORCHESTRATOR_IMAGE_DIGEST",
    }
    podman = tmp_path / "containerenv"
    podman.write_text('engine="podman-5"\nimage="docker.io/library/x:2"\nimageid="cafe"\n')
    assert container({}, podman) == {"image": "docker.io/library/x:2", "digest": "cafe", "found": str(podman)}


def test_a_cudnn_that_torch_was_not_built_with_says_its_version_all_the_same() -> None:
    """As on a real GPU machine: torch 2.11 built against cuDNN 9.19, with 9.14 installed."""

    def refuse() -> int:
        raise RuntimeError("cuDNN version incompatibility: compiled against (9, 19, 0) but found (9, 14, 0)")

    torch = SimpleNamespace(
        __version__="2.11.0+cu130",
        version=SimpleNamespace(cuda="13.0", git_version="70d99e99"),
        cuda=SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 28, 9))),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=refuse)),
        _C=SimpleNamespace(_cudnn=SimpleNamespace(getRuntimeVersion=lambda: (9, 14, 0))),
    )
    found = _torch(torch)["cudnn"]
    assert found["version"] == "9.14.0"
    assert "getRuntimeVersion; torch.backends.cudnn.version: cuDNN version incompatibility" in found["found"]
    del torch._C
    assert _torch(torch)["cudnn"]["version"] is None
