"""Writes docs/evidence: every label alone, in pairs and together, over every layout, against its control.

python tests/integration/mcore_table.py FILE [FOLDER OF ANOTHER MEGATRON CORE]
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mcore_ranks import Ranks, Trial, entries, stage, warm_ranks
from mcore_settings import LABELS, LAYOUTS, config, modules, replays_of_trial

HEAD = """\
# Labels and layouts on the CPU trainer

Megatron Core {core}, torch {torch}: the default model (one dense layer and three with experts, MLA) with grouped
experts, two iterations of four samples of 64 tokens, written by `tests/integration/mcore_table.py`. Each row is a trial
against its layout's control. *Loss* is the largest relative difference of any iteration's loss. *Replays* are those
that the recorder counted over all ranks, and those that the labels ask for. *Saved* is what rank 0 and the last rank
hold less after their last forward, in kB.

| layout | ranks | recompute | loss | replays | saved, first rank | saved, last rank |
|---|---:|---|---:|---:|---:|---:|
"""


def main(file: Path, megatron: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder, warm_ranks(Path(folder), megatron) as ranks:
        software = ranks.passed(config("parallelism=single")).records[0].software
        with file.open("w") as table:
            table.write(HEAD.format(core=software["megatron_core"]["version"], torch=software["torch"]["version"]))
            for layout, overrides in LAYOUTS.items():
                for line in _layout(ranks, layout, (*overrides, "model.moe_grouped_gemm=true")):
                    print(line, file=table, flush=True)


def _layout(ranks: Ranks, layout: str, overrides: tuple[str, ...]) -> Iterator[str]:
    control = ranks.passed(config(*overrides, "recompute=control"))
    for recompute, labels in _sets():
        trial = ranks.passed(config(*overrides, recompute))
        pairs = zip(control.losses, trial.losses, strict=True)
        difference = max(abs(one - other) / abs(one) for one, other in pairs)
        counted = sum(entries(record, "replay") for record in trial.records)
        asked = "" if labels is None else f" / {replays_of_trial(trial.spec.config, labels)}"
        saved = [_held(control, rank) - _held(trial, rank) for rank in (0, -1)]
        name = recompute.removeprefix("recompute_modules=").removeprefix("recompute=")
        yield (
            f"| {layout} | {trial.spec.world_size} | `{name}` | {difference:.0e} | {counted}{asked} | "
            f"{saved[0] / 1e3:.1f} | {saved[1] / 1e3:.1f} |"
        )


def _sets() -> Iterator[tuple[str, tuple[str, ...] | None]]:
    for size in (1, 2, len(LABELS)):
        for labels in itertools.combinations(LABELS, size):
            yield modules(labels), labels
    yield "recompute=full_uniform", None
    yield "recompute=full_block", None


def _held(trial: Trial, rank: int) -> int:
    found = stage(trial.records[rank].iterations[-1], "forward")
    assert found is not None
    assert found.end_allocated is not None
    return found.end_allocated


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
