"""How one rank ended, by its record."""

from __future__ import annotations

import signal
from dataclasses import replace

from orchestrator.outcome.finding import Finding
from orchestrator.outcome.frame_rules import SourceFrame
from orchestrator.outcome.frames import stage_of
from orchestrator.outcome.passing import last_completed
from orchestrator.outcome.raised import Verdict, judge_exception, judge_text
from orchestrator.outcome.rule import Weight
from orchestrator.records.rank import (
    ENDED_EXIT,
    ENDED_LOST,
    ENDED_SIGNAL,
    ENDED_STALL,
    ENDED_TERMINATED,
    ENDED_TIME_LIMIT,
    RankRecord,
)
from orchestrator.vocabulary import Cause, Stage

STALLED = "rank.stalled"
_TOLD_TO_END = frozenset({"KeyboardInterrupt", "SystemExit"})


def finding_of_rank(record: RankRecord) -> Finding | None:
    """What a rank's record says went wrong; None for a rank that ended well."""
    if record.ended == ENDED_EXIT and record.exit_code == 0:
        return None
    if record.exception is not None and record.exception.type not in _TOLD_TO_END:
        return _raised(record)
    if record.ended == ENDED_STALL:
        return _hung(record)
    if record.ended == ENDED_TIME_LIMIT:
        line = f"rank {record.rank} reached the trial's time limit"
        return _finding(record, Cause.TIME_LIMIT, Weight.WAITED, "rank.time-limit", line)
    if record.ended == ENDED_TERMINATED:
        return _terminated(record)
    if record.ended == ENDED_SIGNAL and record.signal is not None:
        return _killed(record, record.signal)
    if record.ended == ENDED_LOST:
        return _lost(record)
    return _exited(record)


def _raised(record: RankRecord) -> Finding:
    """The trainer raised and the recorder caught it: the seam's stage stands above the frames', and those above the
    beacon's."""
    exception = record.exception
    assert exception is not None
    frames = [SourceFrame(frame.file, frame.function) for frame in exception.frames]
    seam = exception.stage
    if (
        (seam is None or seam is Stage.UNKNOWN)
        and stage_of(frames).stage is Stage.UNKNOWN
        and record.beacon is not None
    ):
        seam = record.beacon.stage
    verdict = judge_exception(exception.type, exception.message, frames, seam, exception.chain)
    if verdict.weight is not Weight.ROOT and (told := judge_text(_tail(record), verdict.stage)) is not None:
        verdict = told if told.weight < verdict.weight else verdict
    at = exception.at if exception.at is not None else _ended_at(record)
    return _of_verdict(record, verdict, at, exception=True)


def _hung(record: RankRecord) -> Finding:
    last = record.beacon
    said = f" in {last.stage}, microbatch {last.microbatch}" if last is not None else ""
    line = f"rank {record.rank} made no progress{said} until its supervisor ended it"
    finding = _finding(record, Cause.HANG, Weight.WAITED, STALLED, line)
    # Before anything that the end of another rank made of it.
    return finding if last is None else replace(finding, at=last.at)


def _terminated(record: RankRecord) -> Finding:
    line = f"rank {record.rank} was told to end"
    return _finding(record, Cause.CASCADE, Weight.ECHO, "rank.terminated", line)


def _killed(record: RankRecord, number: int) -> Finding:
    told = judge_text(_tail(record), _stage(record))
    if told is not None and told.weight in (Weight.ROOT, Weight.WAITED):
        return _of_verdict(record, told, _ended_at(record))
    if number == signal.SIGKILL and record.host_oom_kills:
        line = f"the kernel's OOM killer struck {record.host_oom_kills} time(s) in the cgroup of rank {record.rank}"
        return _finding(record, Cause.HOST_OOM, Weight.ROOT, "rank.host-oom-kills", line)
    line = f"rank {record.rank} ended with signal {number} ({_signal_name(number)})"
    weight = Weight.ECHO if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) else Weight.SIGNAL
    return _finding(record, Cause.CRASH, weight, "rank.signal", line)


def _lost(record: RankRecord) -> Finding:
    line = f"rank {record.rank} and its supervisor ended without a word"
    told = judge_text(_tail(record), _stage(record))
    if told is not None and told.weight is Weight.ROOT:
        return _of_verdict(record, told, _ended_at(record))
    return _finding(record, Cause.CRASH, Weight.SIGNAL, "rank.lost", line)


def _exited(record: RankRecord) -> Finding:
    told = judge_text(_tail(record), _stage(record))
    if told is not None:
        return _of_verdict(record, told, _ended_at(record))
    line = f"rank {record.rank} ended with code {record.exit_code} and did not say why"
    return _finding(record, Cause.UNKNOWN, Weight.VAGUE, "rank.exit-code", line)


def _of_verdict(record: RankRecord, verdict: Verdict, at: float, exception: bool = False) -> Finding:
    return Finding(
        rank=record.rank,
        host=record.host,
        at=at,
        cause=verdict.cause,
        weight=verdict.weight,
        stage=verdict.stage,
        iteration=last_completed(record),
        rules=verdict.rules,
        line=f"rank {record.rank}: {verdict.line}",
        memory=verdict.memory,
        exception=exception,
    )


def _finding(record: RankRecord, cause: Cause, weight: Weight, rule: str, line: str) -> Finding:
    return Finding(
        rank=record.rank,
        host=record.host,
        at=_ended_at(record),
        cause=cause,
        weight=weight,
        stage=_stage(record),
        iteration=last_completed(record),
        rules=(rule, "beacon.stage") if record.beacon is not None else (rule,),
        line=line,
    )


def _stage(record: RankRecord) -> Stage:
    return record.beacon.stage if record.beacon is not None else Stage.UNKNOWN


def _tail(record: RankRecord) -> list[str]:
    return record.stderr_tail.splitlines()


def _ended_at(record: RankRecord) -> float:
    if record.ended_at is not None:
        return record.ended_at
    return record.beacon.at if record.beacon is not None else record.started_at


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
