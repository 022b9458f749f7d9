"""What the decision of a report says beside a change against the control."""

from __future__ import annotations

import pytest

from orchestrator.analysis.comparison import Delta
from orchestrator.report.page.decision import change


@pytest.mark.parametrize(
    ("delta", "said"),
    [
        (Delta(-0.03), ""),
        (Delta(-0.03, other_nodes=True), "the control ran in another job"),
        (Delta(-0.03, other_nodes=True, other_hosts=True), "the control ran on other nodes"),
    ],
)
def test_where_the_control_ran_is_said_as_far_as_it_is_known(delta: Delta, said: str) -> None:
    assert change("memory", delta).beside.endswith(said)
    assert ("the control ran" in change("memory", delta).beside) is bool(said)
