"""A candidate as the rules see it: framework fields with their types checked and defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.plan.candidate import group, is_whole, trainer_of
from orchestrator.plan.fields import FIELDS, Field, framework_fields
from orchestrator.plan.verdict import Revision
from orchestrator.predict.huggingface import megatron_fields
from orchestrator.predict.pipeline_layout import LayoutError, parse_layout
from orchestrator.predict.recipes import recipe_of


class UnknownFieldError(LookupError):
    """A field that only the recipe knows, or whose value has the wrong type: a rule that needs it says nothing."""


PUBLISHED = ("num_moe_experts", "num_attention_heads", "num_query_groups")


@dataclass(frozen=True)
class Subject:
    """What a rule may read. `whole` is false where a recipe fills in what the request leaves out."""

    given: Mapping[str, Any]
    revision: Revision
    trainer: str = "mcore_cpu"
    gpus_per_node: int | None = None
    nodes: int | None = None

    @classmethod
    def of(cls, request: Mapping[str, Any], revision: Revision | None = None) -> Subject:
        """The subject of a composed request."""
        cluster = group(request, "cluster")
        per_node, nodes = cluster.get("gpus_per_node"), cluster.get("nodes")
        return cls(
            given={**_published(request), **framework_fields(request)},
            revision=revision or Revision(),
            trainer=trainer_of(request),
            gpus_per_node=per_node if is_whole(per_node) and per_node > 0 else None,
            nodes=nodes if is_whole(nodes) and nodes > 0 else None,
        )

    @property
    def whole(self) -> bool:
        return self.trainer != "bridge"

    def __getitem__(self, name: str) -> Any:
        """The field's value.

        Raises:
            UnknownFieldError: the recipe decides it, or it has a wrong type.
        """
        field = FIELDS[name]
        if name not in self.given:
            if not self.whole:
                raise UnknownFieldError(name)
            return field.default
        value = self.given[name]
        if not has_type(value, field):
            raise UnknownFieldError(name)
        return value

    def integer(self, name: str) -> int:
        """A field that must be a whole number here.

        Raises:
            UnknownFieldError: it is null, unknown or of another type.
        """
        value = self[name]
        if not is_whole(value):
            raise UnknownFieldError(name)
        return int(value)

    def positive(self, name: str) -> int:
        """A field that must be 1 or more here; other rules say so where it is not."""
        value = self.integer(name)
        if value < 1:
            raise UnknownFieldError(name)
        return value

    def given_integer(self, name: str) -> int | None:
        """A whole number, or None for null."""
        value = self[name]
        return int(value) if is_whole(value) else None

    def set(self, name: str) -> bool:
        """Whether a flag is on, or an optional field is not null; false where a recipe decides it."""
        try:
            value = self[name]
        except UnknownFieldError:
            return False
        return value is not None and value is not False

    @property
    def granularity(self) -> str | None:
        """The granularity in force once the deprecated `moe_layer_recompute` has acted (which adds `moe`)."""
        asked = self["recompute_granularity"]
        if asked is None and self.set("moe_layer_recompute"):
            return "selective"
        return None if asked is None else str(asked)

    @property
    def replayed(self) -> list[str]:
        """The modules in force once the deprecated `moe_layer_recompute` has acted; empty if not selective."""
        if self.granularity != "selective":
            return []
        modules = self["recompute_modules"]
        replayed = ["core_attn"] if modules is None else [str(module) for module in modules]
        return [*replayed, "moe"] if self.set("moe_layer_recompute") and "moe" not in replayed else replayed

    @property
    def is_moe(self) -> bool:
        return self["num_moe_experts"] is not None

    @property
    def has_dense_layers(self) -> bool:
        """Whether a layer is dense (`get_gpt_decoder_block_spec`: layer i is MoE where i is a multiple of the freq)."""
        if not self.is_moe:
            return True
        frequency = self["moe_layer_freq"]
        if isinstance(frequency, list):
            return any(item == 0 for item in frequency)
        return int(frequency) > 1 and self.positive("num_layers") > 1

    @property
    def graph_scopes(self) -> list[str]:
        """CUDA-graph scopes as Megatron Core 0.16 reads them: `full` and nothing are the whole layer, an empty list."""
        scopes = self["cuda_graph_scope"]
        if scopes is None:
            return []
        listed = scopes.split(",") if isinstance(scopes, str) else [str(scope) for scope in scopes]
        return [] if listed == ["full"] else listed

    @property
    def graph_implementation(self) -> str:
        """`cuda_graph_impl` once the two deprecated switches have acted."""
        if self.set("enable_cuda_graph"):
            return "local"
        return "transformer_engine" if self.set("external_cuda_graph") else str(self["cuda_graph_impl"])

    @property
    def layout_is_virtual(self) -> bool:
        """Whether a pipeline layout has more stages than ranks, which sets vpp by itself."""
        layout = self["pipeline_model_parallel_layout"]
        if layout is None:
            return False
        try:
            return len(parse_layout(layout)) > self.positive("pipeline_model_parallel_size")
        except LayoutError:
            return False

    @property
    def modules(self) -> list[str]:
        """The modules that selective recompute would act on, as the framework reads them; empty if not selective."""
        if self["recompute_granularity"] != "selective":
            return []
        modules = self["recompute_modules"]
        return ["core_attn"] if modules is None else [str(module) for module in modules]


def world_size_of(request: Mapping[str, Any]) -> int | None:
    """The ranks that a request asks for, None where a recipe or a rank count of its own decides."""
    value = group(request, "parallelism").get("world_size")
    return int(value) if is_whole(value) and value > 0 else None


def has_type(value: Any, field: Field) -> bool:
    """Whether a value has one of the field's types; a bool is no number."""
    if isinstance(value, bool):
        return bool in field.types
    return isinstance(value, field.types)


def _published(request: Mapping[str, Any]) -> dict[str, int]:
    """How many experts and heads a recipe's model has, where its published shapes or what is written down of the recipe
    say it, as predictions take it. Nothing where neither does."""
    if trainer_of(request) != "bridge":
        return {}
    model = group(request, "model")
    known = recipe_of(model.get("recipe"))
    published = model.get("huggingface_config")
    fields = {
        **(megatron_fields(published) if isinstance(published, Mapping) else {}),
        **(known[1].model if known else {}),
    }
    return {name: fields[name] for name in PUBLISHED if is_whole(fields.get(name))}
