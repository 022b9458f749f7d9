"""What a dense MLP keeps, and a shared expert, which is one."""

from __future__ import annotations

from orchestrator.predict.page import STAT, Page

OPERATIONS = ("mlp_norm", "fc1", "act", "fc2", "mlp_add")

_LAYER = "transformer/transformer_layer.py TransformerLayer._forward_mlp"
_NORM_LINEAR = "TE module/layernorm_linear.py _LayerNormLinear.forward"
_NORM = "TE ops/basic/rmsnorm.py RMSNorm.op_forward"
_UNFUSED = "transformer/mlp.py MLP.forward (glu)"
_ACT = "fusions/fused_bias_swiglu.py SwiGLUFunction.forward"
_FC2 = "TE module/linear.py _Linear.forward"


def write_dense(page: Page, *, first: bool) -> None:
    """A dense MLP. `first`: the layer has no mixer, so the norm's input is the layer's."""
    shapes, local = page.shapes, page.local
    labels = ("mlp",)
    if first:
        page.layer_input("mlp_norm", "mlp_add", _NORM_LINEAR)
    else:
        page.norm_input("MLP input", "mlp_norm", "mlp_add", _LAYER, ("layernorm",))
    normed = page.linear_input(local.shard * shapes.hidden)
    if page.numerics.transformer_engine:
        page.keep("MLP norm output", "[t, h]", normed, "mlp_norm", "fc1", _NORM_LINEAR, labels)
        page.quantise("MLP norm output", "[t, h]", local.shard * shapes.hidden, "fc1", "fc1", _NORM_LINEAR, labels)
        page.keep("MLP norm's statistic", "[t]", local.shard * STAT, "mlp_norm", "mlp_norm", _NORM_LINEAR, labels)
    else:
        page.keep("MLP norm output", "[t, h]", normed, "mlp_norm", "mlp_add", _NORM, ("layernorm",))
        page.keep("MLP norm's statistic", "[t]", local.shard * STAT, "mlp_norm", "mlp_norm", _NORM, ("layernorm",))
        page.torch_norm("MLP input", local.shard * shapes.hidden, "mlp_norm", ("layernorm",))
    width = shapes.ffn // local.tp
    wide = width * (2 if shapes.gated else 1)
    tokens, element = local.tokens, page.element
    page.keep("FC1 output", "[T, 2f/tp]" if shapes.gated else "[T, f/tp]", stored(page, tokens * wide), "fc1", "act",
              _ACT, labels)  # fmt: skip
    kept = page.linear_input(tokens * width)
    page.keep("activation output", "[T, f/tp]", kept, "fc2" if page.numerics.fp8 else "act", "fc2", _FC2, labels)
    page.quantise("activation output", "[T, f/tp]", tokens * width, "act", "fc2", _FC2, labels)
    if shapes.gated and not shapes.fused_act:
        page.keep("activated gate", "[T, f/tp]", tokens * width * element, "act", "act", _UNFUSED, labels)
        # The product saves the other half with `glu_linear_offset` added, which is a tensor of its own, also for zero.
        page.keep("linear half, shifted", "[T, f/tp]", tokens * width * element, "act", "act", _UNFUSED, labels)
    page.hold("MLP output", "[t, h]", page.stream, "fc2", "mlp_add", _LAYER, labels)
    page.hold("layer output", "[t, h]", page.stream, "mlp_add", "mlp_add", _LAYER)
    act, both = tokens * width * element, kept + stored(page, tokens * wide)
    weights = shapes.hidden * width
    incoming = page.quantised_gradient(local.shard * shapes.hidden)
    page.moment("backward of FC2", incoming + act + page.weight_gradient(weights), 0, labels)
    page.ready("FC2's gradient", act, weights, kept, labels)
    page.moment("backward of the activation", act + tokens * wide * element, kept, labels)
    linear = tokens * wide * element + page.quantised_gradient(tokens * wide) + page.stream
    linear += page.weight_gradient(shapes.hidden * wide)
    page.moment("backward of FC1", linear, both, labels)
    if page.numerics.transformer_engine:
        # Inside the same backward, when the norm's output is gone (_LayerNormLinear.backward, clear_tensor_data) and
        # FC1's gradients are not. Partial sums of the norm's weight's gradient come beside it, 8 MiB for h=8192.
        page.moment("backward of the MLP's norm", linear + page.stream, both + normed, labels)
        page.ready("FC1's gradient", page.stream, shapes.hidden * wide, both + normed, labels)


def stored(page: Page, numbers: int) -> int:
    """Bytes of an activation's input as its backward finds it (`activation_func_fp8_input_store`)."""
    return numbers * (1 if page.numerics.fp8_input_store else page.element)
