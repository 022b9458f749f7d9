"""The four recompute settings of a trial, and what a person calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.foreign import as_text
from orchestrator.select.match import RECOMPUTE_FIELDS

RECIPE = "recipe"


@dataclass(frozen=True, order=True)
class Recompute:
    """What is recomputed. `modules` is None where it was left unset, which is not the same as the empty tuple."""

    granularity: str | None
    modules: tuple[str, ...] | None = None
    method: str | None = None
    num_layers: int | str | None = None

    @property
    def is_control(self) -> bool:
        """Granularity `selective` with an explicitly empty list: the guide's no-recompute control."""
        return self.granularity == "selective" and self.modules == ()

    @property
    def labels(self) -> frozenset[str]:
        """The labels that act: none under `full` or without a granularity, `core_attn` where the list is unset."""
        if self.granularity != "selective":
            return frozenset()
        return frozenset(("core_attn",) if self.modules is None else self.modules)

    @property
    def text(self) -> str:
        """As in the guide's tables: `[]`, `moe_act`, `layernorm, moe_act`, `full uniform 1`, `off`."""
        if self.follows_recipe:
            return "as the recipe"
        if self.granularity is None:
            return "off"
        if self.granularity == "selective":
            return "unset" if self.modules is None else ", ".join(self.modules) or "[]"
        parts = [self.granularity, self.method, self.num_layers]
        return " ".join(str(part) for part in parts if part is not None)

    @property
    def follows_recipe(self) -> bool:
        """Whether a setting that acts is left as the recipe has it, so that only the effective configuration knows it.

        The module list acts with `selective` alone, method and number of layers with `full` alone.
        """
        if self.granularity == "selective":
            return self.modules == (RECIPE,)
        if self.granularity == "full":
            return RECIPE in (self.method, self.num_layers)
        return self.granularity == RECIPE

    def normal(self) -> Recompute:
        """Equal for settings that Megatron Core reads alike (`TransformerConfig.__post_init__`)."""
        if self.follows_recipe:
            return self
        if self.granularity is None:
            return Recompute(None)
        if self.granularity == "selective":
            return Recompute("selective", tuple(sorted(self.labels)))
        if self.granularity == "full":
            return Recompute("full", None, self.method, self.num_layers)
        return self


def requested_recompute(config: Mapping[str, Any]) -> Recompute:
    """The settings at the top of a requested configuration."""
    return _recompute({field: config.get(field) for field in RECOMPUTE_FIELDS})


def effective_recompute(flat: Mapping[str, Any]) -> Recompute | None:
    """The settings in a flattened effective configuration; None where it has none, or is absent.

    Where several parts of a model carry them (`model.…`, `model.vision.…`), the shortest path is the model's own.
    """
    prefix = recompute_prefix(flat)
    if prefix is None:
        return None
    return _recompute({field: flat.get(prefix + field) for field in RECOMPUTE_FIELDS})


def recompute_prefix(flat: Mapping[str, Any]) -> str | None:
    """The path in front of the recompute settings: `model.` or, in some models of Bridge 0.7, `model.transformer.`."""
    found = [path for path in flat if path.rpartition(".")[2] == RECOMPUTE_FIELDS[0]]
    if not found:
        return None
    return min(found, key=lambda path: (path.count("."), path)).removesuffix(RECOMPUTE_FIELDS[0])


def _recompute(settings: Mapping[str, Any]) -> Recompute:
    """Settings of any JSON type: what Megatron Core would not take is kept as text, so that it can be shown."""
    modules = settings["recompute_modules"]
    if isinstance(modules, Sequence) and not isinstance(modules, str):
        modules = tuple(as_text(module) for module in modules)
    elif modules is not None:
        modules = (as_text(modules),)
    layers = settings["recompute_num_layers"]
    return Recompute(
        granularity=_text(settings["recompute_granularity"]),
        modules=modules,
        method=_text(settings["recompute_method"]),
        num_layers=layers if isinstance(layers, int) and not isinstance(layers, bool) else _text(layers),
    )


def _text(value: Any) -> str | None:
    return None if value is None else as_text(value)
