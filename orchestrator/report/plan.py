"""What a command is going to do, in words: counts first, then what is refused and why, what would run, and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.dispatch.slurm.parameters import limit_seconds
from orchestrator.plan.candidate import group, trainer_of
from orchestrator.plan.finding import Finding, Kind
from orchestrator.plan.forecast import Forecast, total_hours
from orchestrator.plan.plan import ACTIVE_RULE, VALIDATOR_RULE, Plan, PlannedTrial, Status
from orchestrator.predict.hours import Hours
from orchestrator.predict.timing import StepTime
from orchestrator.predict.verdict import Range
from orchestrator.report.text import counted, plain
from orchestrator.vocabulary.units import format_bytes

MOST_LISTED = 40
"""Trials that are listed one a line; a longer list is summarised by shape."""

_MOST_NAMES = 6
_MOST_LETTERS = 160
_MOST_SCRIPTS = 3
_WARNINGS = (Kind.NO_EFFECT, Kind.RISKY, Kind.DIFFERS)
_WORDS = (
    (Status.NEW, "to run"),
    (Status.KNOWN, "known already"),
    (Status.DUPLICATE, "duplicate"),
    (Status.REJECTED, "rejected"),
)


@dataclass(frozen=True)
class Cost:
    """What the new trials of one shape take at most."""

    trainer: str
    ranks: int | None
    """Ranks of one trial, a GPU each with `bridge`; None where only a recipe knows."""
    trials: int
    limit_seconds: float | None
    """The longest that one trial may take (`trainer.time_limit`); None where there is no limit."""

    @property
    def rank_hours(self) -> float | None:
        """Ranks times hours at most, all trials together; None where a factor is not known."""
        if self.ranks is None or self.limit_seconds is None:
            return None
        return self.trials * self.ranks * self.limit_seconds / 3600


def summary_line(plan: Plan) -> str:
    """How many trials there are of each kind."""
    counts = [f"{plan.count(status)} {word}" for status, word in _WORDS if plan.count(status) or status is Status.NEW]
    if plan.searched and plan.new:
        counts[0] = f"up to {counts[0]}, as a search decides one by one"
    waiting = sum(entry.waits for entry in plan.known)
    if waiting:
        known = plan.count(Status.KNOWN) - waiting
        counts = [f"{known} known already" if one.endswith(" known already") else one for one in counts]
        counts = [one for one in counts if one != "0 known already"]
        counts.append(f"{waiting} {'waits' if waiting == 1 else 'wait'} for a search")
    opened = sum(_is_open(entry) for entry in plan.new)
    if opened:
        counts.append(f"{opened} of those to run not fully judged here")
    candidates = sum(entry.repeat == 0 for entry in plan.entries)
    repeated = "" if candidates == len(plan.entries) else f" of {candidates} candidates"
    return f"study {plain(plan.study)}: {counted(len(plan.entries), 'trial')}{repeated}, {', '.join(counts)}"


def detail_lines(plan: Plan) -> list[str]:
    """What is refused (by rule, with an example each), known already, warned of, and left open."""
    lines = []
    for rule, entries in plan.rejections_by_rule().items():
        example = entries[0]
        lines.append(f"rejected by {rule} ({len(entries)}): {_names(entries)}")
        lines.append(f"  {plain(example.name)}: {plain(plan.deciding(example).message)}")
    known = [f"{plain(entry.name)} ({plain(entry.label or 'running')})" for entry in plan.known if not entry.waits]
    if known:
        lines.append(f"known already ({len(known)}): {_cut(known)}")
    if known and not plan.new and all(entry.label for entry in plan.known):
        lines.append(
            "note: all of that has a result, so nothing runs: `retry` or another results_dir measures it again"
        )
    waiting = [entry for entry in plan.known if entry.waits]
    if waiting:
        lines.append(
            f"wait for a search ({len(waiting)}): {_names(waiting)}: it may leave them out; once it is over, the same "
            "command runs those without a result"
        )
    for _, found in _by_rule(plan.duplicates, (Kind.NOTE,)):
        lines += _said(f"duplicate ({len(found)})", found)
    to_run = plan.of(Status.NEW, Status.KNOWN)
    for finding, found in _by_rule(to_run, _WARNINGS):
        lines += _said(f"warning ({finding.kind}, {finding.rule})", found)
    for finding, entries in _without_control(plan):
        said = "no control can run, so nothing will tell what recomputing costs"
        lines.append(f"warning ({finding.rule}): {said} ({_names(entries)}): {plain(finding.message)}")
    for _, found in _by_rule(to_run, (Kind.OPEN,)):
        lines += _said("open", found)
    for _, found in _by_rule(plan.new, (Kind.NOTE,)):
        lines += _said("note", found)
    hours = group(plan.entries[0].request, "study").get("gpu_hours") if plan.entries and not plan.searched else None
    if hours is not None:
        lines.append(f"note: study.gpu_hours={hours:g} bounds a search (study.mode=escalate); this study runs whole")
    return lines + [f"note: {plain(note)}" for note in plan.notes]


def entry_lines(plan: Plan, predicted: Mapping[str, Forecast] | None = None) -> list[str]:
    """Every trial with what would be done about it and what it should need; of a big plan, what would run by shape."""
    if len(plan.entries) > MOST_LISTED:
        return _shape_lines(plan)
    run = _may_run(plan)
    width = max((len(plain(entry.name)) for entry in plan.entries), default=0)
    return [
        f"  {entry.trial}  {plain(entry.name):<{width}}  {_fate(entry, predicted or {}, run)}".rstrip()
        for entry in plan.entries
    ]


def cost_lines(plan: Plan, predicted: Mapping[str, Forecast] | None = None) -> list[str]:
    """What running the new trials takes at most, in ranks or GPUs and time; and what is expected, where it is."""
    run = "would run at most" if plan.searched else "would run"
    return [
        *_cannot_run(plan, predicted or {}),
        *(f"{run} {_cost(cost)}" for cost in costs(plan)),
        *_search_lines(plan),
        *_too_long(plan, predicted or {}),
        *hours_lines(predicted or {}, searched=plan.searched),
        *step_lines(predicted or {}),
        *prediction_notes(predicted or {}),
    ]


def step_lines(predicted: Mapping[str, Forecast]) -> list[str]:
    """How long a step should take, by global batch: what the hours follow from."""
    by_batch: dict[int | None, list[StepTime]] = {}
    for one in predicted.values():
        if one.step is not None:
            by_batch.setdefault(one.global_batch, []).append(one.step)
    return [_step_line(batch, steps) for batch, steps in by_batch.items()]


def _step_line(batch: int | None, steps: Sequence[StepTime]) -> str:
    least, most = (f"{seconds(step.expected for step in steps):.3g}" for seconds in (min, max))
    expected = least if least == most else f"{least} to {most}"
    low, high = min(step.low for step in steps), max(step.high for step in steps)
    return f"a step should take {expected} s ({low:.3g} to {high:.3g}), with training.global_batch_size {batch}"


def prediction_notes(predicted: Mapping[str, Forecast]) -> list[str]:
    """What predictions took for granted, each once; and that none of them decides."""
    notes = dict.fromkeys(note for one in predicted.values() for note in one.notes)
    lines = [f"predicted: {plain(note)}" for note in notes]
    problems = dict.fromkeys(one.problem for one in predicted.values() if one.problem and not one.cannot_run)
    lines += [f"not predicted: {plain(problem)}" for problem in problems]
    if any(one.too_much for one in predicted.values()):
        lines.append("predicted: what will not fit runs all the same; a prediction decides nothing")
    return lines


def hours_lines(predicted: Mapping[str, Forecast], *, searched: bool = False) -> list[str]:
    """GPU-hours that are expected; nothing where no trial uses a GPU that can be counted."""
    hours = total_hours(predicted)
    if hours is None:
        return []
    range_ = f"{hours.expected:.3g} GPU-hours are expected ({hours.low:.3g} to {hours.high:.3g})"
    whole = " if all of them run" if searched else ""
    return [f"{range_}{whole}, start-up included; controls that a job adds are not counted"]


def script_lines(scripts: Sequence[tuple[str, str]]) -> list[str]:
    """Scripts that would be submitted, under their names; of many the first few."""
    lines = []
    for name, text in scripts[:_MOST_SCRIPTS]:
        lines += [f"--- {plain(name)}", *(plain(line) for line in text.rstrip("\n").split("\n"))]
    more = len(scripts) - _MOST_SCRIPTS
    return [*lines, f"--- and {more} more scripts like these"] if more > 0 else lines


def whole(
    plan: Plan, scripts: Sequence[tuple[str, str]] = (), predicted: Mapping[str, Forecast] | None = None
) -> list[str]:
    """All of a plan in the order of reading: counts, refusals and warnings, what would run, its cost, its scripts."""
    return [
        summary_line(plan),
        *detail_lines(plan),
        *entry_lines(plan, predicted),
        *cost_lines(plan, predicted),
        *script_lines(scripts),
    ]


def costs(plan: Plan) -> list[Cost]:
    """The new trials by trainer, ranks and time limit, the largest first."""
    shapes: dict[tuple[str, int | None, float | None], int] = {}
    for entry in plan.new:
        limit = group(entry.request, "trainer").get("time_limit")
        seconds = float(limit) if isinstance(limit, (int, float)) and not isinstance(limit, bool) else None
        shape = (trainer_of(entry.request), entry.world_size, seconds)
        shapes[shape] = shapes.get(shape, 0) + 1
    found = [Cost(trainer, ranks, trials, seconds) for (trainer, ranks, seconds), trials in shapes.items()]
    return sorted(found, key=lambda cost: -(cost.ranks or 0) * cost.trials)


def as_json(
    plan: Plan, scripts: Sequence[tuple[str, str]] = (), predicted: Mapping[str, Forecast] | None = None
) -> dict[str, Any]:
    """The plan as plain JSON, every trial of it."""
    hours = total_hours(predicted or {})
    return {
        "study": plan.study,
        "strict": plan.strict,
        "searched": plan.searched,
        "counts": {str(status): plan.count(status) for status in Status}
        | {"candidates": sum(entry.repeat == 0 for entry in plan.entries), "open": sum(map(_is_open, plan.new))},
        "rejected_by": {
            rule: {"count": len(entries), "example": plan.deciding(entries[0]).message}
            for rule, entries in plan.rejections_by_rule().items()
        },
        "costs": [
            {
                "trainer": cost.trainer,
                "ranks": cost.ranks,
                "trials": cost.trials,
                "limit_seconds": cost.limit_seconds,
                "rank_hours": cost.rank_hours,
            }
            for cost in costs(plan)
        ],
        "gpu_hours": None if hours is None else _three(hours),
        "without_control": [
            {"rule": finding.rule, "message": finding.message, "trials": [entry.trial for entry in entries]}
            for finding, entries in _without_control(plan)
        ],
        "notes": list(plan.notes),
        "scripts": [{"name": name, "text": text} for name, text in scripts],
        "trials": [_entry_json(entry, (predicted or {}).get(entry.trial)) for entry in plan.entries],
    }


def _entry_json(entry: PlannedTrial, predicted: Forecast | None) -> dict[str, Any]:
    memory, hours = (predicted.memory, predicted.hours) if predicted is not None else (None, None)
    step = predicted.step if predicted is not None else None
    return {
        "trial": entry.trial,
        "name": entry.name,
        "repeat": entry.repeat,
        "status": str(entry.status),
        "label": entry.label,
        "world_size": entry.world_size,
        "predicted_bytes": None if memory is None else _three(memory),
        "not_predicted": None if predicted is None else predicted.problem,
        "cannot_run": False if predicted is None else predicted.cannot_run,
        "predicted_gpu_hours": None if hours is None else _three(hours),
        "predicted_step_seconds": None if step is None else _three(step),
        "will_not_fit": None if predicted is None else predicted.too_much,
        "findings": [
            {"rule": item.rule, "kind": str(item.kind), "message": item.message, "source": item.source}
            for item in entry.findings
        ],
    }


def _three(found: Range | Hours | StepTime) -> dict[str, float]:
    return {"expected": found.expected, "low": found.low, "high": found.high}


def _shape_lines(plan: Plan) -> list[str]:
    shapes: dict[int | None, list[PlannedTrial]] = {}
    for entry in plan.new:
        shapes.setdefault(entry.world_size, []).append(entry)
    run = _may_run(plan)
    return [f"  {run} {_ranks(ranks)}: {len(entries)} trials: {_names(entries)}" for ranks, entries in shapes.items()]


def _cannot_run(plan: Plan, predicted: Mapping[str, Forecast]) -> list[str]:
    """What no rule refused, for want of the recipe, and yet cannot run as far as the recipe is known here."""
    found: dict[str, list[PlannedTrial]] = {}
    for entry in plan.new:
        one = predicted.get(entry.trial)
        if one is not None and one.cannot_run and one.problem:
            found.setdefault(one.problem, []).append(entry)
    return [
        f"warning: {_names(entries)} cannot run, as far as the recipe is known here: {plain(problem)}"
        for problem, entries in found.items()
    ]


def _search_lines(plan: Plan) -> list[str]:
    if not plan.searched or not plan.new:
        return []
    study = group(plan.new[0].request, "study")
    target, hours = study.get("target_gb"), study.get("gpu_hours")
    what = "the fastest that passes" if target is None else f"the fastest within {target:g} GB on every rank"
    bound = "study.gpu_hours sets no bound" if hours is None else f"and ends at {hours:g} GPU-hours"
    return [f"the search looks for {what}, {bound}"]


def _too_long(plan: Plan, predicted: Mapping[str, Forecast]) -> list[str]:
    """Trials that take longer than their job may, even where a prediction is at its lowest."""
    found: dict[str, list[tuple[PlannedTrial, float]]] = {}
    for entry in plan.new:
        one = predicted.get(entry.trial)
        time = group(entry.request, "cluster").get("time")
        limit = limit_seconds(time)
        if one is None or one.hours is None or not entry.world_size or limit is None:
            continue
        least = one.hours.low * 3600 / entry.world_size
        if least > limit:
            found.setdefault(str(time), []).append((entry, least))
    return [
        f"warning: cluster.time={time} ends a job before a trial of {_names([entry for entry, _ in entries])}, which "
        f"should take {_duration(min(least for _, least in entries))} at least: raise it, or lower training.train_iters"
        for time, entries in found.items()
    ]


def _may_run(plan: Plan) -> str:
    return "may run" if plan.searched else "to run"


def _cost(cost: Cost) -> str:
    unit = "GPUs" if cost.trainer == "bridge" else "ranks"
    where = f"{'as many' if cost.ranks is None else cost.ranks} {unit if cost.ranks != 1 else unit[:-1]}"
    where += " as the recipe says" if cost.ranks is None else ""
    trials = f"{counted(cost.trials, 'trial')} on {where}"
    if cost.limit_seconds is None:
        return f"{trials}, for as long as it takes (trainer.time_limit is not set)"
    hours = "" if cost.rank_hours is None else f", {cost.rank_hours:.3g} {unit[:-1]}-hours in all"
    return f"{trials}, at most {_duration(cost.limit_seconds)} each{hours}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _fate(entry: PlannedTrial, predicted: Mapping[str, Forecast], run: str) -> str:
    if entry.status is Status.NEW:
        return f"{run} {_ranks(entry.world_size)}{_expected(predicted.get(entry.trial))}"
    if entry.status is Status.KNOWN:
        if entry.waits:
            return "waits for a search"
        return f"known: {entry.label}" if entry.label else "running already"
    return str(entry.status)


def _expected(predicted: Forecast | None) -> str:
    memory = predicted.memory if predicted is not None else None
    if predicted is not None and predicted.cannot_run:
        return ", but cannot"
    if memory is None:
        return ""
    low, high = format_bytes(memory.low), format_bytes(memory.high)
    beyond = predicted.too_much if predicted is not None else None
    will_not = f", will not fit {plain(beyond)}" if beyond else ""
    return f", {format_bytes(memory.expected)} expected ({low} to {high}){will_not}"


def _ranks(ranks: int | None) -> str:
    if ranks is None:
        return "on as many ranks as the recipe says"
    return f"on {ranks} rank{'' if ranks == 1 else 's'}"


def _is_open(entry: PlannedTrial) -> bool:
    return any(finding.kind is Kind.OPEN for finding in entry.findings)


def _by_rule(
    entries: Iterable[PlannedTrial], kinds: Iterable[Kind]
) -> list[tuple[Finding, list[tuple[PlannedTrial, str]]]]:
    """The findings of these kinds, each rule's together, with the first of them. The framework's own words stay apart:
    they have one name for whatever it says."""
    groups: dict[tuple[Kind, str, str], tuple[Finding, list[tuple[PlannedTrial, str]]]] = {}
    for entry in entries:
        if entry.repeat:
            continue
        for finding in entry.findings:
            if finding.kind in kinds and finding.rule != ACTIVE_RULE:
                words = finding.message if finding.rule == VALIDATOR_RULE else ""
                group = groups.setdefault((finding.kind, finding.rule, words), (finding, []))
                group[1].append((entry, finding.message))
    return list(groups.values())[:MOST_LISTED]


def _without_control(plan: Plan) -> list[tuple[Finding, list[PlannedTrial]]]:
    """The new trials that run without a control, by what refuses it."""
    found: dict[Finding, list[PlannedTrial]] = {}
    for entry in plan.new if plan.refused_controls else ():
        refusal = plan.refused_controls.get(entry.candidate.match_key)
        if refusal is not None:
            found.setdefault(refusal, []).append(entry)
    return list(found.items())


def _said(title: str, found: Sequence[tuple[PlannedTrial, str]]) -> list[str]:
    """Whom it concerns and what is said; of messages that differ, the first as an example on a line of its own."""
    names = _names([entry for entry, _ in found])
    first, message = found[0]
    if all(other == message for _, other in found):
        return [f"{title}: {names}: {plain(message)}"]
    return [f"{title}: {names}", f"  {plain(first.name)}: {plain(message)}"]


def _names(entries: Sequence[PlannedTrial]) -> str:
    return _cut([plain(entry.name) for entry in entries])


def _cut(names: Sequence[str]) -> str:
    shown = 1
    while shown < min(len(names), _MOST_NAMES) and sum(map(len, names[: shown + 1])) <= _MOST_LETTERS:
        shown += 1
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")
