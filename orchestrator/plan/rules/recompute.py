"""The four recompute settings: which values go together, and which module labels a revision allows."""

from __future__ import annotations

import difflib

from orchestrator.plan.finding import Kind
from orchestrator.plan.labels import allowed_labels
from orchestrator.plan.rules.rule import Judge, Rule
from orchestrator.plan.subject import Subject

_CONFIG = "TransformerConfig.__post_init__"
_SEMANTICS = "guide, Compatibility and Validation: Configuration semantics"


def _granularity(subject: Subject) -> str | None:
    value = subject["recompute_granularity"]
    if value in (None, "full", "selective"):
        return None
    nearest = _nearest(value, ["selective", "full"])
    return f"recompute_granularity is {value!r}, but it must be selective, full or null{nearest}"


def _method(subject: Subject) -> str | None:
    value = subject["recompute_method"]
    if subject["recompute_granularity"] is None or value in (None, "block", "uniform"):
        return None
    nearest = _nearest(value, ["uniform", "block"])
    return f"recompute_method is {value!r}, but it must be uniform, block or null{nearest}"


def _full_without_method(subject: Subject) -> str | None:
    if subject["recompute_granularity"] != "full" or subject["recompute_method"] is not None:
        return None
    return "recompute_granularity=full needs recompute_method=uniform or recompute_method=block, and it is null"


def _full_without_layers(subject: Subject) -> str | None:
    if subject["recompute_granularity"] != "full" or subject["recompute_num_layers"] is not None:
        return None
    return (
        "recompute_granularity=full needs recompute_num_layers: 1 or more (layers replayed together for uniform, "
        "layers replayed per pipeline stage for block), and it is null"
    )


def _selective_with_layers(subject: Subject) -> str | None:
    layers = subject["recompute_num_layers"]
    if subject["recompute_granularity"] != "selective" or layers is None:
        return None
    return (
        f"recompute_num_layers is {layers}, but selective recompute always acts on all layers: set it to null, or use "
        "recompute_granularity=full"
    )


def _unknown_label(subject: Subject) -> str | None:
    allowed = allowed_labels(subject.revision)
    unknown = [label for label in subject.modules if label not in allowed]
    if not unknown:
        return None
    return (
        f"recompute_modules has {unknown[0]!r}, which {subject.revision.title} does not know"
        f"{_nearest(unknown[0], sorted(allowed))}; it allows {', '.join(sorted(allowed))}"
    )


def _modules_unused(subject: Subject) -> str | None:
    granularity, modules = subject["recompute_granularity"], subject["recompute_modules"]
    if granularity == "selective" or not modules:
        return None
    names = ",".join(map(str, modules))
    if granularity == "full":
        return (
            f"recompute_modules=[{names}] does not act: recompute_granularity=full replays whole layers and does not "
            "read it; set recompute_granularity=selective, or leave the list out"
        )
    return f"recompute_modules=[{names}] does not act while recompute_granularity is null: set it to selective"


def _method_unused(subject: Subject) -> str | None:
    granularity, method = subject["recompute_granularity"], subject["recompute_method"]
    if granularity == "full" or method is None:
        return None
    shown = "null" if granularity is None else granularity
    return (
        f"recompute_method={method} does not act with recompute_granularity={shown}: set recompute_granularity=full "
        "or recompute_method=null"
    )


def _layers_unused(subject: Subject) -> str | None:
    layers = subject["recompute_num_layers"]
    if subject["recompute_granularity"] is not None or layers is None:
        return None
    return f"recompute_num_layers={layers} does not act while recompute_granularity is null: set it to full"


def _layers_below_one(subject: Subject) -> str | None:
    if subject["recompute_granularity"] != "full":
        return None
    layers = subject.integer("recompute_num_layers")
    if layers >= 1 or (layers == 0 and subject["recompute_method"] == "block"):
        return None
    method = subject["recompute_method"] or "uniform or block"
    return f"recompute_num_layers is {layers}, but recompute_method={method} needs 1 or more"


def _distributed_with_sequence_parallel(subject: Subject) -> str | None:
    if subject["recompute_granularity"] is None:
        return None
    if not (subject["distribute_saved_activations"] and subject["sequence_parallel"]):
        return None
    return (
        "model.distribute_saved_activations=true cannot go with parallelism.sequence_parallel=true, which already "
        "splits what is saved: set it to false"
    )


def _old_switch(subject: Subject) -> str | None:
    if not subject["moe_layer_recompute"] or subject["recompute_granularity"] != "full":
        return None
    return "model.moe_layer_recompute=true cannot go with recompute_granularity=full: set it to false"


def _nearest(value: object, allowed: list[str]) -> str:
    close = difflib.get_close_matches(str(value), allowed, n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


RULES = (
    Rule("recompute-granularity", Kind.INVALID, Judge.RECOMPUTE, _CONFIG, _granularity),
    Rule("recompute-method", Kind.INVALID, Judge.RECOMPUTE, _CONFIG, _method),
    Rule("full-needs-method", Kind.INVALID, Judge.RECOMPUTE, _CONFIG, _full_without_method),
    Rule("full-needs-num-layers", Kind.INVALID, Judge.RECOMPUTE, _CONFIG, _full_without_layers),
    Rule("selective-without-num-layers", Kind.INVALID, Judge.RECOMPUTE, _CONFIG, _selective_with_layers),
    Rule("recompute-module-label", Kind.INVALID, Judge.RECOMPUTE, _CONFIG, _unknown_label),
    Rule(
        "full-num-layers-below-one",
        Kind.INVALID,
        Judge.RUN,
        "TransformerBlock._checkpointed_forward",
        _layers_below_one,
    ),
    Rule(
        "distributed-activations-sequence-parallel",
        Kind.INVALID,
        Judge.CONFIG,
        _CONFIG,
        _distributed_with_sequence_parallel,
    ),
    Rule("moe-layer-recompute-full", Kind.INVALID, Judge.CONFIG, _CONFIG, _old_switch),
    Rule("recompute-modules-unused", Kind.NO_EFFECT, Judge.GUIDE, _SEMANTICS, _modules_unused),
    Rule("recompute-method-unused", Kind.NO_EFFECT, Judge.GUIDE, _SEMANTICS, _method_unused),
    Rule("recompute-num-layers-unused", Kind.NO_EFFECT, Judge.GUIDE, _SEMANTICS, _layers_unused),
)
