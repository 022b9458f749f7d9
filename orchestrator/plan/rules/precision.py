"""Number formats: which FP8 and FP4 settings go together."""

from __future__ import annotations

from orchestrator.plan.finding import Kind
from orchestrator.plan.rules.rule import Judge, Rule
from orchestrator.plan.subject import Subject

_CONFIG = "TransformerConfig.__post_init__"


def _fp8_param(subject: Subject) -> str | None:
    if not subject["fp8_param"] or subject["fp8"]:
        return None
    return "model.fp8_param=true needs FP8: set precision.fp8=hybrid, or model.fp8_param=false"


def _fp4_param(subject: Subject) -> str | None:
    if not subject["fp4_param"] or subject["fp4"]:
        return None
    return "model.fp4_param=true needs FP4: set model.fp4=e2m1, or model.fp4_param=false"


def _fp4_and_fp8(subject: Subject) -> str | None:
    if not (subject["fp4"] and subject["fp8"]):
        return None
    return "model.fp4 and precision.fp8 exclude each other: set one of them to null"


def _custom_recipe(subject: Subject) -> str | None:
    for name, setting in (("fp8", "precision.fp8_recipe"), ("fp4", "model.fp4_recipe")):
        if subject[name] and subject[f"{name}_recipe"] == "custom" and not subject[f"{name}_quantizer_factory"]:
            return f"{setting}=custom needs model.{name}_quantizer_factory, the import path of a quantizer factory"
    return None


def _first_and_last(subject: Subject) -> str | None:
    if not (subject["fp8"] and subject["first_last_layers_bf16"]):
        return None
    if subject["fp8_recipe"] == "delayed":
        return (
            "model.first_last_layers_bf16=true cannot go with FP8 delayed scaling: set "
            "precision.fp8_recipe=tensorwise, or model.first_last_layers_bf16=false"
        )
    most = subject.integer("num_layers") // subject.positive("pipeline_model_parallel_size")
    for name in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
        kept = subject.integer(name)
        if not 0 <= kept <= most:
            return f"model.{name}={kept} must be from 0 to {most}, the layers of one pipeline stage"
    return None


RULES = (
    Rule("fp8-param-without-fp8", Kind.INVALID, Judge.CONFIG, _CONFIG, _fp8_param),
    Rule("fp4-param-without-fp4", Kind.INVALID, Judge.CONFIG, _CONFIG, _fp4_param),
    Rule("fp4-and-fp8", Kind.INVALID, Judge.CONFIG, _CONFIG, _fp4_and_fp8),
    Rule("custom-quantizer-factory", Kind.INVALID, Judge.CONFIG, _CONFIG, _custom_recipe, since="0.16.0"),
    Rule("first-last-layers-bf16", Kind.INVALID, Judge.CONFIG, _CONFIG, _first_and_last),
)
