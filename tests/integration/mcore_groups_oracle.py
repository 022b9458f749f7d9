"""A Megatron Core that answers, line by line, whether its groups, stages and micro-batches can be set up.

Groups are made on torch's fake backend: one process plays rank 0 of any world size.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


def main() -> None:
    warnings.simplefilter("ignore")
    from megatron.core import package_info

    print(json.dumps({"version": package_info.__version__}), flush=True)
    for line in sys.stdin:
        try:
            set_up(json.loads(line))
        except Exception as error:  # noqa: BLE001 - any refusal is an answer, whatever its type
            told = {"ok": False, "message": f"{type(error).__name__}: {error}"}
        else:
            told = {"ok": True, "message": None}
        print(json.dumps(told), flush=True)


def set_up(asked: dict[str, Any]) -> None:
    import torch
    from megatron.core import parallel_state
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=asked["world_size"])
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=asked["tp"],
            pipeline_model_parallel_size=asked["pp"],
            virtual_pipeline_model_parallel_size=asked["vpp"],
            context_parallel_size=asked["cp"],
            expert_model_parallel_size=asked["ep"],
            expert_tensor_parallel_size=asked["etp"],
            create_gloo_process_groups=False,
        )
        replicas = parallel_state.get_data_parallel_world_size()
        ConstantNumMicroBatchesCalculator(asked["global_batch_size"], asked["micro_batch_size"], replicas, False, 0)
        config = TransformerConfig(
            num_layers=asked["num_layers"],
            hidden_size=64,
            num_attention_heads=asked["tp"],
            num_moe_experts=asked["ep"],
            add_bias_linear=False,
            tensor_model_parallel_size=asked["tp"],
            pipeline_model_parallel_size=asked["pp"],
            virtual_pipeline_model_parallel_size=asked["vpp"],
            expert_model_parallel_size=asked["ep"],
            pipeline_dtype=torch.float32,
        )
        for stage in range(asked["pp"]):
            for virtual in range(asked["vpp"] or 1):
                get_num_layers_to_build(config, vp_stage=virtual, pp_rank=stage)
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
