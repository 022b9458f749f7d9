"""What a search decided and why, for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.report.text import counted, plain

if TYPE_CHECKING:
    from orchestrator.dispatch.search import Decided
    from orchestrator.select.escalate import Decision

_SKIPPED_SHOWN = 12


def decision_lines(study: str, decided: Sequence[Decided | Decision], *, named: bool = True) -> list[str]:
    """One line a decision; under the last one, the candidates that it leaves out, or how many where not `named`."""
    lines = [
        f"search  {plain(study)}  "
        + (f"tries {plain(one.next)}: {plain(one.reason)}" if one.next is not None else f"ends: {plain(one.reason)}")
        for one in decided
    ]
    skipped = decided[-1].skipped if decided and decided[-1].next is None else ()
    reasons = {one.name: one.why for one in skipped}
    return lines + (left_out_lines(reasons) if named else left_out_count(study, reasons))


def left_out_count(study: str, reasons: Mapping[str, str]) -> list[str]:
    """How many candidates a search ended without, in one line; none where it tried all."""
    if not reasons:
        return []
    return [f"  not tried  {counted(len(reasons), 'candidate')}; `compare {plain(study)}` and --json say why of each"]


def left_out_lines(reasons: Mapping[str, str]) -> list[str]:
    """The candidates that a search ended without, the first few with the reason."""
    shown = list(reasons.items())[:_SKIPPED_SHOWN]
    lines = [f"  not tried  {plain(name)}: {plain(why)}" for name, why in shown]
    more = len(reasons) - len(shown)
    return [*lines, f"  not tried  {more} more; --json has them all"] if more > 0 else lines
