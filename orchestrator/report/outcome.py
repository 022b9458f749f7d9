"""What logs say happened, as one screen and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.outcome.device_memory import DeviceMemory
from orchestrator.outcome.evidence import Outcome
from orchestrator.outcome.log import LogOutcome
from orchestrator.outcome.next_step import next_steps
from orchestrator.records.jsonfile import encode
from orchestrator.records.redact import redact_text
from orchestrator.report.text import plain
from orchestrator.vocabulary import Cause, Stage, consequence_of
from orchestrator.vocabulary.units import format_bytes

_LINE = 400
"""Characters of a deciding line that are shown; JSON has all that was read."""
_RANKS = 12
_SAYS_NOTHING = "nothing in it speaks of training or of a failure"
_WHY_UNKNOWN = {
    "log.empty": "there is nothing in it",
    "log.not-text": "it is binary data, not a log",
    "log.document": "it reads like a document or source code, not like a log",
}


def screen(found: LogOutcome) -> Iterator[str]:
    """The whole answer in plain lines."""
    outcome = found.outcome
    yield f"what   {_what(outcome)}"
    yield f"where  {_where(outcome)}"
    yield f"rank   {_ranks(outcome)}"
    if outcome.memory is not None:
        yield from _numbers(outcome.memory)
    for index, place in enumerate(found.evidence):
        yield ("lines  " if index == 0 else "       ") + f"{plain(place.file)}:{place.line}  [{place.rule}]"
        yield f"         {_shown(place.text)}"
    if outcome.rules:
        yield f"rules  {', '.join(outcome.rules)}"
    for index, note in enumerate(outcome.notes):
        yield ("also   " if index == 0 else "       ") + _shown(note)
    for index, step in enumerate(_next(outcome)):
        yield ("next   " if index == 0 else "       ") + step


def as_json(found: LogOutcome) -> dict[str, Any]:
    """The same as one object; sizes in bytes, absent values null."""
    outcome = found.outcome
    return {
        "label": outcome.label,
        "cause": outcome.cause.value,
        "stage": outcome.stage.value,
        "rank": outcome.rank,
        "also_ranks": list(outcome.also_ranks),
        "iteration": outcome.iteration,
        "consequence": None if outcome.cause is Cause.NONE else consequence_of(outcome.cause).value,
        "memory": None if outcome.memory is None else encode(outcome.memory),
        "rules": list(outcome.rules),
        "evidence": [
            {"file": place.file, "line": place.line, "rule": place.rule, "text": redact_text(place.text)}
            for place in found.evidence
        ],
        "notes": [redact_text(note) for note in outcome.notes],
        "next": list(_next(outcome)),
    }


def _next(outcome: Outcome) -> tuple[str, ...]:
    if outcome.label is None and outcome.cause is Cause.UNKNOWN:
        return ("Give it the whole output of the ranks, of their launcher and of the scheduler.",)
    return next_steps(outcome.cause, outcome.stage)


def _what(outcome: Outcome) -> str:
    if outcome.cause is Cause.NONE:
        return "no failure found; a log alone cannot show a pass"
    if outcome.label is None:
        return f"unknown: {_WHY_UNKNOWN.get(outcome.rules[0], _SAYS_NOTHING) if outcome.rules else _SAYS_NOTHING}"
    return f"{outcome.cause} ({outcome.label})"


def _where(outcome: Outcome) -> str:
    stage = "not said" if outcome.stage is Stage.UNKNOWN else str(outcome.stage)
    if outcome.iteration is None:
        return f"{stage}; the last completed iteration is not said"
    after = f"after iteration {outcome.iteration}" if outcome.iteration else "before the first iteration ended"
    return f"{stage}, {after}"


def _ranks(outcome: Outcome) -> str:
    if outcome.rank is None:
        return "not said"
    others = outcome.also_ranks[:_RANKS]
    if not others:
        return str(outcome.rank)
    more = f" and {len(outcome.also_ranks) - _RANKS} more" if len(outcome.also_ranks) > _RANKS else ""
    return f"{outcome.rank}, the same on {', '.join(map(str, others))}{more}"


def _numbers(memory: DeviceMemory) -> Iterator[str]:
    named = (
        ("requested", memory.requested),
        ("free", memory.free),
        ("capacity", memory.capacity),
        ("allocated", memory.allocated),
        ("in private pools", memory.private_pools),
        ("reserved", memory.reserved),
        ("reserved and not allocated", memory.unallocated),
        ("limit of this process", memory.limit),
        ("this process in all", memory.this_process),
        ("other processes", memory.other_processes),
    )
    present = [f"{name} {format_bytes(size)}" for name, size in named if size is not None]
    if present:
        yield f"sizes  {', '.join(present)}"


def _shown(text: str) -> str:
    text = plain(redact_text(text))
    return text if len(text) <= _LINE else f"{text[:_LINE]} …"
