"""From a command line to a plan: compose, validate, and look up what is known."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.counting import IMPORTS, counting, saying_if_slow
from orchestrator.cli.storage import DATABASE_VARIABLE, storable
from orchestrator.config.compose import composing
from orchestrator.config.multirun import Composed, expand
from orchestrator.plan.modes import dropped_from_base, expand_mode
from orchestrator.report.text import plain
from orchestrator.select.modes import ESCALATE

if TYPE_CHECKING:
    from orchestrator.dispatch.submit import LiveBatch
    from orchestrator.plan.candidate import Candidate
    from orchestrator.plan.forecast import Earlier
    from orchestrator.plan.plan import Plan, PlannedTrial
    from orchestrator.plan.validator import Validation
    from orchestrator.store.database import Store
    from orchestrator.store.plans import PlanRecord


@dataclass(frozen=True)
class Asked:
    """What a command line asks for, before anything is judged."""

    candidates: tuple[Composed, ...]
    results_dir: Path
    database: str

    @property
    def request(self) -> Mapping[str, Any]:
        """Of the first candidate: settings of the whole command are the same in all of them."""
        return self.candidates[0].request

    @property
    def study(self) -> str:
        return str(self.request["study"]["name"])


def ask(given: argparse.Namespace) -> Asked:
    """Compose everything that a command line asks for.

    Raises:
        UsageError: as `config.multirun.expand` and `plan.modes.expand_mode`.
    """
    with composing(given.config_dir, given.config_name) as composer:
        with counting("composed {} candidates") as tell:
            composed = expand(given.overrides, composer, given.multirun, tell)
        candidates = expand_mode(composed)
    for label, why in dropped_from_base(composed).items():
        # Beside the answer, which may be JSON.
        print(f"left out of study.mode=one_at_a_time: {plain(label)}: {plain(why)}", file=sys.stderr)
    first = candidates[0].request
    results_dir = storable(Path(first["results_dir"]).expanduser().absolute())
    return Asked(candidates, results_dir, _database(given, first["store"]["url"], results_dir))


def _database(given: argparse.Namespace, configured: str | None, results_dir: Path) -> str:
    """`--db`, then `store.url` of the command line, then the environment, then a configuration file's, then ours."""
    from orchestrator.store.database import default_url

    explicit = any(word.lstrip("+").startswith("store.url=") for word in given.overrides)
    chosen: str | None = given.db or (configured if explicit else None)
    chosen = chosen or os.environ.get(DATABASE_VARIABLE) or configured
    return chosen or default_url(results_dir)


@dataclass(frozen=True)
class Judged:
    """The candidates of a command with what their recipes said, and the framework's verdicts on them."""

    candidates: tuple[Candidate, ...]
    validation: Validation


def judge(asked: Asked, *, may_start: bool = False, say: Callable[[str], None] = print) -> Judged:
    """Have the framework itself judge every candidate. No database is open meanwhile: it may take long.

    With `may_start`, a recipe that cannot be built here is asked in a step on a node of the cluster, of which `say`
    tells; else only what such a step answered before counts.
    """
    from orchestrator.dispatch.slurm.recipes import RecipeNode
    from orchestrator.plan.candidate import Candidate
    from orchestrator.plan.resolved import with_resolved
    from orchestrator.plan.validator import validate

    def node(request: Mapping[str, Any]) -> RecipeNode | None:
        return RecipeNode.of(request, asked.results_dir, may_start=may_start, say=say)

    candidates = [Candidate(one.name, one.request) for one in asked.candidates]
    with counting("checking {} candidates") as tell, saying_if_slow(IMPORTS):
        tell(len(candidates))
        validation = validate(candidates, elsewhere=node)
    return Judged(tuple(with_resolved(candidates, validation.verdicts)), validation)


def plan_of(asked: Asked, store: Store | None, judged: Judged) -> Plan:
    """Hold what was judged against the rules, and look up which trials are known.

    `store` is None where there is no database yet.
    """
    from orchestrator.dispatch.submit import live_batches
    from orchestrator.plan.plan import make_plan

    candidates, validation = judged.candidates, judged.validation
    repeats = int(asked.request["study"]["repeats"])
    live = live_batches(asked.results_dir)
    return make_plan(
        asked.study,
        candidates,
        known=_known(store, candidates, repeats, validation.software),
        verdicts=validation.verdicts,
        active={trial: one.batch for one in live for trial in one.open_trials},
        undecided=_undecided(live),
        repeats=repeats,
        strict=bool(asked.request["strict"]),
        fingerprint=validation.software,
        revision=validation.revision,
        notes=validation.notes,
        searched=asked.request["study"]["mode"] == ESCALATE,
    )


def _undecided(live: Sequence[LiveBatch]) -> frozenset[str]:
    """Trials that only searches have, and that those may leave out."""
    certain = {trial for one in live for trial in one.open_trials - one.undecided}
    return frozenset(trial for one in live for trial in one.undecided) - certain


def earlier_of(plan: Plan, store: Store) -> list[Earlier]:
    """What a database's runs of the same job teach each new trial of a plan."""
    from orchestrator.analysis.siblings import calibration_of, find_siblings
    from orchestrator.plan.candidate import trial_config
    from orchestrator.plan.forecast import Earlier

    with store.reading() as connection:
        siblings = find_siblings(connection, [trial_config(entry.request) for entry in plan.new])
    return [
        Earlier(
            sibling.effective,
            partial(calibration_of, sibling=sibling),
            None if sibling.control_step_ms is None else sibling.control_step_ms / 1000,
        )
        for sibling in siblings
    ]


def _known(
    store: Store | None, candidates: Sequence[Candidate], repeats: int, software: Mapping[str, Any]
) -> dict[str, str | None]:
    from orchestrator.plan.candidate import REQUEST_DIGITS, trial_id
    from orchestrator.store.plans import known_results, trials_with_prefix

    if store is None:
        return {}
    trials = {trial_id(one, repeat, software) for one in candidates for repeat in range(repeats)}
    known: dict[str, str | None] = {**trials_with_prefix(store, {trial[:REQUEST_DIGITS] for trial in trials})}
    return known | known_results(store, trials)


def record_of(plan: Plan, asked: Asked) -> PlanRecord:
    """The plan as it is kept: every trial that was asked for, a duplicate under its twin."""
    from orchestrator.plan.plan import Status
    from orchestrator.store.plans import new_plan

    rows = [_row(entry, strict=plan.strict) for entry in plan.entries if entry.status is not Status.DUPLICATE]
    settings = {key: value for key, value in asked.request["study"].items() if key not in ("name", "candidates")}
    return new_plan(plan.study, rows, settings)


def _row(entry: PlannedTrial, *, strict: bool) -> Any:
    from orchestrator.plan.candidate import Candidate, group, trial_config
    from orchestrator.store.plans import PlannedRow

    request = entry.request
    training, cluster = group(request, "training"), group(request, "cluster")
    window = training["steady_window"]
    container = cluster.get("container") or {}
    target = {
        "environment": {**(cluster.get("environment") or {}), **(group(request, "trainer").get("environment") or {})},
        "gpu_type": cluster.get("gpu_type"),
        "image": container.get("image"),
        "digest": container.get("digest"),
        "setup": cluster.get("setup"),
    }
    return PlannedRow(
        trial=entry.trial,
        name=entry.name,
        trainer=Candidate(entry.name, request).trainer,
        world_size=entry.world_size or 0,
        config=trial_config(request),
        status=entry.status.value,
        reasons=[finding.message for finding in entry.findings if finding.rejects(strict=strict)],
        repeat=entry.repeat,
        role=entry.role,
        target={key: value for key, value in target.items() if value},
        steady_window=(int(window[0]), int(window[1])),
        train_iters=int(training["train_iters"]),
    )
