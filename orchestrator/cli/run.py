"""`python -m orchestrator [-m] OVERRIDES`: plans a study, runs what is missing of it, and shows the comparison."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.place import check_place, collect, note, writable_store
from orchestrator.cli.planning import Asked, ask, earlier_of, judge, plan_of, record_of
from orchestrator.cli.running import Running, follow, interrupts_held, refuse_dead, submit
from orchestrator.config.errors import EnvironmentFailure, UsageError
from orchestrator.records.layout import batch_dir
from orchestrator.records.spec import ROLE_TRIAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.plan.forecast import Earlier
    from orchestrator.plan.plan import Plan
    from orchestrator.store.database import Store

SLURM = "slurm"


def run(given: argparse.Namespace) -> int:
    from orchestrator.analysis.searched import decisions_of
    from orchestrator.cli.searching import next_of, say, search_of
    from orchestrator.dispatch.submit import handing_over
    from orchestrator.plan.predictions import keep_predictions
    from orchestrator.store.plans import record_plan

    asked = ask(given)
    if asked.request["dry_run"]:
        return _show_plan(asked, as_json=given.json)
    check_place(asked)
    plan = _plan(asked)
    _refuse_nothing(plan)
    _say_plan(plan)
    _refuse_unsized(plan)
    search = search_of(asked, plan)
    decision = next_of(search) if search is not None and plan.new else None
    with handing_over(asked.results_dir):
        with writable_store(asked) as store:
            record_plan(store, asked.results_dir, record_of(plan, asked))
        keep_predictions(asked.results_dir, plan)
        if decision is not None and decision.done:
            say(plan.study, [decision])
            with writable_store(asked) as store:
                _show_comparison(store, plan, as_json=given.json, tried=True)
            return 0
        with interrupts_held() as held:
            running = submit(asked, plan, search)
    if asked.request["cluster"]["kind"] == SLURM:
        shown = _show_submitted(asked, plan, running, as_json=given.json)
        return 1 if running.refused else shown
    interrupted = follow(asked, running, interrupted=bool(held))
    refuse_dead(asked, running)
    with writable_store(asked) as store:
        collect(store, asked.results_dir)
        say(plan.study, decisions_of([batch_dir(asked.results_dir, batch) for batch in running.own]))
        if interrupted and not given.json:
            _say_interrupted(store, plan)
        else:
            _show_comparison(store, plan, as_json=given.json, tried=search is not None)
        if not interrupted:
            _say_left_out(store, plan)
            undone = _say_undone(store, plan, running) | _say_held_back(store, plan)
    if asked.request["study"]["sinks"]:
        from orchestrator.cli.trackers import send_on

        send_on({asked.study: asked.request["study"]["sinks"]}, asked.database, asked.results_dir)
    if interrupted:
        return 128 + signal.SIGINT
    return 1 if running.refused or undone else 0


def _plan(asked: Asked) -> Plan:
    """The plan, after taking in what earlier commands left. Nothing is created for a study that will not run."""
    from orchestrator.store.database import parse_url

    judged = judge(asked, may_start=True, say=note)
    parsed = parse_url(asked.database)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").expanduser().exists():
        return plan_of(asked, None, judged)
    with writable_store(asked) as store:
        for text in store.notes:
            note(f"note: {text}")
        collect(store, asked.results_dir)
        return plan_of(asked, store, judged)


def _show_plan(asked: Asked, *, as_json: bool) -> int:
    """The plan and nothing else: neither a folder nor a row is written."""
    from orchestrator.plan.forecast import forecasts
    from orchestrator.report import plan as text
    from orchestrator.report.scripts import planned_scripts
    from orchestrator.store.database import open_store
    from orchestrator.store.failures import StoreMissing

    judged = judge(asked)
    earlier: Sequence[Earlier] = ()
    try:
        with open_store(asked.database) as store:
            plan = plan_of(asked, store, judged)
            earlier = earlier_of(plan, store)
    except StoreMissing:
        plan = plan_of(asked, None, judged)
    scripts = planned_scripts(plan, asked.results_dir)
    predicted = forecasts(plan, earlier)
    if as_json:
        print(json.dumps(text.as_json(plan, scripts, predicted), indent=1, allow_nan=False))
    else:
        for line in text.whole(plan, scripts, predicted):
            print(line)
    return 0 if plan.new or plan.known else UsageError.exit_code


def _say_plan(plan: Plan) -> None:
    from orchestrator.report import plan as text

    for line in (text.summary_line(plan), *text.detail_lines(plan)):
        note(line)


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
        raise UsageError(
            f"{unsized[0]}: parallelism.world_size is left to the recipe, which {_why_unsized(plan)}: say how many "
            "ranks it takes, for example parallelism.world_size=8, or choose a file of conf/parallelism."
        )


def _why_unsized(plan: Plan) -> str:
    """Why a recipe has not said how many ranks it needs."""
    kind = plan.new[0].request["cluster"]["kind"] if plan.new else None
    return "did not say it when a node was asked (see above)" if kind != "local" else "cannot be asked here"


def _show_submitted(asked: Asked, plan: Plan, running: Running, *, as_json: bool) -> int:
    """Say which jobs have the trials, at once: they go on without this process.

    Raises:
        EnvironmentFailure: sbatch refused every job, in its own words.
    """
    from orchestrator.dispatch.slurm.record import REFUSED, read_submission
    from orchestrator.report import plan as text

    with writable_store(asked) as store:
        collect(store, asked.results_dir, settle=False)
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
        if running.others or any(one.job_id is not None for one in own):
            print("`watch` shows how they do, `compare` what came of them")
    for one in refused:
        note(f"refused: {' '.join((one.error or '').split())}")
    if refused and len(refused) == len(own):
        raise EnvironmentFailure(f"sbatch refused {'the job' if len(own) == 1 else 'every job'}: see above.")
    return 0


def _say_left_out(store: Store, plan: Plan) -> None:
    """Which trials another study's search, for which they waited, has left out."""
    from orchestrator.report.text import plain
    from orchestrator.store.plans import known_results

    waited = {entry.trial: entry.name for entry in plan.known if entry.waits}
    left = [name for trial, name in waited.items() if trial not in known_results(store, list(waited))] if waited else []
    if left:
        note(f"a search has left out {', '.join(map(plain, left))}: the same command runs that now")


def _say_undone(store: Store, plan: Plan, running: Running) -> bool:
    """Which trials another command was left to run, and ended without: it was killed or cancelled."""
    from orchestrator.analysis.stored import study_rows
    from orchestrator.report.text import plain

    waited = {entry.trial: entry.name for entry in plan.entries if entry.trial in running.waited and not entry.waits}
    if not waited:
        return False
    with store.reading() as connection:
        ended = {row.trial for row in study_rows(connection, plan.study) if row.label is not None}
    undone = [name for trial, name in waited.items() if trial not in ended]
    if undone:
        names = ", ".join(map(plain, undone))
        note(f"another command, which was to run {names}, ended without: the same command runs that now")
    return bool(undone)


def _say_held_back(store: Store, plan: Plan) -> bool:
    """Which trials a driver did not start behind a control and another trial that failed before their first forward."""
    from orchestrator.analysis.held import held_back
    from orchestrator.report.text import plain

    with store.reading() as connection:
        held = held_back(connection, {entry.trial for entry in plan.new})
    names = [plain(entry.name) for entry in plan.new if entry.trial in held]
    if names:
        note(
            f"not started: {', '.join(names)}. The control and a trial behind it failed in the same way before their "
            f"first forward. `diagnose {plain(plan.study)}` says why; once it is mended, the same command runs the rest"
        )
    return bool(names)


def _say_interrupted(store: Store, plan: Plan) -> None:
    """How many of the plan's trials ended how: a table of what an interrupt left would mostly say what is missing."""
    from orchestrator.analysis.stored import study_rows
    from orchestrator.plan.plan import Status
    from orchestrator.report.text import counted, plain

    planned = {entry.trial for entry in plan.entries if entry.status not in (Status.REJECTED, Status.DUPLICATE)}
    with store.reading() as connection:
        labels = {row.trial: row.label for row in study_rows(connection, plan.study) if row.trial in planned}
    counts = Counter(labels.get(trial) or "without an outcome" for trial in planned)
    said = ", ".join(f"{count} {plain(label)}" for label, count in sorted(counts.items()))
    print(f"interrupted: study {plain(plan.study)}, {counted(len(planned), 'trial')}: {said}")
    print(f"`compare {plain(plan.study)}` shows what was measured")


def _show_comparison(store: Store, plan: Plan, *, as_json: bool, tried: bool = False) -> None:
    """The comparison of a plan's trials; with `tried`, of those that a search ran, and not of what it left out."""
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
    comparison = compare([row for row in rows if row.attempt is not None] if tried else rows)
    if as_json:
        shown = {"plan": text.as_json(plan), "comparison": table.as_json(comparison)}
        print(json.dumps(shown, indent=1, allow_nan=False))
    else:
        table.print_comparison(comparison, sys.stdout)
