"""A recommendation with its reasons, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from orchestrator.analysis.recommend import Recommendation
from orchestrator.records.jsonfile import encode
from orchestrator.report.compare import delta_text, group_title
from orchestrator.report.text import plain
from orchestrator.vocabulary.units import format_bytes


def print_recommendation(answer: Recommendation, stream: TextIO) -> None:
    """The choice first, then why each other candidate lost, then what to paste."""
    print(group_title(answer.group), file=stream)
    for line in _text(answer):
        print(line, file=stream)


def as_json(answer: Recommendation) -> dict[str, Any]:
    """The recommendation as JSON values: bytes, milliseconds and fractions."""
    choice, chosen = answer.pick.choice, answer.chosen
    return {
        "match_key": answer.group.digest,
        "origin": answer.group.first_row.origin,
        "device": answer.group.first_row.device_kind,
        "limit": answer.pick.limit,
        "choice": None
        if choice is None or chosen is None
        else {
            **encode(choice),
            "trials": [run.trial for run in chosen.runs],
            "peak_delta": chosen.peak_delta.fraction if chosen.peak_delta else None,
            "time_delta": chosen.time_delta.fraction if chosen.time_delta else None,
            "python": list(answer.python),
            "bridge_overrides": answer.bridge,
            "overrides": answer.ours,
        },
        "losers": [
            {"modules": loser.option.name, "why": str(loser.why), "text": loser.text, **_figures(loser.option)}
            for loser in answer.pick.losers
        ],
        "instead": encode(answer.instead),
        "pareto": [{"modules": option.name, **_figures(option)} for option in answer.pick.pareto],
        "verdicts": encode(answer.verdicts),
        "warnings": list(answer.warnings),
    }


def _text(answer: Recommendation) -> list[str]:
    choice, chosen = answer.pick.choice, answer.chosen
    lines = []
    if choice is None or chosen is None:
        limit = (
            f" with every rank at or below {format_bytes(answer.pick.limit)}" if answer.pick.limit is not None else ""
        )
        lines.append(f"none: no candidate passed{limit}.")
    else:
        where = " ".join(
            text
            for text in (
                f"on rank {choice.rank}" if choice.rank is not None else "",
                f"in {choice.stage}" if choice.stage else "",
            )
            if text
        )
        lines.append(
            f"{plain(choice.name)}: step {choice.step_ms or 0:.2f} ms, peak {format_bytes(choice.peak)}"
            + (f" {where}" if where else "")
        )
        if not chosen.is_control and chosen.time_delta is not None:
            lines.append(
                f"  against []: allocated {delta_text(chosen.peak_delta)}, time {delta_text(chosen.time_delta)}"
            )
    lines += [f"  {plain(verdict.text)}" for verdict in answer.verdicts]
    lines += [f"  warning: {plain(warning)}" for warning in answer.warnings]
    if answer.pick.losers:
        lines.append("why not the others:")
        lines += [f"  {plain(loser.option.name)}: {plain(loser.text)}" for loser in answer.pick.losers]
    if len(answer.pick.pareto) > 1:
        lines.append("Pareto front (no other candidate is smaller and as fast):")
        lines += [
            f"  {plain(option.name)}: {format_bytes(option.peak)}, {option.step_ms or 0:.2f} ms"
            for option in answer.pick.pareto
        ]
    lines += _settings(answer.python, answer.bridge, answer.ours)
    if answer.instead is not None and answer.instead.python:
        lines.append(f"or {plain(answer.instead.name)}, which recomputes less and is not measurably slower:")
        lines += _settings(answer.instead.python, answer.instead.bridge, answer.instead.ours)
    return lines


def _settings(python: Sequence[str], bridge: str, ours: str) -> list[str]:
    """What to paste, by where; nothing of a candidate that leaves its settings to a recipe."""
    if not python:
        return []
    return [
        "for a recipe:",
        *(f"  {plain(line)}" for line in python),
        "for the command line of Bridge's scripts:",
        f"  {plain(bridge)}",
        "for this program:",
        f"  {plain(ours)}",
    ]


def _figures(option: Any) -> dict[str, Any]:
    return {"peak": option.peak, "peak_scope": option.peak_scope, "step_ms": option.step_ms, "rank": option.rank}
