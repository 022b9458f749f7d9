"""After a step: what ranks could only leave on their own node comes into the attempt's folder.

`python -m orchestrator.dispatch.gather SPEC RANKS_PER_NODE` does it on a node of a larger step.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.dispatch.home import spec_at_home
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
            if not is_home(spec, rank):
                _bring_one(spec, rank, rank % ranks_per_node)
        except (FormatError, OSError) as error:
            if not is_home(spec, rank):  # where nodes share the folder, another may have been faster
                notes.append(f"rank {rank}: {error}")
    if not notes:
        shutil.rmtree(beacon_dir, ignore_errors=True)
    return notes


def is_home(spec: TrialSpec, rank: int) -> bool:
    """Whether the rank's last word is in the attempt's folder: a record, and not the one of a rank still running."""
    path = layout.rank_file(Path(spec.run_dir), rank)
    try:
        return decode(RankRecord, read_json(path), str(path)).ended != ENDED_RUNNING
    except (FileNotFoundError, FormatError):
        return False


def _bring_one(spec: TrialSpec, rank: int, local_rank: int) -> None:
    kept = layout.rank_file(Path(spec.beacon_dir), rank)
    if kept.exists():
        record = decode(RankRecord, read_json(kept), str(kept))
    elif layout.beacon_file(Path(spec.beacon_dir), rank).exists():
        record = lost_record(spec, rank, local_rank)
    else:
        return
    write_json(layout.rank_file(Path(spec.run_dir), rank), record)


def main(arguments: Sequence[str]) -> int:
    """`gather SPEC RANKS_PER_NODE`, on a node of the step: what this node holds comes home."""
    spec_file, ranks_per_node = arguments
    spec = spec_at_home(decode(TrialSpec, read_json(Path(spec_file)), spec_file), Path(spec_file).parent)
    notes = bring_home(spec, int(ranks_per_node))
    for note in notes:
        print(note, file=sys.stderr)
    return 1 if notes else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
