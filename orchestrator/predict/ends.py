"""What the first and the last pipeline stage keep beside layers: embeddings, final norm, logits and loss."""

from __future__ import annotations

from functools import lru_cache

from orchestrator.predict.job import Local, Numerics, Shapes
from orchestrator.predict.ledger import Ledger
from orchestrator.predict.page import INDEX, STAT, Page

_READ_BY_OUTPUT = frozenset({"final norm output", "logits", "softmax of logits", "targets"})
"""Kept tensors that are gone when the output layer's backward has ended."""
OPERATIONS = ("norm", "logits", "loss")

_MODEL = "models/gpt/gpt_model.py GPTModel._postprocess"
_OUTPUT = "tensor_parallel/layers.py LinearWithGradAccumulationAndAsyncCommunication"
_TE_LOSS = "TE cross_entropy.py CrossEntropyFunction.forward"
_LOSS = "tensor_parallel/cross_entropy.py _VocabParallelCrossEntropy.forward"
_NORM = "TE ops/basic/rmsnorm.py RMSNorm.op_forward"


@lru_cache(maxsize=256)
def output_ledger(shapes: Shapes, local: Local, numerics: Numerics) -> Ledger:
    """Final norm, output layer and loss. The vocabulary is split over tensor-parallel ranks."""
    page = Page(shapes, local, numerics)
    tokens, element = local.tokens, page.element
    logits = tokens * (shapes.vocab // local.tp)
    page.layer_input("norm", "norm", _NORM)
    page.keep("final norm output", "[t, h]", page.stream, "norm", "logits", _OUTPUT)
    page.keep("final norm's statistic", "[t]", local.shard * STAT, "norm", "norm", _NORM)
    page.torch_norm("final norm's input", local.shard * shapes.hidden, "norm")
    if shapes.fused_loss == "te":
        # The gradient takes the logits' place: nothing else of this size is made.
        page.keep("logits", "[T, V/tp]", logits * element, "logits", "loss", _TE_LOSS)
        page.hold("loss statistics", "[T, 4]", tokens * 4 * STAT, "loss", "loss", _TE_LOSS)
    else:
        page.hold("logits", "[T, V/tp]", logits * element if element != STAT else 0, "logits", "loss", _MODEL)
        page.keep("softmax of logits", "[T, V/tp]", logits * STAT, "loss", "loss", _LOSS)
        page.keep("targets", "[T]", tokens * (INDEX + 1), "loss", "loss", _LOSS)
    page.keep("loss", "[T]", 5 * tokens * STAT, "loss", "loss", _MODEL)
    page.hold("tokens, labels, positions and mask", "[T]", tokens * (3 * INDEX + STAT), "norm", "loss", _MODEL)
    gradient = 0 if shapes.fused_loss == "te" or element == STAT else logits * element
    weight = page.weight_gradient(shapes.hidden * shapes.vocab // local.tp)
    page.moment(
        "backward of the output layer", tokens * shapes.hidden * element + page.scattered + weight + gradient, 0
    )
    if not shapes.tied and not numerics.fp8_params:
        # Tied weights are ready behind the embedding's backward, and with FP8 weights all others wait for the last
        # bucket of those (param_and_grad_buffer.py, partition_buckets).
        read = sum(tensor.bytes for tensor in page.tensors if tensor.kept and tensor.name in _READ_BY_OUTPUT)
        page.ready("the output layer's gradient", tokens * shapes.hidden * element, shapes.hidden * shapes.vocab
                   // local.tp, read)  # fmt: skip
    return Ledger(OPERATIONS, tuple(page.tensors), tuple(page.moments))
