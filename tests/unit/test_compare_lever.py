from __future__ import annotations

from orchestrator.select.lever import OPTIMIZER_BOUND, RESERVED_GAP, Measured, StageUse, verdicts
from orchestrator.vocabulary import Stage

GB = 10**9


def candidate(name, **stages):
    """Stages to GB allocated, or to (allocated, reserved)."""
    uses = {}
    for stage, size in stages.items():
        allocated, reserved = size if isinstance(size, tuple) else (size, None)
        uses[Stage(stage)] = StageUse(round(allocated * GB), None if reserved is None else round(reserved * GB), 0)
    return Measured(name, uses)


# One H200, 16 layers of Moonlight: the optimizer sets the maximum, whatever is recomputed.
CONTROL = candidate("[]", model_build=22.440, forward=69.093, backward=69.227, optimizer_step=67.060)
MOE = candidate("moe", model_build=22.440, forward=47.639, backward=48.390, optimizer_step=69.814)


def test_a_target_below_the_optimizers_own_peak_is_not_reached_by_recompute():
    (verdict,) = verdicts([CONTROL, MOE], 60 * GB)
    assert verdict.id == OPTIMIZER_BOUND
    assert "67.060 GB on rank 0 (with [])" in verdict.text
    assert "48.390 GB at best" in verdict.text


def test_recompute_stays_the_lever_where_the_optimizer_fits():
    assert verdicts([CONTROL, MOE], 68 * GB) == []


def test_without_a_target_the_peak_of_every_candidate_must_sit_in_the_optimizer():
    assert [verdict.id for verdict in verdicts([MOE], None)] == [OPTIMIZER_BOUND]
    assert verdicts([CONTROL, MOE], None) == []


def test_a_candidate_that_never_reached_the_optimizer_proves_nothing():
    assert verdicts([candidate("[]", model_build=22, forward=80)], 60 * GB) == []


def test_memory_that_is_reserved_but_not_allocated_is_named_with_its_size():
    (verdict,) = verdicts([candidate("[]", forward=(50, 75))], 60 * GB)
    assert verdict.id == RESERVED_GAP
    assert "25.000 GB is cached or fragmented" in verdict.text
    assert "expandable_segments" in verdict.text


def test_a_small_gap_is_the_allocators_ordinary_cache():
    assert verdicts([candidate("[]", forward=(59, 62))], 60 * GB) == []
