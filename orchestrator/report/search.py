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
    """One line a decision; under the last one, the candidates that it leaves out, or how many where not `named`. Of a
    study that was searched again, the last search."""
    decided = _last_search(decided)
    lines = [
        f"search  {plain(study)}  "
        + (f"tries {plain(one.next)}: {plain(one.reason)}" if one.next is not None else f"ends: {plain(one.reason)}")
        for one in decided
    ]
    skipped = decided[-1].skipped if decided and decided[-1].next is None else ()
    reasons = {one.name: one.why for one in skipped}
    return lines + (left_out_lines(reasons) if named else left_out_count(study, reasons))


def _last_search(decided: Sequence[Decided | Decision]) -> Sequence[Decided | Decision]:
    """Without what came before an earlier end: a search that a follow-up job goes on with has one end."""
    ends = [index for index, one in enumerate(decided[:-1]) if one.next is None]
    return decided[ends[-1] + 1 :] if ends else decided


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
