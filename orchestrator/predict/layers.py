"""One layer's ledger: its mixer and its MLP, one after the other."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from orchestrator.predict import attention, mlp, moe, ssm
from orchestrator.predict.job import LayerKind, Local, Numerics, Shapes
from orchestrator.predict.ledger import FULL, Ledger
from orchestrator.predict.page import Page

_MIXERS = {
    "mla": attention.write_mla,
    "gqa": attention.write_gqa,
    "mamba": ssm.write_mamba,
    "gdn": ssm.write_delta,
}
_ROPE_CACHE = 4
"""Bytes of a rotation angle: float32, cached by each layer (lru_cache on the embedding's forward)."""


@lru_cache(maxsize=1024)
def layer_ledger(kind: LayerKind, shapes: Shapes, local: Local, numerics: Numerics) -> Ledger:
    """The ledger of a layer of this kind, on one rank and for one micro-batch."""
    if kind.unquantised:
        numerics = replace(numerics, fp8=None, fp8_recipe=None)
    page = Page(shapes, local, numerics)
    operations: tuple[str, ...] = ()
    persistent = lingers = 0
    if kind.mixer is not None:
        operations += attention.OPERATIONS
        _MIXERS[kind.mixer](page)
        if kind.mixer == "mla":
            persistent += local.seq * local.cp * shapes.attention.rope_dim * _ROPE_CACHE
    if kind.mlp == "dense":
        operations += mlp.OPERATIONS
        mlp.write_dense(page, first=kind.mixer is None)
    elif kind.mlp == "moe":
        operations += moe.OPERATIONS
        moe.write_moe(page, first=kind.mixer is None)
        persistent += moe.routing_attributes(page)
        lingers = moe.lingering(page)
    elif kind.mixer == "gqa":
        page.hold("layer output", "[t, h]", page.stream, "add", "add", "transformer/transformer_layer.py")
    return Ledger(
        operations=operations,
        tensors=tuple(page.tensors),
        moments=tuple(page.moments),
        lingers=lingers,
        lingers_with=frozenset({"moe", FULL}) if kind.mlp == "moe" else frozenset(),
        persistent=persistent,
        output=page.stream,
    )
