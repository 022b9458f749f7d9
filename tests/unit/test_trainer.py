"""Trainers are found by name."""

from __future__ import annotations

import pytest

from orchestrator.trial.trainer import UnknownTrainerError, explained, find_trainer


def test_one_of_your_own_is_named_by_module_and_function() -> None:
    assert find_trainer("os.path:join").__name__ == "join"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mcore", "did you mean mcore_cpu"),
        ("zzz", "use mcore_cpu, bridge"),
        ("os.path:absent", "os.path has no absent"),
    ],
)
def test_an_unknown_one_is_answered_with_those_there_are(name: str, message: str) -> None:
    with pytest.raises(UnknownTrainerError, match=message):
        find_trainer(name)


@pytest.mark.parametrize(
    ("package", "trainer", "extra"),
    [("torch", "mcore_cpu", "cpu"), ("megatron.bridge.training", "bridge", "bridge"), ("megatron", "mcore_cpu", "cpu")],
)
def test_a_missing_framework_is_answered_with_its_extra(package: str, trainer: str, extra: str) -> None:
    better = explained(ModuleNotFoundError(f"No module named {package!r}", name=package), trainer)
    assert f"recompute-orchestrator[{extra}]" in str(better)
    assert better.name == package


def test_another_missing_module_is_left_as_it_is() -> None:
    error = ModuleNotFoundError("No module named 'mine'", name="mine")
    assert explained(error, "mcore_cpu") is error
    assert explained(ModuleNotFoundError("x", name="torch"), "mine:train").name == "torch"
