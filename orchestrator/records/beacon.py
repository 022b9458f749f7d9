"""A rank's beacon: a memory map that outlives the process, whatever ends it.

The trainer writes, the supervisor (or after it the driver) reads. Native byte order and alignment, one node. Layout:

    header      magic, schema, sizes, pid, flags, allocator counters, recorder cost
    word        stage, microbatch and iteration in eight aligned bytes: one store, never torn
    times       unix seconds of the last word, and of the beacon's making
    present     one row per stage, of the iteration under way: what an edge writes, all in the map's first page
    totals      one row per stage over all that ended before; two copies, of which one counts
    iterations  one row per iteration, each with one row per stage

When an iteration begins, the present rows are folded: into the row of their iteration and into the copy of the totals
that does not count. One store of a number, the folds so far, then makes that copy count and the present rows not; they
count again once they are empty and carry that number. So a reader that joins totals and present rows counts every
window once, wherever the writer was killed.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.jsonfile import FormatError
from orchestrator.records.rank import IterationRecord, LastBeacon, StageMemory
from orchestrator.vocabulary import Stage

MAGIC = b"RCBEACON"
SCHEMA = 3
MAX_ITERATIONS = 10_000
"""Iterations that get a row of their own; later ones still count in the totals."""

FLAG_MEASURED = 1
FLAG_OPTIMIZER_STATE = 2
FLAG_FINISHED = 4
"""The trainer returned by itself."""
FLAG_PAUSED = 8
"""The recorder paused in iterations of the steady window, because all of them would have cost too much."""
FLAG_UNWINDING = 16
"""An exception has left a stage, and no stage was entered since."""
FLAG_OPTIMIZER_CHECKED = 32
"""Somebody looked whether optimizer state exists."""

_HEADER = struct.Struct("@8sIIII")  # magic, schema, stages, iteration rows, pid
_WORD = struct.Struct("@Q")
_AT = struct.Struct("@d")
_FLAGS = struct.Struct("@Q")
# allocator retries, ooms (-1: not read), recorder seconds, recorder calls, share of the steady steps (-1: none ended)
_COUNTERS = struct.Struct("@qqdqd")
_FOLDS = struct.Struct("@q")
_PRESENT = struct.Struct("@qq")  # folds when these rows began, iteration
_STAGE = struct.Struct("@qqqqqd")  # entries, peak allocated, peak reserved, end allocated, end reserved, seconds
# number, flags, ms, loss, grad norm, tflops, ms of garbage collection, peak allocated, peak reserved
_ITERATION = struct.Struct("@qqddddd qq")
_ITERATION_SKIPPED, _ITERATION_NAN, _HAS_LOSS, _HAS_NORM, _HAS_TFLOPS, _HAS_GC = 1, 2, 4, 8, 16, 32

_WORD_AT = 32
_TIME_AT = 40
_FLAGS_AT = 48
_COUNTERS_AT = 56
_STARTED_AT = 96
_FOLDS_AT = 104
_PRESENT_AT = 112
_HEAD = 128
_STAGE_BYTE_AT = _WORD_AT + (7 if sys.byteorder == "little" else 0)
"""The word's highest byte: an edge changes the stage alone."""
_STAGES = len(Stage)
_STAGE_ROWS = _STAGES * _STAGE.size
_PRESENT_ROWS_AT = _HEAD
_TOTALS_AT = _PRESENT_ROWS_AT + _STAGE_ROWS
_ITERATIONS_AT = _TOTALS_AT + 2 * _STAGE_ROWS
_ABSENT = -1
_ROW = _ITERATION.size + _STAGE_ROWS
_EMPTY_STAGE = _STAGE.pack(0, _ABSENT, _ABSENT, _ABSENT, _ABSENT, 0.0)
_EMPTY_STAGES = _EMPTY_STAGE * _STAGES
_UNTOUCHED = _STAGE.unpack(_EMPTY_STAGE)
_FIRST_WINDOW = _PRESENT_ROWS_AT // 8
_WINDOW = _STAGE.size // 8

Figures = tuple[int, int, int, int, int, float]
"""A stage's row: entries, peak allocated, peak reserved, end allocated, end reserved, seconds."""


def beacon_size(iteration_rows: int) -> int:
    """Bytes of a beacon with this many iteration rows."""
    return _ITERATIONS_AT + iteration_rows * _ROW


def joined(earlier: Figures, later: Figures) -> Figures:
    """Two rows of a stage as one: entries and seconds add up, peaks join by maximum, ends are the later ones.

    -1 says that a size was not read, and changes none that was.
    """
    return (
        earlier[0] + later[0],
        max(earlier[1], later[1]),
        max(earlier[2], later[2]),
        earlier[3] if later[3] == _ABSENT else later[3],
        earlier[4] if later[4] == _ABSENT else later[4],
        earlier[5] + later[5],
    )


class BeaconWriter:
    """The trainer's side. Every method is a few stores; none allocates on the device or synchronises."""

    def __init__(self, path: Path, train_iters: int) -> None:
        """Create the map, private to this user.

        Raises:
            OSError: the folder is missing, full, or the file exists and belongs to somebody else.
        """
        self.rows = max(0, min(train_iters, MAX_ITERATIONS))
        size = beacon_size(self.rows)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        # The edges' way to the map: an item of these is one aligned load or store.
        self._bytes = memoryview(self._map)
        self._sizes = self._bytes.cast("q")
        self._floats = self._bytes.cast("d")
        self._iteration = 0
        self._map[_PRESENT_ROWS_AT:_ITERATIONS_AT] = _EMPTY_STAGES * 3
        _COUNTERS.pack_into(self._map, _COUNTERS_AT, _ABSENT, _ABSENT, 0.0, 0, _ABSENT)
        _AT.pack_into(self._map, _STARTED_AT, time.time())
        self.at(Stage.STARTUP, 0, 0)
        _HEADER.pack_into(self._map, 0, MAGIC, SCHEMA, _STAGES, self.rows, os.getpid())

    def at(self, stage: Stage, iteration: int, microbatch: int) -> None:
        """Say where the rank is now; this is also its heartbeat."""
        self.at_code(stage.code, iteration, microbatch)

    def at_code(self, code: int, iteration: int, microbatch: int) -> None:
        """`at` for a caller that has looked the stage's code up already."""
        word = code << 56 | (microbatch & 0xFFFFFF) << 32 | iteration & 0xFFFFFFFF
        _WORD.pack_into(self._map, _WORD_AT, word)
        _AT.pack_into(self._map, _TIME_AT, time.time())

    def stage_at(self, code: int, at: float) -> None:
        """The stage alone changed, at unix second `at`. For a hot path."""
        self._bytes[_STAGE_BYTE_AT] = code
        self._floats[_TIME_AT // 8] = at

    def raise_flag(self, flag: int) -> None:
        """Set one of the `FLAG_` bits."""
        (flags,) = _FLAGS.unpack_from(self._map, _FLAGS_AT)
        _FLAGS.pack_into(self._map, _FLAGS_AT, flags | flag)

    def lower_flag(self, flag: int) -> None:
        """Clear one of the `FLAG_` bits."""
        (flags,) = _FLAGS.unpack_from(self._map, _FLAGS_AT)
        _FLAGS.pack_into(self._map, _FLAGS_AT, flags & ~flag)

    def counters(
        self,
        retries: int | None,
        ooms: int | None,
        recorder_seconds: float,
        recorder_calls: int,
        steady_share: float | None = None,
    ) -> None:
        """Allocator retries and out-of-memory events so far, and what recording has cost.

        `steady_share` is its share of the steady window's steps so far; None before the first of them ended.
        """
        _COUNTERS.pack_into(
            self._map,
            _COUNTERS_AT,
            _ABSENT if retries is None else retries,
            _ABSENT if ooms is None else ooms,
            recorder_seconds,
            recorder_calls,
            _ABSENT if steady_share is None else steady_share,
        )

    def edge(
        self,
        code: int,
        entries: int,
        peak_allocated: int,
        peak_reserved: int,
        end_allocated: int,
        end_reserved: int,
        seconds: float,
        next_code: int,
        at: float,
    ) -> None:
        """A window of `code` ended, and the rank is in `next_code` from unix second `at`: `credit` and `stage_at`.

        The hot path. Items of a memoryview, because they touch less memory than a struct's call does.
        """
        sizes, floats = self._sizes, self._floats
        row = _FIRST_WINDOW + code * _WINDOW
        if entries:
            sizes[row] += entries
        if peak_allocated > sizes[row + 1]:
            sizes[row + 1] = peak_allocated
        if peak_reserved > sizes[row + 2]:
            sizes[row + 2] = peak_reserved
        if end_allocated != _ABSENT:
            sizes[row + 3] = end_allocated
        if end_reserved != _ABSENT:
            sizes[row + 4] = end_reserved
        floats[row + 5] += seconds
        self._bytes[_STAGE_BYTE_AT] = next_code
        floats[_TIME_AT // 8] = at

    def credit(
        self,
        code: int,
        entries: int,
        peak_allocated: int,
        peak_reserved: int,
        end_allocated: int,
        end_reserved: int,
        seconds: float,
    ) -> None:
        """Add one window to a stage's figures of the iteration that began last; before the first one, of set-up.

        Peaks join by maximum, entries and seconds by sum; ends replace. -1 says a size was not read, and changes none.
        """
        window = entries, peak_allocated, peak_reserved, end_allocated, end_reserved, seconds
        offset = _PRESENT_ROWS_AT + code * _STAGE.size
        _STAGE.pack_into(self._map, offset, *joined(_STAGE.unpack_from(self._map, offset), window))

    def peaks(self) -> tuple[int, int]:
        """The largest (allocated, reserved) of the windows since the iteration began; -1 where none was read."""
        rows = list(_STAGE.iter_unpack(self._map[_PRESENT_ROWS_AT : _PRESENT_ROWS_AT + _STAGE_ROWS]))
        return max(row[1] for row in rows), max(row[2] for row in rows)

    def begin_iteration(self, iteration: int) -> None:
        """Windows belong to `iteration` from here on (from 1); an iteration that is retried starts afresh."""
        folds = self._fold()
        if 1 <= iteration <= self.rows:
            _FOLDS.pack_into(self._map, self._row(iteration), 0)  # its number: it has not ended
        self._map[_PRESENT_ROWS_AT : _PRESENT_ROWS_AT + _STAGE_ROWS] = _EMPTY_STAGES
        self._iteration = iteration
        self._sizes[_PRESENT_AT // 8 + 1] = iteration
        self._sizes[_PRESENT_AT // 8] = folds

    def _fold(self) -> int:
        """Add the present rows to the totals, and keep them as the row of their iteration. Returns the folds so far."""
        folds = self._sizes[_FOLDS_AT // 8]
        present = self._map[_PRESENT_ROWS_AT : _PRESENT_ROWS_AT + _STAGE_ROWS]
        if 1 <= self._iteration <= self.rows:
            start = self._row(self._iteration) + _ITERATION.size
            self._map[start : start + _STAGE_ROWS] = present
        counting, next_one = (_TOTALS_AT + (number & 1) * _STAGE_ROWS for number in (folds, folds + 1))
        self._map[next_one : next_one + _STAGE_ROWS] = self._map[counting : counting + _STAGE_ROWS]
        for offset in range(0, _STAGE_ROWS, _STAGE.size):
            later = _STAGE.unpack_from(present, offset)
            if later != _UNTOUCHED:
                total = joined(_STAGE.unpack_from(self._map, counting + offset), later)
                _STAGE.pack_into(self._map, next_one + offset, *total)
        self._sizes[_FOLDS_AT // 8] = folds + 1
        return folds + 1

    def end_iteration(self, record: IterationRecord) -> None:
        """Keep an iteration's own numbers; its stages were credited as they ended, and may be until the next begins."""
        if not 1 <= record.number <= self.rows:
            return
        flags = _ITERATION_SKIPPED * record.skipped | _ITERATION_NAN * record.nan
        flags |= _HAS_LOSS * (record.loss is not None) | _HAS_NORM * (record.grad_norm is not None)
        flags |= _HAS_TFLOPS * (record.tflops_per_gpu is not None) | _HAS_GC * (record.gc_milliseconds is not None)
        _ITERATION.pack_into(
            self._map,
            self._row(record.number),
            record.number,
            flags,
            record.milliseconds,
            record.loss or 0.0,
            record.grad_norm or 0.0,
            record.tflops_per_gpu or 0.0,
            record.gc_milliseconds or 0.0,
            _ABSENT if record.peak_allocated is None else record.peak_allocated,
            _ABSENT if record.peak_reserved is None else record.peak_reserved,
        )

    def close(self) -> None:
        for view in (self._sizes, self._floats, self._bytes):
            view.release()
        self._map.close()

    @staticmethod
    def _row(iteration: int) -> int:
        return _ITERATIONS_AT + (iteration - 1) * _ROW


@dataclass(frozen=True)
class BeaconHead:
    """What whoever waits for a rank looks at, again and again: a hundred bytes of the beacon."""

    pid: int
    """The trainer's process, which leads a session and a process group of its own."""
    word: int
    """Stage, microbatch and iteration, packed: compare it, or read it with `BeaconReader`."""
    at: float
    """Unix seconds of the last word."""
    flags: int

    def flag(self, flag: int) -> bool:
        """Whether one of the `FLAG_` bits is set."""
        return bool(self.flags & flag)


def read_head(path: Path) -> BeaconHead | None:
    """The head of a beacon; None where there is none yet, or it is not finished.

    Raises:
        OSError: it is there, and cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as stream:
            head = stream.read(_HEAD)
    except FileNotFoundError:
        return None
    if len(head) < _HEAD or head[:8] != MAGIC:
        return None
    return BeaconHead(
        pid=_HEADER.unpack_from(head, 0)[4],
        word=_WORD.unpack_from(head, _WORD_AT)[0],
        at=_AT.unpack_from(head, _TIME_AT)[0],
        flags=_FLAGS.unpack_from(head, _FLAGS_AT)[0],
    )


class BeaconReader:
    """The other side: a copy of a beacon as it was when it was read."""

    def __init__(self, path: Path) -> None:
        """Read a beacon whole.

        Raises:
            FormatError: it is not a beacon, is cut short, or another release wrote it.
            OSError: it cannot be read.
        """
        self._bytes = path.read_bytes()
        if len(self._bytes) < _HEAD or self._bytes[:8] != MAGIC:
            raise FormatError(f"{path}: not a beacon")
        _, schema, self._stages, self._rows, self.pid = _HEADER.unpack_from(self._bytes, 0)
        if schema != SCHEMA:
            age = "newer" if schema > SCHEMA else "older"
            raise FormatError(f"{path}: beacon schema {schema} is {age} than {SCHEMA}")
        if self._stages != _STAGES or len(self._bytes) < beacon_size(self._rows):
            raise FormatError(f"{path}: the beacon is cut short or has another list of stages")
        (self._folds,) = _FOLDS.unpack_from(self._bytes, _FOLDS_AT)
        began, iteration = _PRESENT.unpack_from(self._bytes, _PRESENT_AT)
        self._present: int | None = iteration if began == self._folds else None
        """The iteration of the present rows; None where they are folded already, and must not count again."""

    @property
    def last(self) -> LastBeacon:
        """Where the rank was last."""
        (word,) = _WORD.unpack_from(self._bytes, _WORD_AT)
        (at,) = _AT.unpack_from(self._bytes, _TIME_AT)
        return LastBeacon(Stage.from_code(word >> 56), word & 0xFFFFFFFF, word >> 32 & 0xFFFFFF, at)

    @property
    def started_at(self) -> float:
        """Unix seconds at which the trainer made the beacon."""
        return float(_AT.unpack_from(self._bytes, _STARTED_AT)[0])

    def flag(self, flag: int) -> bool:
        """Whether one of the `FLAG_` bits is set."""
        return bool(_FLAGS.unpack_from(self._bytes, _FLAGS_AT)[0] & flag)

    @property
    def counters(self) -> tuple[int | None, int | None, float, int]:
        """Allocator retries, out-of-memory events (None where never read), recorder seconds and calls."""
        retries, ooms, seconds, calls, _ = _COUNTERS.unpack_from(self._bytes, _COUNTERS_AT)
        return _absent(retries), _absent(ooms), seconds, calls

    @property
    def steady_share(self) -> float | None:
        """What recording cost of the steady window's steps; None where none of them ended."""
        share: float = _COUNTERS.unpack_from(self._bytes, _COUNTERS_AT)[4]
        return None if share == _ABSENT else share

    def stages(self) -> list[StageMemory]:
        """The stages that were entered, over the whole run."""
        totals = self._figures_at(_TOTALS_AT + (self._folds & 1) * _STAGE_ROWS)
        if self._present is not None:
            totals = [joined(*pair) for pair in zip(totals, self._figures_at(_PRESENT_ROWS_AT), strict=True)]
        return _entered(totals)

    def iterations(self) -> list[IterationRecord]:
        """The iterations that began, in order; the last may be unfinished and then has no row here."""
        found = []
        for index in range(self._rows):
            offset = _ITERATIONS_AT + index * _ROW
            number, flags, ms, loss, norm, tflops, gc_ms, allocated, reserved = _ITERATION.unpack_from(
                self._bytes, offset
            )
            if number != index + 1:
                continue
            found.append(
                IterationRecord(
                    number=number,
                    milliseconds=ms,
                    loss=loss if flags & _HAS_LOSS else None,
                    grad_norm=norm if flags & _HAS_NORM else None,
                    skipped=bool(flags & _ITERATION_SKIPPED),
                    nan=bool(flags & _ITERATION_NAN),
                    tflops_per_gpu=tflops if flags & _HAS_TFLOPS else None,
                    gc_milliseconds=gc_ms if flags & _HAS_GC else None,
                    peak_allocated=_absent(allocated),
                    peak_reserved=_absent(reserved),
                    stages=self._stages_of(number),
                )
            )
        return found

    def unfinished_stages(self) -> list[StageMemory]:
        """The stages of the iteration that the rank was in when it ended; empty where it was finished."""
        iteration = self.last.iteration
        if not 1 <= iteration <= self._rows:
            return []
        if _ITERATION.unpack_from(self._bytes, _ITERATIONS_AT + (iteration - 1) * _ROW)[0] == iteration:
            return []
        return self._stages_of(iteration)

    def _stages_of(self, iteration: int) -> list[StageMemory]:
        if iteration == self._present:
            return _entered(self._figures_at(_PRESENT_ROWS_AT))
        return _entered(self._figures_at(_ITERATIONS_AT + (iteration - 1) * _ROW + _ITERATION.size))

    def _figures_at(self, offset: int) -> list[Figures]:
        return list(_STAGE.iter_unpack(self._bytes[offset : offset + _STAGE_ROWS]))


def _entered(rows: list[Figures]) -> list[StageMemory]:
    return [
        StageMemory(
            stage=Stage.from_code(code),
            entries=entries,
            peak_allocated=_absent(peak),
            peak_reserved=_absent(reserved),
            end_allocated=_absent(end),
            end_reserved=_absent(end_reserved),
            seconds=seconds,
        )
        for code, (entries, peak, reserved, end, end_reserved, seconds) in enumerate(rows)
        if entries
    ]


def _absent(value: int) -> int | None:
    return None if value == _ABSENT else value
