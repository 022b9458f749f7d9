"""What a run prints of each trial's start and end."""

from __future__ import annotations

from orchestrator.dispatch.journal import ENDED, STARTED, Event
from orchestrator.records.spec import ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST
from orchestrator.report.progress import event_line


def test_a_closing_control_is_told_from_the_one_that_opened_the_job() -> None:
    first = Event(1.0, STARTED, "t", "001", "[]", ROLE_CONTROL_FIRST)
    last = Event(9.0, ENDED, "t", "002", "[]", ROLE_CONTROL_LAST, label="pass", seconds=2.0, done=5, total=5)
    assert event_line(first) == "[]: started"
    assert event_line(last) == "[5/5] [] (closing control): pass in 2.0 s"
