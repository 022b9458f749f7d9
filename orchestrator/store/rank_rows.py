"""From one rank's record file to its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError, decode
from orchestrator.records.rank import IterationRecord, RankRecord
from orchestrator.records.spec import AttemptRecord
from orchestrator.store.clean import check_numbers, clean, clean_text, digest
from orchestrator.store.evidence import LEFT_OUT, pack
from orchestrator.store.measures import StageSizes, WindowPeaks, largest
from orchestrator.store.record_file import read_record
from orchestrator.store.turned import Tables, Turned, tables_of
from orchestrator.vocabulary import Stage

Row = dict[str, Any]

_MESSAGE_LENGTH = 4000
"""Of an exception's message, in its column; the evidence keeps all of it."""

_FROM_STAGE = ("entries", "peak_allocated", "peak_reserved", "end_allocated", "end_reserved", "seconds")
STAGE_COLUMNS = ("stage", *_FROM_STAGE, "window_allocated", "window_reserved")
ITERATION_COLUMNS = (
    "number",
    "milliseconds",
    "loss",
    "grad_norm",
    "skipped",
    "nan",
    "tflops_per_gpu",
    "peak_allocated",
    "peak_reserved",
)
_STAGE = attrgetter("stage._value_", *_FROM_STAGE)
_ITERATION = attrgetter(*ITERATION_COLUMNS)
_STAGES = frozenset(stage.value for stage in Stage)


@dataclass(frozen=True)
class PreparedRank:
    """The rows of one rank; its number within the attempt stands for the keys that the database gives."""

    rank: int
    row: Row
    stages: list[tuple[Any, ...]]
    """In the order of `STAGE_COLUMNS`."""
    iterations: list[tuple[Any, ...]]
    """In the order of `ITERATION_COLUMNS`."""


@dataclass(frozen=True)
class RankFile:
    """One record file as it was read."""

    record: RankRecord
    """Without the stages by iteration, where `sizes` has what is needed of them."""
    packed: bytes
    """Its evidence, as the database keeps it."""
    sizes: StageSizes


def read_rank(path: Path, rank: int, attempt: AttemptRecord) -> RankFile:
    """Read one rank's record.

    Raises:
        FormatError: it is no record, or that of another rank or attempt.
        OSError: it cannot be read, or could have been written by others.
    """
    layout.check_private(path)
    raw = read_record(path)
    if not isinstance(raw, dict):
        raise FormatError(f"{path}: expected an object")
    rest = {key: value for key, value in raw.items() if key not in ("iterations", "stages", *LEFT_OUT)}
    tables = tables_of(raw)
    packed = pack({**raw, **clean(rest)}, tables)
    sizes = _stage_sizes(tables)
    if sizes is not None:
        # The rows of stages by iteration, most of the file, stay columns: they are packed, not decoded.
        for iteration in raw["iterations"]:
            del iteration["stages"]
    record = decode(RankRecord, raw, str(path))  # says what is wrong with a stage of an iteration, if anything is
    if (record.trial, record.attempt, record.rank) != (attempt.trial, attempt.attempt, rank):
        raise FormatError(f"{path}: it is the record of {record.trial}/{record.attempt}, rank {record.rank}")
    if sizes is None:
        stages = [iteration.stages for iteration in record.iterations]
        rows = [(row.stage.value, row.peak_allocated, row.peak_reserved) for row in chain.from_iterable(stages)]
        sizes = StageSizes.of(tuple(map(len, stages)), rows)
    return RankFile(record, packed, sizes)


def _stage_sizes(tables: Tables) -> StageSizes | None:
    """The sizes of stages by iteration; None where only decoding each of them can tell what they are."""
    stages = tables.of_iterations
    if stages is None or not _is_regular(stages):
        return None
    return StageSizes(tables.counts, *(stages.columns[name] for name in ("stage", "peak_allocated", "peak_reserved")))


def _is_regular(stages: Turned) -> bool:
    """Whether the stages by iteration are as they should be: what decoding each of them would find, for all at once."""
    kinds, sizes = stages.kinds, {int, type(None)}
    return (
        kinds.keys() >= {"stage", *_FROM_STAGE}
        and kinds["stage"] == {str}
        and _STAGES.issuperset(stages.columns["stage"])
        and kinds["entries"] == {int}
        and kinds["seconds"] <= {float, int, type(None)}
        and all(kinds[name] <= sizes for name in _FROM_STAGE[1:-1])
    )


def rank_rows(file: RankFile, peaks: WindowPeaks, software: Once, effective: Once) -> PreparedRank:
    """The rows of a record. `peaks` are its stages' to the end of the window.

    Raises:
        FormatError: a number is larger than any column.
    """
    record = file.record
    device, exception = record.device, record.exception
    # Where it was raised counts: by the time a rank is gone, its stack has unwound and its beacon is further out.
    last = exception if exception and exception.stage else record.beacon
    allocated, reserved = largest(peaks, 0), largest(peaks, 1)
    row = {
        "rank": record.rank,
        "local_rank": record.local_rank,
        "host": clean_text(record.host),
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "ended": record.ended,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "stage": str(last.stage) if last else None,
        "iteration": last.iteration if last else None,
        "microbatch": last.microbatch if last else None,
        "measured": record.measured,
        "device_name": clean_text(device.name) if device and device.name else None,
        "device_uuid": clean_text(device.uuid) if device and device.uuid else None,
        "device_capacity": device.capacity_bytes if device else None,
        "allocator_retries": record.allocator_retries,
        "allocator_ooms": record.allocator_ooms,
        "optimizer_state": record.optimizer_state,
        "exception_type": clean_text(exception.type) if exception else None,
        "exception_message": clean_text(exception.message)[:_MESSAGE_LENGTH] if exception else None,
        "exception_stage": str(exception.stage) if exception and exception.stage else None,
        "peak_allocated": allocated.size if allocated else None,
        "peak_allocated_stage": allocated.stage if allocated else None,
        "peak_reserved": reserved.size if reserved else None,
        "peak_reserved_stage": reserved.stage if reserved else None,
        "software_hash": software.hash_of(record.software),
        "effective_hash": effective.hash_of(record.effective),
        "evidence": file.packed,
    }
    stages = [(*_STAGE(memory), *peaks.get(memory.stage._value_, (None, None))) for memory in record.stages]
    iterations = list(map(_ITERATION, record.iterations))
    if not all(map(_is_finite, record.iterations)):
        iterations = list(map(_iteration_row, iterations))
    where = f"rank {record.rank}"
    check_numbers(row.values(), where)
    check_numbers(chain.from_iterable(stages), where)
    check_numbers(chain.from_iterable(iterations), where)
    return PreparedRank(record.rank, row, _unique(stages), _unique(iterations))


@dataclass
class Once:
    """Contents that many ranks of an attempt share, each cleaned and hashed once."""

    kept: dict[str, Row] = field(default_factory=dict)
    """Cleaned, by hash."""
    seen: list[tuple[Row, str]] = field(default_factory=list)

    def hash_of(self, content: Row | None) -> str | None:
        if not content:
            return None
        key = next((key for known, key in self.seen if known == content), None)
        if key is None:
            cleaned = clean(content)
            key = digest(cleaned)
            self.kept[key] = cleaned
            self.seen.append((content, key))
        return key


def _is_finite(iteration: IterationRecord) -> bool:
    loss, norm = iteration.loss, iteration.grad_norm
    return (loss is None or math.isfinite(loss)) and (norm is None or math.isfinite(norm))


def _iteration_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    number, milliseconds, loss, norm, skipped, nan, *others = row
    if loss is not None and not math.isfinite(loss):
        loss, nan = None, True
    if norm is not None and not math.isfinite(norm):
        norm = None
    return (number, milliseconds, loss, norm, skipped, nan, *others)


def _unique(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The last row of each key, which is its first value: a damaged record may repeat one."""
    return list({row[0]: row for row in rows}.values())
