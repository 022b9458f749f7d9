"""Settings whose value has a type that no framework field takes."""

from __future__ import annotations

from typing import Any

from orchestrator.plan.fields import FIELDS, spelling
from orchestrator.plan.finding import Kind
from orchestrator.plan.rules.rule import Judge, Rule
from orchestrator.plan.subject import Subject, has_type

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", list: "a list"}


def _wrong_type(subject: Subject) -> str | None:
    for name, value in subject.given.items():
        field = FIELDS.get(name)
        if field is not None and not has_type(value, field):
            wanted = [_WORDS[kind] for kind in field.types if kind is not type(None)]
            if float in field.types:
                wanted = ["a number"]
            if type(None) in field.types:
                wanted.append("null")
            return f"{spelling(name)} is {_shown(value)}, but it must be {' or '.join(wanted)}"
    return None


def _below_one(subject: Subject) -> str | None:
    for name in _SIZES:
        value = subject.given.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            return f"{spelling(name)} is {value}, but it counts something, so it must be 1 or more"
    return None


def _dropout(subject: Subject) -> str | None:
    for name in ("attention_dropout", "hidden_dropout"):
        value = subject.given.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not 0 <= value <= 1:
            return f"{spelling(name)} is {value}, but it is a probability: give 0 to 1"
    return None


def _recipe_elsewhere(subject: Subject) -> str | None:
    if subject.trainer == "bridge" or not subject.given.get("recipe") or subject.given.get("hidden_size") is not None:
        return None
    return (
        f"model.recipe={subject.given['recipe']} is built by Megatron Bridge alone: add trainer=bridge, or choose a "
        "model that has its sizes, for example model=tiny_mla_moe"
    )


def _no_recipe(subject: Subject) -> str | None:
    if subject.trainer != "bridge":
        return None
    name = subject.given.get("recipe")
    if name is None or not str(name).strip():
        return (
            "model.recipe names no recipe, and trainer=bridge runs one: choose a model that has one, for example "
            "model=llama3_70b, or set model.recipe to the dotted name of yours"
        )
    if all(part.isidentifier() for part in str(name).split(".")) and "." in str(name):
        return None
    return f"model.recipe={name} must be the dotted name of a function, for example my_recipes.small_config"


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "world_size",
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    "train_iters",
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "num_moe_experts",
    "ffn_hidden_size",
    "kv_channels",
    "vocab_size",
    "make_vocab_size_divisible_by",
    "moe_ffn_hidden_size",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "mamba_state_dim",
    "mamba_head_dim",
    "mamba_num_groups",
    "mamba_num_heads",
)

RULES = (
    Rule("wrong-type", Kind.INVALID, Judge.RUN, "TransformerConfig, ModelParallelConfig: field types", _wrong_type),
    Rule("below-one", Kind.INVALID, Judge.RUN, "parallel_state.initialize_model_parallel: sizes", _below_one),
    Rule("dropout-range", Kind.INVALID, Judge.RUN, "torch.nn.Dropout", _dropout),
    Rule("recipe-without-bridge", Kind.INVALID, Judge.RUN, "trial.mcore_cpu.limits.check_limits", _recipe_elsewhere),
    Rule("recipe-missing", Kind.INVALID, Judge.RUN, "trial.bridge.recipe.build", _no_recipe),
)
