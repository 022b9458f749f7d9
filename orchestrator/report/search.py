"""What a search decided and why, for a person."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.dispatch.search import Decided
from orchestrator.report.text import plain
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
    lines += [f"  not tried  {plain(one.name)}: {plain(one.why)}" for one in skipped[:_SKIPPED_SHOWN]]
    more = len(skipped) - _SKIPPED_SHOWN
    return [*lines, f"  not tried  {more} more"] if more > 0 else lines
