"""Frames of a step or of a setup that say where: what is not a part of a job that holds others."""

from __future__ import annotations

from orchestrator.outcome.frame_rules import FrameRule, SourceFrame
from orchestrator.vocabulary import Stage

PLACES = (
    FrameRule(
        "frame.replay",
        Stage.REPLAY,
        SourceFrame("megatron/core/tensor_parallel/random.py", "_recompute"),
        r"_?recompute|recompute_fn|unpack_hook|_unified_recompute_hook|recompute_hook",
    ),
    FrameRule(
        "frame.grad-sync",
        Stage.GRAD_SYNC,
        SourceFrame("megatron/core/distributed/finalize_model_grads.py", "finalize_model_grads"),
        r"_?finalize_model_grads|_?allreduce_(?!loss)\w*(?:grads?|gradients|params|bucket)\w*|"
        r"all_?reduce_grad\w*|(?:start|finish)_grad_sync|register_grad_ready|"
        r"\w*reduce\w*ipg\w*|reduce_\w+_and_remove_grads|_sync_reduction_works|distributed_data_parallel_hook|"
        r"\w*ipg_bucket\w*|_?reduce_(?:scatter_)?(?:gradients?|grads?)\w*|reduce_model_grads|"
        r"reduce_independent_p\w*|_*avg_scatter_grads|_*partition_grads|average_gradients\w*|post_backward|"
        r"_process_post_backward_gradients|"
        r"average_tensor|buffered_allreduce\w*|_post_backward_(?:hook|reshard)|foreach_reduce|sync_grad\w*|"
        r"wait_for_previous_grad_reduce|all_reduce_and_copy|synchronize_gradients|backward_epilogue|"
        r"overlapping_partition_gradients\w*",
    ),
    FrameRule(
        "frame.optimizer-init",
        Stage.OPTIMIZER_INIT,
        SourceFrame("transformer_engine/pytorch/optimizers/fused_adam.py", "initialize_state"),
        r"_?initialize_state|_init_group|initialize_optimizer_states|init_state_fn|_?init_(?:optim|"
        r"adam)\w*_states?\w*|_lazy_init\w*state\w*",
    ),
    FrameRule(
        "frame.optimizer-moments",
        Stage.OPTIMIZER_INIT,
        SourceFrame("apex/optimizers/fused_adam.py", "step", "state['exp_avg'] = torch.zeros_like(p.data)"),
        r"step|_?update\w*|init_state",
        code=r"exp_avg\w*['\"]?\]? *=.*(?:zeros|empty|clone)|state\[.*\] *= *torch\.(?:zeros|empty)",
    ),
    FrameRule(
        "frame.optimizer-step",
        Stage.OPTIMIZER_STEP,
        SourceFrame("megatron/core/optimizer/distrib_optimizer.py", "step_with_ready_grads"),
        r"step_with_ready_grads|prepare_grads|_?clip_grad\w*|clip_by_\w*norm\w*|\w*(?:grad|global)_norm\w*|"
        r"_?copy_(?:model_grads_to_main|main_params_to_model|model_params_to_main|main_to_model)\w*|"
        r"_?model_(?:grads|params)_to_(?:master|main)\w*|_?master_params_to_model\w*|update_master_grads|"
        r"_?unscale\w*|"
        r"_collect_main_grad\w*|count_zeros\w*|_?optimizer_step|_(?:single|multi)_tensor_\w+|_fused_adamw?|"
        r"unscale_and_clip_grads|_?take_model_step|_optimizer_step\w*",
    ),
    FrameRule(
        "frame.optimizer-file",
        Stage.OPTIMIZER_STEP,
        SourceFrame("torch/optim/adamw.py", "step"),
        r"step|wrapper|_use_grad|decorate_context|multi_tensor_\w+|adamw?",
        r"/optim/|optimizers?[/_.]|adam|sgd|lamb\b|muon|fp16util|distrib_optimizer",
    ),
    FrameRule(
        "frame.optimizer-call",
        Stage.OPTIMIZER_STEP,
        SourceFrame(
            "megatron/training/training.py", "train_step", "update_successful, grad_norm, zeros = optimizer.step()"
        ),
        code=r"\b(?:\w*optim\w*|scaler)(?:['\"]\])?\.step\(|\.optimizer_step\(|\bclip_grad_norm_?\(",
    ),
    FrameRule(
        "frame.backward",
        Stage.BACKWARD,
        SourceFrame("megatron/core/pipeline_parallel/schedules.py", "backward_step"),
        r"backward|backward_step\w*|custom_backward|_engine_run_backward|run_backward|backward_dw|_?backward_\w+|"
        r"(?!recv_|send_)\w+_backward",
    ),
    FrameRule(
        "frame.backward-call",
        Stage.BACKWARD,
        SourceFrame("train.py", "main", "loss.backward()"),
        code=r"\.backward\(|user_fn\(self, \*args\)",
    ),
    FrameRule(
        "frame.between-steps",
        Stage.BETWEEN_STEPS,
        SourceFrame("megatron/bridge/training/utils/train_utils.py", "training_log"),
        r"training_log|track_moe_metrics|reduce_aux_losses\w*|report_memory\w*|logical_and_across\w*|"
        r"reduce_max_stat\w*|"
        r"log_metrics|_?maybe_log\w*|on_train(?:_step|_batch)?_(?:end|start)|report_theoretical_memory",
    ),
    FrameRule(
        "frame.forward",
        Stage.FORWARD,
        SourceFrame("megatron/core/pipeline_parallel/schedules.py", "forward_step"),
        r"forward|_?forward_(?!backward|only|thread)\w+|(?!recv_|send_)\w+_forward(?:_step|_mlp|_attention)?|"
        r"forward_step\w*|_?loss_func\w*|"
        r"(?:compute|calculate)_(?:log_?prob|loss|language_model_loss)\w*|training_step|\w*cross_entropy\w*|"
        r"\w*softmax\w*|\w*log_?probs\w*|entropy_from_logits\w*",
    ),
    FrameRule(
        "frame.forward-call",
        Stage.FORWARD,
        SourceFrame("torch/autograd/function.py", "apply", "return super().apply(*args, **kwargs)"),
        code=r"\bsuper\(\)\.apply\(\*args",
    ),
    FrameRule(
        "frame.validate",
        Stage.VALIDATE,
        SourceFrame("megatron/training/arguments.py", "validate_args"),
        r"validate_args|validate_yaml|parse_(?:and_validate_)?args\w*|parse_arguments|runtime_config_update|"
        r"_?validate_(?:config|and_\w+|cfg)\w*|core_transformer_config_from_\w+|check_config\w*|_compose_config|"
        r"apply_overrides|"
        r"process_config_with_overrides",
    ),
    FrameRule(
        "frame.config-finish",
        Stage.VALIDATE,
        SourceFrame("megatron/core/transformer/transformer_config.py", "__post_init__"),
        r"__post_init__|finalize|validate",
        r"config|provider|arguments",
    ),
    FrameRule(
        "frame.hydra",
        Stage.VALIDATE,
        SourceFrame("/site-packages/hydra/_internal/config_loader_impl.py", "load_configuration"),
        file=r"/(?:hydra|omegaconf)/(?!main\.py|core/utils\.py|_internal/(?:utils|hydra)\.py|.*instantiate)",
    ),
    FrameRule(
        "frame.optimizer-build",
        Stage.OPTIMIZER_BUILD,
        SourceFrame("megatron/core/optimizer/__init__.py", "get_megatron_optimizer"),
        r"setup_optimizer\w*|_?get_megatron_optimizer\w*|_build_\w*param_groups\w*|configure_optimizers|"
        r"_configure_\w*optimizer\w*|build_optimizer\w*|create_optimizer\w*|_?get_param_groups\w*",
    ),
    FrameRule(
        "frame.optimizer-object",
        Stage.OPTIMIZER_BUILD,
        SourceFrame("megatron/core/optimizer/distrib_optimizer.py", "__init__"),
        r"__init__",
        r"optim|adam|deepspeed.*zero",
    ),
    FrameRule(
        "frame.data-build",
        Stage.DATA_BUILD,
        SourceFrame("megatron/bridge/training/setup.py", "setup_data_iterators"),
        r"build_train_valid_test_\w+|setup_data_iterators|build_pretraining_data_loader|\w*datasets?_provider|"
        r"_build_\w*datasets?\w*|build_(?:\w+_)?(?:dataset|dataloader|data_loader)s?\w*|setup_dataloaders?|"
        r"get_blend\w*|train_dataloader|load_dataset",
    ),
    FrameRule(
        "frame.data-file",
        Stage.DATA_BUILD,
        SourceFrame("megatron/core/datasets/indexed_dataset.py", "get"),
        file=r"core/datasets/|indexed_dataset|data/datasets/|/datasets/(?:load|builder)\.py",
    ),
    FrameRule(
        "frame.model-build",
        Stage.MODEL_BUILD,
        SourceFrame("megatron/training/training.py", "get_model"),
        r"get_model|provide_distributed_model|_?build_(?:distributed_)?models?\w*|model_provider\w*|_ddp_init_helper|"
        r"get_num_layers_to_build|_get_block_submodules|get_\w+_(?:layer|block)_spec\w*|build_module|fully_shard|"
        r"reset_parameters|_initialize_affine_weight\w*|handle_model_import|_build_layers|init_model\w*|"
        r"wrap_model\w*|"
        r"_allocate_\w*buffers?|_?materialize\w*|configure_model|provide|broadcast_params|_sync_(?:module_states|"
        r"params_and_buffers)|"
        r"_?init_weights|_configure_distributed_model|_broadcast_model|_?create_model|initialize_model|"
        r"_post_init_method",
    ),
    FrameRule(
        "frame.model-object",
        Stage.MODEL_BUILD,
        SourceFrame("megatron/core/distributed/param_and_grad_buffer.py", "__init__"),
        r"__init__|_init_\w+",
        r"transformer|models?/|tensor_parallel|distributed_data_parallel|nn/parallel|param_and_grad_buffer|fsdp|"
        r"nn/modules|/ssm/|/moe/|model_?\w*\.py$",
    ),
    FrameRule(
        "frame.model-to-device",
        Stage.MODEL_BUILD,
        SourceFrame("trainer.py", "setup", "model.cuda(torch.cuda.current_device())"),
        code=r"model\w*(?:\([^)]*\))?\.(?:cuda|to|half|bfloat16)\(",
    ),
    FrameRule(
        "frame.distributed-init",
        Stage.DISTRIBUTED_INIT,
        SourceFrame("megatron/bridge/training/initialize.py", "initialize_megatron"),
        r"initialize_megatron|_?initialize_distributed|init_process_group|initialize_model_parallel|"
        r"_?init_distributed\w*|"
        r"_compile_dependencies|new_group|_new_process_group_helper|init_device_mesh|_set_random_seed|"
        r"setup_distributed|"
        r"rendezvous|_create_c10d_store|create_group|init_distributed_environment|torch_distributed_init",
    ),
    FrameRule(
        "frame.first-barrier",
        Stage.DISTRIBUTED_INIT,
        SourceFrame("trainer.py", "initialize", "distributed.barrier()"),
        r"_?init\w*|setup\w*",
        code=r"\bbarrier\(|set_device\(|init_process_group",
    ),
    FrameRule(
        "frame.teardown",
        Stage.TEARDOWN,
        SourceFrame("torch/distributed/distributed_c10d.py", "destroy_process_group"),
        r"_?destroy_process_group|_?maybe_destroy_process_group|_finish_train|finish_train|_shutdown\w*|_?teardown|"
        r"_cleanup_after\w*|_exit_function",
    ),
)
"""Everything else: the innermost that says something wins, with the exceptions in `stage_of`."""

WORKER_FETCH = FrameRule(
    "frame.data-worker",
    Stage.DATA_BUILD,
    SourceFrame("torch/utils/data/_utils/signal_handling.py", "handler"),
    file=r"torch/utils/data/",
)
"""Only where nothing else is known: a batch that is fetched in training belongs to its forward."""
CONSTRUCTOR = FrameRule(
    "frame.constructor",
    Stage.MODEL_BUILD,
    SourceFrame("nemo_rl/models/policy/workers/megatron_policy_worker.py", "__init__"),
    r"__init__",
)
"""Only where nothing else is known: workers of reinforcement-learning frameworks build the model when constructed."""
