"""From an attempt's folder to the rows of the database. No database here: worker processes run it side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.outcome import Evidence, Outcome, decide
from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError, decode, encode
from orchestrator.records.rank import RankRecord
from orchestrator.records.spec import AttemptRecord, TrialSpec
from orchestrator.select.match import Measured, match_key
from orchestrator.store.clean import check_numbers, clean, clean_text
from orchestrator.store.measures import AttemptFigures, WindowPeaks, attempt_figures, peaks_to
from orchestrator.store.problem import Problem
from orchestrator.store.rank_rows import Once, PreparedRank, RankFile, rank_rows, read_rank
from orchestrator.store.record_file import read_record

Row = dict[str, Any]


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
    files: dict[int, RankFile] = {}
    for rank, path in layout.rank_files(run_dir).items():
        try:
            files[rank] = read_rank(path, rank, attempt)
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


def _assemble(
    folder: str,
    attempt: AttemptRecord,
    spec: TrialSpec | None,
    files: dict[int, RankFile],
    problems: list[Problem],
) -> PreparedAttempt:
    window = spec.steady_window if spec else (1, 1)
    software, effective = Once(), Once()
    ranks: list[PreparedRank] = []
    peaks: dict[int, WindowPeaks] = {}
    for number, file in list(files.items()):
        try:
            peaks[number] = peaks_to(file.record, file.sizes, window[1])
            ranks.append(rank_rows(file, peaks[number], software, effective))
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
        "step_gc_ms": figures.step_gc_ms,
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
