"""The guide's failure table, row by row, as rules over stored evidence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.analysis.architecture import inactive_reason
from orchestrator.analysis.attention_oom import attention_oom
from orchestrator.analysis.comparison import Delta, Line, OneLabel
from orchestrator.analysis.diagnosis import GUIDE, Rule, Seen, Step, Subject, outcome
from orchestrator.analysis.reproduce import repeat_candidates
from orchestrator.analysis.rows import Row
from orchestrator.select.lever import FRAGMENTATION_BYTES, FRAGMENTATION_SHARE, STATE_STAGES
from orchestrator.vocabulary import PASS, Cause, Stage
from orchestrator.vocabulary.units import format_bytes

MATERIAL = 0.005
"""A change of the peak smaller than this is no reason to pay for a replay."""
NO_CHANGE = 0.0005
"""A change of the peak smaller than this, of a deterministic allocator, is none."""
LADDER = ("moe_act", "layernorm", "moe")
"""The guide's order for a MoE model: narrow output-discard boundaries first."""
INSIDE_MOE = frozenset({"moe_act", "shared_experts"})
_EXPANDABLE = "expandable_segments:True"
EXPANDABLE_SEGMENTS = f"trainer.environment.PYTORCH_CUDA_ALLOC_CONF={_EXPANDABLE}"
GRAPH_WORDS = re.compile(r"cuda[ _-]?graph", re.IGNORECASE)
_OVERLAP_WORDS = re.compile(r"overlap", re.IGNORECASE)


def _core_attn_little_effect(subject: Subject) -> Seen | None:
    change = next((change for change in subject.line.one_label if change.label == "core_attn"), None)
    if change is None or change.peak is None or (change.peak.measurable and change.peak.fraction <= -MATERIAL):
        return None
    fused = subject.model.fused_attention
    backend = "" if fused == "fused" else f" ({fused})"
    cause = (
        f"the attention is fused{backend}, which rematerialises its internals by itself"
        if fused
        else "fused attention rematerialises its internals by itself, or the peak is elsewhere"
    )
    return Seen(
        f"core_attn changed the peak against {change.base} by {_percent(change.peak)}{_and_time(change.time)}",
        cause,
        (_narrower(subject, "core_attn"),),
    )


def _mla_oom(subject: Subject) -> Seen | None:
    if not (subject.is_oom and "core_attn" in subject.labels and subject.model.mla):
        return None
    if "mla_up_proj" in subject.labels or subject.row.stage in STATE_STAGES:
        return None
    lists = [labels for labels in (["mla_up_proj"], ["core_attn", "mla_up_proj"]) if not subject.tried(labels)]
    if lists:
        action = "Test mla_up_proj; keep core_attn only if a matched run supports it."
        step = Step(action + subject.passed, subject.commands.run(sweep=[[], *lists]))
    else:
        step = Step(f"mla_up_proj was tried already, with core_attn and without.{subject.passed}")
    return Seen(
        f"{outcome(subject.line)}, with core_attn recomputed on a multi-latent attention model",
        "the expanded Q, K and V projections hold the memory, not the attention core",
        (step,),
    )


def _moe_stays_high(subject: Subject) -> Seen | None:
    if not (subject.is_oom and subject.model.moe) or subject.row.stage in STATE_STAGES:
        return None
    if subject.line.candidate.recompute.granularity != "selective" or attention_oom(subject):
        return None
    tried = [label for label in LADDER if label in subject.labels]
    said = f" with {', '.join(tried)}" if tried else ""
    wider = _next_on_ladder(subject)
    if wider is not None:
        command = subject.commands.run(sweep=[[], sorted(wider)])
        action = f"Test {', '.join(sorted(wider))} next; whole moe is for broader pressure.{subject.passed}"
        step = Step(action, command)
    elif subject.passed or subject.tried_full:
        step = Step(f"What is left on this ladder was tried, or is less than what ran out of memory.{subject.passed}")
    else:
        step = Step("Only full recompute is broader.", subject.full())
    return Seen(
        f"{outcome(subject.line)}{said} on a MoE model",
        "expert intermediates or norm outputs hold the memory",
        (step,),
    )


def _next_on_ladder(subject: Subject) -> frozenset[str] | None:
    """The labels with one more of the ladder's, where nobody tried that, nor ran out of memory with more than that;
    whole moe replaces what lies in it."""
    if "moe" in subject.labels:
        return None
    rungs = [label for label in LADDER if label not in subject.labels]
    if subject.model.grouped_gemm is False:
        rungs = [label for label in rungs if label != "moe_act"]
    wider = [(subject.labels - INSIDE_MOE if label == "moe" else subject.labels) | {label} for label in rungs]
    ran_out = [_labels_of(line) for line in subject.group.lines if _out_of_activations(line)]
    untried = [labels for labels in wider if not subject.tried(labels)]
    return next((labels for labels in untried if not any(labels <= more for more in ran_out)), None)


def _labels_of(line: Line) -> frozenset[str]:
    return line.candidate.recompute.labels


def _out_of_activations(line: Line) -> bool:
    """Whether a selective line ran out of memory where less recompute would not fit either."""
    selective = line.candidate.recompute.granularity == "selective"
    return selective and (line.label or "").startswith("OOM-") and line.decided.stage not in STATE_STAGES


def _overlap(subject: Subject) -> Seen | None:
    conflicts = []
    if "moe" in subject.labels and subject.model.expert_overlap:
        conflicts.append(("moe", "model.overlap_moe_expert_parallel_comm=false"))
    if "shared_experts" in subject.labels and subject.model.shared_expert_overlap:
        conflicts.append(("shared_experts", "model.moe_shared_expert_overlap=false"))
    if not conflicts or not subject.refused(_OVERLAP_WORDS):
        return None
    label, switch = conflicts[0]
    kept = sorted(subject.labels - {label} | ({"moe_act"} if label == "moe" else set()))
    return Seen(
        f"{label} was refused: {subject.reason}",
        "backward would replay communication that is overlapped with something else",
        (
            Step("Keep the overlap and use a compatible inner boundary.", subject.commands.run(sweep=[[], kept])),
            Step(
                "Or switch the overlap off, and measure the control again with it.",
                subject.commands.run(switch, sweep=[[], sorted(subject.labels)]),
            ),
        ),
    )


def _without_effect(subject: Subject) -> Seen | None:
    reasons = [(label, reason) for label in sorted(subject.labels) if (reason := inactive_reason(label, subject.model))]
    if reasons:
        label, reason = reasons[0]
        rest = sorted(subject.labels - {name for name, _ in reasons})
        action = "Leave the label out; it only makes the list longer."
        step = Step(action, None if subject.tried(rest) else subject.commands.run(sweep=[rest]))
        return Seen(f"{label} cannot act on this model", reason, (step,))
    show = Step("Look at the layers that were built and at the graph scope.", subject.show)
    if subject.line.passed and subject.labels and subject.row.replays == 0:
        cause = "the module is absent on these layers, or graph capture bypassed its wrapper"
        return Seen("no rank ever replayed anything", cause, (show,))
    for change in subject.line.one_label:
        peak, time = change.peak, change.time
        if change.label == "core_attn" or peak is None or time is None:
            continue
        if abs(peak.fraction) <= NO_CHANGE and not _is_slower(time):
            where = " (CUDA graphs are captured)" if subject.model.graphs else ""
            symptom = (
                f"{change.label} changed neither the peak ({_signed(peak.fraction)}) nor the step time "
                f"({_signed(time.fraction)}{_noise(time)}) against {change.base}"
            )
            return _behind_another_stage(subject, change, symptom) or Seen(
                symptom,
                f"the module is absent or inactive on the measured layers, or another stage sets the peak{where}",
                (show,),
            )
    return None


def _behind_another_stage(subject: Subject, change: OneLabel, symptom: str) -> Seen | None:
    """That the label acts, where forward's peak fell and a stage that recompute does not touch hides it."""
    base, peak = subject.base(change), subject.line.peak
    before, now = base.forward_peak if base is not None else None, subject.line.forward_peak
    if base is None or base.peak is None or peak is None or before is None or now is None:
        return None
    if peak.stage not in STATE_STAGES or base.peak.stage not in STATE_STAGES or before - now <= NO_CHANGE * before:
        return None
    return Seen(
        f"{symptom}; forward's peak fell from {format_bytes(before)} to {format_bytes(now)}",
        f"the label acts, and {peak.stage} sets the peak, which recompute does not change",
        (Step(f"It cannot pay before {peak.stage} needs less than forward and backward do."),),
    )


def _full_with_graphs(subject: Subject) -> Seen | None:
    if subject.line.candidate.recompute.granularity != "full" or not subject.refused(GRAPH_WORDS):
        return None
    return Seen(
        f"full recompute was refused: {subject.reason}",
        f"cuda_graph_impl is {subject.model.graphs or 'set'}, and full recompute needs full-iteration graphs",
        (
            Step("Capture the full iteration.", subject.full("model.cuda_graph_impl=full_iteration")),
            Step("Or switch CUDA graphs off.", subject.full("model.cuda_graph_impl=none")),
        ),
    )


def _fragmentation(subject: Subject) -> Seen | None:
    sizes = _gap_sizes(subject)
    if sizes is None:
        return None
    allocated, reserved = sizes
    caused = subject.row.cause == Cause.FRAGMENTATION
    least = max(FRAGMENTATION_SHARE * reserved, FRAGMENTATION_BYTES)
    if not caused and (reserved - allocated < least or subject.row.device_kind == "cpu"):
        return None
    if _is_expandable(subject):
        action = "Expandable segments are on already: lower the peak, or the fragments, of the hot stage."
        return Seen(_gap_text(allocated, reserved), "allocator caching or fragmentation", (Step(action, subject.show),))
    step = Step("Try expandable segments before more recompute.", subject.again(EXPANDABLE_SEGMENTS))
    return Seen(_gap_text(allocated, reserved), "allocator fragmentation or caching, not live memory", (step,))


def _fragmentation_of_several(seen: Sequence[tuple[Subject, Seen]]) -> Seen:
    """The gaps of all of them, and one command for those that did not have expandable segments."""
    gaps = [
        f"{subject.line.text} {format_bytes(sizes[1] - sizes[0])} of {format_bytes(sizes[1])}"
        for subject, _ in seen
        if (sizes := _gap_sizes(subject)) is not None
    ]
    first, one = seen[0]
    open_ones = [subject for subject, _ in seen if not _is_expandable(subject)]
    steps = one.steps
    if open_ones:
        candidates = [subject.line.candidate for subject in open_ones]
        command = repeat_candidates(candidates, first.commands, EXPANDABLE_SEGMENTS)
        steps = (Step("Try expandable segments before more recompute.", command),)
    return Seen(f"reserved memory is above allocated memory by: {'; '.join(gaps)}", one.cause, steps)


def _is_expandable(subject: Subject) -> bool:
    return has_expandable_segments(subject.row)


def has_expandable_segments(row: Row) -> bool:
    """Whether the allocator of a run grew its segments in place."""
    return _EXPANDABLE in row.environment.get("PYTORCH_CUDA_ALLOC_CONF", "")


def _gap_sizes(subject: Subject) -> tuple[int, int] | None:
    """Allocated and reserved bytes of the run that reserved most; None where one of them is not known."""
    known = [
        (run.reserved, run.peak.allocated)
        for run in subject.line.runs
        if run.reserved is not None and run.peak is not None and run.peak.allocated is not None
    ]
    reserved, allocated = max(known, default=(None, None))
    return None if allocated is None or reserved is None else (allocated, reserved)


def _moved(subject: Subject) -> Seen | None:
    if not subject.is_oom or subject.row.rank is None:
        return None
    for base in _fewer(subject):
        other = base.decided
        if (base.label or "").startswith("OOM-") and other.rank is not None and other.rank != subject.row.rank:
            return Seen(
                f"the OOM moved from rank {other.rank} ({other.stage}) with {base.text} to rank {subject.row.rank} "
                f"({subject.row.stage})",
                "the layers of the (virtual) pipeline stages changed the bottleneck",
                (
                    Step("Compare the peaks of every rank.", subject.show),
                    Step("Then tune the placement for the hot stage, or its labels.", subject.full(method="block")),
                ),
            )
    return None


def _farther(subject: Subject) -> Seen | None:
    if not subject.is_oom:
        return None
    for base in _fewer(subject):
        if (base.label or "").startswith("OOM-") and _progress(subject.line) > _progress(base):
            return Seen(
                f"{base.text} ended with {outcome(base)}, this with {outcome(subject.line)}",
                _how_far(base, subject.line),
                (
                    Step(
                        "This is no pass: optimizer state and steady steps are missing. Relieve where it stopped.",
                        subject.show,
                    ),
                ),
            )
    return None


def _narrower(subject: Subject, without: str) -> Step:
    """Other boundaries of the architecture in its place: those that nobody measured yet."""
    rest = sorted(subject.labels - {without})
    options = [["mla_up_proj"]] if subject.model.mla else []
    if subject.model.moe:
        options += [["moe_act"]] if subject.model.grouped_gemm is not False else [["moe"]]
    if not options:
        options = [["layernorm"], ["mlp"]]
    lists = [sorted({*rest, *option}) for option in options]
    tested = [f"{line.text}{_unless_passed(line)}" for labels in lists if (line := subject.tried(labels))]
    untested = [labels for labels in lists if not subject.tried(labels)]
    if not untested:
        return Step(f"Drop {without}; boundaries of this architecture are measured already: {' and '.join(tested)}.")
    command = subject.commands.run(sweep=[[], *untested])
    return Step(f"Drop {without} and test a boundary of this architecture instead.", command)


def _unless_passed(line: Line) -> str:
    return "" if line.label in (PASS, None) else f" ({line.label})"


def _fewer(subject: Subject) -> list[Line]:
    """Lines that recompute less: the control first, then those that lack exactly one label."""
    control = subject.group.control
    bases = [control] if control is not None and control is not subject.line and not subject.line.is_control else []
    return bases + [base for change in subject.line.one_label if (base := subject.base(change)) and base not in bases]


def _progress(line: Line) -> tuple[int, int]:
    row = line.decided
    stage = row.stage.code if row.stage is not None and row.stage is not Stage.UNKNOWN else -1
    return (row.last_iteration if row.last_iteration is not None else -1, stage)


def _how_far(base: Line, line: Line) -> str:
    before, now = base.decided, line.decided
    if before.stage != now.stage and (before.last_iteration or 0) == (now.last_iteration or 0):
        return f"recompute moved the peak to a later stage, from {before.stage} to {now.stage}"
    count = (now.last_iteration or 0) - (before.last_iteration or 0)
    later = f", {count} iteration{'s' * (count != 1)} later" if count else ""
    if before.stage == now.stage:
        return f"the same stage ({now.stage}) still does not fit{later}"
    return f"{before.stage} fits now, and {now.stage} does not{later}"


def _gap_text(allocated: int, reserved: int) -> str:
    return (
        f"reserved memory reached {format_bytes(reserved)} and allocated {format_bytes(allocated)}: "
        f"{format_bytes(reserved - allocated)} apart"
    )


def _is_slower(time: Delta) -> bool:
    return time.fraction > MATERIAL if time.band is None else time.measurable and time.fraction > 0


def _percent(change: Delta) -> str:
    """A change as the comparison judges it: inside the noise it is none."""
    if change.measurable or change.band is None:
        return _signed(change.fraction)
    return f"no measurable amount ({_signed(change.fraction)}{_noise(change)})"


def _signed(fraction: float) -> str:
    """As the comparison writes it: what rounds to nothing has no sign."""
    text = f"{fraction:+.2%}"
    return text if text.strip("+-0.%") else "0.00%"


def _noise(change: Delta) -> str:
    if change.measurable or change.band is None:
        return ""
    return f" inside the noise band of ±{change.band.half_width:.2%}"


def _and_time(change: Delta | None) -> str:
    return "" if change is None else f" and the step time by {_percent(change)}"


FAILURE_TABLE = (
    Rule("core-attn-little-effect", f"{GUIDE}, row 1", _core_attn_little_effect),
    Rule("mla-oom-after-core-attn", f"{GUIDE}, row 2", _mla_oom),
    Rule("moe-peak-high", f"{GUIDE}, row 3", _moe_stays_high),
    Rule("overlap-conflict", f"{GUIDE}, row 4", _overlap),
    Rule("label-without-effect", f"{GUIDE}, row 5", _without_effect),
    Rule("full-recompute-with-graphs", f"{GUIDE}, row 6", _full_with_graphs),
    Rule("reserved-not-allocated", f"{GUIDE}, row 7", _fragmentation, _fragmentation_of_several),
    Rule("oom-moved-to-another-rank", f"{GUIDE}, row 8", _moved),
    Rule("farther-but-still-oom", f"{GUIDE}, row 9", _farther),
)
