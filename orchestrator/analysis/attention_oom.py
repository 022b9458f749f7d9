"""Memory that ran out in the scores of an attention that is not fused: what core_attn is for."""

from __future__ import annotations

import re

from orchestrator.analysis.diagnosis import Seen, Step, Subject, outcome
from orchestrator.select.lever import STATE_STAGES

_ATTENTION_WORDS = re.compile(r"softmax|dot_product_attention|core_attention", re.IGNORECASE)


def attention_oom(subject: Subject) -> Seen | None:
    if not subject.is_oom or subject.row.stage in STATE_STAGES or subject.model.fused_attention:
        return None
    if subject.line.candidate.recompute.granularity != "selective" or "core_attn" in subject.labels:
        return None
    line = next((line for line in subject.row.evidence if _ATTENTION_WORDS.search(line)), None)
    wider = sorted({*subject.labels, "core_attn"})
    if line is None or subject.tried(wider):
        return None
    command = subject.commands.run(sweep=[[], wider])
    return Seen(
        f"{outcome(subject.line)}, in the attention: {line}",
        "the attention is not fused, and its scores of every layer are kept for backward",
        (Step(f"Test core_attn first, or a fused attention backend.{subject.passed}", command),),
    )
