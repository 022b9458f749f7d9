"""How the exact revision is asked: once for many, kept, and never a traceback for what it answers or how it dies."""

from __future__ import annotations

import json
import pwd
import stat
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.plan.answers import Answers
from orchestrator.plan.candidate import Candidate
from orchestrator.plan.installation import Installation, installation_of
from orchestrator.plan.validator import RESOLVER, Ended, default_cache_dir, validate, why_it_ended

ANSWERS = """
import json, os, sys
print("a banner that some import prints")
count = os.environ["ASKED"]
for line in sys.stdin:
    question = json.loads(line)
    with open(count, "a") as log:
        log.write(question["trainer"] + "\\n")
    modules = question["config"]["recompute_modules"]
    {behaviour}
    print(json.dumps({{
        "id": question["id"], "ok": modules != ["bad"], "message": "bad list" if modules == ["bad"] else None,
        "open": ["no GPU here"], "software": {{"megatron_core": "0.16.1"}}, "effective": None,
    }}), flush=True)
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    (tmp_path / "asked").touch()
    return tmp_path / "asked"


def interpreter(folder: Path, behaviour: str = "pass") -> Installation:
    """A python that answers the protocol, as any revision's environment would."""
    script = folder / "validate.py"
    script.write_text(textwrap.dedent(ANSWERS).format(behaviour=behaviour))
    program = folder / "python"
    program.write_text(f"#!/bin/sh\nexec python3 {script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Installation(python=str(program))


def candidates(*modules: Any) -> list[Candidate]:
    return [Candidate(str(item), {"recompute_granularity": "selective", "recompute_modules": item}) for item in modules]


def test_answers_come_back_in_order_with_what_stayed_open(tmp_path: Path, asked: Path) -> None:
    result = validate(candidates([], ["bad"], ["mlp"]), interpreter(tmp_path), cache_dir=tmp_path / "cache")
    assert [verdict and verdict.ok for verdict in result.verdicts] == [True, False, True]
    assert result.verdicts[1] is not None
    assert result.verdicts[1].message == "bad list"
    assert result.verdicts[0] is not None
    assert result.verdicts[0].open == ("no GPU here",)
    assert result.core_version == "0.16.1"
    assert result.notes == ()


def test_equal_configurations_are_asked_once_and_known_ones_never_again(tmp_path: Path, asked: Path) -> None:
    python = interpreter(tmp_path)
    first = validate(candidates([], [], ["mlp"]), python, cache_dir=tmp_path / "cache")
    second = validate(candidates(["mlp"], [], ["moe"]), python, cache_dir=tmp_path / "cache")
    assert (first.asked, second.asked) == (2, 1)
    assert len(asked.read_text().splitlines()) == 3
    assert second.software == {"megatron_core": "0.16.1"}


def test_another_checkout_is_asked_anew(tmp_path: Path, asked: Path) -> None:
    python = interpreter(tmp_path)
    core = tmp_path / "checkout" / "megatron" / "core" / "transformer"
    core.mkdir(parents=True)
    (core / "transformer_config.py").write_text("A = 1\n")
    changed = Installation(python.python, checkout=str(tmp_path / "checkout"))
    assert validate(candidates([]), python, cache_dir=tmp_path / "cache").asked == 1
    assert validate(candidates([]), changed, cache_dir=tmp_path / "cache").asked == 1
    assert validate(candidates([]), changed, cache_dir=tmp_path / "cache").asked == 0
    (core / "transformer_config.py").write_text("A = 2\n")
    assert validate(candidates([]), changed, cache_dir=tmp_path / "cache").asked == 1


def test_a_pinned_revision_that_is_checked_out_is_the_one_asked(tmp_path: Path) -> None:
    for name in ("megatron_core-abc1234", "megatron_core-def5678"):
        (tmp_path / "trees" / name / "megatron" / "core").mkdir(parents=True)
    request = {"revisions": {"megatron_core": "def5678", "worktrees": str(tmp_path / "trees")}}
    found, doubt = installation_of(request)
    assert found.checkout == str(tmp_path / "trees" / "megatron_core-def5678")
    assert doubt is None
    assert installation_of({"revisions": {"megatron_core": None}}) == (Installation(), None)
    as_path = {"revisions": {"megatron_core": str(tmp_path / "trees" / "megatron_core-abc1234")}}
    assert installation_of(as_path)[0].checkout == as_path["revisions"]["megatron_core"]


def test_a_pinned_revision_that_is_not_here_leaves_its_candidates_open(
    tmp_path: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = interpreter(tmp_path)
    monkeypatch.setattr(
        "orchestrator.plan.validator.installation_of", lambda request: (python, installation_of(request)[1])
    )
    free, pinned = candidates([], [])
    pinned = Candidate("pinned", {**pinned.request, "revisions": {"megatron_core": "abc1234"}})
    result = validate([free, pinned], cache_dir=tmp_path / "cache")
    assert result.verdicts[0] is not None
    assert result.verdicts[0].open == ("no GPU here",)
    assert result.verdicts[1] is not None
    assert "revisions.megatron_core=abc1234 is not checked out" in result.verdicts[1].open[-1]


def test_a_configuration_that_kills_the_process_is_named_and_the_rest_is_answered(tmp_path: Path, asked: Path) -> None:
    dies = interpreter(tmp_path, 'os.abort() if modules == ["bad"] else None')
    result = validate(candidates([], ["bad"], ["mlp"]), dies, cache_dir=tmp_path / "cache")
    assert [verdict and verdict.ok for verdict in result.verdicts] == [True, None, True]
    assert "['bad']" in result.notes[0]


def test_a_framework_that_is_not_there_leaves_everything_open_with_the_reason(tmp_path: Path, asked: Path) -> None:
    missing = interpreter(tmp_path, 'raise SystemExit("No module named megatron")')
    result = validate(candidates([], ["mlp"]), missing, cache_dir=tmp_path / "cache")
    assert result.verdicts == (None, None)
    assert "No module named megatron" in result.notes[0]
    nowhere = validate(candidates([]), Installation(python=str(tmp_path / "absent")), cache_dir=tmp_path / "cache")
    assert nowhere.verdicts == (None,)
    assert "could not be started" in nowhere.notes[0]


def test_a_process_that_hangs_is_ended(tmp_path: Path, asked: Path) -> None:
    hangs = interpreter(tmp_path, "import time; time.sleep(60)")
    result = validate(candidates([]), hangs, cache_dir=tmp_path / "cache", timeout=0.5)
    assert result.verdicts == (None,)
    assert "longer than" in result.notes[0]


def test_a_spoilt_cache_is_asked_again(tmp_path: Path, asked: Path) -> None:
    python = interpreter(tmp_path)
    validate(candidates([]), python, cache_dir=tmp_path / "cache")
    (stored,) = (tmp_path / "cache").iterdir()
    for text in ("not json", "[]", '{"answers": {"x": 3}, "software": {}}'):
        stored.write_text(text)
        assert validate(candidates([]), python, cache_dir=tmp_path / "cache").verdicts[0] is not None


def test_a_cache_that_cannot_be_written_costs_only_a_note(tmp_path: Path, asked: Path) -> None:
    (tmp_path / "file").touch()
    result = validate(candidates([]), interpreter(tmp_path), cache_dir=tmp_path / "file" / "cache")
    assert result.verdicts[0] is not None
    assert "could not be kept" in result.notes[0]


def test_what_a_recipe_meant_is_kept_for_predictions_and_stored_once(tmp_path: Path) -> None:
    kept = Answers.open(tmp_path / "cache", "one")
    model = {"hidden_size": 64, "q_lora_rank": None, "init_method_std": 0.02}
    for digest, modules in (("a", []), ("b", ["moe"])):
        effective = {"model": {**model, "recompute_modules": modules}, "logger": {"x": 1}}
        kept.add(digest, {"ok": True, "resolved": {"parallelism": {}, "x": 1}, "effective": effective})
    kept.add("c", {"ok": True, "resolved": None, "effective": {"model": model}})
    assert kept.save() == []
    again = Answers.open(tmp_path / "cache", "one")
    found = [again.verdict(digest) for digest in ("a", "b", "c")]
    assert [verdict and verdict.effective for verdict in found] == [
        {"model": {"hidden_size": 64, "q_lora_rank": None, "recompute_modules": []}},
        {"model": {"hidden_size": 64, "q_lora_rank": None, "recompute_modules": ["moe"]}},
        None,
    ]
    assert len(again.jobs) == 1


def test_a_user_without_a_home_has_a_cache_that_cannot_be_kept_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> Any:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert default_cache_dir() == Path("/nonexistent/.cache/recompute-orchestrator/validation")


@dataclass(frozen=True)
class OtherMachine:
    """Answers as a node does on which the recipe can be built."""

    name: str
    heard: list[str] = field(default_factory=list, compare=False)

    def key(self) -> str:
        return self.name

    def ask(self, questions: str, module: str, count: int) -> Ended:
        lines = [json.loads(line) for line in questions.splitlines()]
        self.heard.extend([module] * count)
        answers = [{"id": line["id"], "ok": True, "resolved": {"parallelism": {"world_size": 8}}} for line in lines]
        return Ended("".join(json.dumps(answer) + "\n" for answer in answers), "")


def of_recipe(world_size: Any, modules: list[str]) -> Candidate:
    request = {"recompute_modules": modules, "trainer": {"name": "bridge"}, "parallelism": {"world_size": world_size}}
    return Candidate(str(modules), request)


def test_a_recipe_that_leaves_the_ranks_open_is_asked_elsewhere_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Installation, "has_bridge", lambda self: False)
    node = OtherMachine("node")
    asked = [of_recipe("recipe", []), of_recipe("recipe", ["mlp"])]
    for _ in range(2):
        found = validate(asked, elsewhere=lambda request: node, cache_dir=tmp_path)
        assert [verdict and verdict.resolved["parallelism"]["world_size"] for verdict in found.verdicts] == [8, 8]
    assert node.heard == [RESOLVER] * 2


def test_no_other_machine_is_asked_where_the_ranks_are_given_or_the_recipe_can_be_built_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = OtherMachine("node")
    here = interpreter(tmp_path)
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    for builds, size in ((False, 16), (True, "recipe")):
        monkeypatch.setattr(Installation, "has_bridge", lambda self, builds=builds: builds)
        validate([of_recipe(size, [])], here, elsewhere=lambda request: node, cache_dir=tmp_path)
    assert not node.heard


def test_a_recipe_that_asks_a_hub_is_answered_with_what_would_work():
    said = "OSError: We couldn't connect to 'https://huggingface.co' to load the files\nCheck your internet connection."
    assert "model.huggingface_config" in why_it_ended(1, said)
    assert why_it_ended(1, "Traceback\nKeyError: 'x'\n\n") == "exit status 1, KeyError: 'x'"
    assert why_it_ended(-9, "") == "exit status -9, it said nothing"
