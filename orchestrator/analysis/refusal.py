"""Comparisons that are refused, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.analysis.comparison import Comparison, Group
from orchestrator.analysis.targets import Found
from orchestrator.config.errors import UsageError
from orchestrator.select.match import differences

_SHOWN = 12
_LONGEST = 60


SIDE_BY_SIDE = "--force-unmatched shows them side by side without deltas."
ONE_KEY = "Name one study, or one match key with --key"


def refuse_unmatched(comparison: Comparison, found: Found, instead: str = SIDE_BY_SIDE) -> None:
    """Trials (or studies) named one by one are compared with each other, so they must match.

    A single study may hold several match keys: it is shown as several tables.

    Raises:
        UsageError: they do not match; with the fields that differ.
    """
    if len(found.trials) + len(found.studies) < 2:
        return
    named = [group for group in comparison.groups if _was_named(group, found)]
    if len(named) < 2:
        return
    differing = differences([group.key for group in named])
    fields = [_difference(item.field, item.values) for item in differing[:_SHOWN]]
    more = f", and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    raise UsageError(
        f"These do not match, so deltas between them would mean nothing. They differ in: {'; '.join(fields)}{more}. "
        f"{_with_keys(instead, named)}"
    )


def _with_keys(instead: str, groups: Sequence[Group]) -> str:
    return instead if instead != ONE_KEY else f"{ONE_KEY} ({', '.join(group.digest for group in groups)})."


def only_key(comparison: Comparison, beginning: str | None) -> Comparison:
    """The groups whose match key begins so.

    Raises:
        UsageError: none does.
    """
    if beginning is None:
        return comparison
    groups = tuple(group for group in comparison.groups if group.digest.startswith(beginning))
    if not groups:
        keys = ", ".join(group.digest for group in comparison.groups)
        raise UsageError(f"No match key begins with {beginning!r}; there is {keys or 'none'}.")
    return replace(comparison, groups=groups, differences=tuple(differences([group.key for group in groups])))


def _was_named(group: Group, found: Found) -> bool:
    return any(row.trial in found.trials or row.study in found.studies for line in group.lines for row in line.runs)


def _difference(field: str, values: Sequence[object]) -> str:
    return f"{ascii(field)[1:-1]} ({' | '.join(_shown(value) for value in values)})"


def _shown(value: object) -> str:
    text = "absent" if value is None else ascii(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
