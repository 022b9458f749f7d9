"""Command lines that repeat a measurement: one candidate beside its control, or a whole study."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.analysis.candidates import Candidate
from orchestrator.analysis.command import PROGRAM, Commands, differing_overrides
from orchestrator.analysis.comparison import Comparison, Group
from orchestrator.analysis.paste import our_overrides
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, Row

SELECTIVE = "selective"

_STUDY_FILES = {
    "moonlight-16b": "moonlight_16b_h100",
    "nemotron-3-nano": "nemotron3_nano_h100",
    "llama3-70b-sft": "llama3_70b_sft_h100",
}
"""Files of `conf/study` that repeat a published table."""


_STUDY_GROUPS = {
    "moonlight-16b": ("model=moonlight_16b", "parallelism=moonlight_16b_h100", "training=guide"),
    "nemotron-3-nano": (
        "model=nemotron3_nano_perf",
        "parallelism=nemotron3_nano_h100",
        "training=nemotron3_nano_h100",
    ),
    "llama3-70b-sft": (
        "model=llama3_70b_sft",
        "parallelism=llama3_70b_sft_h100",
        "precision=fp8_current_scaling",
        "training=llama3_70b_sft_h100",
    ),
}
"""The groups that those files choose, without their candidates."""


def commands_for(rows: Sequence[Row], target_gb: float | None = None) -> list[Commands]:
    """For each row, commands with what its request has beside its recompute settings, and the study's target.

    Without such a base for a published row. Where a model or trainer has no file here, every setting is spelt out.
    """
    from orchestrator.config.compose import composing

    if not any((row.requested.get("trainer") or {}).get("name") for row in rows):
        return [Commands(row.study) for row in rows]
    target = () if target_gb is None else (f"study.target_gb={target_gb:.12g}",)
    known: dict[tuple[str, ...], Mapping[str, Any] | None] = {}
    with composing() as composer:
        bases = [_base(row.requested, composer.compose, known) for row in rows]
    return [Commands(row.study, (*base, *target) if base else base) for row, base in zip(rows, bases, strict=True)]


def group_commands(comparison: Comparison, target_gb: float | None = None) -> dict[str, Commands]:
    """Commands of each match key, by its digest: those of a row that was measured."""
    measured = {
        group.digest: row
        for group in comparison.groups
        if (row := next((row for line in group.lines for row in line.runs if row.origin != ORIGIN_PUBLISHED), None))
    }
    published = {
        group.digest: published_commands(group.first_row) for group in comparison.groups if group.digest not in measured
    }
    return published | dict(zip(measured, commands_for(list(measured.values()), target_gb), strict=True))


def published_commands(row: Row) -> Commands:
    """With the trainer, model and parallelism of a published table; without a base where no study here repeats it."""
    table = str(row.source.get("table"))
    groups = _STUDY_GROUPS.get(table)
    if groups is None:
        return Commands("")
    return Commands(_STUDY_FILES[table], ("trainer=bridge", *groups, "cluster=slurm"))


def _base(
    requested: Mapping[str, Any],
    compose: Callable[[list[str]], Mapping[str, Any]],
    known: dict[tuple[str, ...], Mapping[str, Any] | None],
) -> tuple[str, ...]:
    from orchestrator.config.errors import UsageError

    trainer = (requested.get("trainer") or {}).get("name")
    if not trainer:
        return ()
    chosen = () if trainer == "mcore_cpu" else (f"trainer={trainer}",)
    model = (requested.get("model") or {}).get("name")
    for choice in ((*chosen, f"model={model}"), chosen):
        if choice not in known:
            try:
                known[choice] = compose(list(choice))
            except UsageError:
                known[choice] = None
        composed = known[choice]
        if composed is not None:
            return (*choice, *differing_overrides(requested, composed))
    return (*chosen, *differing_overrides(requested, {}))


def repeat_candidate(candidate: Candidate, row: Row, commands: Commands) -> str | None:
    """The command that measures a candidate again beside its control (which every job adds); None where its settings
    are its recipe's own, or nothing says what was run.
    """
    if row.origin == ORIGIN_PUBLISHED:
        return _published(row)
    settings = candidate_overrides(candidate)
    return commands.run(*settings) if commands.base and settings else None


def repeat_group(group: Group, commands: Commands) -> str | None:
    """The command that measures every candidate of a match key again."""
    first = group.first_row
    if first.origin == ORIGIN_PUBLISHED:
        return _published(first)
    candidates = [line.candidate for line in group.lines]
    return repeat_candidates(candidates, commands) if commands.base else None


def repeat_candidates(candidates: Sequence[Candidate], commands: Commands, *changes: str) -> str | None:
    """The command that measures these candidates with something changed; None where no settings make them."""
    lists = [settings for candidate in candidates if (settings := candidate_overrides(candidate))]
    if not lists:
        return None
    if len(lists) == 1:
        return commands.run(*lists[0], *changes)
    return commands.run(*changes, f"study.candidates={_lists(lists)}").replace(PROGRAM, f"{PROGRAM} -m", 1)


def candidate_overrides(candidate: Candidate) -> list[str]:
    """Its recompute settings as overrides; a list that would be left over from the defaults is unset."""
    settings = shlex.split(our_overrides(candidate))
    if settings and candidate.recompute.granularity != SELECTIVE:
        settings.append("recompute_modules=null")
    return settings


def _published(row: Row) -> str | None:
    study = _STUDY_FILES.get(str(row.source.get("table")))
    return None if study is None else f"{PROGRAM} -m study={study} cluster=slurm"


def _lists(lists: Sequence[Sequence[str]]) -> str:
    """A list of override lists as Hydra's grammar reads it: each override a quoted string."""
    return "[" + ",".join("[" + ",".join(f'"{override}"' for override in one) + "]" for one in lists) + "]"
