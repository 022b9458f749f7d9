"""A search inside a batch: the driver asks it which of its open trials to start. Its decisions lie beside the batch."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.dispatch import attempt as attempts
from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError, decode, encode, read_json, write_json
from orchestrator.records.rank import RankRecord
from orchestrator.records.spec import Batch, TrialSpec
from orchestrator.select.escalate import Decision, Skipped
from orchestrator.select.pick import ALL_RANKS, ONE_RANK
from orchestrator.select.search import Search, Tried, decide, gpu_hours
from orchestrator.store.measures import attempt_figures, window_peaks

SEARCH_FILE = layout.SEARCH_FILE
DECISIONS_FILE = layout.DECISIONS_FILE
ABSENT = "not in this batch"
"""The label of a candidate that another batch has: no result."""


@dataclass(frozen=True)
class Decided:
    """One decision as it is kept. `at` is unix seconds."""

    at: float
    next: str | None
    reason: str
    answer: str | None = None
    skipped: list[Skipped] = field(default_factory=list)


class Searching:
    """One batch's search. Nothing is kept in memory that a driver which is started again would miss."""

    def __init__(self, batch_dir: Path, batch: Batch, search: Search) -> None:
        self._dir = batch_dir
        self._batch = batch
        self._search = _with_absent(search, batch)
        self._done = False

    @classmethod
    def of(cls, batch_dir: Path, batch: Batch) -> Searching | None:
        """The search of a batch; None where all of its trials are to run.

        Raises:
            FormatError: its file is damaged, or of a newer release.
        """
        path = batch_dir / SEARCH_FILE
        return cls(batch_dir, batch, decode(Search, read_json(path), str(path))) if path.exists() else None

    @property
    def done(self) -> bool:
        """Whether nothing of the batch is worth a trial any more."""
        return self._done

    def held(self, still_open: Sequence[int], *, busy: bool) -> set[int]:
        """The open positions that must not start now: all while a trial runs, else all but the one decided on.

        Raises:
            CannotPredictError: a candidate's memory cannot be predicted.
            OSError: the decision cannot be written.
        """
        if busy or self._done:
            return set(still_open)
        tried = self._tried(still_open)
        decision = decide(self._search, tried, gpu_hours(self._search, tried))
        self._keep(decision)
        self._done = decision.done
        if decision.next is None:
            return set(still_open)
        return {slot for slot in still_open if self._search.named(self._batch.trials[slot].trial) != decision.next}

    def rest(self, still_open: Sequence[int]) -> Search:
        """What another job is to search on, with what this one has found and spent."""
        tried = self._tried(still_open)
        left = self._search.hours_left
        spent = gpu_hours(self._search, tried)
        return replace(
            self._search,
            known={**self._search.known, **tried},
            hours_left=None if left is None else max(0.0, left - spent),
        )

    def _tried(self, still_open: Sequence[int]) -> dict[str, Tried]:
        """What this batch has found: also of a trial that ended without a result and gets no further attempt."""
        waiting = {self._batch.trials[slot].trial for slot in still_open}
        found = {}
        for trial in dict.fromkeys(one.trial for one in self._batch.trials):
            if trial not in waiting and trial not in self._search.known:
                found[trial] = self._result(trial)
        return found

    def _result(self, trial: str) -> Tried:
        result = Tried("cancelled")
        for run_dir in attempts.attempt_dirs(Path(self._batch.results_dir), trial):
            record, spec = attempts.read_attempt(run_dir), attempts.read_spec(run_dir)
            if record is None or spec is None or record.batch != self._batch.batch:
                continue
            label = attempts.judge(record, spec).label
            seconds = (record.ended_at or record.started_at) - record.started_at
            result = _measured(str(label), run_dir, spec, seconds)
        return result

    def _keep(self, decision: Decision) -> None:
        before = read_decisions(self._dir)
        made = Decided(time.time(), decision.next, decision.reason, decision.answer, list(decision.skipped))
        if before and (before[-1].next, before[-1].reason) == (made.next, made.reason):
            return
        with (self._dir / DECISIONS_FILE).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(encode(made)) + "\n")


def write_search(batch_dir: Path, search: Search) -> None:
    """Put a search beside a batch, before its driver starts.

    Raises:
        OSError: it cannot be written.
    """
    write_json(batch_dir / SEARCH_FILE, search)


def carry_search(batch: Batch, still_open: Sequence[int], rest: Batch) -> None:
    """Put the search of a job beside the batch of the one that goes on with it; nothing where there is none.

    Raises:
        FormatError: the search is damaged.
        OSError: it cannot be written.
    """
    results_dir = Path(batch.results_dir)
    searching = Searching.of(layout.batch_dir(results_dir, batch.batch), batch)
    if searching is not None:
        folder = layout.batch_dir(results_dir, rest.batch)
        layout.make_private_dir(folder)
        write_search(folder, searching.rest(still_open))


def _with_absent(search: Search, batch: Batch) -> Search:
    """Candidates that this batch cannot run are not waited for: another one has them, or two jobs did not end them."""
    here = {trial.trial for trial in batch.trials}
    absent = [one.trial for one in search.candidates if one.trial not in here and one.trial not in search.known]
    return replace(search, known={**search.known, **dict.fromkeys(absent, Tried(ABSENT))}) if absent else search


def read_decisions(batch_dir: Path) -> list[Decided]:
    """What a search decided so far, oldest first; nothing where there is none."""
    try:
        lines = (batch_dir / DECISIONS_FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(decode(Decided, json.loads(line), DECISIONS_FILE))
        except (FormatError, ValueError):
            continue  # a line torn by a full disk
    return found


def _measured(label: str, run_dir: Path, spec: TrialSpec, seconds: float) -> Tried:
    ranks: dict[int, RankRecord] = {}
    peaks = {}
    for rank, path in layout.rank_files(run_dir).items():
        try:
            raw = read_json(path)
            ranks[rank] = decode(RankRecord, raw, str(path))
        except (FormatError, OSError):
            continue
        rows = [one.get("stages") or [] for one in raw.get("iterations") or []]
        peaks[rank] = window_peaks(ranks[rank], rows, spec.steady_window[1])
    figures = attempt_figures(ranks, peaks, spec.steady_window)
    return Tried(
        label,
        peak=None if figures.allocated is None else figures.allocated.size,
        peak_scope=ALL_RANKS if len(ranks) == spec.world_size else ONE_RANK,
        step_ms=figures.step_ms,
        stages={stage: row[0] for stage, row in figures.stage_peaks.items() if row[0] is not None},
        seconds=seconds,
    )
