"""Where a report's figures come from: software, hardware, container, source, files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.analysis.comparison import Group
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, Row
from orchestrator.report.page.trials import Shown
from orchestrator.report.text import plain
from orchestrator.vocabulary.units import format_bytes

_MOST_HOSTS = 8
_FIRST = ("megatron_bridge", "megatron_core", "transformer_engine", "torch", "cuda", "nccl", "cudnn", "driver")
_REVISION = ("version", "commit", "dirty", "archive_sha256")

Item = tuple[str, str]


def provenance(group: Group, shown: Sequence[Shown]) -> list[Item]:
    """Name and value, the revisions first."""
    row = next((line.decided for line in group.lines if line.decided.software), group.first_row)
    items = [*_published(row)] if row.origin == ORIGIN_PUBLISHED else [*_software(row.software)]
    pinned = {name: value for name, value in (row.requested.get("revisions") or {}).items() if value}
    items += [(f"pinned {plain(name)}", plain(value)) for name, value in pinned.items()]
    items += _hardware(row, shown)
    images = {one.executed.image for one in shown if one.executed and one.executed.image}
    items.append(("container", plain("; ".join(sorted(images))) if images else "none was asked for"))
    items += [(f"environment {plain(name)}", plain(value)) for name, value in sorted(row.environment.items())]
    items.append(("match key", group.digest))
    return items


def _published(row: Row) -> Iterable[Item]:
    for name in ("document", "section", "url", "revision", "date"):
        if row.source.get(name):
            yield f"source {name}", plain(row.source[name])
    for name, value in (row.source.get("revisions") or {}).items():
        yield plain(name), plain(value)


def _software(software: Mapping[str, Any]) -> Iterable[Item]:
    known = [name for name in _FIRST if name in software]
    for name in (*known, *sorted(set(software) - set(known))):
        entry = software[name]
        if isinstance(entry, Mapping):
            said = [_revision(key, entry[key]) for key in _REVISION if entry.get(key)]
            if said:
                yield plain(name), ", ".join(said)
        elif entry is not None:
            yield plain(name), plain(entry)


def _revision(key: str, value: Any) -> str:
    if key == "version":
        return plain(value)
    return "with uncommitted changes" if key == "dirty" else f"{key.replace('_', ' ')} {plain(value)}"


def _hardware(row: Row, shown: Sequence[Shown]) -> Iterable[Item]:
    capacity = f", {format_bytes(row.device_capacity)}" if row.device_capacity else ""
    device = " ".join(plain(part) for part in (row.device_kind, row.device_name) if part)
    yield "device", f"{device or 'not stated'}{capacity}"
    yield "ranks", "not stated" if row.world_size is None else str(row.world_size)
    if row.memory_limit:
        yield "memory limit of a rank", format_bytes(row.memory_limit)
    hosts = sorted({host for one in shown if one.executed for host in one.executed.hosts})
    if hosts:
        more = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
        yield "hosts", plain(", ".join(hosts[:_MOST_HOSTS])) + more
