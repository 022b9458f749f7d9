"""A rank's beacon: a memory map that outlives the process, whatever ends it.

The trainer writes, the supervisor (or after it the driver) reads. Native byte order and alignment, one node. Layout:

    header      magic, schema, sizes, pid, flags, allocator counters, recorder cost
    word        stage, microbatch and iteration in eight aligned bytes: one store, never torn
    times       unix seconds of the last word, and of the last heartbeat
    totals      one row per stage over the whole run
    iterations  one row per iteration, each with one row per stage
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.jsonfile import FormatError
from orchestrator.records.rank import IterationRecord, LastBeacon, StageMemory
from orchestrator.vocabulary import Stage

MAGIC = b"RCBEACON"
SCHEMA = 1
MAX_ITERATIONS = 10_000
"""Iterations that get a row of their own; later ones still count in the totals."""

FLAG_MEASURED = 1
FLAG_OPTIMIZER_STATE = 2
FLAG_FINISHED = 4
"""The trainer returned by itself."""
FLAG_PAUSED = 8
"""The recorder paused inside the steady window, because it would have cost too much."""
FLAG_UNWINDING = 16
"""An exception has left a stage, and no stage was entered since."""
FLAG_OPTIMIZER_CHECKED = 32
"""Somebody looked whether optimizer state exists."""

_HEADER = struct.Struct("@8sIIII")  # magic, schema, stages, iteration rows, pid
_WORD = struct.Struct("@Q")
_AT = struct.Struct("@d")
_FLAGS = struct.Struct("@Q")
_COUNTERS = struct.Struct("@qqdq")  # allocator retries, ooms (-1: not read), recorder seconds, recorder calls
_STAGE = struct.Struct("@qqqqqd")  # entries, peak allocated, peak reserved, end allocated, end reserved, seconds
_ITERATION = struct.Struct("@qqdddd qq")  # number, flags, ms, loss, grad norm, tflops, peak allocated, peak reserved
_ITERATION_SKIPPED, _ITERATION_NAN, _HAS_LOSS, _HAS_NORM, _HAS_TFLOPS = 1, 2, 4, 8, 16

_WORD_AT = 32
_TIME_AT = 40
_FLAGS_AT = 48
_COUNTERS_AT = 56
_STARTED_AT = 88
_TOTALS_AT = 96
_STAGES = len(Stage)
_ABSENT = -1
_ROW = _ITERATION.size + _STAGES * _STAGE.size
_EMPTY_STAGE = _STAGE.pack(0, _ABSENT, _ABSENT, _ABSENT, _ABSENT, 0.0)


def beacon_size(iteration_rows: int) -> int:
    """Bytes of a beacon with this many iteration rows."""
    return _TOTALS_AT + _STAGES * _STAGE.size + iteration_rows * _ROW


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
        for index in range(_STAGES):
            self._map[self._total(index) : self._total(index) + _STAGE.size] = _EMPTY_STAGE
        _COUNTERS.pack_into(self._map, _COUNTERS_AT, _ABSENT, _ABSENT, 0.0, 0)
        _AT.pack_into(self._map, _STARTED_AT, time.time())
        self.at(Stage.STARTUP, 0, 0)
        _HEADER.pack_into(self._map, 0, MAGIC, SCHEMA, _STAGES, self.rows, os.getpid())

    def at(self, stage: Stage, iteration: int, microbatch: int) -> None:
        """Say where the rank is now; this is also its heartbeat."""
        self.at_code(stage.code, iteration, microbatch)

    def at_code(self, code: int, iteration: int, microbatch: int) -> None:
        """`at` for a hot path that has looked the stage's code up already."""
        word = code << 56 | (microbatch & 0xFFFFFF) << 32 | iteration & 0xFFFFFFFF
        _WORD.pack_into(self._map, _WORD_AT, word)
        _AT.pack_into(self._map, _TIME_AT, time.time())

    def raise_flag(self, flag: int) -> None:
        """Set one of the `FLAG_` bits."""
        (flags,) = _FLAGS.unpack_from(self._map, _FLAGS_AT)
        _FLAGS.pack_into(self._map, _FLAGS_AT, flags | flag)

    def lower_flag(self, flag: int) -> None:
        """Clear one of the `FLAG_` bits."""
        (flags,) = _FLAGS.unpack_from(self._map, _FLAGS_AT)
        _FLAGS.pack_into(self._map, _FLAGS_AT, flags & ~flag)

    def counters(self, retries: int | None, ooms: int | None, recorder_seconds: float, recorder_calls: int) -> None:
        """Allocator retries and out-of-memory events so far, and what recording has cost."""
        _COUNTERS.pack_into(
            self._map,
            _COUNTERS_AT,
            _ABSENT if retries is None else retries,
            _ABSENT if ooms is None else ooms,
            recorder_seconds,
            recorder_calls,
        )

    def credit(
        self,
        code: int,
        iteration: int,
        entries: int,
        peak_allocated: int,
        peak_reserved: int,
        end_allocated: int,
        end_reserved: int,
        seconds: float,
    ) -> None:
        """Add one window of a stage to its total and to its iteration's row (`iteration` counts from 1; 0 is set-up).

        Peaks join by maximum, entries and seconds by sum; ends replace. -1 says a size was not read, and changes none.
        """
        values = (entries, peak_allocated, peak_reserved, end_allocated, end_reserved, seconds)
        self._add(self._total(code), *values)
        if 1 <= iteration <= self.rows:
            self._add(self._row(iteration) + _ITERATION.size + code * _STAGE.size, *values)

    def begin_iteration(self, iteration: int) -> None:
        """Empty the stage rows of an iteration; a retried iteration starts afresh."""
        if 1 <= iteration <= self.rows:
            start = self._row(iteration) + _ITERATION.size
            self._map[start : start + _STAGES * _STAGE.size] = _EMPTY_STAGE * _STAGES

    def end_iteration(self, record: IterationRecord) -> None:
        """Keep an iteration's own numbers; its stages were credited as they ended."""
        if not 1 <= record.number <= self.rows:
            return
        flags = _ITERATION_SKIPPED * record.skipped | _ITERATION_NAN * record.nan
        flags |= _HAS_LOSS * (record.loss is not None) | _HAS_NORM * (record.grad_norm is not None)
        flags |= _HAS_TFLOPS * (record.tflops_per_gpu is not None)
        _ITERATION.pack_into(
            self._map,
            self._row(record.number),
            record.number,
            flags,
            record.milliseconds,
            record.loss or 0.0,
            record.grad_norm or 0.0,
            record.tflops_per_gpu or 0.0,
            _ABSENT if record.peak_allocated is None else record.peak_allocated,
            _ABSENT if record.peak_reserved is None else record.peak_reserved,
        )

    def close(self) -> None:
        self._map.close()

    def _add(
        self,
        offset: int,
        entries: int,
        allocated: int,
        reserved: int,
        end_allocated: int,
        end_reserved: int,
        seconds: float,
    ) -> None:
        old = _STAGE.unpack_from(self._map, offset)
        _STAGE.pack_into(
            self._map,
            offset,
            old[0] + entries,
            max(old[1], allocated),
            max(old[2], reserved),
            old[3] if end_allocated == _ABSENT else end_allocated,
            old[4] if end_reserved == _ABSENT else end_reserved,
            old[5] + seconds,
        )

    @staticmethod
    def _total(code: int) -> int:
        return _TOTALS_AT + code * _STAGE.size

    @staticmethod
    def _row(iteration: int) -> int:
        return _TOTALS_AT + _STAGES * _STAGE.size + (iteration - 1) * _ROW


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
            head = stream.read(_TOTALS_AT)
    except FileNotFoundError:
        return None
    if len(head) < _TOTALS_AT or head[:8] != MAGIC:
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
            FormatError: it is not a beacon, is cut short, or a newer release wrote it.
            OSError: it cannot be read.
        """
        self._bytes = path.read_bytes()
        if len(self._bytes) < _TOTALS_AT or self._bytes[:8] != MAGIC:
            raise FormatError(f"{path}: not a beacon")
        _, schema, self._stages, self._rows, self.pid = _HEADER.unpack_from(self._bytes, 0)
        if schema > SCHEMA:
            raise FormatError(f"{path}: beacon schema {schema} is newer than {SCHEMA}")
        if self._stages != _STAGES or len(self._bytes) < beacon_size(self._rows):
            raise FormatError(f"{path}: the beacon is cut short or has another list of stages")

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
        retries, ooms, seconds, calls = _COUNTERS.unpack_from(self._bytes, _COUNTERS_AT)
        return _absent(retries), _absent(ooms), seconds, calls

    def stages(self) -> list[StageMemory]:
        """The stages that were entered, over the whole run."""
        return self._stages_at(_TOTALS_AT)

    def iterations(self) -> list[IterationRecord]:
        """The iterations that began, in order; the last may be unfinished and then has no row here."""
        found = []
        for index in range(self._rows):
            offset = _TOTALS_AT + _STAGES * _STAGE.size + index * _ROW
            number, flags, ms, loss, norm, tflops, allocated, reserved = _ITERATION.unpack_from(self._bytes, offset)
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
                    peak_allocated=_absent(allocated),
                    peak_reserved=_absent(reserved),
                    stages=self._stages_at(offset + _ITERATION.size),
                )
            )
        return found

    def unfinished_stages(self) -> list[StageMemory]:
        """The stages of the iteration that the rank was in when it ended; empty where it was finished."""
        iteration = self.last.iteration
        if not 1 <= iteration <= self._rows:
            return []
        offset = _TOTALS_AT + _STAGES * _STAGE.size + (iteration - 1) * _ROW
        if _ITERATION.unpack_from(self._bytes, offset)[0] == iteration:
            return []
        return self._stages_at(offset + _ITERATION.size)

    def _stages_at(self, offset: int) -> list[StageMemory]:
        found = []
        for code in range(_STAGES):
            entries, peak, reserved, end, end_reserved, seconds = _STAGE.unpack_from(
                self._bytes, offset + code * _STAGE.size
            )
            if entries:
                found.append(
                    StageMemory(
                        stage=Stage.from_code(code),
                        entries=entries,
                        peak_allocated=_absent(peak),
                        peak_reserved=_absent(reserved),
                        end_allocated=_absent(end),
                        end_reserved=_absent(end_reserved),
                        seconds=seconds,
                    )
                )
        return found


def _absent(value: int) -> int | None:
    return None if value == _ABSENT else value
