"""Pipeline stages: how layers are shared out, evenly, unevenly or by a layout."""

from __future__ import annotations

from collections import Counter

from orchestrator.plan.finding import Kind
from orchestrator.plan.rules.rule import Judge, Rule, divisors, near
from orchestrator.plan.subject import Subject, UnknownFieldError
from orchestrator.predict.pipeline_layout import LayoutError, parse_layout

_CONFIG = "TransformerConfig.__post_init__"
_BUILD = "transformer_block.get_num_layers_to_build"
_ENDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
_ACCOUNTS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


def _virtual_alone(subject: Subject) -> str | None:
    pp, vpp = subject.positive("pipeline_model_parallel_size"), subject["virtual_pipeline_model_parallel_size"]
    if pp > 1 or (vpp is None and not subject.layout_is_virtual):
        return None
    return "parallelism.vpp needs parallelism.pp of 2 or more: set vpp=null (and a layout of one stage), or raise pp"


def _even(subject: Subject) -> str | None:
    if subject["pipeline_model_parallel_layout"] is not None or _any(subject, _ENDS + _ACCOUNTS):
        return None
    layers, pp = subject.positive("num_layers"), subject.positive("pipeline_model_parallel_size")
    if layers % pp:
        return (
            f"model.num_layers={layers} is no multiple of parallelism.pp={pp}: nearest pp "
            f"{near(pp, divisors(layers))}, or give parallelism.layout"
        )
    vpp = subject["virtual_pipeline_model_parallel_size"]
    if vpp is not None and vpp > 0 and pp > 1 and layers // pp % vpp:
        return (
            f"the {layers // pp} layers of a pipeline stage are no multiple of parallelism.vpp={vpp}: nearest vpp "
            f"{near(vpp, divisors(layers // pp))}"
        )
    return None


def _ends_and_accounts(subject: Subject) -> str | None:
    if not (_any(subject, _ENDS) and _any(subject, _ACCOUNTS)):
        return None
    return (
        "model.num_layers_in_first_pipeline_stage or _last_ cannot go with "
        "model.account_for_embedding_in_pipeline_split or _loss_: set one kind to null or false"
    )


def _layout_conflict(subject: Subject) -> str | None:
    if subject["pipeline_model_parallel_layout"] is None or not _any(subject, _ENDS + _ACCOUNTS):
        return None
    named = next(name for name in _ENDS + _ACCOUNTS if subject.set(name))
    return f"parallelism.layout says where every layer is, so model.{named} cannot be set beside it: drop one"


def _uneven(subject: Subject) -> str | None:
    if subject["pipeline_model_parallel_layout"] is not None or not _any(subject, _ENDS):
        return None
    layers, stages = subject.integer("num_layers"), subject.positive("pipeline_model_parallel_size")
    vpp = subject["virtual_pipeline_model_parallel_size"]
    for name in _ENDS:
        held = subject[name]
        if held is None:
            continue
        if held <= 0:
            return f"model.{name}={held} must be 1 or more, or null"
        if vpp is not None and held % vpp:
            return (
                f"model.{name}={held} is no multiple of parallelism.vpp={vpp}: nearest {near(held, _around(held, vpp))}"
            )
        layers, stages = layers - held, stages - 1
    if subject.revision.at_least("0.16.0") and bool(layers) != bool(stages):
        return (
            f"the first and last stage leave {layers} layers for {stages} stages between: change their layers, or "
            "parallelism.pp"
        )
    if stages and layers % stages:
        return (
            f"the {layers} layers between the first and last stage are no multiple of the {stages} stages there: "
            "change model.num_layers_in_first_pipeline_stage, model.num_layers_in_last_pipeline_stage or "
            "parallelism.pp"
        )
    if stages and vpp is not None and layers // stages % vpp:
        return f"the {layers // stages} layers of a stage between are no multiple of parallelism.vpp={vpp}"
    return None


def _accounted(subject: Subject) -> str | None:
    if subject["pipeline_model_parallel_layout"] is not None or _any(subject, _ENDS) or not _any(subject, _ACCOUNTS):
        return None
    named = [name for name in _ACCOUNTS if subject[name]]
    layers = subject.integer("num_layers") + len(named)
    counted = " and ".join(f"model.{name}" for name in named)
    pp, vpp = subject.positive("pipeline_model_parallel_size"), subject["virtual_pipeline_model_parallel_size"]
    if layers % pp:
        return (
            f"{layers} layers, counted with {counted}, are no multiple of parallelism.pp={pp}: nearest pp "
            f"{near(pp, divisors(max(1, layers)))}, or change model.num_layers"
        )
    if vpp is not None and layers // pp % vpp:
        return (
            f"the {layers // pp} layers of a stage, counted with {counted}, are no multiple of "
            f"parallelism.vpp={vpp}: nearest vpp {near(vpp, divisors(max(1, layers // pp)))}"
        )
    return None


def _layout(subject: Subject) -> str | None:
    asked = subject["pipeline_model_parallel_layout"]
    if asked is None:
        return None
    try:
        stages = parse_layout(asked)
    except LayoutError as error:
        return f"parallelism.layout cannot be read: {error}"
    pp, vpp = subject.positive("pipeline_model_parallel_size"), subject["virtual_pipeline_model_parallel_size"]
    if len(stages) % pp:
        return f"parallelism.layout has {len(stages)} stages, no multiple of parallelism.pp={pp}"
    if vpp is not None and vpp != len(stages) // pp:
        return (
            f"parallelism.layout has {len(stages) // pp} virtual stages a rank, and parallelism.vpp={vpp}: set "
            f"vpp={len(stages) // pp} or null"
        )
    return _layers_of(subject, stages) or _mtp_of(subject, stages, pp)


def _layers_of(subject: Subject, stages: list[list[str]]) -> str | None:
    flat = [layer for stage in stages for layer in stage]
    counted = Counter(flat)
    if not flat or flat[0] != "embedding" or flat[-1] != "loss":
        return "parallelism.layout must begin with the embedding (E) and end with the loss (L)"
    for layer, letter in (("embedding", "E"), ("loss", "L")):
        if counted[layer] != 1:
            return f"parallelism.layout has {counted[layer]} of {layer} ({letter}): give it once"
    if counted["decoder"] != subject.integer("num_layers"):
        return (
            f"parallelism.layout has {counted['decoder']} decoder layers (t), and "
            f"model.num_layers={subject['num_layers']}"
        )
    if counted["encoder"]:
        return "parallelism.layout has encoder layers, which no release places"
    return None


def _mtp_of(subject: Subject, stages: list[list[str]], pp: int) -> str | None:
    flat = [layer for stage in stages for layer in stage]
    held, wanted = flat.count("mtp"), subject["mtp_num_layers"] or 0
    if held != wanted:
        shown = "null" if subject["mtp_num_layers"] is None else wanted
        return f"parallelism.layout has {held} MTP layers (m), and model.mtp_num_layers={shown}: make them equal"
    if not held:
        return None
    if "decoder" in flat[flat.index("mtp") :]:
        return "parallelism.layout has a decoder layer after an MTP layer: put MTP layers (m) after the last t"
    holding = [index for index, stage in enumerate(stages) if "mtp" in stage]
    if len(holding) > 1 or holding[0] < len(stages) - pp:
        return "parallelism.layout must hold all MTP layers (m) in one stage, the last virtual one of its rank"
    if not subject.revision.at_least("0.16.0") and holding[0] != len(stages) - 1:
        return "parallelism.layout must hold MTP layers (m) in the last stage, with the loss, in this release"
    return None


def _full_with_mtp(subject: Subject) -> str | None:
    if subject["recompute_granularity"] != "full" or not subject.set("mtp_num_layers"):
        return None
    if subject["recompute_method"] != "uniform" or subject["recompute_num_layers"] == 1:
        return None
    return "recompute_granularity=full, recompute_method=uniform with MTP layers needs recompute_num_layers=1"


def _block_skips_mtp(subject: Subject) -> str | None:
    if subject["recompute_granularity"] != "full" or not subject.set("mtp_num_layers"):
        return None
    return (
        "recompute_method=block does not replay MTP layers: use uniform with 1"
        if subject["recompute_method"] == "block"
        else None
    )


def _more_than_there_are(subject: Subject) -> str | None:
    if subject["recompute_granularity"] != "full":
        return None
    asked = subject.positive("recompute_num_layers")
    held = _layers_held(subject)
    if asked <= held:
        return None
    return f"recompute_num_layers={asked} acts as {held}, the most that a model chunk holds: use {held} or less"


def _no_layers(subject: Subject) -> str | None:
    if subject["recompute_granularity"] != "full" or subject["recompute_method"] != "block":
        return None
    return (
        "recompute_num_layers=0 replays nothing: use 1 or more, or recompute=control"
        if subject["recompute_num_layers"] == 0
        else None
    )


def _dropout_replayed(subject: Subject) -> str | None:
    if subject["recompute_granularity"] != "full":
        return None
    if subject["hidden_dropout"] == 0 and subject["attention_dropout"] == 0:
        return None
    return (
        "recompute_granularity=full takes other random numbers' paths, and model.hidden_dropout or "
        "model.attention_dropout is not 0: check the loss against the control's"
    )


def _layers_held(subject: Subject) -> int:
    """The most layers that one model chunk of a rank holds.

    Raises:
        UnknownFieldError: they are shared out in a way that is wrong, or unknown.
    """
    pp = subject.positive("pipeline_model_parallel_size")
    layout = subject["pipeline_model_parallel_layout"]
    if layout is not None:
        try:
            return max(stage.count("decoder") for stage in parse_layout(layout))
        except LayoutError:
            raise UnknownFieldError("layout") from None
    if _any(subject, _ENDS + _ACCOUNTS):
        raise UnknownFieldError("layers of a stage")
    vpp = subject["virtual_pipeline_model_parallel_size"]
    chunks = pp * (vpp if vpp is not None and vpp > 0 and pp > 1 else 1)
    return max(1, subject.positive("num_layers") // chunks)


def _any(subject: Subject, names: tuple[str, ...]) -> bool:
    return any(subject.set(name) for name in names)


def _around(value: int, step: int) -> list[int]:
    return [multiple for multiple in (value // step * step, (value // step + 1) * step) if multiple > 0]


RULES = (
    Rule("vpp-needs-pp", Kind.INVALID, Judge.RUN, "parallel_state.initialize_model_parallel", _virtual_alone),
    Rule("layers-pipeline", Kind.INVALID, Judge.RUN, _BUILD, _even),
    Rule("stage-layers-and-accounts", Kind.INVALID, Judge.CONFIG, _CONFIG, _ends_and_accounts),
    Rule("layout-and-stage-layers", Kind.INVALID, Judge.CONFIG, _CONFIG, _layout_conflict),
    Rule("layers-uneven", Kind.INVALID, Judge.CONFIG, _CONFIG, _uneven),
    Rule("layers-accounted", Kind.INVALID, Judge.CONFIG, _CONFIG, _accounted),
    Rule("pipeline-layout", Kind.INVALID, Judge.CONFIG, "PipelineParallelLayerLayout.validate_layer_layout", _layout),
    Rule("full-with-mtp", Kind.INVALID, Judge.RUN, "MultiTokenPredictionLayer._checkpointed_forward", _full_with_mtp),
    Rule(
        "block-skips-mtp",
        Kind.NO_EFFECT,
        Judge.GUIDE,
        "MultiTokenPredictionLayer._checkpointed_forward",
        _block_skips_mtp,
    ),
    Rule(
        "full-more-layers", Kind.NO_EFFECT, Judge.GUIDE, "TransformerBlock._checkpointed_forward", _more_than_there_are
    ),
    Rule("full-no-layers", Kind.NO_EFFECT, Judge.GUIDE, "TransformerBlock._checkpointed_forward", _no_layers),
    Rule("full-dropout", Kind.RISKY, Judge.GUIDE, "guide, Known Limitations", _dropout_replayed),
)
