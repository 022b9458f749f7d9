"""Study modes, from a command line to candidates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.config.compose import compose
from orchestrator.config.errors import UsageError
from orchestrator.config.multirun import Composed
from orchestrator.plan.modes import dropped_from_base, expand_mode, without_effect


def composed(*words: str) -> list[Composed]:
    return [Composed("control", words, compose(["recompute=control", *words]))]


def names(*words: str) -> list[str]:
    return [one.name for one in expand_mode(composed(*words))]


def test_a_grid_stays_as_it_was_asked() -> None:
    asked = composed()
    assert expand_mode(asked) == tuple(asked)


def test_one_at_a_time_adds_or_removes_one_label_of_the_base() -> None:
    found = names("study.mode=one_at_a_time", "recompute_modules=[moe]")
    assert found[:2] == ["[]", "[moe]"]
    assert "[moe,core_attn]" in found
    assert all(name.count(",") <= 1 for name in found)


def test_a_lattice_has_all_small_sets_and_the_control_first() -> None:
    found = names("study.mode=lattice", "study.largest=1", "model=tiny_dense", "parallelism=single")
    assert found[0] == "[]"
    assert "[core_attn]" in found
    assert "[mlp]" in found


def test_labels_that_cannot_act_on_the_model_are_left_out() -> None:
    request = compose(["recompute=control", "model=tiny_dense", "parallelism=single"])
    useless = without_effect(request, ["core_attn", "mla_up_proj", "moe", "moe_act", "shared_experts", "mlp"])
    assert useless == {"mla_up_proj", "moe", "moe_act", "shared_experts"}
    assert not any("moe" in name for name in names("study.mode=lattice", "model=tiny_dense", "parallelism=single"))


def test_a_label_inside_a_broader_one_is_not_tried_beside_it() -> None:
    assert "[moe,shared_experts]" not in names("study.mode=lattice")


def test_every_candidate_is_selective_and_says_its_modules() -> None:
    for one in expand_mode(composed("study.mode=lattice")):
        assert one.request["recompute_granularity"] == "selective"
        assert one.name == f"[{','.join(one.request['recompute_modules'])}]"
        assert f"recompute_modules={one.name}" in one.overrides


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["study.mode=latice"], "did you mean lattice"),
        (["study.mode=one_at_a_time", "recompute=full_uniform"], "say the list"),
    ],
)
def test_what_a_mode_needs_is_said(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        expand_mode([Composed("one", tuple(words), compose(["recompute=control", *words]))])


def test_a_label_of_the_list_that_the_rules_refuse_is_named_with_why() -> None:
    words = ["recompute=control", "recompute_modules=[mlp,moe_act]", "study.mode=one_at_a_time"]
    dropped = dropped_from_base([Composed("one", tuple(words), compose(words))])
    assert list(dropped) == ["moe_act"]
    assert "moe_grouped_gemm" in dropped["moe_act"]
    grid = words[:2]
    assert dropped_from_base([Composed("one", tuple(grid), compose(grid))]) == {}


def test_a_search_names_what_it_cannot_predict() -> None:
    offloading = [*composed("study.mode=escalate"), *composed("study.mode=escalate", "model.cpu_offloading=true")]
    offloading[1] = replace(offloading[1], name="offloads 8")
    with pytest.raises(UsageError, match="what offloads 8 offloads to the host is not predicted"):
        expand_mode(offloading)
