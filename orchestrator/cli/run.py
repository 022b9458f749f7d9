"""`python -m orchestrator [-m] OVERRIDES`: plans a study, runs what is missing of it, and shows the comparison."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.planning import Asked, ask, plan_of, record_of
from orchestrator.config.errors import EnvironmentFailure, UsageError
from orchestrator.records.layout import batch_dir
from orchestrator.records.spec import ROLE_TRIAL

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan
    from orchestrator.store.database import Store

SLURM = "slurm"
CANCEL_SECONDS = 20.0
"""How long a cancelled study may take to leave its records: ranks have three seconds, the driver a few more."""


@dataclass
class Running:
    """The batches that this command started, and those of others that hold trials it asked for."""

    own: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def run(given: argparse.Namespace) -> int:
    from orchestrator.store.plans import record_plan

    asked = ask(given)
    if asked.request["dry_run"]:
        return _show_plan(asked, as_json=given.json)
    _check_place(asked)
    plan = _plan(asked)
    _refuse_nothing(plan)
    _say_plan(plan)
    _refuse_unsized(plan)
    with _writable_store(asked) as store:
        record_plan(store, asked.results_dir, record_of(plan, asked))
    running = _submit(asked, plan)
    if asked.request["cluster"]["kind"] == SLURM:
        return _show_submitted(asked, plan, running, as_json=given.json)
    interrupted = _follow(asked, running)
    _refuse_dead(asked, running)
    with _writable_store(asked) as store:
        _collect(store, asked.results_dir)
        _show_comparison(store, plan, as_json=given.json)
    return 128 + signal.SIGINT if interrupted else 0


@contextlib.contextmanager
def _writable_store(asked: Asked) -> Iterator[Store]:
    """The database, opened to be written; a results folder that cannot be is refused before anything is judged."""
    from orchestrator.records import layout
    from orchestrator.store.database import open_store

    try:
        layout.make_private_dir(asked.results_dir)
        layout.check_private(asked.results_dir)
    except OSError as error:
        raise _unwritable(asked, error.strerror or str(error)) from error
    _check_place(asked)
    with open_store(asked.database, write=True) as store:
        yield store


def _check_place(asked: Asked) -> None:
    """Refuse a results folder that cannot be written, or made, before anything is judged."""
    place = asked.results_dir
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise _unwritable(asked, f"{place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise _unwritable(asked, os.strerror(errno.EACCES))


def _unwritable(asked: Asked, why: str) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"The results folder {asked.results_dir} cannot be written ({why}): set results_dir to a folder of your own."
    )


def _plan(asked: Asked) -> Plan:
    """The plan, after taking in what earlier commands left. Nothing is created for a study that will not run."""
    from orchestrator.store.database import parse_url

    parsed = parse_url(asked.database)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").expanduser().exists():
        return plan_of(asked, None)
    with _writable_store(asked) as store:
        for note in store.notes:
            _note(f"note: {note}")
        _collect(store, asked.results_dir)
        return plan_of(asked, store)


def _show_plan(asked: Asked, *, as_json: bool) -> int:
    """The plan and nothing else: neither a folder nor a row is written."""
    from orchestrator.report import plan as text
    from orchestrator.store.database import open_store
    from orchestrator.store.failures import StoreMissing

    try:
        with open_store(asked.database) as store:
            plan = plan_of(asked, store)
    except StoreMissing:
        plan = plan_of(asked, None)
    if as_json:
        print(json.dumps(text.as_json(plan), indent=1, allow_nan=False))
    else:
        for line in text.whole(plan):
            print(line)
    return 0 if plan.new or plan.known else UsageError.exit_code


def _say_plan(plan: Plan) -> None:
    from orchestrator.report import plan as text

    for line in (text.summary_line(plan), *text.detail_lines(plan)):
        _note(line)


def _refuse_nothing(plan: Plan) -> None:
    """End a study of which nothing is left, after saying why of each candidate.

    Raises:
        UsageError: every candidate is rejected.
    """
    if not plan.rejected or plan.new or plan.known:
        return
    first = plan.rejected[0]
    if len(plan.rejected) == 1:
        raise UsageError(f"{first.name} is rejected: {plan.deciding(first).message}")
    _say_plan(plan)
    raise UsageError(f"None of the {len(plan.rejected)} candidates is valid, so there is nothing to run.")


def _refuse_unsized(plan: Plan) -> None:
    unsized = [entry.name for entry in plan.new if entry.world_size is None]
    if unsized:
        raise UsageError(f"{unsized[0]}: parallelism.world_size must be a number of ranks before a trial can be run.")


def _submit(asked: Asked, plan: Plan) -> Running:
    """Hand over what is missing, and find the batches of others that run some of it already."""
    from orchestrator.dispatch.batch import Ask
    from orchestrator.dispatch.handover import hand_over
    from orchestrator.dispatch.submit import live_batches

    def announce() -> None:
        with _writable_store(asked) as store:
            _collect(store, asked.results_dir, settle=False)

    running = Running()
    taken: set[str] = set()
    if plan.new:
        asks = [Ask.of(entry) for entry in plan.new]
        submitted = hand_over(
            asks, asked.request, plan.study, asked.results_dir, fingerprint=plan.software, announce=announce
        )
        running.own = [batch.batch for batch in submitted.batches]
        taken = set(submitted.elsewhere)
    taken |= {entry.trial for entry in plan.known if entry.label is None}
    if taken:
        running.others = [
            live.batch
            for live in live_batches(asked.results_dir)
            if live.batch not in running.own and live.open_trials & taken
        ]
    return running


def _show_submitted(asked: Asked, plan: Plan, running: Running, *, as_json: bool) -> int:
    """Say which jobs have the trials, at once: they go on without this process.

    Raises:
        EnvironmentFailure: sbatch refused every job, in its own words.
    """
    from orchestrator.dispatch.slurm.record import REFUSED, read_submission
    from orchestrator.report import plan as text

    with _writable_store(asked) as store:
        _collect(store, asked.results_dir, settle=False)
    submissions = [read_submission(batch_dir(asked.results_dir, batch)) for batch in running.own]
    own = [submission for submission in submissions if submission is not None]
    refused = [submission for submission in own if submission.state == REFUSED]
    if as_json:
        jobs = [{"batch": one.batch, "job": one.job_id, "state": one.state, "error": one.error} for one in own]
        print(json.dumps({"plan": text.as_json(plan), "jobs": jobs, "others": running.others}, indent=1))
    else:
        for one in own:
            if one.job_id is not None:
                print(f"job {one.job_id} has batch {one.batch}")
        if running.others:
            print(f"batch {', '.join(running.others)} has trials that were asked for")
        print("`watch` shows how they do, `compare` what came of them")
    for one in refused:
        _note(f"refused: {' '.join((one.error or '').split())}")
    if refused and len(refused) == len(own):
        raise EnvironmentFailure(f"sbatch refused {'the job' if len(own) == 1 else 'every job'}: see above.")
    return 0


def _follow(asked: Asked, running: Running) -> bool:
    """Show progress until the batches end; whether the user interrupted it, which cancels this command's own.

    Raises:
        EnvironmentFailure: a driver failed, in its own words.
    """
    from orchestrator.report.progress import follow

    try:
        follow(asked.results_dir, [*running.own, *running.others])
    except KeyboardInterrupt:
        _cancel(asked, running)
        return True
    return False


def _cancel(asked: Asked, running: Running) -> None:
    from orchestrator.dispatch.submit import cancel, wait_for_end

    for batch in running.own:
        cancel(asked.results_dir, batch)
    if running.own:
        _note("cancelling; the same command runs what is missing")
    if running.others:
        _note(f"batch {', '.join(running.others)} of another command goes on")
    ended = [wait_for_end(asked.results_dir, batch, CANCEL_SECONDS) for batch in running.own]
    if not all(ended):
        _note(f"the driver has not ended within {CANCEL_SECONDS:.0f} s; `status` shows when it has")


def _refuse_dead(asked: Asked, running: Running) -> None:
    """End where a driver of this command ended without saying so: killed, or on a full disk.

    Raises:
        EnvironmentFailure: with the error that it died of, if it printed one.
    """
    from orchestrator.dispatch.liveness import RUNNING, is_alive, read_driver_state
    from orchestrator.records.jsonfile import FormatError

    for batch in running.own:
        folder = batch_dir(asked.results_dir, batch)
        try:
            state = read_driver_state(folder)
        except FormatError:
            state = None
        if (state is None or state.state == RUNNING) and not is_alive(folder):
            raise EnvironmentFailure(
                f"The driver of batch {batch} died before its trials were done{_last_error(folder / 'driver.log')}. "
                "The same command runs what is missing."
            )


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-1:] if log.exists() else []
    return f" ({lines[0]}; see {log})" if lines and re.match(r"[\w.]*(Error|Exception)\b", lines[0]) else f"; see {log}"


def _collect(store: Store, results_dir: Path, *, settle: bool = True) -> None:
    """Take in what has been written, after writing what became of killed drivers and ended jobs."""
    from orchestrator.dispatch import handover
    from orchestrator.report.text import plain
    from orchestrator.store.collect import collect

    if settle:
        handover.settle(results_dir)
    for problem in collect(store, results_dir).problems:
        _note(f"warning: {plain(problem.message)}")


def _show_comparison(store: Store, plan: Plan, *, as_json: bool) -> None:
    from orchestrator.analysis.comparison import compare
    from orchestrator.analysis.stored import study_rows
    from orchestrator.report import compare as table
    from orchestrator.report import plan as text

    wanted = {entry.trial for entry in plan.entries}
    with store.reading() as connection:
        rows = study_rows(connection, plan.study)
    of_this_command = [row for row in rows if row.trial in wanted]
    keys = {row.batch for row in of_this_command}
    rows = [row for row in rows if row.trial in wanted or (row.batch in keys and row.role != ROLE_TRIAL)]
    comparison = compare(rows)
    if as_json:
        shown = {"plan": text.as_json(plan), "comparison": table.as_json(comparison)}
        print(json.dumps(shown, indent=1, allow_nan=False))
    else:
        table.print_comparison(comparison, sys.stdout)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
