"""What may be set, and of which type: one dataclass per group of the configuration.

A field without a default is optional in the request: it is passed on only where it was set, so that the framework's own
default holds and a trial's identity does not change when this list grows. Where `Recipe` is allowed, the word `recipe`
leaves the setting as the recipe has it, which is a fourth thing beside a value, null and nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Recipe = Literal["recipe"]
RECIPE = "recipe"

RECOMPUTE_KEYS = ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")

UNSET: Any = "???"
"""OmegaConf's own mark of a value that nobody gave."""


@dataclass(frozen=True)
class Model:
    """The architecture, in the field names of Megatron Core's TransformerConfig and MLATransformerConfig.

    `vocab_size`, `position_embedding_type`, `rotary_base` and `share_embeddings_and_output_weights` are arguments of
    GPTModel there, and fields of Megatron Bridge's providers. `name` is what reports call the model.
    """

    name: str = "unnamed"
    recipe: str | None = UNSET
    """Bridge trainer: the dotted name of a recipe, or of a model provider."""
    recipe_arguments: dict[str, Any] = UNSET
    huggingface_config: dict[str, Any] | str | None = UNSET
    """Bridge trainer: what a model's Hugging Face `config.json` says, or a folder with that file; no hub is asked."""
    num_layers: int | Recipe = UNSET
    mtp_num_layers: int | Recipe | None = UNSET
    mtp_loss_scaling_factor: float | Recipe = UNSET
    hidden_size: int | Recipe = UNSET
    ffn_hidden_size: int | Recipe | None = UNSET
    num_attention_heads: int | Recipe = UNSET
    num_query_groups: int | Recipe | None = UNSET
    kv_channels: int | Recipe | None = UNSET
    vocab_size: int | Recipe = UNSET
    position_embedding_type: str = UNSET
    rotary_base: float | Recipe = UNSET
    rotary_percent: float | Recipe = UNSET
    rotary_scaling_factor: float | Recipe = UNSET
    rope_type: str = UNSET
    rotary_interleaved: bool | Recipe = UNSET
    share_embeddings_and_output_weights: bool | Recipe = UNSET
    make_vocab_size_divisible_by: int | Recipe = UNSET
    normalization: str = UNSET
    layernorm_epsilon: float | Recipe = UNSET
    layernorm_zero_centered_gamma: bool | Recipe = UNSET
    qk_layernorm: bool | Recipe = UNSET
    gated_linear_unit: bool | Recipe = UNSET
    activation_func: str = UNSET
    add_bias_linear: bool | Recipe = UNSET
    add_qkv_bias: bool | Recipe = UNSET
    attention_dropout: float | Recipe = UNSET
    hidden_dropout: float | Recipe = UNSET
    softmax_scale: float | Recipe | None = UNSET
    attention_backend: str = UNSET
    transformer_impl: str = UNSET
    window_size: list[int] | Recipe | None = UNSET
    window_attn_skip_freq: int | list[int] | Recipe | None = UNSET
    init_method_std: float | Recipe = UNSET
    untie_embeddings_and_output_weights: bool | Recipe = UNSET
    bias_activation_fusion: bool | Recipe = UNSET
    bias_dropout_fusion: bool | Recipe = UNSET
    masked_softmax_fusion: bool | Recipe = UNSET
    apply_rope_fusion: bool | Recipe = UNSET
    gradient_accumulation_fusion: bool | Recipe = UNSET
    cross_entropy_loss_fusion: bool | Recipe = UNSET
    cross_entropy_fusion_impl: str = UNSET
    attention_softmax_in_fp32: bool | Recipe = UNSET
    apply_query_key_layer_scaling: bool | Recipe = UNSET
    deterministic_mode: bool | Recipe = UNSET
    multi_latent_attention: bool | Recipe = UNSET
    q_lora_rank: int | Recipe | None = UNSET
    kv_lora_rank: int | Recipe = UNSET
    qk_head_dim: int | Recipe = UNSET
    qk_pos_emb_head_dim: int | Recipe = UNSET
    v_head_dim: int | Recipe = UNSET
    mscale: float | Recipe = UNSET
    mscale_all_dim: float | Recipe = UNSET
    cache_mla_latents: bool | Recipe = UNSET
    experimental_attention_variant: str | None = UNSET
    linear_attention_freq: int | list[int] | Recipe | None = UNSET
    linear_conv_kernel_dim: int | Recipe | None = UNSET
    linear_key_head_dim: int | Recipe | None = UNSET
    linear_value_head_dim: int | Recipe | None = UNSET
    linear_num_key_heads: int | Recipe | None = UNSET
    linear_num_value_heads: int | Recipe | None = UNSET
    cp_comm_type: str | list[str] | None = UNSET
    num_layers_in_first_pipeline_stage: int | Recipe | None = UNSET
    num_layers_in_last_pipeline_stage: int | Recipe | None = UNSET
    account_for_embedding_in_pipeline_split: bool | Recipe = UNSET
    account_for_loss_in_pipeline_split: bool | Recipe = UNSET
    num_moe_experts: int | Recipe | None = UNSET
    moe_ffn_hidden_size: int | Recipe | None = UNSET
    moe_layer_freq: int | list[int] | Recipe = UNSET
    moe_shared_expert_intermediate_size: int | Recipe | None = UNSET
    moe_shared_expert_overlap: bool | Recipe = UNSET
    moe_router_topk: int | Recipe = UNSET
    moe_router_num_groups: int | Recipe | None = UNSET
    moe_router_group_topk: int | Recipe | None = UNSET
    moe_router_topk_scaling_factor: float | Recipe | None = UNSET
    moe_router_pre_softmax: bool | Recipe = UNSET
    moe_router_score_function: str = UNSET
    moe_router_dtype: str | None = UNSET
    moe_router_load_balancing_type: str | list[str] = UNSET
    moe_router_enable_expert_bias: bool | Recipe = UNSET
    moe_router_bias_update_rate: float | Recipe = UNSET
    moe_router_force_load_balancing: bool | Recipe = UNSET
    moe_router_fusion: bool | Recipe = UNSET
    moe_router_padding_for_fp8: bool | Recipe | None = UNSET
    moe_router_padding_for_quantization: bool | Recipe | None = UNSET
    moe_input_jitter_eps: float | Recipe | None = UNSET
    moe_layer_recompute: bool | Recipe = UNSET
    moe_aux_loss_coeff: float | list[float] | Recipe = UNSET
    moe_z_loss_coeff: float | Recipe | None = UNSET
    moe_grouped_gemm: bool | Recipe = UNSET
    moe_use_legacy_grouped_gemm: bool | Recipe = UNSET
    moe_permute_fusion: bool | Recipe = UNSET
    moe_token_dispatcher_type: str = UNSET
    moe_enable_deepep: bool | Recipe = UNSET
    moe_flex_dispatcher_backend: str | None = UNSET
    moe_expert_capacity_factor: float | Recipe | None = UNSET
    moe_pad_expert_input_to_capacity: bool | Recipe = UNSET
    moe_token_drop_policy: str = UNSET
    overlap_moe_expert_parallel_comm: bool | Recipe = UNSET
    delay_wgrad_compute: bool | Recipe = UNSET
    ep_overlap_early_attn_memory_release: bool | Recipe = UNSET
    hybrid_override_pattern: str | None = UNSET
    is_hybrid_model: bool | Recipe = UNSET
    mamba_state_dim: int | Recipe = UNSET
    mamba_head_dim: int | Recipe = UNSET
    mamba_num_groups: int | Recipe = UNSET
    mamba_num_heads: int | Recipe | None = UNSET
    cpu_offloading: bool | Recipe = UNSET
    cpu_offloading_num_layers: int | Recipe = UNSET
    cpu_offloading_activations: bool | Recipe = UNSET
    cpu_offloading_weights: bool | Recipe = UNSET
    fine_grained_activation_offloading: bool | Recipe = UNSET
    offload_modules: list[str] | Recipe | None = UNSET
    distribute_saved_activations: bool | Recipe | None = UNSET
    enable_cuda_graph: bool | Recipe = UNSET
    external_cuda_graph: bool | Recipe = UNSET
    cuda_graph_impl: str | None = UNSET
    cuda_graph_scope: str | list[str] | None = UNSET
    cuda_graph_warmup_steps: int | Recipe = UNSET
    fp8_param: bool | Recipe = UNSET
    fp8_quantizer_factory: str | None = UNSET
    fp4: str | None = UNSET
    fp4_recipe: str | None = UNSET
    fp4_param: bool | Recipe = UNSET
    fp4_quantizer_factory: str | None = UNSET
    first_last_layers_bf16: bool | Recipe = UNSET
    num_layers_at_start_in_bf16: int | Recipe = UNSET
    num_layers_at_end_in_bf16: int | Recipe = UNSET


@dataclass(frozen=True)
class Parallelism:
    """How the model is spread over ranks. `etp` null follows tp, as in Megatron Core; `world_size` counts ranks."""

    tp: int | Recipe = 1
    pp: int | Recipe = 1
    vpp: int | Recipe | None = None
    cp: int | Recipe = 1
    ep: int | Recipe = 1
    etp: int | Recipe | None = None
    sequence_parallel: bool | Recipe = False
    layout: str | list[list[str]] | None = None
    """`pipeline_model_parallel_layout`."""
    world_size: int | Recipe = 1


@dataclass(frozen=True)
class Precision:
    """Number formats. `recipe_name` is a mixed-precision recipe of Megatron Bridge, for example `bf16_mixed`."""

    params_dtype: Literal["fp32", "bf16", "fp16", "recipe"] = "fp32"
    grad_reduce_in_fp32: bool | Recipe = True
    fp8: str | None = None
    fp8_recipe: str | None = None
    recipe_name: str | None = None
    use_precision_aware_optimizer: bool | Recipe = False
    main_grads_dtype: Literal["fp32", "bf16", "recipe"] = "fp32"
    main_params_dtype: Literal["fp32", "fp16", "recipe"] = "fp32"
    exp_avg_dtype: Literal["fp32", "bf16", "fp16", "fp8", "recipe"] = "fp32"
    exp_avg_sq_dtype: Literal["fp32", "bf16", "fp16", "fp8", "recipe"] = "fp32"


@dataclass(frozen=True)
class Training:
    """Sizes of a step in tokens and samples, and how many steps. The window counts iterations from 1, both included."""

    seq_length: int | Recipe = 4096
    micro_batch_size: int | Recipe = 1
    global_batch_size: int | Recipe = 1
    train_iters: int = 20
    steady_window: tuple[int, int] = (11, 20)
    seed: int | Recipe = 1234
    resident_tokens: int = UNSET
    """Trainer mcore_cpu: tokens of data made once and kept in memory, 8 bytes each; unset: made as they are needed."""


@dataclass(frozen=True)
class McoreCpuTrainer:
    """Megatron Core on CPU. `time_limit` is seconds, or `1:30:00`, or `90m`.

    `fault` is a testing aid: {stage, kind, iteration, rank, …}, see orchestrator/trial/mcore_cpu/faults.py.
    """

    name: Literal["mcore_cpu"] = "mcore_cpu"
    memory_limit_gb: float | None = None
    stall_seconds: float = 300.0
    time_limit: float | str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    threads_per_rank: int = 1
    learning_rate: float = 1e-3
    use_distributed_optimizer: bool = UNSET
    overlap_grad_reduce: bool = UNSET
    overlap_param_gather: bool = UNSET
    check_for_nan_in_grad: bool = UNSET
    fault: dict[str, Any] | None = UNSET


@dataclass(frozen=True)
class BridgeTrainer:
    """Megatron Bridge on CUDA. `overrides` are dotted paths into its ConfigContainer."""

    name: Literal["bridge"] = "bridge"
    overrides: dict[str, Any] = field(default_factory=dict)
    memory_limit_gb: float | None = None
    stall_seconds: float = 300.0
    time_limit: float | str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    mock_data: bool = True
    null_tokenizer: bool = True
    checkpoint: str | None = None
    """Pretrained checkpoint that fine-tuning starts from."""
    forward_step: str | None = None
    """Dotted name of another forward step than Bridge's for GPT."""
    force_load_balancing: bool = False
    wait_for_empty_gpus_seconds: float = 30.0
    alternate_recording: bool = False
    compiled_meter: bool = True
    """Record stages in every other iteration only, to measure what recording costs."""


@dataclass(frozen=True)
class Container:
    """The image that ranks run in."""

    kind: Literal["none", "pyxis", "apptainer"] = "none"
    image: str | None = None
    digest: str | None = None
    mounts: list[str] = field(default_factory=list)
    workdir: str | None = None
    name: str | None = None
    writable: bool = True
    mount_home: bool = False
    python: str = "python3"
    extra_arguments: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LocalCluster:
    """This machine: the driver is a background process."""

    kind: Literal["local"] = "local"
    parallel_trials: int = 1
    """Trials running at the same time."""
    retries: int = 1
    gpu_type: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SlurmCluster:
    """A Slurm cluster (`slurm`), or the allocation that this shell already holds (`here`)."""

    kind: Literal["slurm", "here"] = "slurm"
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    time: str | int | None = None
    """Wall time of one allocation: minutes, or as sbatch reads it."""
    resolve_minutes: int = 15
    """Time limit of the step on one node that asks a recipe how many ranks it needs, where only a node can build it."""
    nodes: int | None = None
    """Null: from the world size and `gpus_per_node`."""
    gpus_per_node: int = 8
    gpu_option: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    gpu_type: str | None = None
    cpus_per_task: int | None = None
    mem: str | int | None = 0
    """Memory of a node for the job; 0 is all of it."""
    cpu_bind: str | None = "none"
    exclusive: bool = True
    requeue: bool = True
    """Whether Slurm puts the job back into the queue after a node failure or a preemption."""
    exclude: list[str] = field(default_factory=list)
    """Nodes never to be used; nodes on which trials failed are added by retries."""
    sbatch: dict[str, str | int | bool | None] = field(default_factory=dict)
    """Any further sbatch parameter, without its dashes."""
    srun: dict[str, str | int | bool | None] = field(default_factory=dict)
    mpi: str | None = "none"
    setup: list[str] = field(default_factory=list)
    """Shell lines run under `set -e` before the ranks start, inside the container where there is one."""
    driver_setup: list[str] = field(default_factory=list)
    """Shell lines run under `set -e` at the start of the job, on its first node."""
    environment: dict[str, str] = field(default_factory=dict)
    python: str | None = None
    """The interpreter of the job's driver, which has this package; null: the one that submits."""
    rank_python: str | None = None
    """The ranks' interpreter without a container, which needs the framework and nothing of ours; null: `python`."""
    local_dir: str | None = None
    """A node-local folder for beacons and kernel caches; null: the node's temporary folder."""
    max_jobs: int | None = None
    trials_per_job: int | None = None
    parallel_trials: int = 1
    retries: int = 1
    container: Container = field(default_factory=Container)


@dataclass(frozen=True)
class Revisions:
    """Commits that a trial must run on; null takes what is found, and records it."""

    bridge: str | None = None
    megatron_core: str | None = None
    bridge_repository: str | None = None
    megatron_core_repository: str | None = None
    worktrees: str | None = None


@dataclass(frozen=True)
class Study:
    """A named set of trials asked together."""

    name: str = "default"
    candidates: list[list[str]] = field(default_factory=list)
    """Lists of overrides; each list is one candidate, and they multiply with the swept axes."""
    repeats: int = 1
    mode: str = "grid"
    """`grid`; `one_at_a_time`: the list of modules with one label more or less; `lattice`: all small sets of labels;
    `escalate`: a search, which the driver decides trial by trial."""
    largest: int = 2
    """Most labels of one set in a lattice."""
    target_gb: float | None = None
    gpu_hours: float | None = None
    sinks: list[Literal["mlflow", "wandb"]] = field(default_factory=list)
    """Trackers that ended trials are copied to when they are collected; none, unless named. No tracker can fail a
    trial."""


@dataclass(frozen=True)
class Store:
    """Where results are kept; null: SQLite in `results_dir`."""

    url: str | None = None


@dataclass(frozen=True)
class Request:
    """The whole configuration of one candidate."""

    recompute_granularity: Literal["selective", "full", "recipe"] | None
    recompute_modules: list[str] | Recipe | None
    recompute_method: Literal["uniform", "block", "recipe"] | None
    recompute_num_layers: int | Recipe | None
    model: Model
    parallelism: Parallelism
    precision: Precision
    training: Training
    trainer: McoreCpuTrainer | BridgeTrainer
    cluster: LocalCluster | SlurmCluster
    revisions: Revisions
    study: Study
    results_dir: str = "results"
    store: Store = field(default_factory=Store)
    strict: bool = False
    dry_run: bool = False
