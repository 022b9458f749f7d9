"""Tracebacks of frameworks in the field, and the stage that each was raised in."""

from __future__ import annotations

import pytest

from orchestrator.outcome.frame_rules import SourceFrame
from orchestrator.outcome.frames import stage_of
from orchestrator.vocabulary import Stage

TRACEBACKS = (
    (
        Stage.OPTIMIZER_INIT,
        (
            ("train.py", "main", "trainer.train()"),
            ("transformers/trainer.py", "_inner_training_loop", "self.optimizer.step()"),
            ("accelerate/optimizer.py", "step"),
            ("torch/optim/lr_scheduler.py", "wrapper"),
            ("torch/optim/optimizer.py", "wrapper"),
            ("torch/optim/adamw.py", "step"),
            ("torch/optim/adamw.py", "_init_group", 'state["exp_avg"] = torch.zeros_like('),
        ),
    ),
    (
        Stage.OPTIMIZER_STEP,
        (
            ("transformers/trainer.py", "_inner_training_loop", "self.optimizer.step()"),
            ("accelerate/optimizer.py", "step"),
            ("torch/optim/adamw.py", "step"),
            ("torch/optim/adamw.py", "_multi_tensor_adamw"),
        ),
    ),
    (
        Stage.BACKWARD,
        (
            ("transformers/trainer.py", "training_step", "self.accelerator.backward(loss)"),
            ("accelerate/accelerator.py", "backward", "loss.backward(**kwargs)"),
            ("torch/_tensor.py", "backward", "torch.autograd.backward("),
            ("torch/autograd/__init__.py", "backward", "_engine_run_backward("),
            ("torch/autograd/graph.py", "_engine_run_backward", "return Variable._execution_engine.run_backward("),
        ),
    ),
    (
        Stage.FORWARD,
        (
            ("transformers/trainer.py", "training_step", "loss = self.compute_loss(model, inputs)"),
            ("transformers/trainer.py", "compute_loss", "outputs = model(**inputs)"),
            ("torch/nn/modules/module.py", "_call_impl"),
            ("transformers/models/llama/modeling_llama.py", "forward", "logits = self.lm_head(hidden_states)"),
        ),
    ),
    (
        Stage.REPLAY,
        (
            ("transformers/trainer.py", "training_step", "self.accelerator.backward(loss)"),
            ("torch/_tensor.py", "backward"),
            ("torch/utils/checkpoint.py", "unpack_hook"),
            ("torch/utils/checkpoint.py", "recompute_fn"),
            ("transformers/models/llama/modeling_llama.py", "forward"),
        ),
    ),
    (
        Stage.FORWARD,
        (
            (
                "transformers/models/llama/modeling_llama.py",
                "forward",
                "layer_outputs = self._gradient_checkpointing_func(",
            ),
            ("torch/utils/checkpoint.py", "checkpoint", "ret = function(*args, **kwargs)"),
            ("transformers/models/llama/modeling_llama.py", "forward"),
        ),
    ),
    (
        Stage.EVALUATE,
        (
            ("transformers/trainer.py", "_maybe_log_save_evaluate", "metrics = self.evaluate("),
            ("transformers/trainer.py", "evaluate"),
            ("transformers/trainer.py", "evaluation_loop"),
            ("transformers/trainer.py", "prediction_step"),
            ("modeling.py", "forward"),
        ),
    ),
    (
        Stage.CHECKPOINT_SAVE,
        (
            ("transformers/trainer.py", "_maybe_log_save_evaluate"),
            ("transformers/trainer.py", "_save_checkpoint"),
            ("transformers/trainer.py", "_save_optimizer_and_scheduler"),
            ("torch/distributed/fsdp/fully_sharded_data_parallel.py", "full_optim_state_dict"),
        ),
    ),
    (
        Stage.GRAD_SYNC,
        (
            ("torch/_tensor.py", "backward"),
            ("torch/distributed/fsdp/_runtime_utils.py", "_post_backward_hook"),
            ("torch/distributed/fsdp/_runtime_utils.py", "_reduce_grad"),
        ),
    ),
    (
        Stage.BACKWARD,
        (
            ("torch/_tensor.py", "backward"),
            ("torch/autograd/graph.py", "_engine_run_backward"),
            ("torch/distributed/fsdp/_runtime_utils.py", "_pre_backward_hook"),
            ("torch/distributed/fsdp/_runtime_utils.py", "_unshard"),
        ),
    ),
    (
        Stage.FORWARD,
        (
            ("model.py", "forward"),
            ("torch/distributed/fsdp/fully_sharded_data_parallel.py", "forward"),
            ("torch/distributed/fsdp/_runtime_utils.py", "_pre_forward_unshard"),
        ),
    ),
    (
        Stage.MODEL_BUILD,
        (
            ("train.py", "main"),
            ("torch/distributed/fsdp/fully_sharded_data_parallel.py", "__init__"),
            ("torch/distributed/fsdp/_init_utils.py", "_init_param_handle_from_module"),
        ),
    ),
    (
        Stage.GRAD_SYNC,
        (
            ("deepspeed/runtime/engine.py", "backward"),
            ("deepspeed/runtime/engine.py", "allreduce_gradients"),
            ("deepspeed/runtime/zero/stage_1_and_2.py", "reduce_ipg_grads"),
            ("deepspeed/runtime/zero/stage_1_and_2.py", "average_tensor"),
        ),
    ),
    (
        Stage.OPTIMIZER_STEP,
        (
            ("deepspeed/runtime/engine.py", "step"),
            ("deepspeed/runtime/engine.py", "_take_model_step"),
            ("deepspeed/runtime/zero/stage_1_and_2.py", "step"),
            ("deepspeed/runtime/zero/stage_1_and_2.py", "get_grad_norm_direct"),
        ),
    ),
    (
        Stage.MODEL_BUILD,
        (
            ("train.py", "main"),
            ("deepspeed/runtime/zero/partition_parameters.py", "wrapper"),
            ("transformers/models/llama/modeling_llama.py", "__init__"),
            ("torch/nn/modules/linear.py", "__init__"),
            ("deepspeed/runtime/zero/partition_parameters.py", "wrapped_fn"),
        ),
    ),
    (
        Stage.OPTIMIZER_INIT,
        (
            ("deepspeed/__init__.py", "initialize"),
            ("deepspeed/runtime/engine.py", "__init__"),
            ("deepspeed/runtime/engine.py", "_configure_optimizer"),
            ("deepspeed/runtime/engine.py", "_configure_zero_optimizer"),
            ("deepspeed/runtime/zero/stage_1_and_2.py", "__init__"),
            ("deepspeed/runtime/zero/stage_1_and_2.py", "initialize_optimizer_states"),
            ("torch/optim/adamw.py", "step"),
        ),
    ),
    (
        Stage.OPTIMIZER_BUILD,
        (
            ("deepspeed/runtime/engine.py", "_configure_zero_optimizer"),
            ("deepspeed/runtime/zero/stage_1_and_2.py", "__init__", "self.single_partition_of_fp32_groups.append("),
        ),
    ),
    (
        Stage.MODEL_BUILD,
        (
            ("megatron/training/training.py", "setup_model_and_optimizer"),
            ("megatron/training/training.py", "get_model"),
            ("pretrain_gpt.py", "model_provider"),
            ("megatron/core/models/gpt/gpt_model.py", "__init__"),
            ("megatron/core/tensor_parallel/layers.py", "__init__"),
            ("megatron/core/tensor_parallel/layers.py", "_initialize_affine_weight_gpu"),
        ),
    ),
    (
        Stage.FORWARD,
        (
            ("megatron/core/pipeline_parallel/schedules.py", "forward_step"),
            ("pretrain_gpt.py", "forward_step"),
            ("pretrain_gpt.py", "get_batch"),
            ("torch/utils/data/dataloader.py", "__next__"),
        ),
    ),
    (
        Stage.OPTIMIZER_STEP,
        (
            ("megatron/core/optimizer/optimizer.py", "step_with_ready_grads"),
            ("megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py", "step"),
        ),
    ),
    (
        Stage.OPTIMIZER_BUILD,
        (
            ("megatron/core/optimizer/__init__.py", "get_megatron_optimizer"),
            ("megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py", "__init__"),
            ("megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py", "_init_sub_optimizers"),
        ),
    ),
    (
        Stage.CHECKPOINT_LOAD,
        (
            ("megatron/bridge/models/conversion/auto_bridge.py", "load_hf_weights"),
            ("megatron/bridge/models/conversion/model_bridge.py", "load_weights_hf_to_megatron"),
        ),
    ),
    (
        Stage.FORWARD,
        (
            ("verl/workers/actor/megatron_actor.py", "update_policy"),
            ("verl/workers/actor/megatron_actor.py", "forward_backward_batch"),
            ("megatron/core/pipeline_parallel/schedules.py", "forward_backward_no_pipelining"),
            ("megatron/core/pipeline_parallel/schedules.py", "forward_step"),
            ("verl/workers/actor/megatron_actor.py", "loss_func"),
        ),
    ),
    (
        Stage.BACKWARD,
        (
            ("torch/_tensor.py", "backward"),
            ("torch/autograd/function.py", "apply", "return user_fn(self, *args)"),
            ("torch/_functorch/_aot_autograd/runtime_wrappers.py", "backward"),
            ("torch/_functorch/_aot_autograd/utils.py", "call_func_at_runtime_with_args"),
        ),
    ),
    (
        Stage.FORWARD,
        (
            ("model.py", "forward"),
            ("torch/cuda/graphs.py", "replay"),
        ),
    ),
    (
        Stage.GRAPH_CAPTURE,
        (
            ("model.py", "forward"),
            ("torch/_inductor/cudagraph_trees.py", "record_function"),
            ("torch/_inductor/cudagraph_trees.py", "_record"),
        ),
    ),
    (
        Stage.DISTRIBUTED_INIT,
        (
            ("train.py", "main"),
            ("torch/distributed/distributed_c10d.py", "init_process_group"),
            ("torch/distributed/rendezvous.py", "_env_rendezvous_handler"),
            ("torch/distributed/rendezvous.py", "_create_c10d_store"),
        ),
    ),
    (
        Stage.TEARDOWN,
        (
            ("megatron/bridge/training/pretrain.py", "_pretrain"),
            ("megatron/bridge/training/pretrain.py", "_finish_train"),
            ("torch/distributed/distributed_c10d.py", "destroy_process_group"),
        ),
    ),
    (
        Stage.CHECKPOINT_SAVE,
        (
            ("megatron/training/training.py", "train"),
            ("megatron/training/training.py", "save_checkpoint_and_time"),
            ("megatron/training/checkpointing.py", "save_checkpoint"),
            ("megatron/core/dist_checkpointing/serialization.py", "save"),
            ("megatron/core/optimizer/distrib_optimizer.py", "sharded_param_state_fs_model_space"),
        ),
    ),
    (
        Stage.CHECKPOINT_LOAD,
        (
            ("megatron/training/checkpointing.py", "load_checkpoint"),
            ("megatron/core/dist_checkpointing/strategies/torch.py", "load"),
            ("torch/distributed/checkpoint/state_dict_loader.py", "load"),
        ),
    ),
    (
        Stage.VALIDATE,
        (
            ("pretrain_gpt.py", "<module>"),
            ("megatron/training/initialize.py", "initialize_megatron"),
            ("megatron/training/arguments.py", "validate_args"),
        ),
    ),
    (
        Stage.VALIDATE,
        (
            ("megatron/bridge/training/pretrain.py", "pretrain"),
            ("megatron/bridge/training/config.py", "runtime_config_update"),
            ("megatron/bridge/training/config.py", "validate"),
            ("megatron/core/transformer/transformer_config.py", "__post_init__"),
        ),
    ),
    (
        Stage.EVALUATE,
        (
            ("megatron/training/training.py", "evaluate_and_print_results"),
            ("megatron/training/training.py", "evaluate"),
            ("megatron/core/pipeline_parallel/schedules.py", "forward_step"),
        ),
    ),
    (
        Stage.DATA_BUILD,
        (
            ("megatron/training/training.py", "build_train_valid_test_data_iterators"),
            ("pretrain_gpt.py", "train_valid_test_datasets_provider"),
            ("megatron/core/datasets/gpt_dataset.py", "__init__"),
        ),
    ),
    (
        Stage.GRAD_SYNC,
        (
            ("megatron/core/pipeline_parallel/schedules.py", "backward_step"),
            ("megatron/core/distributed/distributed_data_parallel.py", "hook"),
            ("megatron/core/distributed/param_and_grad_buffer.py", "start_grad_sync"),
            ("torch/distributed/distributed_c10d.py", "reduce_scatter_tensor"),
        ),
    ),
    (
        Stage.FORWARD,
        (
            ("megatron/core/transformer/moe/moe_layer.py", "forward"),
            ("megatron/core/tensor_parallel/random.py", "checkpoint"),
            ("megatron/core/tensor_parallel/random.py", "forward"),
            ("megatron/core/transformer/moe/moe_layer.py", "custom_forward"),
        ),
    ),
    (
        Stage.REPLAY,
        (
            ("megatron/core/pipeline_parallel/schedules.py", "custom_backward"),
            ("transformer_engine/pytorch/distributed.py", "backward", "outputs = ctx.run_function("),
            ("megatron/core/transformer/moe/moe_layer.py", "custom_forward"),
            ("megatron/core/transformer/moe/router.py", "forward"),
        ),
    ),
    (
        Stage.BACKWARD,
        (
            ("megatron/core/pipeline_parallel/schedules.py", "custom_backward"),
            ("transformer_engine/pytorch/module/grouped_linear.py", "backward"),
            ("transformer_engine/pytorch/cpp_extensions/gemm.py", "general_grouped_gemm"),
        ),
    ),
    (
        Stage.BETWEEN_STEPS,
        (
            ("megatron/training/training.py", "train"),
            ("megatron/training/training.py", "training_log"),
            ("megatron/core/transformer/moe/moe_utils.py", "track_moe_metrics"),
        ),
    ),
    (
        Stage.UNKNOWN,
        (
            ("megatron/core/pipeline_parallel/schedules.py", "forward_backward_pipelining_without_interleaving"),
            ("megatron/core/pipeline_parallel/p2p_communication.py", "recv_forward"),
            ("megatron/core/pipeline_parallel/p2p_communication.py", "_communicate"),
        ),
    ),
    (
        Stage.FORWARD,
        (
            ("nemo/lightning/megatron_parallel.py", "training_step"),
            ("nemo/lightning/megatron_parallel.py", "forward"),
            ("nemo/lightning/megatron_parallel.py", "__call__"),
            ("megatron/core/pipeline_parallel/schedules.py", "forward_step"),
        ),
    ),
    (
        Stage.DATA_BUILD,
        (
            ("torch/utils/data/dataloader.py", "_next_data"),
            ("torch/utils/data/_utils/worker.py", "_worker_loop"),
        ),
    ),
)


@pytest.mark.parametrize(
    ("stage", "frames"), TRACEBACKS, ids=[f"{frames[-1][1]}-{n}" for n, (_, frames) in enumerate(TRACEBACKS)]
)
def test_the_innermost_frame_that_says_something_wins(stage: Stage, frames: tuple[tuple[str, ...], ...]) -> None:
    found = stage_of([SourceFrame(*frame) for frame in frames])
    assert found.stage is stage, found


def test_a_name_that_says_nothing_is_unknown() -> None:
    found = stage_of([SourceFrame("train.py", "main"), SourceFrame("torch/nn/modules/module.py", "_call_impl")])
    assert (found.stage, found.rule) == (Stage.UNKNOWN, None)
