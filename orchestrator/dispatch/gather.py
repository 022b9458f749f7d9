"""After a step: what ranks could only leave on their own node comes into the attempt's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.records import layout
from orchestrator.records.assemble import lost_record
from orchestrator.records.jsonfile import FormatError, decode, read_json, write_json
from orchestrator.records.rank import ENDED_RUNNING, RankRecord
from orchestrator.records.spec import TrialSpec


def bring_home(spec: TrialSpec, ranks_per_node: int) -> list[str]:
    """Give every rank of this machine that left a trace a record, then remove the node-local folder.

    A rank without a record may have left one in the node-local folder, when its supervisor could not write to
    the attempt's, or only a beacon, when its supervisor was killed. Returns what could not be read or written;
    the node-local folder is then kept.
    """
    beacon_dir = Path(spec.beacon_dir)
    if not beacon_dir.is_dir():
        return []
    notes = []
    try:
        layout.check_private(beacon_dir)
    except PermissionError as error:
        return [str(error)]
    for rank in range(spec.world_size):
        try:
            if not _is_home(spec, rank):
                _bring_one(spec, rank, rank % ranks_per_node)
        except (FormatError, OSError) as error:
            notes.append(f"rank {rank}: {error}")
    if not notes:
        shutil.rmtree(beacon_dir, ignore_errors=True)
    return notes


def _is_home(spec: TrialSpec, rank: int) -> bool:
    """Whether the rank's last word is in the attempt's folder: a record, and not the one of a rank still running."""
    path = layout.rank_file(Path(spec.run_dir), rank)
    if not path.exists():
        return False
    return decode(RankRecord, read_json(path), str(path)).ended != ENDED_RUNNING


def _bring_one(spec: TrialSpec, rank: int, local_rank: int) -> None:
    kept = layout.rank_file(Path(spec.beacon_dir), rank)
    if kept.exists():
        record = decode(RankRecord, read_json(kept), str(kept))
    elif layout.beacon_file(Path(spec.beacon_dir), rank).exists():
        record = lost_record(spec, rank, local_rank)
    else:
        return
    write_json(layout.rank_file(Path(spec.run_dir), rank), record)
