"""`predict`: what candidates will need, before anything runs."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.storage import add_results_flag
from orchestrator.config.errors import NothingQualifies, UsageError
from orchestrator.config.sizes import problem_of_size
from orchestrator.plan.candidate import trial_config

if TYPE_CHECKING:
    from orchestrator.analysis.rows import Row
    from orchestrator.analysis.siblings import Sibling
    from orchestrator.config.multirun import Composed
    from orchestrator.plan.verdict import Verdict
    from orchestrator.predict.past import Outcome
    from orchestrator.report.predict import Forecast

_MOST_IMBALANCE = 1000

_ABOUT = """\
The memory that each candidate of a command line will need, by rank and stage, before anything runs; for one candidate,
or the one named by --candidate, also the largest tensors and what each label would save. A prediction decides nothing:
measured rows do. What a recipe alone knows is taken from --effective: a rank's record, or an answer of resolve."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser("predict", description=_ABOUT)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as for a run")
    parser.add_argument("--multirun", "-m", action="store_true", help="every value of swept overrides")
    parser.add_argument("--config-name", "-cn", metavar="NAME", help="the primary configuration, instead of config")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help="a conf folder that comes before all others")
    parser.add_argument("--candidate", metavar="NAME", help="the candidate to show in full")
    parser.add_argument("--effective", metavar="FILE", help="JSON with the configuration that the framework finished")
    parser.add_argument(
        "--target-gb", type=float, metavar="GB", help="answer: fits, may fit, will not fit (1 GB = 1e9)"
    )
    parser.add_argument(
        "--imbalance", type=float, default=1.0, metavar="X", help="tokens of the fullest rank's experts over the mean"
    )
    parser.add_argument(
        "--transformer-engine",
        metavar="VERSION",
        help="the release that will run; from 2.14 on, an optimizer step copies no bfloat16 moments",
    )
    parser.add_argument(
        "--against",
        metavar="FILE",
        help="JSON lines of measured runs: each is predicted, as a change of the command line's job, and held against",
    )
    parser.add_argument(
        "--ledger", action="store_true", help="what was predicted before runs, against what they measured"
    )
    add_results_flag(parser)
    parser.add_argument("--tensors", type=int, default=12, metavar="N", help="how many tensors to show (default 12)")


def run(args: argparse.Namespace) -> int:
    _check_flags(args)
    if args.ledger:
        return _show_ledger(args)
    if args.against:
        from orchestrator.cli.against import show_against

        return show_against(args)
    from orchestrator.predict.breakdown import largest_tensors, savings
    from orchestrator.report import predict as report

    composed = _composed(args)
    effective = read_effective(args.effective) if args.effective else None
    target = _target(args, composed[0].request)
    siblings = _siblings(args, composed)
    asked = _ask_recipes(composed, siblings) if effective is None else {}
    for index, (request, verdict) in asked.items():
        composed = (*composed[:index], replace(composed[index], request=dict(request)), *composed[index + 1 :])
        siblings[index] = replace(siblings[index], effective=verdict.effective)
    if effective is not None:
        siblings = [replace(one, effective=effective) for one in siblings]
    found = [_forecast(one, sibling, target, args) for one, sibling in zip(composed, siblings, strict=True)]
    forecasts = [forecast for forecast, _ in found]
    status = 0 if any(one.prediction is not None for one in forecasts) else NothingQualifies.exit_code
    chosen = _chosen(args.candidate, forecasts)
    job = found[chosen][1] if chosen is not None else None
    if args.json:
        answer: dict[str, Any] = {"target": target, "candidates": [report.as_json(one) for one in forecasts]}
        if job is not None:
            answer["tensors"] = [vars(share) for share in largest_tensors(job)]
            answer["savings"] = [vars(one) for one in savings(job)]
        if chosen in asked:
            answer["bridge_estimate"] = asked[chosen][1].estimate
        print(json.dumps(answer, indent=1, allow_nan=False))
        return status
    report.print_forecasts(forecasts, sys.stdout, target=target)
    if chosen is not None and job is not None:
        prediction, spread = forecasts[chosen].prediction, forecasts[chosen].spread
        if prediction is not None and spread is not None:
            report.print_stages(prediction, sys.stdout)
            report.print_tensors(largest_tensors(job, prediction), sys.stdout, most=args.tensors)
            report.print_savings(savings(job), sys.stdout)
            report.print_terms(spread, sys.stdout)
        estimate = asked[chosen][1].estimate if chosen in asked else None
        if estimate is not None:
            report.print_estimate(estimate, sys.stdout)
    return status


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse numbers that mean nothing."""
    if not 1 <= args.imbalance <= _MOST_IMBALANCE:
        raise UsageError(f"--imbalance {args.imbalance} is no factor from 1, which is the mean, to {_MOST_IMBALANCE}.")
    if args.target_gb is not None and (problem := problem_of_size(args.target_gb)) is not None:
        raise UsageError(f"--target-gb: {problem}.")
    if args.tensors < 0:
        raise UsageError(f"--tensors {args.tensors} is below zero.")
    if args.transformer_engine is not None and not re.match(r"\d+\.\d+", args.transformer_engine):
        raise UsageError(f"--transformer-engine {args.transformer_engine!r} is no version: say, for example, 2.14.")


def _ask_recipes(
    composed: Sequence[Composed], siblings: Sequence[Sibling]
) -> dict[int, tuple[Mapping[str, Any], Verdict]]:
    """What the recipes of Bridge's candidates mean, where no measured sibling says it and Bridge can be imported: the
    request with its number of ranks, and the answer, by position."""
    from orchestrator.cli.counting import IMPORTS, saying_if_slow
    from orchestrator.plan.candidate import Candidate
    from orchestrator.plan.resolved import with_resolved
    from orchestrator.plan.validator import validate

    open_ones = [
        index
        for index, (one, sibling) in enumerate(zip(composed, siblings, strict=True))
        if sibling.effective is None and one.request["trainer"]["name"] == "bridge"
    ]
    open_ones = [index for index in open_ones if _can_be_asked(composed[index].request)]
    if not open_ones:
        return {}
    candidates = [Candidate(composed[index].name, composed[index].request) for index in open_ones]
    with saying_if_slow(IMPORTS):
        verdicts = validate(candidates).verdicts
    filled = with_resolved(candidates, verdicts)
    return {
        index: (one.request, verdict)
        for index, one, verdict in zip(open_ones, filled, verdicts, strict=True)
        if verdict is not None and verdict.effective is not None
    }


def _can_be_asked(request: Mapping[str, Any]) -> bool:
    """Whether a recipe may have an answer: here, or kept of a step on a cluster's node."""
    from orchestrator.plan.installation import installation_of

    return request["cluster"]["kind"] != "local" or installation_of(request)[0].has_bridge()


def _composed(args: argparse.Namespace) -> tuple[Composed, ...]:
    from orchestrator.config.compose import composing
    from orchestrator.config.multirun import expand
    from orchestrator.plan.modes import expand_mode

    with composing(args.config_dir, args.config_name) as composer:
        return expand_mode(expand(args.overrides, composer, args.multirun))


def _forecast(
    composed: Composed, sibling: Sibling, target: int | None, args: argparse.Namespace
) -> tuple[Forecast, Any]:
    from orchestrator.analysis.siblings import calibration_of
    from orchestrator.plan.forecast import CALIBRATED
    from orchestrator.predict.memory import predict_memory
    from orchestrator.predict.problem import CannotPredictError
    from orchestrator.predict.read import read_job
    from orchestrator.predict.timing import cost_of
    from orchestrator.predict.verdict import range_of
    from orchestrator.report.predict import Forecast

    try:
        reading = read_job(composed.request, sibling.effective, args.transformer_engine)
        experts = replace(reading.job.shapes.experts, imbalance=args.imbalance)
        job = replace(reading.job, shapes=replace(reading.job.shapes, experts=experts))
        prediction = predict_memory(job)
        calibration = calibration_of(job, sibling)
        spread, cost = range_of(job, prediction, calibration), cost_of(job)
    except CannotPredictError as error:
        return Forecast(composed.name, problem=str(error)), None
    answer = None if target is None else spread.answer(target)
    assumed = (*reading.assumed, *_rejected(composed))
    notes = assumed if calibration is None else (*assumed, *calibration.notes, CALIBRATED)
    return Forecast(composed.name, prediction, spread, cost, answer, notes), job


def _rejected(composed: Composed) -> tuple[str, ...]:
    """That a plan would not run what is predicted here, and why."""
    from orchestrator.plan.finding import Kind
    from orchestrator.plan.rules import check
    from orchestrator.plan.subject import Subject

    found = [finding for finding, _ in check(Subject.of(composed.request)) if finding.kind is Kind.INVALID]
    return tuple(f"{composed.name} has figures, yet a plan rejects it: {finding.message}" for finding in found[:1])


def _siblings(args: argparse.Namespace, composed: tuple[Composed, ...]) -> list[Sibling]:
    """What the database says of each candidate's job; nothing where there is no database."""
    from orchestrator.analysis.siblings import Sibling, find_siblings
    from orchestrator.cli.storage import locate
    from orchestrator.store.database import open_store
    from orchestrator.store.failures import StoreMissing

    try:
        with open_store(locate(args).url) as store, store.reading() as connection:
            return find_siblings(connection, [trial_config(one.request) for one in composed])
    except StoreMissing:
        return [Sibling() for _ in composed]


def _chosen(name: str | None, forecasts: list[Forecast]) -> int | None:
    if name is None:
        return 0 if len(forecasts) == 1 and forecasts[0].prediction is not None else None
    for index, forecast in enumerate(forecasts):
        if forecast.name == name:
            return index if forecast.prediction is not None else None
    names = ", ".join(forecast.name for forecast in forecasts[:8])
    raise UsageError(f"There is no candidate {name!r} here; there is {names}.")


def _target(args: argparse.Namespace, request: Mapping[str, Any]) -> int | None:
    target = args.target_gb if args.target_gb is not None else request["study"]["target_gb"]
    return None if target is None else int(float(target) * 1e9)


def _show_ledger(args: argparse.Namespace) -> int:
    from orchestrator.analysis.stored import trial_rows
    from orchestrator.cli.storage import answer, locate
    from orchestrator.plan.predictions import read_predictions
    from orchestrator.predict.past import errors_of, overall, summarise
    from orchestrator.report.predict_ledger import ledger_as_json, print_errors, print_summary

    folder = locate(args).results_dir
    made = read_predictions(folder) if folder is not None else []
    if not made:
        raise NothingQualifies(
            f"No prediction has been kept in {folder}: a run keeps one for each trial that it plans."
        )
    answering = answer(args)
    with answering.store as store, store.reading() as connection:
        rows = trial_rows(connection, [one.trial for one in made])
    errors = errors_of(made, [_outcome(row) for row in rows if row.attempt is not None])
    summaries = summarise(errors)
    waiting = len(made) - len({error.made.trial for error in errors})
    if args.json:
        print(json.dumps(ledger_as_json(errors, summaries, waiting), indent=1, allow_nan=False))
        return 0
    print_errors(errors, sys.stdout)
    print_summary(overall(errors), sys.stdout)
    if waiting:
        print(f"{waiting} predicted trials have not been measured")
    return 0


def _outcome(row: Row) -> Outcome:
    from orchestrator.predict.past import Outcome

    peak = row.peak
    stages: dict[str, int] = {}
    for one in row.peaks:
        if one.stage is not None and one.allocated is not None:
            stages[str(one.stage)] = max(one.allocated, stages.get(str(one.stage), 0))
    # A trial that ran out of memory has the peak that it reached, not the one that it needed.
    return Outcome(row.trial, peak.allocated if peak is not None and row.passed else None, stages if row.passed else {})


def read_effective(path: str) -> Mapping[str, Any]:
    """A finished configuration out of a rank's record, which also says its software, or by itself.

    Raises:
        UsageError: the file cannot be read, or holds none.
    """
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} could not be read as JSON: {error}") from error
    inner = content.get("effective", content) if isinstance(content, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("model"), dict):
        raise UsageError(f"{path} holds no effective configuration: give a rank-00000.json, or an answer of resolve")
    software, ranks = content.get("software"), content.get("world_size")
    if isinstance(software, dict) and "software" not in inner:
        inner = {**inner, "software": software}
    if isinstance(ranks, int):
        train = inner.get("train")
        inner = {**inner, "train": {"world_size": ranks, **(train if isinstance(train, dict) else {})}}
    return inner
