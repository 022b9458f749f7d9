"""`retry`: run trials again."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.storage import Answering, add_results_flag, answer
from orchestrator.config.errors import EnvironmentFailure, NothingQualifies, UsageError
from orchestrator.records.layout import untrusted_trials
from orchestrator.report.text import counted, plain

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from orchestrator.records.spec import Batch
    from orchestrator.store.overview import TrialLine


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "retry",
        help="run trials again, by label or state",
        description="Runs trials again as they were asked for, each behind its control, where they ran before; also "
        "ones that have a result. Without --label and --state: those of a study that have no result, or the one trial "
        "that is named. Nodes on which a trial failed are avoided.",
    )
    parser.add_argument("what", metavar="TRIAL|STUDY", help="an id, STUDY/NAME or name, or the beginning of one")
    parser.add_argument("--label", action="append", default=[], metavar="LABEL", help="those with this label")
    parser.add_argument("--state", action="append", default=[], metavar="STATE", help="those in this state")
    add_results_flag(parser)


def run(given: argparse.Namespace) -> int:
    from orchestrator.dispatch.handover import hand_over_again
    from orchestrator.dispatch.retry import again, bad_nodes
    from orchestrator.store.overview import results_dirs

    answering = answer(given)
    with answering.store:
        trials = _chosen(answering, given)
        with answering.store.reading() as connection:
            folders = [Path(folder) for folder in results_dirs(connection, answering.results_dir)]
    made, refusals = [], []
    left: dict[str, str] = {}
    for folder in folders:
        untrusted = untrusted_trials(folder, trials)
        left |= untrusted
        batches = again(folder, [trial for trial in trials if trial not in untrusted])
        made += batches
        refusals += hand_over_again(batches, folder, bad_nodes(folder, trials)) if batches else []
    for why in left.values():
        print(f"not run: {plain(why)}", file=sys.stderr)
    if left and not made:
        raise EnvironmentFailure("None of these trials was started: see above.")
    if not made:
        raise NothingQualifies("None of these trials can be run again from here: they run now, or no batch had them.")
    started = sorted({trial.trial for batch in made for trial in batch.trials if trial.trial in set(trials)})
    controls = _controls(made, started)
    if given.json:
        print(
            json.dumps(
                {
                    "trials": started,
                    "controls": controls,
                    "batches": [batch.batch for batch in made],
                    "refused": refusals,
                },
                indent=2,
            )
        )
    else:
        for line in _lines(made, started, controls, len(trials)):
            print(line)
    for refusal in refusals:
        print(f"refused: {' '.join(refusal.split())}", file=sys.stderr)
    if len(refusals) == len(made):
        raise EnvironmentFailure("sbatch refused every job: see above.")
    return 1 if left else 0


def _controls(made: Sequence[Batch], asked: Collection[str]) -> list[str]:
    """The names of the runs that batches have beside what was asked for, one a run."""
    left = Counter(asked)
    found = []
    for trial in (trial for batch in made for trial in batch.trials):
        if left[trial.trial]:
            left[trial.trial] -= 1
        else:
            found.append(trial.name)
    return found


def _lines(made: Sequence[Batch], started: Sequence[str], controls: Sequence[str], asked: int) -> list[str]:
    verb = "runs" if len(started) == 1 else "run"
    lines = [f"{counted(len(started), 'trial')} {verb} again, in batch {', '.join(batch.batch for batch in made)}"]
    if controls:
        names = ", ".join(plain(name) for name in dict.fromkeys(controls))
        runs = f"{counted(len(controls), 'run')} of {'a control' if len(controls) == 1 else 'controls'}"
        lines.append(f"with {runs} ({names}), whatever came of it before: trials are held against one of their own job")
    if asked > len(started):
        lines.append(f"{asked - len(started)} more of those asked for: running already, or in no batch of this folder")
    return [*lines, "`watch` shows how they do, `compare` what came of them"]


def _chosen(answering: Answering, given: argparse.Namespace) -> list[str]:
    from orchestrator.store.find import find
    from orchestrator.store.overview import trial_lines
    from orchestrator.vocabulary import REJECTED, is_result

    with answering.store.reading() as connection:
        found = find(connection, given.what)
        if found.kind == "trial":
            if given.label or given.state:
                raise UsageError("--label and --state choose among the trials of a study; one trial is named here.")
            return [found.name]
        lines = trial_lines(connection, found.name)
    if not given.label and not given.state:
        chosen = [line.trial for line in lines if line.label != REJECTED and not is_result(line.label or "")]
        if not chosen:
            raise NothingQualifies(f"Every trial of {found.name} has a result; --label or --state choose among them.")
        return chosen
    chosen = [line.trial for line in lines if _is_like(line, given.label, given.state)]
    if not chosen:
        raise NothingQualifies(f"No trial of {found.name} is {_asked(given)}; there are {_present(lines)}.")
    return chosen


def _asked(given: argparse.Namespace) -> str:
    asked = [" or ".join(words) for words in (given.label, given.state) if words]
    return plain(" and ".join(asked))


def _present(lines: list[TrialLine]) -> str:
    labels = Counter(line.label for line in lines if line.label is not None)
    states = Counter(line.state for line in lines)
    told = [
        f"{kind} {', '.join(f'{word} ({count})' for word, count in sorted(found.items()))}"
        for kind, found in (("the labels", labels), ("the states", states))
        if found
    ]
    return " and ".join(told)


def _is_like(line: TrialLine, labels: list[str], states: list[str]) -> bool:
    return (not labels or line.label in labels) and (not states or line.state in states)
