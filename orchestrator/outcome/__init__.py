"""From evidence to stage, cause and label: pure decisions, and the reading of logs that feeds them."""

from orchestrator.outcome.decide import decide
from orchestrator.outcome.evidence import Evidence, Outcome, SchedulerRow

__all__ = ["Evidence", "Outcome", "SchedulerRow", "decide"]
