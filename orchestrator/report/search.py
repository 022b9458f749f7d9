"""What a search decided and why, for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.report.text import plain

if TYPE_CHECKING:
    from orchestrator.dispatch.search import Decided
    from orchestrator.select.escalate import Decision

_SKIPPED_SHOWN = 12


def decision_lines(study: str, decided: Sequence[Decided | Decision]) -> list[str]:
    """One line a decision; under the last one, the candidates that it leaves out."""
    lines = [
        f"search  {plain(study)}  "
        + (f"tries {plain(one.next)}: {plain(one.reason)}" if one.next is not None else f"ends: {plain(one.reason)}")
        for one in decided
    ]
    skipped = decided[-1].skipped if decided and decided[-1].next is None else ()
    return lines + left_out_lines({one.name: one.why for one in skipped})


def left_out_lines(reasons: Mapping[str, str]) -> list[str]:
    """The candidates that a search ended without, the first few with the reason."""
    shown = list(reasons.items())[:_SKIPPED_SHOWN]
    lines = [f"  not tried  {plain(name)}: {plain(why)}" for name, why in shown]
    more = len(reasons) - len(shown)
    return [*lines, f"  not tried  {more} more; --json has them all"] if more > 0 else lines
