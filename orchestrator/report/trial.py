"""One trial, for a person: what was asked, what ran, where it stopped, every rank and stage."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.records.rank import ENDED_EXIT
from orchestrator.report.table import Column, Table
from orchestrator.report.text import plain
from orchestrator.store.detail import AttemptDetail, RankSummary, TrialDetail
from orchestrator.vocabulary import Cause
from orchestrator.vocabulary.units import format_bytes

_RECOMPUTE = ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")

_FRAMEWORK_NAMES = {
    "parallelism.tp": "tensor_model_parallel_size",
    "parallelism.pp": "pipeline_model_parallel_size",
    "parallelism.vpp": "virtual_pipeline_model_parallel_size",
    "parallelism.cp": "context_parallel_size",
    "parallelism.ep": "expert_model_parallel_size",
    "parallelism.etp": "expert_tensor_parallel_size",
}
"""Fields of `ModelParallelConfig` (Megatron Core 0.16.1) by our shorter names."""

_LAYER_FREQ = "moe_layer_freq"

NOT_STATED = object()
"""The effective configuration has no one value under that name; null is a value."""

_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

_STATUSES = {"batch": "", "new": "", "known": "  [known: measured before this study asked for it]"}

_RANKS_SHOWN = 16
_ITERATIONS_SHOWN = 24


def setting_rows(requested: Mapping[str, Any], effective: Mapping[str, Any] | None) -> list[tuple[str, Any, Any, bool]]:
    """Name, requested and effective value, and whether the framework made another of it.

    The recompute settings always; of the rest what differs. A setting whose name the effective configuration does not
    have, or has more than once, is not compared.
    """
    finished = _by_leaf(effective or {})
    rows: list[tuple[str, Any, Any, bool]] = []
    for path, asked in _flatten(requested):
        name = _FRAMEWORK_NAMES.get(path, path.rpartition(".")[2])
        became = finished.get(name, [])
        always = path in _RECOMPUTE
        unasked = asked is None and not always  # the framework's default where nothing was asked is no surprise
        same = _same_layers if name == _LAYER_FREQ else _same
        differs = len(became) == 1 and not unasked and not same(asked, became[0])
        if always or differs:
            rows.append((path, asked, became[0] if len(became) == 1 else NOT_STATED, differs))
    return rows


def trial_blocks(trial: TrialDetail, *, details: bool = True) -> Iterator[str | Table]:
    """The whole account: lines, and tables between them."""
    yield f"trial    {plain(trial.trial)}" + ("  (control)" if trial.is_control else "")
    for member in trial.studies:
        status = _STATUSES.get(member.status, f"  [{plain(member.status)}]")
        yield f"study    {plain(member.study)}: {plain(member.name)}{status}"
        for reason in member.reasons:
            yield f"         {plain(reason)}"
    repeat = f", repeat {trial.repeat}" if trial.repeat else ""
    ranks = f"{trial.world_size} rank{'s' * (trial.world_size != 1)}"
    yield f"asked    {plain(trial.trainer)}, {ranks}{repeat}, origin {plain(trial.origin)}"
    attempt = trial.deciding
    if attempt is None:
        yield "outcome  not run"
        yield from _settings(trial, None)
        return
    yield from _outcome(attempt)
    yield from _settings(trial, attempt)
    yield from _figures(attempt)
    yield from _in_studies(trial, attempt)
    if details:
        yield from _section(_stage_table(attempt))
        yield from _section(_iteration_table(attempt))
        yield from _section(_rank_table(attempt))
        yield from _software(attempt)
    yield from _files(trial, attempt)


def _outcome(attempt: AttemptDetail) -> Iterator[str]:
    label = attempt.label or ("running" if attempt.state == "running" else "no outcome: cut short")
    parts = [plain(label)]
    if attempt.cause not in (None, "none"):
        parts.append(f"cause {plain(attempt.cause)} in {plain(attempt.stage)}")
    if attempt.rank is not None:
        also = f" (also {', '.join(map(str, attempt.also_ranks))})" if attempt.also_ranks else ""
        parts.append(f"rank {attempt.rank}{also}")
    if attempt.iteration is not None:
        parts.append(f"{attempt.iteration} iterations completed")
    yield f"outcome  {', '.join(parts)}"
    for reason in (attempt.launch_error, attempt.cut_short and f"cut short: {attempt.cut_short}"):
        if reason:
            yield f"         {plain(reason)}"
    for line in attempt.evidence:
        yield f"         > {plain(line)}"
    for note in attempt.notes:
        yield f"         note: {plain(note)}"
    if attempt.rules:
        yield f"         by {', '.join(plain(rule) for rule in attempt.rules)}"


def _settings(trial: TrialDetail, attempt: AttemptDetail | None) -> Iterator[str | Table]:
    rows = setting_rows(trial.requested, attempt.effective if attempt else None)
    known = attempt is not None and attempt.effective is not None
    cells = tuple((plain(path), _value(asked), _value(became) if known else "?") for path, asked, became, _ in rows)
    yield from _section(Table("", (Column("setting"), Column("requested"), Column("effective")), cells))
    if attempt is not None and not known:
        yield "it ended before the framework had an effective configuration"


def _figures(attempt: AttemptDetail) -> Iterator[str]:
    yield ""
    device = ", ".join(plain(part) for part in (attempt.device_kind, attempt.device_name) if part)
    capacity = f", {format_bytes(attempt.device_capacity)}" if attempt.device_capacity else ""
    yield f"device   {device or '-'}{capacity} on {plain(', '.join(attempt.hosts)) or '-'}"
    where = f" on rank {plain(attempt.peak_allocated_rank)} in {plain(attempt.peak_allocated_stage)}"
    reserved = "" if attempt.peak_reserved is None else f", {format_bytes(attempt.peak_reserved)} reserved"
    known = attempt.peak_allocated is not None
    yield f"peak     {f'{format_bytes(attempt.peak_allocated)} allocated{where}{reserved}' if known else '-'}"
    if attempt.step_ms is not None:
        scatter = "" if attempt.step_ms_scatter is None else f" +- {attempt.step_ms_scatter:.2f}"
        garbage = "" if not attempt.step_gc_ms else f", {attempt.step_gc_ms:.2f} of them garbage collection"
        yield f"step     {attempt.step_ms:.2f}{scatter} ms over {attempt.step_count} iterations{garbage}"
    if attempt.tflops_per_gpu is not None and attempt.device_kind != "cpu":
        yield f"speed    {attempt.tflops_per_gpu:.1f} TFLOP/s/GPU"
    yield from recording(attempt.ranks)


def recording(ranks: Sequence[RankSummary]) -> Iterator[str]:
    """What recording by stage cost where it cost most, and where it paused."""
    shares = [(one.recording_share, one.rank) for one in ranks if one.recording_share is not None]
    if not shares:
        return
    share, rank = max(shares)
    paused = [one.rank for one in ranks if one.recording_paused]
    on = f" (rank {rank})" if len(ranks) > 1 else ""
    which = f" on rank{'s' * (len(paused) > 1)} {', '.join(map(str, paused[:_RANKS_SHOWN]))}" if len(ranks) > 1 else ""
    said = f"; paused in the steady window{which}" if paused else ""
    yield f"recorded by stage, at {share:.2%} of the steady step{on}{said}"


def _in_studies(trial: TrialDetail, attempt: AttemptDetail) -> Iterator[str]:
    """The step time that `compare` has, where a control ran several times: the attempt above is the newest alone."""
    for member in trial.studies:
        if member.step_ms is not None and attempt.step_ms is not None and member.step_ms != attempt.step_ms:
            yield f"         in {plain(member.study)}: {member.step_ms:.2f} ms, the median of its runs there"


def _stage_table(attempt: AttemptDetail) -> Table:
    columns = (
        Column("stage"),
        Column("times", right=True),
        Column("allocated", right=True),
        Column("rank", right=True),
        Column("lowest", right=True),
        Column("reserved", right=True),
        Column("left", right=True),
        Column("s (slowest rank)", right=True),
    )
    rows = tuple(
        (
            plain(stage.stage),
            str(stage.entries),
            format_bytes(stage.peak_allocated),
            plain(stage.peak_allocated_rank),
            format_bytes(stage.lowest_allocated),
            format_bytes(stage.peak_reserved),
            format_bytes(stage.end_allocated),
            _number(stage.seconds, 2),
        )
        for stage in attempt.stages
    )
    title = "peak memory by stage: the rank with most, the lowest rank's, and what the stage left allocated"
    if attempt.device_kind == "cuda":
        title += "; seconds are the host's, and its GPU runs behind: they are no cost of a stage"
    return Table(title, columns, rows)


def _iteration_table(attempt: AttemptDetail) -> Table:
    columns = tuple(
        Column(name, right=True)
        for name in ("iteration", "slowest ms", "loss", "grad norm", "TFLOP/s", "peak so far", "flags")
    )
    shown = attempt.iterations[-_ITERATIONS_SHOWN:]
    rows = tuple(
        (
            str(one.number),
            _number(one.milliseconds, 1),
            _number(one.loss, 6),
            _number(one.grad_norm, 4),
            _number(one.tflops_per_gpu, 1),
            format_bytes(one.peak_allocated),
            " ".join(name for name, on in (("skipped", one.skipped), ("nan", one.nan)) if on) or "-",
        )
        for one in shown
    )
    left = len(attempt.iterations) - len(shown)
    return Table(f"the last {len(shown)} iterations" if left else "iterations", columns, rows)


def _rank_table(attempt: AttemptDetail) -> Table:
    columns = (
        Column("rank", right=True),
        Column("host", spare=1),
        Column("ended"),
        Column("last in, iteration"),
        Column("allocated", right=True),
        Column("forward adds", right=True, spare=3),
        Column("reserved", right=True, spare=2),
        Column("exception"),
    )
    ranks = sorted(attempt.ranks, key=lambda one: (one.rank != attempt.rank, -(one.peak_allocated or 0), one.rank))
    rows = tuple(
        (
            str(one.rank),
            plain(one.host),
            _ending(one.ended, one.exit_code, one.signal) + _part(attempt, one),
            f"{plain(one.stage)} {plain(one.iteration)}",
            format_bytes(one.peak_allocated),
            format_bytes(one.forward_adds),
            format_bytes(one.peak_reserved),
            plain(one.exception_type),
        )
        for one in ranks[:_RANKS_SHOWN]
    )
    left = len(ranks) - len(rows)
    return Table(f"ranks, the {len(rows)} hottest" if left else "ranks", columns, rows)


def _part(attempt: AttemptDetail, rank: RankSummary) -> str:
    """The rank's part in a failure, where one was named as the first."""
    if attempt.rank is None or attempt.cause in (None, Cause.NONE):
        return ""
    if rank.rank == attempt.rank:
        return ", first"
    if rank.rank in attempt.also_ranks:
        return ", with the first"
    return "" if rank.ended == ENDED_EXIT and rank.exit_code == 0 else ", cascade"


def _software(attempt: AttemptDetail) -> Iterator[str]:
    if attempt.software:
        yield ""
        yield "software"
        for name, value in sorted(attempt.software.items()):
            yield f"  {plain(name)}: {_software_value(value)}"


def _files(trial: TrialDetail, attempt: AttemptDetail) -> Iterator[str]:
    yield ""
    yield f"files    {plain(attempt.run_dir)}"
    for other in trial.attempts:
        chosen = "  <- decides" if other.decides else ""
        began = (
            "-" if other.started_at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(other.started_at))
        )
        outcome = plain(other.label or other.state)
        yield f"attempt  {plain(other.number)} {began} {plain(other.role)}: {outcome}{chosen}"


def _section(table: Table) -> Iterator[str | Table]:
    if table.rows:
        yield ""
        yield table


def _by_leaf(effective: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Distinct values of every last name of a nested configuration."""
    found: dict[str, list[Any]] = {}
    for path, value in _flatten(effective):
        values = found.setdefault(path.rpartition(".")[2], [])
        if value not in values:
            values.append(value)
    return found


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _same_layers(frequency: Any, layers: Any) -> bool:
    """Whether a list that says layer by layer which ones have experts is every so many-th one after a dense beginning
    (`first_k_dense_replace` of Hugging Face's configurations)."""
    if type(frequency) is not int or frequency < 1 or not isinstance(layers, list) or 1 not in layers:
        return _same(frequency, layers)
    rest = layers[layers.index(1) :]
    return rest == [int(place % frequency == 0) for place in range(len(rest))]


def _same(asked: Any, became: Any) -> bool:
    """Whether the framework took a value as it was meant: it spells types and functions in full."""
    if isinstance(asked, str) and isinstance(became, str):
        return _TYPES.get(asked, asked) in (became, became.removeprefix("torch."), became.rpartition(".")[2])
    return bool(asked == became)


def _value(value: Any) -> str:
    if value is NOT_STATED:
        return "-"
    return plain(value) if isinstance(value, str) else plain(json.dumps(value, ensure_ascii=False))


def _software_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(key)} {_value(item)}" for key, item in value.items() if item is not None)
    return _value(value)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ending(ended: str, exit_code: int | None, signal: int | None) -> str:
    if signal is not None:
        return f"{plain(ended)} {signal}"
    return f"{plain(ended)} {exit_code}" if exit_code is not None else plain(ended)
