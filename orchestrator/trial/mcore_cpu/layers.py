"""The layers of this trainer where Megatron Core's own need Transformer Engine, and the spec that picks them.

Everything else in the model is Megatron Core's local implementation. Checked against 0.16.1 and 0.15.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP, TEGroupedMLP


class PlainAttention(DotProductAttention):  # type: ignore[misc]  # megatron has no types
    """Megatron Core's unfused attention, with MLA's head sizes: keys and values may differ in width.

    It keeps the probabilities ([b, heads, s, s]) for backward, so `core_attn` has something to give back.
    """

    def __init__(
        self,
        *args: Any,
        config: Any,
        k_channels: int | None = None,
        v_channels: int | None = None,
        cp_comm_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, config=config, **kwargs)
        if v_channels is not None:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition


class Norm:
    """torch's LayerNorm or RMSNorm; with sequence parallelism its gradient is summed over the tensor-parallel ranks.

    Megatron Core's WrappedTorchNorm is the same without sequence parallelism, which it refuses.
    """

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> torch.nn.Module:  # type: ignore[misc]
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm = kind(hidden_size, eps=eps, dtype=config.params_dtype)
        for parameter in norm.parameters():
            # Read by finalize_model_grads (_allreduce_non_tensor_model_parallel_grads).
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return norm


def _split(tensor: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return torch.split(tensor, list(sizes))


class _GroupedMatmul(torch.autograd.Function):
    """One matrix product per expert, into one output, keeping the input and the weights: what a grouped GEMM keeps."""

    @staticmethod
    def forward(ctx: Any, splits: Sequence[int], tokens: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        """Tokens [n, in], sorted by expert; each weight [out, in]. Returns [n, out]."""
        ctx.splits = splits
        ctx.save_for_backward(tokens, *weights)
        output = tokens.new_empty(tokens.shape[0], weights[0].shape[0])
        for part, result, weight in zip(_split(tokens, splits), _split(output, splits), weights, strict=True):
            torch.mm(part, weight.t(), out=result)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        tokens, *weights = ctx.saved_tensors
        (grad,) = grads
        grad = grad.contiguous()
        grad_tokens = torch.empty_like(tokens)
        grad_weights = []
        parts = [_split(tensor, ctx.splits) for tensor in (tokens, grad, grad_tokens)]
        for part, grad_part, result, weight in zip(*parts, weights, strict=True):
            torch.mm(grad_part, weight, out=result)
            grad_weights.append(grad_part.t() @ part)
        return None, grad_tokens, *grad_weights


class GroupedLinear(torch.nn.Module):
    """The linear layers of a rank's experts, as TEGroupedMLP expects them of Transformer Engine's GroupedLinear.

    One weight per expert, [out, in], split over the expert-tensor-parallel group along `partition_dim`.
    """

    partition_dim = 0

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Callable[[torch.Tensor], Any],
        bias: bool,
        skip_bias_add: bool,
        is_expert: bool = True,
        tp_comm_buffer_name: str | None = None,
        tp_group: Any = None,
        pg_collection: Any = None,
    ) -> None:
        from megatron.core.tensor_parallel.layers import _initialize_affine_weight_gpu

        super().__init__()
        if bias:
            raise ValueError("grouped experts have no bias here: set model.add_bias_linear=false")
        group = tp_group if pg_collection is None else pg_collection.expt_tp
        shape = [output_size, input_size]
        if shape[self.partition_dim] % group.size():
            raise ValueError(f"{shape[self.partition_dim]} features do not divide over {group.size()} ranks")
        shape[self.partition_dim] //= group.size()
        self.num_gemms = num_gemms
        for expert in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype))
            if config.perform_initialization:
                _initialize_affine_weight_gpu(weight, init_method, self.partition_dim, is_expert=is_expert)
            # Reduced over the expert-data-parallel group, not over all data-parallel ranks (DistributedDataParallel).
            weight.allreduce = config.expert_model_parallel_size == 1  # type: ignore[attr-defined]
            self.register_parameter(f"weight{expert}", weight)

    def forward(self, tokens: torch.Tensor, splits: Sequence[int]) -> tuple[torch.Tensor, None]:
        """Tokens [n, in], sorted by expert, and how many each expert gets."""
        weights = [getattr(self, f"weight{expert}") for expert in range(self.num_gemms)]
        output: torch.Tensor = _GroupedMatmul.apply(list(splits), tokens, *weights)  # type: ignore[no-untyped-call]
        return output, None


class RowGroupedLinear(GroupedLinear):
    """The second linear layer: split along its input."""

    partition_dim = 1


class CpuSpecProvider(LocalSpecProvider):  # type: ignore[misc]  # megatron has no types
    """Which class each part of a layer is."""

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
        return Norm

    def core_attention(self) -> type:
        return PlainAttention

    def grouped_mlp_modules(self, moe_use_grouped_gemm: bool, *legacy: Any, **kwargs: Any) -> tuple[type, Any]:
        if moe_use_grouped_gemm:
            return TEGroupedMLP, MLPSubmodules(linear_fc1=GroupedLinear, linear_fc2=RowGroupedLinear)
        return SequentialMLP, MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
