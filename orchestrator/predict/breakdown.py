"""Where a rank's activations go: the ledger added up over layers, and what each label would give back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.predict import job as settings
from orchestrator.predict.ends import output_ledger
from orchestrator.predict.job import Job, LayerKind, Recompute, local_sizes
from orchestrator.predict.layers import layer_ledger
from orchestrator.predict.ledger import DISCARDS, FULL, REGIONS, Ledger
from orchestrator.predict.memory import Prediction, predict_memory
from orchestrator.predict.mtp import entry_ledger, exit_ledger, join_ledger
from orchestrator.predict.pipeline import chunks_of
from orchestrator.predict.walk import active_labels, groups_of, ledgers_of
from orchestrator.vocabulary import Stage

LABELS = tuple(sorted((DISCARDS | REGIONS) - {FULL}))
"""Labels of Megatron Core 0.16.1 whose boundary is in the ledger."""


@dataclass(frozen=True)
class Share:
    """One tensor, added up over a rank's layers and the micro-batches in flight."""

    name: str
    shape: str
    bytes: int
    layers: int
    each: int
    """Bytes in one layer and one micro-batch."""
    labels: tuple[str, ...]
    """Labels that drop it."""
    source: str


@dataclass(frozen=True)
class Saving:
    """What a candidate would need with one more label, on the rank that needs most."""

    label: str
    kept: int
    """Bytes that forward would no longer keep."""
    forward: int
    """Bytes by which the forward peak falls; negative where it rises."""
    peak: int
    """Bytes by which the largest peak of all stages falls."""


def largest_tensors(job: Job, prediction: Prediction | None = None) -> tuple[Share, ...]:
    """Every kept tensor of the rank whose peak is the largest, the largest first."""
    rank = (prediction or predict_memory(job)).hottest
    local = local_sizes(job)
    found: dict[tuple[str, str], Share] = {}
    for chunk, in_flight in zip(chunks_of(job.shapes, job.layout)[rank.pp_rank], rank.in_flight, strict=True):
        if not in_flight:
            continue
        ledgers = ledgers_of(chunk, job.shapes, local, job.numerics)
        for start, end, checkpointed in groups_of(len(ledgers), job.recompute):
            for index in range(start, end):
                if not checkpointed:
                    _add(found, ledgers[index], active_labels(job.recompute), in_flight)
                elif index == start:
                    _add(found, ledgers[index], frozenset({FULL}), in_flight)
        if chunk.norm and job.shapes.mtp_layers:
            _add(found, exit_ledger(job.shapes, local, job.numerics), frozenset(), in_flight)
        for kind in chunk.mtp:
            _add_depth(found, kind, job, in_flight)
        if chunk.mtp or (chunk.output and job.shapes.mtp_layers):
            _add(found, join_ledger(job.shapes, local, job.numerics, job.shapes.mtp_layers), frozenset(), in_flight)
        if chunk.output:
            ledger = output_ledger(job.shapes, local, job.numerics, job.shapes.mtp_layers)
            _add(found, ledger, frozenset(), in_flight)
    return tuple(sorted(found.values(), key=lambda share: (-share.bytes, share.name)))


def savings(job: Job, labels: Iterable[str] = LABELS) -> tuple[Saving, ...]:
    """What each label would save if it were added to a selective candidate, the largest first.

    Labels that change nothing are left out; under full granularity no label acts.
    """
    if job.recompute.granularity == settings.FULL:
        return ()
    before = predict_memory(job)
    base = before.hottest
    found = []
    for label in labels:
        if label in job.recompute.modules:
            continue
        added = Recompute(settings.SELECTIVE, active_labels(job.recompute) | {label})
        after = predict_memory(replace(job, recompute=added))
        rank = after.ranks[base.pp_rank]
        forward = base.steady[Stage.FORWARD] - rank.steady[Stage.FORWARD]
        saving = Saving(label, base.kept - rank.kept, forward, before.peak - after.peak)
        if saving.kept or saving.forward or saving.peak:
            found.append(saving)
    return tuple(sorted(found, key=lambda saving: (-saving.kept, saving.label)))


def _add_depth(found: dict[tuple[str, str], Share], kind: LayerKind, job: Job, in_flight: int) -> None:
    shapes, local, numerics = job.shapes, local_sizes(job), job.numerics
    whole = job.recompute.granularity == settings.FULL and job.recompute.method == settings.UNIFORM
    active = frozenset({FULL}) if whole else active_labels(job.recompute)
    _add(found, entry_ledger(kind, shapes, local, numerics), active, in_flight)
    if not whole:
        _add(found, layer_ledger(kind, shapes, local, numerics), active, in_flight)
        _add(found, exit_ledger(shapes, local, numerics), active, in_flight)


def _add(found: dict[tuple[str, str], Share], ledger: Ledger, active: frozenset[str], in_flight: int) -> None:
    for tensor in ledger.tensors:
        if not tensor.is_kept(active):
            continue
        key = (tensor.name, tensor.source)
        size = tensor.bytes * in_flight
        known = found.get(key)
        found[key] = Share(
            name=tensor.name,
            shape=tensor.shape,
            bytes=size + (known.bytes if known else 0),
            layers=1 + (known.layers if known else 0),
            each=tensor.bytes,
            labels=tuple(sorted(tensor.labels - {FULL})),
            source=tensor.source,
        )
