"""What an exception means: its wording first, then where it was raised."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestrator.outcome.catalogue import REMARK_RULES, RULES
from orchestrator.outcome.device_memory import DeviceMemory, cause_of_full_device, read_device_memory
from orchestrator.outcome.frame_rules import SourceFrame
from orchestrator.outcome.frames import Located, stage_of
from orchestrator.outcome.rule import Rule, Weight, first_match
from orchestrator.vocabulary import Cause, Stage

_REFUSALS = ("AssertionError", "ValueError", "NotImplementedError", "TypeError", "KeyError", "AttributeError")
_BUILDING_STAGES = frozenset({Stage.MODEL_BUILD, Stage.OPTIMIZER_BUILD, Stage.DISTRIBUTED_INIT})
_BEFORE_ANY_MEMORY = frozenset({Stage.LAUNCH, Stage.STARTUP, Stage.DISTRIBUTED_INIT})
_PINNING = ("pin_memory", "cudaHostRegister", "cudaHostAlloc", "register_pinned")

_ASSERTS_A_SETTING = re.compile(r"assert\b.*\b(?:args|cfg|config|hparams)\.\w")
"""Source whose assertion, without a message, refuses a setting."""


@dataclass(frozen=True)
class Verdict:
    """What one text says."""

    cause: Cause
    weight: Weight
    stage: Stage
    rules: tuple[str, ...]
    line: str
    memory: DeviceMemory | None = None
    frame: SourceFrame | None = None
    """The frame that said where."""


def judge_text(lines: Iterable[str], stage: Stage = Stage.UNKNOWN) -> Verdict | None:
    """The weightiest thing that lines of one process say, the first of equals; None where no rule knows any."""
    best: tuple[Rule, str] | None = None
    for line in lines:
        if first_match(REMARK_RULES, line) is not None:
            continue
        rule = first_match(RULES, line)
        if rule is not None and (best is None or rule.weight < best[0].weight):
            best = (rule, line)
            if rule.weight is Weight.ROOT:
                break
    return None if best is None else verdict_of(best[0], best[1], stage)


def judge_exception(
    kind: str, message: str, frames: Sequence[SourceFrame] = (), seam: Stage | None = None, chain: Sequence[str] = ()
) -> Verdict:
    """What an exception means. A known seam outranks the frames; an exception that no rule knows is `unknown`."""
    where = stage_of(frames)
    if seam is not None and seam is not Stage.UNKNOWN:
        where = Located(seam, "seam.stage")
    texts = [f"{kind}: {message}".strip(": "), *chain]
    headline = (texts[0].splitlines() or [""])[0]
    found = judge_text([line for text in texts for line in text.splitlines()], where.stage)
    if found is not None and found.memory is not None:
        found = with_numbers_of(found, "\n".join(texts))
    code = frames[-1].code if frames else ""
    if any(word in code for word in _PINNING) and ("CUDA error" in message or "out of memory" in message):
        found = Verdict(Cause.HOST_OOM, Weight.ROOT, where.stage, ("host.pinned-memory",), headline)
    elif (found is None or found.weight is not Weight.ROOT) and (
        _is_refusal(kind.rpartition(".")[2], where.stage) or (not message and _ASSERTS_A_SETTING.match(code))
    ):
        found = Verdict(Cause.INVALID_CONFIG, Weight.ROOT, where.stage, ("software.refused",), headline)
    elif found is None:
        found = Verdict(Cause.UNKNOWN, Weight.VAGUE, where.stage, ("exception.unknown",), headline)
    return located(found, where)


def located(verdict: Verdict, where: Located) -> Verdict:
    """A verdict with the rule and the frame that say where."""
    if where.rule is None or (verdict.stage is Stage.GRAPH_CAPTURE and where.stage is not Stage.GRAPH_CAPTURE):
        return verdict
    return replace(verdict, rules=(*verdict.rules, where.rule), frame=where.frame)


def with_numbers_of(verdict: Verdict, text: str) -> Verdict:
    """The verdict on a full device by the numbers in a message of several lines."""
    memory = read_device_memory(text)
    if verdict.cause not in (Cause.DEVICE_OOM, Cause.FRAGMENTATION, Cause.SHARED_GPU) or memory.requested is None:
        return verdict
    cause = cause_of_full_device(memory)
    rules = tuple(rule for rule in verdict.rules if not rule.startswith("device.arithmetic"))
    if cause is not Cause.DEVICE_OOM:
        rules = (rules[0], f"device.arithmetic-{cause}", *rules[1:])
    return replace(verdict, cause=cause, memory=memory, rules=rules)


def _is_refusal(name: str, stage: Stage) -> bool:
    """Whether an exception of this type in this stage is the framework's way to refuse a configuration."""
    return (name in _REFUSALS and stage is Stage.VALIDATE) or (name in _REFUSALS[:3] and stage in _BUILDING_STAGES)


def verdict_of(rule: Rule, line: str, stage: Stage) -> Verdict:
    """A rule's word on a line, with the arithmetic where the device was full."""
    where = stage if stage is not Stage.UNKNOWN else (rule.stage or Stage.UNKNOWN)
    if rule.stage is Stage.GRAPH_CAPTURE:
        where = rule.stage  # capture runs whole forwards: frames of one do not speak against it
    if rule.cause is Cause.NCCL_OOM:
        memory = read_device_memory(line)
        return Verdict(rule.cause, rule.weight, where, (rule.id,), line, memory if memory.requested else None)
    if rule.cause is not Cause.DEVICE_OOM:
        return Verdict(rule.cause, rule.weight, where, (rule.id,), line)
    memory = read_device_memory(line)
    cause = cause_of_full_device(memory)
    rules = [rule.id]
    if cause is Cause.DEVICE_OOM and memory.requested is None and where in _BEFORE_ANY_MEMORY:
        cause = Cause.SHARED_GPU
        rules.append("device.full-before-start")
    elif cause is not Cause.DEVICE_OOM:
        rules.append(f"device.arithmetic-{cause}")
    return Verdict(cause, rule.weight, where, tuple(rules), line, memory)
