"""On which kind of file system a database lies: SQLite's write-ahead log needs memory shared between its users."""

from __future__ import annotations

from pathlib import Path

_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "jfs", "reiserfs", "bcachefs"}
)


def mounted_type(path: Path, mounts: str | None = None) -> str | None:
    """The type of the file system that holds `path`; None where the system does not say.

    `mounts` is the text of /proc/self/mounts.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
    best: tuple[int, str | None] = (-1, None)
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(fields[1].encode().decode("unicode_escape"))
        if path.is_relative_to(point) and len(point.parts) >= best[0]:
            best = (len(point.parts), fields[2])
    return best[1]


def may_use_wal(kind: str | None) -> bool:
    """Whether every process that can open a file there runs on this machine (https://sqlite.org/wal.html)."""
    return kind is None or kind in _LOCAL
