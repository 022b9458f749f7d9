"""Runs every label alone, in pairs and together, and both full methods, over every layout: docs/evidence.

python tests/integration/mcore_table.py FILE.md [LAYOUT,LAYOUT,… [FOLDER OF ANOTHER MEGATRON CORE]]

What is measured goes to FILE.jsonl, one trial a line, as soon as it is: a run that was cut short goes on where it was.
The table is made of all lines at the end; the exit status is 1 where a row is not as it should be.
"""

from __future__ import annotations

import itertools
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcore_arithmetic import Spread, replays, saved
from mcore_ranks import Ranks, entries, held_after_forward, warm_ranks
from mcore_settings import CONTROL, EVERY_RECOMPUTE, GROUPED, LAYOUTS, config

LOSS_TOLERANCE = 1e-5
SAVED_TOLERANCE = 0.02

HEAD = """\
# Labels and layouts on the CPU trainer

Megatron Core {core}, torch {torch}, Python {python}, {machine}; what was measured is in `{measured}`. Written by

    python tests/integration/mcore_table.py {command}

Every row is a trial of the default model (`conf/model/tiny_mla_moe.yaml`: one dense layer and three with experts, MLA;
grouped experts) of two steps, four samples of 64 tokens each, against its layout's control. The layouts are
`LAYOUTS` of `tests/integration/mcore_settings.py`; all have the distributed optimizer.

- **loss**: the largest relative difference of any step's loss; it must be at most {loss:.0e}.
- **replays**: what the recorder counted on the ranks of each pipeline stage, over both steps; `=` where every rank has
  exactly as many as its layers ask for (`mlp` none on layers with experts, `shared_experts` once inside `moe`).
- **saved**: kB (1000 bytes) that the ranks of each pipeline stage hold less than the control's when the last forward
  of the last step ends / the same by the tensor arithmetic of `tests/integration/mcore_arithmetic.py` (how far apart,
  at most {saved:.0%}).

Two terms of that arithmetic were found by measuring, and then in Megatron Core's code: with tensor parallelism the
checkpoint of `mla_up_proj` keeps all of the latent that was gathered, and a dispatcher whose last pass was a replay
keeps that layer's input and gradient. Before 0.16, `mla_up_proj` also replays the norm of the latent, and saves that
much more: it moved out of the checkpoint then. What remains above the arithmetic is the router's small change.

{verdict}

| layout | ranks | recompute | loss | replays | saved |
|---|---:|---|---:|---|---|
"""


@dataclass(frozen=True)
class Row:
    """A trial beside its layout's control; lists go over pipeline stages."""

    layout: str
    recompute: str
    world_size: int
    loss: float
    """Largest relative difference."""
    replays: list[int]
    replays_right: bool
    saved: list[int]
    """Bytes."""
    arithmetic: list[int]

    @property
    def off(self) -> list[float]:
        """Relative distances from the arithmetic; where that says nothing, anything else is infinitely far."""
        pairs = zip(self.saved, self.arithmetic, strict=True)
        return [0.0 if one == other else (one - other) / other if other else float("inf") for one, other in pairs]

    @property
    def right(self) -> bool:
        return (
            self.loss <= LOSS_TOLERANCE and self.replays_right and all(abs(far) <= SAVED_TOLERANCE for far in self.off)
        )


def main(arguments: Sequence[str]) -> int:
    file = Path(arguments[0])
    layouts = arguments[1].split(",") if len(arguments) > 1 else list(LAYOUTS)
    measure_all(file.with_suffix(".jsonl"), layouts, Path(arguments[2]) if len(arguments) > 2 else None)
    lines = [line for line in read_lines(file.with_suffix(".jsonl")) if line["layout"] in layouts]
    rows = compared(lines)
    file.write_text(text(lines, rows, file, arguments[1:2]))
    return int(not all(row.right for row in rows))


def measure_all(file: Path, layouts: Sequence[str], megatron: Path | None) -> None:
    """Measure what `file` does not have yet."""
    known = {(line["layout"], line["recompute"]) for line in read_lines(file)}
    asked = [pair for pair in itertools.product(layouts, (CONTROL, *EVERY_RECOMPUTE)) if pair not in known]
    if not asked:
        return
    with tempfile.TemporaryDirectory() as folder, warm_ranks(Path(folder), megatron) as ranks, file.open("a") as out:
        for layout, recompute in asked:
            print(json.dumps(measure(ranks, layout, recompute)), file=out, flush=True)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The trials measured so far; a line that was cut short is none."""
    if not file.exists():
        return []
    lines = file.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def measure(ranks: Ranks, layout: str, recompute: str) -> dict[str, Any]:
    trial = ranks.passed(config(*LAYOUTS[layout], GROUPED, recompute))
    software = trial.records[0].software
    return {
        "layout": layout,
        "recompute": recompute,
        "megatron_core": software["megatron_core"]["version"],
        "torch": software["torch"]["version"],
        "losses": trial.losses,
        "replays": [entries(record, "replay") for record in trial.records],
        "held": [held_after_forward(trial, rank) for rank in range(trial.spec.world_size)],
        "stages": [
            {item.stage.value: [item.entries, item.peak_allocated] for item in record.iterations[-1].stages}
            for record in trial.records
        ],
    }


def compared(lines: Sequence[dict[str, Any]]) -> list[Row]:
    controls = {line["layout"]: line for line in lines if line["recompute"] == CONTROL}
    return [_row(line, controls[line["layout"]]) for line in lines if line["recompute"] != CONTROL]


def _row(line: dict[str, Any], control: dict[str, Any]) -> Row:
    asked = config(*LAYOUTS[line["layout"]], GROUPED, line["recompute"])
    spread, steps = Spread.of(asked), asked["training"]["train_iters"]
    stages = [spread.ranks_of(stage) for stage in range(spread.pp)]
    wanted = [replays(asked, stage) * steps for stage in range(spread.pp)]
    return Row(
        layout=line["layout"],
        recompute=line["recompute"],
        world_size=asked["parallelism"]["world_size"],
        loss=max(abs(one - other) / abs(one) for one, other in zip(control["losses"], line["losses"], strict=True)),
        replays=[sum(line["replays"][rank] for rank in ranks) for ranks in stages],
        replays_right=all(
            line["replays"][rank] == want for want, ranks in zip(wanted, stages, strict=True) for rank in ranks
        ),
        saved=[sum(control["held"][rank] - line["held"][rank] for rank in ranks) for ranks in stages],
        arithmetic=[saved(asked, stage, line["megatron_core"]) for stage in range(spread.pp)],
    )


def text(lines: Sequence[dict[str, Any]], rows: Sequence[Row], file: Path, layouts: Sequence[str]) -> str:
    (core,) = {line["megatron_core"] for line in lines}
    (torch,) = {line["torch"] for line in lines}
    wrong = [row for row in rows if not row.right]
    verdict = (
        f"{len(rows)} rows; {len(rows) - len(wrong)} are as they must be. Largest difference of a loss: "
        f"{max(row.loss for row in rows):.1e}. Largest distance from the arithmetic: "
        f"{max(abs(far) for row in rows for far in row.off):.2%}."
    )
    head = HEAD.format(
        core=core,
        torch=torch,
        python=platform.python_version(),
        machine=platform.machine(),
        command=" ".join([f"docs/evidence/{file.name}", *layouts]),
        measured=file.with_suffix(".jsonl").name,
        loss=LOSS_TOLERANCE,
        saved=SAVED_TOLERANCE,
        verdict=verdict,
    )
    return head + "".join(f"{_printed(row)}\n" for row in rows)


def _printed(row: Row) -> str:
    name = row.recompute.removeprefix("recompute_modules=").removeprefix("recompute=")
    counted = " + ".join(str(number) for number in row.replays) + (" =" if row.replays_right else " **not as asked**")
    held = "; ".join(
        f"{measured / 1e3:.1f} / {by_hand / 1e3:.1f} ({far:+.2%})"
        for measured, by_hand, far in zip(row.saved, row.arithmetic, row.off, strict=True)
    )
    mark = "" if row.right else " **"
    return f"| {row.layout} | {row.world_size} | `{name}`{mark} | {row.loss:.0e} | {counted} | {held} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
