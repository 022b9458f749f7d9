"""A recipe that needs two ranks and a variable."""

from types import SimpleNamespace as Section


def two_stages() -> Section:
    return Section(
        model=Section(
            tensor_model_parallel_size=1,
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=None,
            context_parallel_size=1,
            expert_model_parallel_size=1,
            expert_tensor_parallel_size=None,
            sequence_parallel=False,
            pipeline_model_parallel_layout=None,
            seq_length=64,
            vocab_size=128,
            recompute_granularity=None,
            recompute_modules=None,
            recompute_method=None,
            recompute_num_layers=None,
        ),
        train=Section(micro_batch_size=1, global_batch_size=2, train_iters=2),
        rng=Section(seed=1),
        tokenizer=Section(tokenizer_type="NullTokenizer", tokenizer_model=None, vocab_size=128),
        mixed_precision=Section(),
        optimizer=Section(),
        env_vars={"OF_THE_RECIPE": "1"},
    )
