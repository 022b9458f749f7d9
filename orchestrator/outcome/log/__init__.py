"""Reading logs of training jobs, ours or not: any size, in bounded memory, however their lines were wrapped."""

from orchestrator.outcome.log.judge import LogOutcome, judge
from orchestrator.outcome.log.read import read_logs, read_text

__all__ = ["LogOutcome", "judge", "read_logs", "read_text"]
