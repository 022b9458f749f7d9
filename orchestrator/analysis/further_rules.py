"""What the guide says outside its failure table, and what users ask a tool like this, as rules over stored evidence."""

from __future__ import annotations

import re

from orchestrator.analysis.attention_oom import attention_oom
from orchestrator.analysis.candidates import Candidate, rewritten
from orchestrator.analysis.diagnosis import Rule, Seen, Step, Subject, outcome
from orchestrator.analysis.failure_rules import GRAPH_WORDS
from orchestrator.analysis.floor import floor_of, instead, seen
from orchestrator.analysis.loss_drift import loss_drift, own_drift
from orchestrator.analysis.reproduce import repeat_candidates
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, StagePeak
from orchestrator.analysis.too_fast import too_fast
from orchestrator.outcome.next_step import next_steps
from orchestrator.select.lever import ACTIVATION_STAGES, OPTIMIZER_STAGES, STATE_STAGES
from orchestrator.vocabulary import Cause, Stage
from orchestrator.vocabulary.units import format_bytes

FLOOR_RULE = "optimizer-sets-the-peak"
LOSS_TOLERANCE = 1e-3
"""Relative difference from the control's losses past which numerics deserve a look; equal arithmetic gives 0."""
GARBAGE_SHARE = 0.02
"""Share of the step from which garbage collection is worth a word."""
_SELDOM = "Collect less often, in every run that is compared and in the training itself."
_SMALL_MOMENTS = (
    "precision.use_precision_aware_optimizer=true",
    "precision.exp_avg_dtype=bf16",
    "precision.exp_avg_sq_dtype=bf16",
)
_DELAYED = re.compile(r"delayed", re.IGNORECASE)
_OFFLOAD_WORDS = re.compile(r"cpu_?offload", re.IGNORECASE)


def _optimizer_bound(subject: Subject) -> Seen | None:
    stage = subject.row.stage
    if not subject.is_oom or stage not in STATE_STAGES:
        return None
    floor, activations = subject.row.peak_in(STATE_STAGES), subject.row.peak_in(ACTIVATION_STAGES)
    numbers = f", at {_gigabytes(floor)}" if floor else ""
    forward = f"; forward and backward reached {_gigabytes(activations)}" if activations else ""
    action = "Shard it over more ranks, use BF16 moments, or offload the optimizer: recompute changes none of it."
    if stage not in OPTIMIZER_STAGES:
        cause = "parameters, gradients and optimizer state do not fit"
        return Seen(f"{outcome(subject.line)}{numbers}{forward}", cause, (Step(action),))
    command = subject.again(*_SMALL_MOMENTS)
    return Seen(f"{outcome(subject.line)}{numbers}{forward}", "optimizer state does not fit", (Step(action, command),))


def _optimizer_floor(subject: Subject) -> Seen | None:
    if subject.group.lines[0] is not subject.line:
        return None
    floor = floor_of(subject.group)
    if floor is None:
        return None
    return Seen(
        seen(floor),
        f"parameters, gradients and optimizer state set the peak in {floor.stage}, and recompute changes none of them",
        (Step(instead(subject.group)),),
    )


def _graph_straddle(subject: Subject) -> Seen | None:
    if not subject.labels or not subject.refused(GRAPH_WORDS):
        return None
    scope = ", ".join(subject.model.graph_scope) or "not given"
    return Seen(
        f"{subject.line.text} was refused: {subject.reason}",
        f"a checkpoint must lie wholly inside or wholly outside the captured scope ({scope})",
        (
            Step(
                "Switch CUDA graphs off, and measure the control again with it.",
                subject.commands.run("model.cuda_graph_impl=none", sweep=[[], sorted(subject.labels)]),
            ),
        ),
    )


def _fp8(subject: Subject) -> Seen | None:
    labels = sorted(subject.labels & {"moe_act", "layernorm"})
    delayed = _DELAYED.search(subject.model.fp8_recipe or "")
    if not labels or not (delayed or subject.refused(_DELAYED)) or not subject.refused(None):
        return None
    return Seen(
        f"{', '.join(labels)} with FP8 delayed scaling: {subject.reason}",
        "these boundaries are not supported with delayed scaling",
        (
            Step(
                "Use another FP8 recipe (and a Transformer Engine that supports it).",
                subject.commands.run("precision.fp8_recipe=tensorwise", sweep=[[], sorted(subject.labels)]),
            ),
        ),
    )


def _offloading(subject: Subject) -> Seen | None:
    if not subject.model.offloading or not subject.refused(_OFFLOAD_WORDS):
        return None
    without = Candidate(subject.line.candidate.recompute)
    return Seen(
        f"CPU offloading was refused: {subject.reason}",
        "it cannot be combined with recompute, nor with pipeline parallelism above one",
        (
            Step(
                "Take one of the two.",
                repeat_candidates([without], subject.commands, "model.cpu_offloading=false"),
            ),
        ),
    )


def _lost_override(subject: Subject) -> Seen | None:
    said = next((note for row in subject.line.runs if (note := rewritten(row)) is not None), None)
    if said is None:
        return None
    return Seen(
        said,
        "the framework, or the recipe, replaced the recompute settings (an unset list becomes core_attn)",
        (
            Step(
                "State the list explicitly; `[]` is the control.",
                subject.commands.run(sweep=[[], sorted(subject.labels)]),
            ),
        ),
    )


def _intermittent(subject: Subject) -> Seen | None:
    line = subject.line
    if not line.passed or line.passed == len(line.runs):
        return None
    return Seen(
        f"{line.passed} of {len(line.runs)} repeats passed; another was {line.label}",
        "the peak is close to the capacity, or fragments differ from run to run",
        (
            Step("Do not count it as a pass; look at the one that failed.", subject.show),
            Step("Repeat it.", subject.again("study.repeats=5")),
        ),
    )


def _numerics(subject: Subject) -> Seen | None:
    difference, control = subject.line.loss_difference, subject.group.control
    if difference is None or difference <= LOSS_TOLERANCE or control is None:
        return None
    controls = [row.losses for row in control.runs if row.passed]
    own = own_drift(controls)
    drifts = [loss_drift(row.losses, losses) for row in subject.line.runs if row.passed for losses in controls]
    drift = max((one for one in drifts if one is not None), key=lambda one: one.largest, default=None)
    beyond = drift.beyond(own) if drift is not None else None
    begins = beyond.first_past(LOSS_TOLERANCE) if beyond is not None else None
    if drift is not None and begins is None:
        return None
    beside = "" if own is None else f"; those of two runs of the control by up to {own.largest:.1e}"
    since = "" if begins is None else f", past {LOSS_TOLERANCE:g} from iteration {begins} on"
    symptom = f"losses differ from the control's by up to {difference:.1e} (relative){since}{beside}"
    if drift is not None and drift.grew:
        return Seen(
            symptom,
            "the forward is the same, as the first two iterations agree; what grows later is rounding of sums in "
            "another order, or gradients that a replay made wrong",
            (
                Step(
                    "Compare the first iteration's gradient norm with the control's: equal to rounding, it clears the "
                    "replay.",
                    subject.show,
                ),
                Step("See how far two runs of one setting drift apart.", subject.again("study.repeats=2")),
            ),
        )
    return Seen(
        symptom,
        "the arithmetic is the same, so dropout, an RNG state or a nondeterministic kernel replays differently",
        (Step("Check convergence before using it.", subject.show),),
    )


def _garbage(subject: Subject) -> Seen | None:
    """Said once, of the control: how often a loop collects has nothing to do with what it recomputes."""
    step, taken = subject.row.step_ms, subject.row.step_gc_ms
    if not subject.line.is_control or not step or not taken or taken < GARBAGE_SHARE * step:
        return None
    train = (subject.row.effective or {}).get("train")
    manual = isinstance(train, dict) and bool(train.get("manual_gc"))
    every = train.get("manual_gc_interval") if isinstance(train, dict) and manual else None
    symptom = f"garbage collection takes {taken:.0f} ms of a step of {step:.0f} ms, or {taken / step:.1%}"
    if not every:
        cause = "something asks for it" if manual else "Python collects whenever it has made enough objects"
        return Seen(symptom, cause, (Step(_SELDOM, subject.show),))
    return Seen(
        symptom,
        f"train.manual_gc_interval={every}: the loop collects after every {every} steps, whatever is recomputed",
        (
            Step(
                f"{_SELDOM} What cycles keep alive is freed that much later: watch the peak.",
                subject.again("+trainer.overrides={train.manual_gc_interval: 100}"),
            ),
        ),
    )


def _too_fast(subject: Subject) -> Seen | None:
    said = too_fast(subject.group, subject.line)
    if not said:
        return None
    step = Step("Repeat it beside its control.", subject.again("study.repeats=3"))
    return Seen(said, "noise that one run does not show, or a control that something else slowed", (step,))


def _failed(subject: Subject) -> Seen | None:
    """A failure that is none of memory: what the outcome itself says to do."""
    label, cause = subject.line.label or "", subject.row.cause
    if not label.startswith("failed:") or subject.row.origin == ORIGIN_PUBLISHED or subject.refused():
        return None
    known = Cause(cause) if cause in {str(one) for one in Cause} else Cause.UNKNOWN
    actions = next_steps(known, subject.row.stage or Stage.UNKNOWN)
    steps = [Step(action) for action in actions] or [Step("Look at what its ranks printed.")]
    steps[0] = Step(steps[0].action, subject.show)
    where = f" in {subject.row.stage}" if subject.row.stage not in (None, Stage.UNKNOWN) else ""
    return Seen(f"{outcome(subject.line)}{where}", subject.reason, tuple(steps))


def _no_control(subject: Subject) -> Seen | None:
    first = subject.group.lines[0] is subject.line
    if not first or subject.group.control is not None or subject.row.origin == ORIGIN_PUBLISHED:
        return None
    return Seen(
        "there is no control among these rows",
        "without a matched row that recomputes nothing, neither savings nor cost are known",
        (Step("Run the control.", subject.commands.run(sweep=[[]])),),
    )


def _gigabytes(peak: StagePeak) -> str:
    return format_bytes(peak.allocated)


FURTHER_RULES = (
    Rule("attention-oom", "guide, Quick Decision Guide", attention_oom),
    Rule("optimizer-bound", "guide, Known Limitations", _optimizer_bound),
    Rule(FLOOR_RULE, "guide, Known Limitations", _optimizer_floor),
    Rule("graph-scope-straddled", "guide, Compatibility: CUDA graphs", _graph_straddle),
    Rule("fp8-delayed-scaling", "guide, Compatibility: FP8 restrictions", _fp8),
    Rule("offloading-conflict", "guide, Quick Decision Guide", _offloading),
    Rule("settings-replaced", "Megatron-Bridge issues 3518 and 6003", _lost_override),
    Rule("passes-sometimes", "Megatron-Bridge issues 1512 and 3107", _intermittent),
    Rule("losses-differ", "guide, Measurement Contract", _numerics),
    Rule("garbage-collection", "ours, measured on every rank", _garbage),
    Rule("faster-than-control", "guide, Measurement Contract", _too_fast),
    Rule("failed-otherwise", "the outcome's own advice", _failed),
    Rule("no-control", "guide, Measurement Contract", _no_control),
)
