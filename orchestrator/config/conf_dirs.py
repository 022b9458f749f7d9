"""Where configuration files are looked for: the user's own folders first, ours last."""

from __future__ import annotations

from pathlib import Path

from orchestrator.config.errors import UsageError


def built_in() -> Path:
    """Our own conf folder: of the checkout, or as it was installed with the wheel.

    Raises:
        UsageError: neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "conf", package / "share" / "conf"):
        if (folder / "config.yaml").is_file() and (folder / "recompute").is_dir():
            return folder
    raise UsageError(f"The built-in conf folder is missing beside {package}; install the package again.")


def search_folders(config_dir: str | None, working_dir: Path) -> list[Path]:
    """The folders in the order in which a file of the same name wins: `--config-dir`, `./conf`, ours.

    Raises:
        UsageError: `--config-dir` names no folder.
    """
    ours = built_in()
    folders = []
    if config_dir is not None:
        given = (working_dir / config_dir).resolve()
        if not given.is_dir():
            raise UsageError(f"--config-dir {config_dir} is not a folder.")
        folders.append(given)
    near = (working_dir / "conf").resolve()
    if near.is_dir() and near not in (ours, *folders):
        folders.append(near)
    if ours not in folders:
        folders.append(ours)
    return folders
