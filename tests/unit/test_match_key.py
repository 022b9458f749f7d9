from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_rows import early_failure, row

from orchestrator.analysis.match import join, match_key
from orchestrator.select.match import differences


def digest(**changes):
    return match_key(row(**changes)).digest


@pytest.mark.parametrize(
    "field",
    [
        {"recompute_modules": ["core_attn"], "recompute_granularity": "full", "recompute_num_layers": 3},
        {"cpu_offloading": True, "cpu_offloading_num_layers": 2, "_cpu_offloading_context": "x"},
        {"tensorboard_dir": "/a/b", "path_to_cache": "/c", "hostname": "n1", "master_port": 12, "gpu_uuid": "GPU-1"},
        {"run_name": "mine", "wandb_project": "p", "dataset_cache_seed": 4},
        {"stall_seconds": 30, "time_limit": 60},
    ],
)
def test_fields_that_never_decide_a_result_are_left_out(field):
    assert digest(effective_model=field) == digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"effective_model": {"num_layers": 5}},
        {"effective_model": {"q_lora_rank": 64}},
        {"effective_model": {"use_mamba_mem_eff_path": True}},
        {"effective_model": {"kv_lora_rank": 64}},
        {"effective_model": {"distribute_saved_activations": True}},
        {"environment": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
        {"environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}},
        {"software": {"torch": {"version": "2.14"}}},
        {"device_name": "NVIDIA H200"},
        {"memory_limit": 10**9},
        {"world_size": 4},
        {"steady_window": (6, 10)},
    ],
)
def test_whatever_can_change_a_result_changes_the_key(changes):
    assert digest(**changes) != digest()


def test_environment_of_the_launch_is_left_out():
    assert (
        digest(environment={"SLURM_JOB_ID": "7", "RANK": "1", "MASTER_PORT": "9", "TRITON_CACHE_DIR": "/x"}) == digest()
    )


def test_differences_name_the_fields_with_each_value():
    keys = [match_key(row()), match_key(row(effective_model={"num_layers": 8}, memory_limit=5))]
    assert [(item.field, item.values) for item in differences(keys)] == [
        ("effective.model.num_layers", (4, 8)),
        ("memory_limit", (None, 5)),
    ]


def test_an_early_failure_joins_the_rows_that_asked_for_the_same():
    groups = join([row(), early_failure(["moe"])])
    assert len(groups) == 1


def test_an_early_failure_that_asked_for_another_model_stays_alone():
    other = early_failure(["moe"])
    other.requested["model"]["num_layers"] = 9
    assert len(join([row(), other])) == 2


def test_of_two_software_versions_an_early_failure_joins_its_own_job():
    old = row(batch="job-1", started_at=1.0)
    new = row(batch="job-2", started_at=2.0, software={"torch": {"version": "2.14"}})
    failed = early_failure(["moe"], batch="job-1")
    assert join([new, failed, old])[match_key(old).digest] == [old, failed]


def test_an_early_failure_under_other_allocator_settings_stays_alone():
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert len(join([row(), early_failure(["moe"], environment=environment)])) == 2


@given(st.dictionaries(st.text(min_size=1), st.one_of(st.none(), st.integers(), st.text(), st.booleans())))
def test_the_order_of_fields_changes_no_key(model):
    turned = dict(reversed(model.items()))
    assert digest(effective_model=model) == digest(effective_model=turned)
