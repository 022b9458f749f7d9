"""What a prediction is made of: a model's sizes, its layout over ranks, number formats, batch, recompute settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

SELECTIVE, FULL = "selective", "full"
UNIFORM, BLOCK = "uniform", "block"


@dataclass(frozen=True)
class LayerKind:
    """One layer of the decoder. `mixer` is mla, gqa, mamba or gdn; `mlp` is dense or moe; None: it has none."""

    mixer: str | None
    mlp: str | None
    unquantised: bool = False
    """Left in BF16 by a job in FP8: the first or last layers (`first_last_layers_bf16`)."""


@dataclass(frozen=True)
class Attention:
    """Head sizes. For MLA, `q_lora` is None where queries are not compressed."""

    heads: int = 1
    groups: int = 1
    head_dim: int = 1
    qk_norm: bool = False
    rope_dim: int = 0
    rope_fused: bool = False
    yarn: bool = False
    fused_core: bool = True
    """Flash or cuDNN attention, which keep one number per row and head; unfused keeps the probabilities."""
    output_gate: bool = False
    q_lora: int | None = None
    kv_lora: int = 0
    qk_dim: int = 0
    v_dim: int = 0


@dataclass(frozen=True)
class Experts:
    """A mixture-of-experts layer."""

    count: int = 0
    topk: int = 1
    ffn: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    shared_overlap: bool = False
    grouped: bool = True
    dispatcher: str = "alltoall"
    permute_fused: bool = False
    router_bytes: int = 4
    sigmoid: bool = False
    expert_bias: bool = False
    aux_loss: bool = True
    random_logits: bool = False
    """`moe_router_force_load_balancing`."""
    latent: int | None = None
    imbalance: float = 1.0
    """Tokens of the fullest rank's experts over the mean."""


@dataclass(frozen=True)
class Mamba:
    """State-space sizes (`ssm/mamba_mixer.py`)."""

    state: int = 128
    head_dim: int = 64
    groups: int = 8
    heads: int = 0
    conv: int = 4

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True)
class DeltaNet:
    """Gated delta net sizes (`ssm/gated_delta_net.py`)."""

    key_dim: int = 128
    value_dim: int = 128
    key_heads: int = 16
    value_heads: int = 32
    conv: int = 4


@dataclass(frozen=True)
class Shapes:
    """A model's sizes."""

    layers: tuple[LayerKind, ...]
    hidden: int
    ffn: int
    vocab: int
    """Padded."""
    tied: bool = False
    gated: bool = True
    fused_act: bool = True
    """The activation keeps its input alone: `bias_activation_fusion`, or `use_fused_weighted_squared_relu`."""
    bias: bool = False
    qkv_bias: bool = False
    rms_norm: bool = True
    attention: Attention = field(default_factory=Attention)
    experts: Experts = field(default_factory=Experts)
    mamba: Mamba = field(default_factory=Mamba)
    delta: DeltaNet = field(default_factory=DeltaNet)
    mtp_layers: int = 0
    fused_loss: str | None = "te"
    """`te`, `native` or None (`cross_entropy_loss_fusion`)."""


@dataclass(frozen=True)
class Layout:
    """How the model lies over ranks."""

    world: int = 1
    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    count_embedding: bool = False
    count_loss: bool = False
    stages: tuple[tuple[str, ...], ...] | None = None
    """A parsed pipeline layout: entry `a * pp + b` is virtual stage a of pipeline rank b."""

    @property
    def dp(self) -> int:
        return max(1, self.world // (self.tp * self.pp * self.cp))

    @property
    def dp_with_cp(self) -> int:
        """Ranks that share a shard of the distributed optimizer: data-parallel times context-parallel."""
        return self.dp * self.cp

    @property
    def expert_dp(self) -> int:
        return max(1, self.world // (self.etp * self.ep * self.pp))

    @property
    def chunks(self) -> int:
        """Model chunks of one rank."""
        if self.stages is not None:
            return max(1, len(self.stages) // self.pp)
        return self.vpp if self.vpp and self.pp > 1 else 1


@dataclass(frozen=True)
class Numerics:
    """Bytes of a number in each place, and which optimizer keeps them."""

    weight: int = 2
    grad: int = 4
    distributed_optimizer: bool = True
    precision_aware: bool = False
    main_params_in_optimizer: bool = False
    """`use_precision_aware_optimizer_no_fp8_or_ds_fp8` (optimizer_config.py): FusedAdam keeps masters and gradients."""
    main_param: int = 4
    store_remainders: bool = False
    exp_avg: int = 4
    exp_avg_sq: int = 4
    fp8: str | None = None
    fp8_recipe: str | None = None
    fp8_params: bool = False
    """`fp8_param`: linear layers have their weights in FP8 alone; else in BF16, with quantised copies beside them."""
    fp8_input_store: bool = False
    wgrad_fused: bool = False
    """`gradient_accumulation_fusion`: weight gradients are added in place, none is made."""
    transformer_engine: bool = True
    cuda: bool = True
    moments_in_place: bool | None = False
    """FusedAdam steps on moments as they are; else it copies those that are not float32. None: not known which."""
    high_busbw_padding: bool = False
    overlap_grad_reduce: bool = False
    """Buckets of gradients are reduced as backward fills them; else all of them behind the last backward."""

    @property
    def copies_moments(self) -> bool:
        """Whether a step holds float32 copies of all moments at once, or may."""
        return self.cuda and not self.moments_in_place and (self.exp_avg != 4 or self.exp_avg_sq != 4)


@dataclass(frozen=True)
class Batch:
    """Sizes of a step."""

    seq_length: int
    micro_batch: int
    global_batch: int


@dataclass(frozen=True)
class Recompute:
    """The four settings in force. `modules` is empty unless selective."""

    granularity: str | None = None
    modules: frozenset[str] = frozenset()
    method: str | None = None
    num_layers: int | None = None


@dataclass(frozen=True)
class Job:
    """Everything that a prediction reads."""

    shapes: Shapes
    layout: Layout
    numerics: Numerics
    batch: Batch
    recompute: Recompute
    cuda_graphs: bool = False
    offloading: str | None = None
    """The setting by which memory moves to the host; what streams beside the step hold there is not predicted."""

    @property
    def microbatches(self) -> int:
        """Micro-batches of one step on one rank."""
        return max(1, math.ceil(self.batch.global_batch / (self.batch.micro_batch * self.layout.dp)))


@dataclass(frozen=True)
class Local:
    """Sizes on one rank, for one micro-batch: what every ledger is written in."""

    tokens: int
    """Of the whole sequence part that attention sees: s/cp x b."""
    shard: int
    """Of the residual stream: with sequence parallelism tokens/tp, else tokens."""
    seq: int
    """s/cp."""
    batch: int
    tp: int
    cp: int
    ep: int
    etp: int
    sequence_parallel: bool


def local_sizes(job: Job) -> Local:
    """One rank's tokens under the job's layout."""
    layout, batch = job.layout, job.batch
    seq = max(1, batch.seq_length // layout.cp)
    tokens = seq * batch.micro_batch
    split = layout.tp if layout.sequence_parallel else 1
    return Local(
        tokens=tokens,
        shard=math.ceil(tokens / split),
        seq=seq,
        batch=batch.micro_batch,
        tp=layout.tp,
        cp=layout.cp,
        ep=layout.ep,
        etp=layout.etp,
        sequence_parallel=layout.sequence_parallel,
    )
