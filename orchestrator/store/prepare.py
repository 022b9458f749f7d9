"""From an attempt's folder to the rows of the database. No database here: worker processes run it side by side."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.outcome import Evidence, Outcome, decide
from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError, decode, encode
from orchestrator.records.rank import IterationRecord, RankRecord
from orchestrator.records.spec import AttemptRecord, TrialSpec
from orchestrator.select.match import Measured, match_key
from orchestrator.store.clean import check_numbers, clean, clean_text, digest
from orchestrator.store.evidence import LEFT_OUT, pack
from orchestrator.store.measures import AttemptFigures, StageSizes, WindowPeaks, attempt_figures, largest, peaks_to
from orchestrator.store.problem import Problem
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
class PreparedAttempt:
    """An attempt as the database will hold it."""

    folder: str
    attempt: AttemptRecord
    spec: TrialSpec | None
    uid: str
    columns: Row
    """Of the attempt's row, keys of other tables left out."""
    ranks: list[PreparedRank] = field(default_factory=list)
    software: dict[str, Row] = field(default_factory=dict)
    effective: dict[str, Row] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class _RankFile:
    record: RankRecord
    packed: bytes
    sizes: StageSizes


def prepare(folder: str) -> PreparedAttempt | Problem:
    """Read an attempt's folder whole.

    A rank's file that cannot be read is a problem of the attempt, and that rank counts as without a record. An
    attempt whose own record cannot be read is one problem and nothing else.
    """
    run_dir = Path(folder)
    try:
        layout.check_private(run_dir.parent)
        layout.check_private(run_dir)
        attempt = _read_attempt(run_dir)
        spec = _read_spec(run_dir)
    except (OSError, ValueError, RecursionError) as error:
        return Problem(folder, _message(error))
    if attempt is None:
        return Problem(folder, f"{run_dir / layout.ATTEMPT_FILE} is missing: the driver left no account of it")
    problems: list[Problem] = []
    files: dict[int, _RankFile] = {}
    for rank, path in layout.rank_files(run_dir).items():
        try:
            files[rank] = _read_rank(path, rank, attempt)
        except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
            problems.append(Problem(str(path), _message(error)))
    return _assemble(folder, attempt, spec, files, problems)


def attempt_uid(attempt: AttemptRecord) -> str:
    """The identity of an execution, equal wherever its records are collected."""
    text = "\0".join((attempt.trial, attempt.attempt, attempt.batch, repr(attempt.started_at)))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def judge(attempt: AttemptRecord, spec: TrialSpec | None, ranks: Mapping[int, RankRecord]) -> Outcome:
    """What today's rules conclude."""
    return decide(
        Evidence(
            world_size=attempt.world_size,
            train_iters=spec.train_iters if spec else 0,
            steady_window=spec.steady_window if spec else (1, 1),
            ranks=ranks,
            attempt=attempt,
        )
    )


def outcome_columns(outcome: Outcome, *, ended: bool) -> Row:
    """The derived columns of an attempt; a label of an attempt that still runs is not one yet."""
    return {
        "label": outcome.label if ended else None,
        "cause": str(outcome.cause) if ended else None,
        "stage": str(outcome.stage) if ended else None,
        "rank": outcome.rank,
        "also_ranks": list(outcome.also_ranks),
        "iteration": outcome.iteration,
        "rules": list(outcome.rules),
        "evidence": clean(list(outcome.lines)),
        "notes": clean(list(outcome.notes)),
        "classifier": __version__,
        "failed_allocation": None if outcome.memory is None else encode(outcome.memory),
    }


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, (OSError, FormatError)) else f"{type(error).__name__}: {text}"


def _read_attempt(run_dir: Path) -> AttemptRecord | None:
    path = run_dir / layout.ATTEMPT_FILE
    if not path.exists():
        return None
    layout.check_private(path)
    attempt = decode(AttemptRecord, read_record(path), str(path))
    if (attempt.trial, attempt.attempt) != (run_dir.parent.name, run_dir.name):
        raise FormatError(f"{path}: it is the record of {attempt.trial}/{attempt.attempt}, in the wrong folder")
    check_numbers((attempt.world_size, attempt.repeat), str(path))
    _check_words((attempt.batch, attempt.role, attempt.trainer), str(path))
    return attempt


def _read_spec(run_dir: Path) -> TrialSpec | None:
    path = run_dir / layout.SPEC_FILE
    if not path.exists():
        return None
    layout.check_private(path)
    spec = decode(TrialSpec, read_record(path), str(path))
    check_numbers((spec.world_size, spec.train_iters, *spec.steady_window), str(path))
    _check_words((spec.trial, spec.trainer, spec.beacon_dir), str(path))
    return spec


def _check_words(words: Iterable[str], where: str) -> None:
    """Refuse ids that no column can hold as they are: spelt out, they would name something else."""
    for word in words:
        if "\0" in word or word.encode("utf-8", "replace").decode() != word:
            raise FormatError(f"{where}: {word!r} is no name that a database can hold")


def _read_rank(path: Path, rank: int, attempt: AttemptRecord) -> _RankFile:
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
    return _RankFile(record, packed, sizes)


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


def _assemble(
    folder: str,
    attempt: AttemptRecord,
    spec: TrialSpec | None,
    files: dict[int, _RankFile],
    problems: list[Problem],
) -> PreparedAttempt:
    window = spec.steady_window if spec else (1, 1)
    software, effective = _Once(), _Once()
    ranks: list[PreparedRank] = []
    peaks: dict[int, WindowPeaks] = {}
    for number, file in list(files.items()):
        try:
            peaks[number] = peaks_to(file.record, file.sizes, window[1])
            ranks.append(_prepare_rank(file, peaks[number], software, effective))
        except (FormatError, KeyError, TypeError, RecursionError) as error:
            problems.append(Problem(str(layout.rank_file(Path(folder), number)), _message(error)))
            peaks.pop(number, None)
            del files[number]
    records = {rank: file.record for rank, file in files.items()}
    ended = attempt.ended_at is not None
    figures = attempt_figures(records, peaks, window)
    columns = {
        "number": attempt.attempt,
        "name": clean_text(attempt.name),
        "role": attempt.role,
        "run_dir": folder,
        "beacon_dir": spec.beacon_dir if spec else None,
        "state": "ended" if ended else "running",
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "record": clean(encode(attempt)),
        "spec": _spec_row(spec),
        "software_hash": next((one.row["software_hash"] for one in ranks if one.row["software_hash"]), None),
        "effective_hash": next((one.row["effective_hash"] for one in ranks if one.row["effective_hash"]), None),
        **outcome_columns(judge(attempt, spec, records), ended=ended),
        **_figure_columns(figures),
        **_device_columns(records),
        "match_key": _match_key(attempt, spec, records),
    }
    return PreparedAttempt(
        folder, attempt, spec, attempt_uid(attempt), columns, ranks, software.kept, effective.kept, problems
    )


def _spec_row(spec: TrialSpec | None) -> Row | None:
    if spec is None:
        return None
    row: Row = clean(encode(spec))
    del row["config"]
    return row


def _match_key(attempt: AttemptRecord, spec: TrialSpec | None, records: Mapping[int, RankRecord]) -> str | None:
    """The key of an attempt that had an effective configuration; others join by their request when compared."""
    first = next((record for record in records.values() if record.effective), None)
    if first is None or first.effective is None or spec is None:
        return None
    device = next((record.device for record in records.values() if record.device is not None), None)
    software = next((record.software for record in records.values() if record.software), {})
    measured = Measured(
        effective=clean(first.effective),
        software=clean(software),
        environment=clean(spec.environment),
        device_kind=device.kind if device else None,
        device_name=clean_text(device.name) if device and device.name else None,
        world_size=attempt.world_size,
        memory_limit=spec.memory_limit_bytes,
        steady_window=spec.steady_window,
        requested=clean(spec.config),
    )
    return match_key(measured).digest


def _figure_columns(figures: AttemptFigures) -> Row:
    allocated, reserved = figures.allocated, figures.reserved
    return {
        "peak_allocated": allocated.size if allocated else None,
        "peak_allocated_rank": allocated.rank if allocated else None,
        "peak_allocated_stage": allocated.stage if allocated else None,
        "peak_reserved": reserved.size if reserved else None,
        "peak_reserved_rank": reserved.rank if reserved else None,
        "peak_reserved_stage": reserved.stage if reserved else None,
        "step_ms": figures.step_ms,
        "step_ms_scatter": figures.step_ms_scatter,
        "step_count": figures.step_count,
        "tflops_per_gpu": figures.tflops_per_gpu,
        "last_loss": figures.last_loss,
        "losses": figures.losses,
        "stage_peaks": figures.stage_peaks,
        "replays": figures.replays,
    }


def _device_columns(records: Mapping[int, RankRecord]) -> Row:
    devices = [record.device for record in records.values() if record.device is not None]
    retries = [record.allocator_retries for record in records.values() if record.allocator_retries is not None]
    ooms = [record.allocator_ooms for record in records.values() if record.allocator_ooms is not None]
    first = devices[0] if devices else None
    return {
        "ranks_recorded": len(records),
        "device_kind": first.kind if first else None,
        "device_name": clean_text(first.name) if first and first.name else None,
        "device_capacity": first.capacity_bytes if first else None,
        "hosts": sorted({clean_text(record.host) for record in records.values()}),
        "allocator_retries": sum(retries) if retries else None,
        "allocator_ooms": sum(ooms) if ooms else None,
    }


def _prepare_rank(file: _RankFile, peaks: WindowPeaks, software: _Once, effective: _Once) -> PreparedRank:
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
class _Once:
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
