"""Where a traceback was raised, by the names of its frames.

Names of files and functions are those of Megatron Core 0.6 to 0.20, Megatron Bridge, torch, Transformer Engine,
DeepSpeed and Lightning; lines drift, names rarely do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache

from orchestrator.vocabulary import Stage


@dataclass(frozen=True)
class SourceFrame:
    """One frame, outermost first in a traceback. `code` is the line of source below it, where it was printed."""

    file: str
    function: str
    code: str = ""
    line: int | None = None
    """Of the log that the frame was read from."""


@dataclass(frozen=True)
class FrameRule:
    """Frames that say where. A part of a rule that is empty accepts anything."""

    id: str
    stage: Stage
    function: str = ""
    """Matches the whole name."""
    file: str = ""
    """Is found in the path."""
    code: str = ""
    """Is found in the line of source."""

    def matches(self, frame: SourceFrame) -> bool:
        return (
            (not self.function or _compiled(self.function).fullmatch(frame.function) is not None)
            and (not self.file or _compiled(self.file).search(frame.file) is not None)
            and (not self.code or _compiled(self.code).search(frame.code) is not None)
        )


@dataclass(frozen=True)
class Located:
    """A stage, the rule that said so and the frame that it looked at; `unknown` and None where none did."""

    stage: Stage = Stage.UNKNOWN
    rule: str | None = None
    frame: SourceFrame | None = None


OUTRANKS_ALL = (
    FrameRule(
        "frame.graph-capture",
        Stage.GRAPH_CAPTURE,
        r"create_cudagraphs|_?make_graphed_callables|create_(?:fwd|bwd)_graph|capture_(?:begin|end|graph|model)|"
        r"_capture_\w*graph\w*|cuda_graph_capture",
    ),
    FrameRule("frame.torch-graph", Stage.GRAPH_CAPTURE, file=r"torch/cuda/graphs\.py$"),
)
"""Capture runs whole forwards and backwards: what is inside it does not matter."""

CONTAINERS = (
    FrameRule(
        "frame.checkpoint-save",
        Stage.CHECKPOINT_SAVE,
        r"_?save_(?:checkpoint|model|state|pretrained|hf|optimizer)\w*|checkpoint_and_decide_exit|"
        r"maybe_finalize_async_save|finalize_async_saves?|async_save|save_state_dict\w*|_save_checkpoint\w*",
    ),
    FrameRule(
        "frame.checkpoint-save-file",
        Stage.CHECKPOINT_SAVE,
        r"save|_save|_legacy_save|write_data|write_preloaded_data\w*|preload_tensors|_write_item|async_loop|schedule_async_call|"
        r"_save_state_dict\w*|save_preprocess|prepare_write_data",
        r"serialization\.py$|dist_checkpointing/|distributed/checkpoint/|checkpoint_engine|state_dict_saver|filesystem",
    ),
    FrameRule(
        "frame.checkpoint-load",
        Stage.CHECKPOINT_LOAD,
        r"_?load_(?:checkpoint|base_checkpoint|hf_weights|model_state|optimizer_state|state_dict)\w*|load_state_dict|"
        r"load_weights\w*|sh_ten_merge_fn|load_modelopt_\w+|restore_from\w*|_load_state_dict\w*",
    ),
    FrameRule(
        "frame.checkpoint-load-file",
        Stage.CHECKPOINT_LOAD,
        r"load|_load|_legacy_load|read_data|load_preprocess|load_common\w*|load_sharded\w*|load_tensors_metadata|read_metadata",
        r"serialization\.py$|dist_checkpointing/|distributed/checkpoint/|checkpoint_engine|state_dict_loader",
    ),
    FrameRule(
        "frame.evaluate",
        Stage.EVALUATE,
        r"(?!\w*(?:data|build|config|args|provider))\w*(?:evaluat|validation)\w*|run_eval\w*|"
        r"eval_(?:step|epoch|loop|batch)|prediction_step|validate_epoch|valid(?:ation)?_epoch|test_step|on_validation\w*|"
        r"_run_sanity_check",
    ),
    FrameRule("frame.archive-writer", Stage.CHECKPOINT_SAVE, r".*\bPyTorch(?:Stream|File)Writer\b.*"),
    FrameRule("frame.archive-reader", Stage.CHECKPOINT_LOAD, r".*\bPyTorch(?:Stream|File)Reader\b.*"),
    FrameRule("frame.evaluation-loop", Stage.EVALUATE, file=r"evaluation_loop\.py$"),
    FrameRule("frame.forward-only", Stage.EVALUATE, code=r"\bforward_only ?= ?True"),
)
"""Parts of a job that hold forwards or optimizer steps of their own: the innermost of these wins over those."""

PLACES = (
    FrameRule(
        "frame.replay",
        Stage.REPLAY,
        r"_recompute|recompute_fn|unpack_hook|_unified_recompute_hook|recompute_hook",
        r"checkpoint|random\.py$|recompute|transformer_engine|tensor_parallel",
    ),
    FrameRule(
        "frame.grad-sync",
        Stage.GRAD_SYNC,
        r"_?finalize_model_grads|_?allreduce_(?!loss)\w*(?:grads?|gradients|params|bucket)\w*|"
        r"all_?reduce_grad\w*|(?:start|finish)_grad_sync|register_grad_ready|"
        r"\w*reduce\w*ipg\w*|_?reduce_(?:scatter_)?(?:gradients?|grads?)\w*|reduce_model_grads|reduce_independent_p\w*|"
        r"average_tensor|buffered_allreduce\w*|_post_backward_(?:hook|reshard)|foreach_reduce|sync_grad\w*|"
        r"wait_for_previous_grad_reduce|all_reduce_and_copy|synchronize_gradients|backward_epilogue|overlapping_partition_gradients\w*",
    ),
    FrameRule(
        "frame.optimizer-init",
        Stage.OPTIMIZER_INIT,
        r"_?initialize_state|_init_group|initialize_optimizer_states|init_state_fn|_init_optimizer_states\w*|_lazy_init\w*state\w*",
    ),
    FrameRule(
        "frame.optimizer-moments",
        Stage.OPTIMIZER_INIT,
        r"step|_?update\w*|init_state",
        code=r"exp_avg\w*['\"]?\]? *=.*(?:zeros|empty|clone)|state\[.*\] *= *torch\.(?:zeros|empty)",
    ),
    FrameRule(
        "frame.optimizer-step",
        Stage.OPTIMIZER_STEP,
        r"step_with_ready_grads|prepare_grads|_?clip_grad\w*|_?get_(?:total_)?(?:grad|global)_norm\w*|"
        r"get_main_grads_for_grad_norm|_?copy_(?:model_grads_to_main|main_params_to_model|model_params_to_main|main_to_model)\w*|"
        r"_?model_(?:grads|params)_to_(?:master|main)\w*|_?master_params_to_model\w*|update_master_grads|_?unscale\w*|"
        r"_collect_main_grad\w*|count_zeros\w*|_?optimizer_step|_(?:single|multi)_tensor_\w+|_fused_adamw?|"
        r"unscale_and_clip_grads|_?take_model_step|_optimizer_step\w*",
    ),
    FrameRule(
        "frame.optimizer-file",
        Stage.OPTIMIZER_STEP,
        r"step|wrapper|_use_grad|decorate_context|multi_tensor_\w+|adamw?",
        r"/optim/|optimizers?[/_.]|adam|sgd|lamb\b|muon|fp16util|distrib_optimizer",
    ),
    FrameRule("frame.optimizer-call", Stage.OPTIMIZER_STEP, code=r"\boptimizer\.step\("),
    FrameRule(
        "frame.backward",
        Stage.BACKWARD,
        r"backward|backward_step\w*|custom_backward|_engine_run_backward|run_backward|backward_dw|_?backward_\w+|\w+_backward",
    ),
    FrameRule("frame.backward-call", Stage.BACKWARD, code=r"\.backward\(|user_fn\(self, \*args\)"),
    FrameRule(
        "frame.between-steps",
        Stage.BETWEEN_STEPS,
        r"training_log|track_moe_metrics|reduce_aux_losses\w*|report_memory\w*|logical_and_across\w*|reduce_max_stat\w*|"
        r"log_metrics|_?maybe_log\w*|on_train(?:_step|_batch)?_(?:end|start)|report_theoretical_memory",
    ),
    FrameRule(
        "frame.forward",
        Stage.FORWARD,
        r"forward|_?forward_(?!backward)(?!only)\w+|\w+_forward(?:_step|_mlp|_attention)?|forward_step\w*|_?loss_func\w*|"
        r"compute_(?:log_?prob|loss|language_model_loss)\w*|training_step|\w*cross_entropy\w*",
    ),
    FrameRule("frame.forward-call", Stage.FORWARD, code=r"\bsuper\(\)\.apply\(\*args"),
    FrameRule(
        "frame.validate",
        Stage.VALIDATE,
        r"validate_args|validate_yaml|parse_(?:and_validate_)?args\w*|parse_arguments|runtime_config_update|"
        r"_?validate_(?:config|and_\w+|cfg)\w*|core_transformer_config_from_\w+|check_config\w*|_compose_config|apply_overrides|"
        r"process_config_with_overrides",
    ),
    FrameRule("frame.config-finish", Stage.VALIDATE, r"__post_init__|finalize|validate", r"config|provider|arguments"),
    FrameRule("frame.hydra", Stage.VALIDATE, file=r"/(?:hydra|omegaconf)/(?!.*instantiate)"),
    FrameRule(
        "frame.optimizer-build",
        Stage.OPTIMIZER_BUILD,
        r"setup_optimizer\w*|_?get_megatron_optimizer\w*|_build_\w*param_groups\w*|configure_optimizers|"
        r"_configure_\w*optimizer\w*|build_optimizer\w*|create_optimizer\w*|_?get_param_groups\w*",
    ),
    FrameRule("frame.optimizer-object", Stage.OPTIMIZER_BUILD, r"__init__", r"optim|adam|deepspeed.*zero"),
    FrameRule(
        "frame.data-build",
        Stage.DATA_BUILD,
        r"build_train_valid_test_\w+|setup_data_iterators|build_pretraining_data_loader|\w*datasets?_provider|"
        r"_build_\w*datasets?\w*|build_(?:\w+_)?(?:dataset|dataloader|data_loader)s?\w*|setup_dataloaders?|"
        r"get_blend\w*|train_dataloader|load_dataset",
    ),
    FrameRule(
        "frame.data-file",
        Stage.DATA_BUILD,
        file=r"core/datasets/|indexed_dataset|data/datasets/|/datasets/(?:load|builder)\.py",
    ),
    FrameRule(
        "frame.model-build",
        Stage.MODEL_BUILD,
        r"get_model|provide_distributed_model|_?build_(?:distributed_)?models?\w*|model_provider\w*|_ddp_init_helper|"
        r"get_num_layers_to_build|_get_block_submodules|get_\w+_(?:layer|block)_spec\w*|build_module|fully_shard|"
        r"reset_parameters|_initialize_affine_weight\w*|handle_model_import|_build_layers|init_model\w*|wrap_model\w*|"
        r"_allocate_\w*buffers?|materialize\w*|configure_model|provide",
    ),
    FrameRule(
        "frame.model-object",
        Stage.MODEL_BUILD,
        r"__init__|_init_\w+",
        r"transformer|models?/|tensor_parallel|distributed_data_parallel|nn/parallel|param_and_grad_buffer|fsdp|"
        r"nn/modules|/ssm/|/moe/|model_?\w*\.py$",
    ),
    FrameRule(
        "frame.distributed-init",
        Stage.DISTRIBUTED_INIT,
        r"initialize_megatron|_?initialize_distributed|init_process_group|initialize_model_parallel|_?init_distributed\w*|"
        r"_compile_dependencies|new_group|_new_process_group_helper|init_device_mesh|_set_random_seed|setup_distributed|"
        r"rendezvous|_create_c10d_store|create_group|init_distributed_environment|torch_distributed_init",
    ),
    FrameRule(
        "frame.first-barrier",
        Stage.DISTRIBUTED_INIT,
        r"_?init\w*|setup\w*",
        code=r"\bbarrier\(|set_device\(|init_process_group",
    ),
    FrameRule(
        "frame.teardown",
        Stage.TEARDOWN,
        r"_?destroy_process_group|_?maybe_destroy_process_group|_finish_train|finish_train|_shutdown\w*|_?teardown|"
        r"_cleanup_after\w*|_exit_function",
    ),
)
"""Everything else: the innermost that says something wins, with the exceptions in `stage_of`."""

WORKER_FETCH = FrameRule("frame.data-worker", Stage.DATA_BUILD, file=r"torch/utils/data/")
"""Only where nothing else is known: a batch that is fetched in training belongs to its forward."""
CONSTRUCTOR = FrameRule("frame.constructor", Stage.MODEL_BUILD, r"__init__")
"""Only where nothing else is known: workers of reinforcement-learning frameworks build the model when constructed."""


class _Table(Enum):
    OUTRANKS_ALL = 1
    CONTAINERS = 2
    PLACES = 3
    WORKER = 4
    CONSTRUCTOR = 5


_TABLES = {
    _Table.OUTRANKS_ALL: OUTRANKS_ALL,
    _Table.CONTAINERS: CONTAINERS,
    _Table.PLACES: PLACES,
    _Table.WORKER: (WORKER_FETCH,),
    _Table.CONSTRUCTOR: (CONSTRUCTOR,),
}
_CHECKPOINT_FILES = re.compile(
    r"tensor_parallel/random\.py$|mpu/random\.py$|utils/checkpoint\.py$|activation_checkpointing/checkpointing\.py$|"
    r"transformer_engine/pytorch/distributed\.py$|core/recompute\.py$|transformer_engine\.py$"
)
_RUNS_BACKWARD = re.compile(r"autograd(?:\.|/__init__|/graph)|_execution_engine|\.backward\(")
_TAKEN_BY_FORWARD = frozenset(
    {
        None,
        Stage.FORWARD,
        Stage.OPTIMIZER_STEP,
        Stage.VALIDATE,
        Stage.MODEL_BUILD,
        Stage.DISTRIBUTED_INIT,
        Stage.BETWEEN_STEPS,
    }
    | {Stage.DATA_BUILD, Stage.OPTIMIZER_BUILD}
)
"""What a forward inside replaces: an optimizer's step runs it where it is given a closure."""
_BUILDS = frozenset(
    {Stage.MODEL_BUILD, Stage.OPTIMIZER_BUILD, Stage.DATA_BUILD, Stage.VALIDATE, Stage.DISTRIBUTED_INIT}
)
_STEPS = frozenset(
    {Stage.FORWARD, Stage.BACKWARD, Stage.REPLAY, Stage.GRAD_SYNC, Stage.OPTIMIZER_STEP, Stage.OPTIMIZER_INIT}
)


def stage_of(frames: Iterable[SourceFrame]) -> Located:
    """The stage in which a traceback was raised.

    A checkpoint's frame is replay only below its backward: the same function is called in forward. A replay ends where
    its own backward begins. Gradient synchronisation and the optimizer win over the backward that they run in.
    """
    frames = [*frames]
    frames += _called_by(frames[-1:])
    for table in (_Table.OUTRANKS_ALL, _Table.CONTAINERS):
        container = _innermost(table, frames)
        if container is not None:
            return container
    walk = _Walk()
    for frame in frames:
        walk.enter(frame)
    if walk.found is not None:
        return walk.found
    return _innermost(_Table.WORKER, frames) or _innermost(_Table.CONSTRUCTOR, frames) or Located()


class _Walk:
    """Where a traceback is, frame by frame from the outermost."""

    def __init__(self) -> None:
        self.found: Located | None = None
        self._below_checkpoint = False

    def enter(self, frame: SourceFrame) -> None:
        place = _rule_for(_Table.PLACES, frame.file, frame.function, frame.code)
        if place is None:
            return
        stage = self._taken(place.stage, frame)
        if stage is not None:
            self.found = Located(stage, place.id, frame)

    def _taken(self, stage: Stage, frame: SourceFrame) -> Stage | None:
        """The stage to be in after a frame of this stage; None to stay."""
        now = self.found.stage if self.found is not None else None
        if stage is Stage.BACKWARD:
            of_checkpoint = _CHECKPOINT_FILES.search(frame.file) is not None
            self._below_checkpoint = of_checkpoint and not _RUNS_BACKWARD.search(frame.code)
            return Stage.REPLAY if self._below_checkpoint and "run_function" in frame.code else stage
        if stage is Stage.FORWARD:
            if now is Stage.BACKWARD and self._below_checkpoint:
                return Stage.REPLAY
            return stage if now in _TAKEN_BY_FORWARD else None
        if stage in _BUILDS and now in _STEPS:
            return None
        return stage


def _called_by(frames: list[SourceFrame]) -> list[SourceFrame]:
    """What the innermost frame was calling, where its source was printed: tracebacks are quoted cut off."""
    return [
        SourceFrame("", name, line=frame.line)
        for frame in frames
        for name in re.findall(r"(?<!\braise )\b([A-Za-z_]\w*)\(", frame.code)[:1]
        if not name[0].isupper()
    ]


def _innermost(table: _Table, frames: list[SourceFrame]) -> Located | None:
    for frame in reversed(frames):
        rule = _rule_for(table, frame.file, frame.function, frame.code)
        if rule is not None:
            return Located(rule.stage, rule.id, frame)
    return None


@lru_cache(maxsize=16384)
def _rule_for(table: _Table, file: str, function: str, code: str) -> FrameRule | None:
    frame = SourceFrame(file, function, code)
    return next((rule for rule in _TABLES[table] if rule.matches(frame)), None)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
