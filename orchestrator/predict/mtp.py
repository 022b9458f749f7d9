"""What multi-token prediction keeps beside the layer inside it (transformer/multi_token_prediction.py).

Each depth embeds the tokens rolled by one, norms them and the hidden states of the depth before, concatenates and
projects both, and runs a layer and a norm of its own. Behind the last depth the hidden states of all are concatenated.
"""

from __future__ import annotations

from functools import lru_cache

from orchestrator.predict.job import LayerKind, Local, Numerics, Shapes
from orchestrator.predict.ledger import FULL, Ledger
from orchestrator.predict.moe import lingering
from orchestrator.predict.page import INDEX, STAT, Page

_EMBED = "transformer/multi_token_prediction.py MultiTokenPredictionLayer._get_embeddings"
_CONCAT = "transformer/multi_token_prediction.py MultiTokenPredictionLayer._concat_embeddings"
_POST = "transformer/multi_token_prediction.py MultiTokenPredictionLayer._postprocess"
_BLOCK = "transformer/multi_token_prediction.py MultiTokenPredictionBlock.forward"
_LINEAR = "TE module/linear.py _Linear.forward"
_NORM = "TE ops/basic/rmsnorm.py RMSNorm.op_forward"


@lru_cache(maxsize=256)
def entry_ledger(kind: LayerKind, shapes: Shapes, local: Local, numerics: Numerics) -> Ledger:
    """What one depth makes before the layer inside it: embeddings, two norms, concatenation, projection."""
    page = Page(shapes, local, numerics)
    shard, tokens, element = local.shard, local.tokens, page.element
    page.layer_input("embed", "hnorm", _NORM, name="hidden states of the depth before")
    page.keep_always("rolled tokens", "[T]", tokens * INDEX, "embed", _EMBED)
    page.hold("rolled positions", "[T]", tokens * INDEX, "embed", "eh_proj", _EMBED)
    page.layer_input("embed", "enorm", _NORM, name="rolled tokens' embeddings")
    for name, made, until in (("embeddings", "enorm", "eh_proj"), ("hidden states", "hnorm", "concat")):
        page.keep(f"MTP {name} norm's statistic", "[t]", shard * STAT, made, made, _NORM)
        page.torch_norm(f"MTP {name} norm's input", shard * shapes.hidden, made)
        page.hold(f"MTP {name}, normed", "[t, h]", page.stream, made, until, _CONCAT)
    page.keep("MTP embeddings and hidden states, concatenated", "[t, 2h]", page.linear_input(2 * shard * shapes.hidden),
              "concat", "eh_proj", _LINEAR)  # fmt: skip
    whole = tokens * shapes.hidden * element
    if local.tp > 1:
        # gather_from_tensor_model_parallel_region gathers into one tensor and concatenates its parts to another.
        page.hold("MTP projection, a part of each rank", "[T, h/tp]", whole // local.tp, "eh_proj", "eh_proj", _CONCAT)
        page.hold("MTP projection, gathered", "[T, h]", whole, "eh_proj", "eh_proj", _CONCAT)
        # Its scattered part goes into the layer as a view, and keeps the rest alive.
        page.keep("MTP projection, what other ranks go on with", "[T - t, h]", whole - page.stream, "eh_proj",
                  "eh_proj", _CONCAT)  # fmt: skip
    page.hold("MTP projection", "[t, h]", page.stream, "eh_proj", "eh_proj", _CONCAT)
    weight = page.weight_gradient(2 * shapes.hidden * shapes.hidden // local.tp)
    concatenated = page.linear_input(2 * shard * shapes.hidden)
    page.ready("eh_proj's gradient", 2 * page.stream, 2 * shapes.hidden * shapes.hidden // local.tp, concatenated)
    page.moment("backward of eh_proj", 2 * (whole + page.scattered) + weight, 0)
    # Where a checkpoint holds the whole depth, the router's probabilities keep both of its inputs and their gradients.
    lingers = 2 * lingering(page) if kind.mlp == "moe" else 0
    return Ledger(("embed", "enorm", "hnorm", "concat", "eh_proj"), tuple(page.tensors), tuple(page.moments),
                  lingers, frozenset({FULL}), 0, page.stream)  # fmt: skip


@lru_cache(maxsize=256)
def exit_ledger(shapes: Shapes, local: Local, numerics: Numerics, source: str = _POST) -> Ledger:
    """A norm of the residual stream: of a depth's layer, or the decoder's final one before multi-token prediction."""
    page = Page(shapes, local, numerics)
    page.layer_input("norm", "norm", _NORM)
    page.keep("final norm's statistic", "[t]", local.shard * STAT, "norm", "norm", _NORM)
    page.torch_norm("final norm's input", local.shard * shapes.hidden, "norm")
    # The next depth's norm keeps it, or the concatenation copies it.
    page.hold("final norm output", "[t, h]", page.stream, "norm", "norm", source)
    page.moment("backward of the final norm", page.stream, 0)
    return Ledger(("norm",), tuple(page.tensors), tuple(page.moments), output=page.stream)


@lru_cache(maxsize=256)
def join_ledger(shapes: Shapes, local: Local, numerics: Numerics, depths: int) -> Ledger:
    """The hidden states of the decoder and of every depth, in one tensor: what the output layer reads."""
    page = Page(shapes, local, numerics)
    page.hold("last depth's hidden states", "[t, h]", page.stream, "join", "join", _BLOCK)
    page.keep("hidden states of all depths", "[(d + 1) t, h]", (depths + 1) * page.stream, "join", "join", _BLOCK)
    return Ledger(("join",), tuple(page.tensors))
