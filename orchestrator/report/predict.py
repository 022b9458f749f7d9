"""Predictions on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from orchestrator.predict.breakdown import Saving, Share
from orchestrator.predict.memory import STAGES, Prediction
from orchestrator.predict.timing import Cost
from orchestrator.predict.verdict import OPTIMIZER_COPIES, Answer, Range
from orchestrator.report.table import ABSENT, Column, Table, print_table
from orchestrator.report.text import plain
from orchestrator.vocabulary import Stage
from orchestrator.vocabulary.units import format_bytes


@dataclass(frozen=True)
class Forecast:
    """One candidate's prediction; `problem` says why there is none."""

    name: str
    prediction: Prediction | None = None
    spread: Range | None = None
    cost: Cost | None = None
    answer: Answer | None = None
    assumed: tuple[str, ...] = ()
    problem: str | None = None


def print_forecasts(forecasts: Sequence[Forecast], stream: TextIO, *, target: int | None) -> None:
    """One line for each candidate: its peak, between what it may lie, where, and what it replays."""
    columns = [
        Column("candidate", wrap=True),
        Column("peak", right=True),
        Column("between", right=True, spare=2),
        Column("stage", spare=3),
        Column("forward keeps", right=True, spare=1),
        Column("replayed FLOPs", right=True, spare=1),
    ]
    if target is not None:
        columns.append(Column("answer"))
    rows = tuple(_row(forecast, with_answer=target is not None) for forecast in forecasts)
    copies = max((_copies(forecast) for forecast in forecasts), default=0)
    if copies:
        print(
            f"ranges reach {format_bytes(copies)} lower as nobody says which Transformer Engine runs: "
            "name it with --transformer-engine VERSION",
            file=stream,
        )
    title = "Predicted, not measured" if target is None else f"Predicted against {format_bytes(target)}, not measured"
    print_table(Table(title, tuple(columns), rows), stream)
    for forecast in forecasts:
        if forecast.problem:
            print(f"{plain(forecast.name)}: no prediction. {plain(forecast.problem)}", file=stream)
    for note in dict.fromkeys(note for forecast in forecasts for note in forecast.assumed):
        print(f"note: {plain(note)}", file=stream)


def _copies(forecast: Forecast) -> int:
    """Bytes by which a range reaches lower for a release of Transformer Engine that nobody named."""
    terms = () if forecast.spread is None else forecast.spread.terms
    return sum(-term.low for term in terms if term.name == OPTIMIZER_COPIES)


def print_stages(prediction: Prediction, stream: TextIO) -> None:
    """Every pipeline rank's peak in each stage, of the first and of later iterations."""
    names = [stage for stage in STAGES if any(stage in rank.first for rank in prediction.ranks)]
    columns = (Column("pipeline rank"), Column("iteration"), *(Column(str(name), right=True) for name in names))
    rows = []
    for rank in prediction.ranks:
        for label, peaks in (("first", rank.first), ("later", rank.steady)):
            rows.append((str(rank.pp_rank), label, *(_size(peaks, name) for name in names)))
    print_table(Table("Peak allocated by stage", columns, tuple(rows)), stream)
    state = prediction.hottest.state
    print(
        f"model {format_bytes(state.weights)}, gradients {format_bytes(state.gradients)}, "
        f"main parameters {format_bytes(state.main_params)}, optimizer state {format_bytes(state.state)}, "
        f"a step's copies {format_bytes(state.main_gradients + max(state.temporaries, state.quantising))}",
        file=stream,
    )


def print_tensors(shares: Sequence[Share], stream: TextIO, *, most: int) -> None:
    """The largest tensors that forward keeps, with what drops each of them."""
    total = sum(share.bytes for share in shares)
    columns = (
        Column("tensor", wrap=True),
        Column("kept", right=True),
        Column("layers", right=True, spare=2),
        Column("each", right=True, spare=3),
        Column("shape", spare=4),
        Column("dropped by"),
        Column("source", spare=5),
    )
    rows = tuple(
        (
            share.name,
            format_bytes(share.bytes),
            str(share.layers),
            format_bytes(share.each),
            share.shape,
            ", ".join(share.labels) or ABSENT,
            share.source,
        )
        for share in shares[:most]
    )
    print_table(Table(f"Forward keeps {format_bytes(total)}; the largest tensors", columns, rows), stream)


def print_savings(savings: Sequence[Saving], stream: TextIO) -> None:
    """What each further label would give back."""
    if not savings:
        print("No label would change anything here.", file=stream)
        return
    columns = (
        Column("label"),
        Column("forward keeps less", right=True),
        Column("forward peak", right=True),
        Column("largest peak", right=True),
    )
    rows = tuple((one.label, format_bytes(one.kept), _moved(one.forward), _moved(one.peak)) for one in savings)
    print_table(Table("What one more label would save", columns, rows), stream)
    if any(one.peak < 0 or one.forward < 0 for one in savings):
        print(
            "A peak rises where a replay makes more at once; or in the optimizer's step, where less was freed before "
            "it: more of its tensors then get blocks of their own, which are rounded up.",
            file=stream,
        )


def _moved(saved: int) -> str:
    """Where a peak goes."""
    return f"rises by {format_bytes(-saved)}" if saved < 0 else f"falls by {format_bytes(saved)}" if saved else "same"


def print_terms(spread: Range, stream: TextIO) -> None:
    """What the ledger cannot know."""
    for term in spread.terms:
        print(
            f"not known: {term.name}, {format_bytes(term.low)} to {format_bytes(term.high)} ({term.why})", file=stream
        )
    for term in spread.outside:
        print(
            f"beside what torch allocates: {term.name}, {format_bytes(term.low)} to {format_bytes(term.high)} "
            f"({term.why})",
            file=stream,
        )


def print_estimate(estimate: Mapping[str, int | None], stream: TextIO) -> None:
    """What Bridge's own estimator says, beside ours."""
    weights, activations = estimate.get("weights_and_optimizer"), estimate.get("activations")
    more = (
        "its formula for activations does not apply (it assumes sequence parallelism and selective recompute)"
        if activations is None
        else f"activations {format_bytes(activations)}"
    )
    print(f"Megatron Bridge's own estimator: weights and optimizer {format_bytes(weights)}, {more}", file=stream)


def as_json(forecast: Forecast) -> dict[str, Any]:
    """A forecast as JSON; sizes are bytes."""
    found: dict[str, Any] = {"name": forecast.name, "problem": forecast.problem, "assumed": list(forecast.assumed)}
    if forecast.prediction is not None and forecast.spread is not None:
        rank = forecast.prediction.hottest
        found |= {
            "peak": forecast.spread.expected,
            "low": forecast.spread.low,
            "high": forecast.spread.high,
            "stage": str(rank.peak_stage),
            "answer": None if forecast.answer is None else str(forecast.answer),
            "unknown": [asdict(term) for term in forecast.spread.terms],
            "beside_torch": [asdict(term) for term in forecast.spread.outside],
            "ranks": [
                {
                    "pp_rank": one.pp_rank,
                    "kept": one.kept,
                    "in_flight": list(one.in_flight),
                    "state": asdict(one.state),
                    "first": {str(stage): size for stage, size in one.first.items()},
                    "later": {str(stage): size for stage, size in one.steady.items()},
                }
                for one in forecast.prediction.ranks
            ],
        }
    if forecast.cost is not None:
        found["cost"] = asdict(forecast.cost)
    return found


def _row(forecast: Forecast, *, with_answer: bool) -> tuple[str, ...]:
    prediction, spread = forecast.prediction, forecast.spread
    if prediction is None or spread is None:
        cells = [plain(forecast.name), *([ABSENT] * 5)]
    else:
        rank = prediction.hottest
        cost = forecast.cost
        cells = [
            plain(forecast.name),
            format_bytes(spread.expected),
            f"{format_bytes(spread.low)} to {format_bytes(spread.high)}",
            str(rank.peak_stage),
            format_bytes(rank.kept),
            ABSENT if cost is None else f"{cost.replayed_share:.1%}",
        ]
    return (*cells, str(forecast.answer or ABSENT)) if with_answer else tuple(cells)


def _size(peaks: Mapping[Stage, int], stage: Stage) -> str:
    return format_bytes(peaks[stage]) if stage in peaks else ABSENT
