"""What the first and the last pipeline stage keep beside layers: embeddings, final norm, logits and loss."""

from __future__ import annotations

from functools import lru_cache

from orchestrator.predict.job import Local, Numerics, Shapes
from orchestrator.predict.ledger import Ledger
from orchestrator.predict.page import INDEX, STAT, Page

_READ_BY_OUTPUT = frozenset({"final norm output", "logits", "softmax of logits", "targets"})
"""Kept tensors that are gone when the output layer's backward has ended."""
_MODEL = "models/gpt/gpt_model.py GPTModel._postprocess"
_OUTPUT = "tensor_parallel/layers.py LinearWithGradAccumulationAndAsyncCommunication"
_TE_LOSS = "TE cross_entropy.py CrossEntropyFunction.forward"
_LOSS = "tensor_parallel/cross_entropy.py _VocabParallelCrossEntropy.forward"
_FUSED = "fusions/fused_cross_entropy.py calculate_predicted_logits"
_NORM = "TE ops/basic/rmsnorm.py RMSNorm.op_forward"


@lru_cache(maxsize=256)
def output_ledger(shapes: Shapes, local: Local, numerics: Numerics, depths: int = 0) -> Ledger:
    """Final norm, output layer and loss. The vocabulary is split over tensor-parallel ranks.

    With multi-token prediction (`depths`), the norm has come before it, and logits and loss of every depth come before
    the model's own: the loss of each keeps its logits, and the model's own hangs on them (MTPLossAutoScaler).
    """
    page = Page(shapes, local, numerics)
    tokens = local.tokens
    if not depths:
        page.layer_input("norm", "norm", _NORM)
        page.keep("final norm output", "[t, h]", page.stream, "norm", "logits", _OUTPUT)
        page.keep("final norm's statistic", "[t]", local.shard * STAT, "norm", "norm", _NORM)
        page.torch_norm("final norm's input", local.shard * shapes.hidden, "norm")
    for depth in range(1, depths + 1):
        # The variable mtp_logits lets go of a depth's logits when it gets the next ones.
        until = f"logits {depth + 1}" if depth < depths else "loss"
        _logits(page, f"MTP {depth}: ", f"logits {depth}", f"loss {depth}", until)
        page.keep("MTP loss, its mask and scaled loss", "[T]", 3 * tokens * STAT, f"loss {depth}", "loss", _MODEL)
    _logits(page, "", "logits", "loss", "loss")
    page.keep("loss", "[T]", 5 * tokens * STAT, "loss", "loss", _MODEL)
    begin = "logits 1" if depths else "norm"
    page.hold("tokens, labels, positions and mask", "[T]", tokens * (3 * INDEX + STAT), begin, "loss", _MODEL)
    _moments(page, depths)
    before = [name for depth in range(1, depths + 1) for name in (f"logits {depth}", f"loss {depth}")]
    return Ledger((*(before or ["norm"]), "logits", "loss"), tuple(page.tensors), tuple(page.moments))


def _logits(page: Page, name: str, made: str, loss: str, until: str) -> None:
    tokens, element, te = page.local.tokens, page.element, page.shapes.fused_loss == "te"
    logits = tokens * (page.shapes.vocab // page.local.tp)
    if te:
        # The gradient takes the logits' place: nothing else of this size is made.
        page.keep(f"{name}logits", "[T, V/tp]", logits * element, made, loss, _TE_LOSS)
        page.hold(f"{name}loss statistics", "[T, 4]", tokens * 4 * STAT, loss, loss, _TE_LOSS)
    else:
        page.hold(f"{name}logits", "[T, V/tp]", logits * element if element != STAT else 0, made, until, _MODEL)
        if page.shapes.fused_loss == "native" and page.numerics.cuda:
            # Its parts are compiled (jit_fuser), on a GPU out of place: on an H200 one such tensor more is alive beside
            # the softmax. torch's code for a CPU changes the logits in place.
            page.hold(f"{name}logits in float32", "[T, V/tp]", logits * STAT, loss, loss, _FUSED)
        page.keep(f"{name}softmax of logits", "[T, V/tp]", logits * STAT, loss, loss, _LOSS)
        page.keep(f"{name}targets", "[T]", tokens * (INDEX + 1), loss, loss, _LOSS)


def _moments(page: Page, depths: int) -> None:
    """Backward of loss and output layer, for the model's own logits and then for those of each depth, the last first.

    All share one weight, whose gradients autograd adds up before anything takes them (AccumulateGrad runs once): the
    first waits while the others are made. The input's gradients wait too, until all are put together.
    """
    shapes, local, element = page.shapes, page.local, page.element
    logits = local.tokens * (shapes.vocab // local.tp)
    te = shapes.fused_loss == "te"
    # The softmax turns into the gradient in place, and is rounded to another tensor, unless it has the right format.
    rounded = 0 if te or element == STAT else logits * element
    # calculate_gradients is compiled: it copies the softmax to put the targets in (index_put, functionalised).
    copied = logits * STAT if shapes.fused_loss == "native" and page.numerics.cuda else 0
    weight = page.weight_gradient(shapes.hidden * shapes.vocab // local.tp)
    made = local.tokens * shapes.hidden * element + page.scattered + weight + rounded
    kept = logits * (element if te else STAT)
    for number in range(depths + 1):
        waiting = (weight if number else 0) + number * page.stream
        name = f", MTP {depths + 1 - number}" if number else ""
        page.moment("backward of the loss" + name, rounded + copied + waiting, number * kept)
        page.moment("backward of the output layer" + name, made + waiting, number * kept + (kept if rounded else 0))
    if not shapes.tied and not page.numerics.fp8_params:
        # Tied weights are ready behind the embedding's backward, and with FP8 weights all others wait for the last
        # bucket of those (param_and_grad_buffer.py, partition_buckets).
        gone = (tensor for tensor in page.tensors if tensor.kept and tensor.name.split(": ")[-1] in _READ_BY_OUTPUT)
        page.ready("the output layer's gradient", local.tokens * shapes.hidden * element + depths * page.stream,
                   shapes.hidden * shapes.vocab // local.tp, sum(tensor.bytes for tensor in gone))  # fmt: skip
