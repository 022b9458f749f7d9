"""`python -m orchestrator.trial.validate`: the installed Megatron Core's verdict on many configurations.

Reads JSON lines {"id", "trainer", "config", "world_size"} on stdin and answers each at once with a JSON line {"id",
"ok", "message", "open", "software", "effective"} on stdout. `open` names what could not be checked here; `effective` is
null, since only a recipe says more than the question did (orchestrator/trial/bridge/resolve.py). Whatever else is
printed goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, TextIO

from orchestrator.trial.software import software

RECIPE = "recipe"


def main() -> int:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("ignore")
    _import_configuration_classes()
    for answer in verdicts(sys.stdin):
        print(json.dumps(answer), file=answers, flush=True)
    return 0


def verdicts(questions: TextIO) -> Iterator[dict[str, Any]]:
    """One answer for each line that is not blank, in order."""
    found = software(("torch", "megatron.core"))
    for line in questions:
        if not line.strip():
            continue
        identity: Any = None
        try:
            question = json.loads(line)
            identity = question["id"]
            answer = verdict(question["trainer"], question["config"], question.get("world_size"))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one candidate, the next one gets its answer
            traceback.print_exc()
            answer = _refused(f"not a question that can be answered: {type(error).__name__}: {error}")
        yield {"id": identity, **answer, "software": found}


def verdict(trainer: str, config: dict[str, Any], world_size: int | None) -> dict[str, Any]:
    """Whether this trainer can run this configuration, as far as can be said without running it."""
    from orchestrator.trial.mcore_cpu.request import RejectedError

    try:
        if trainer == "mcore_cpu":
            return _mcore_cpu(config, world_size)
        return _recompute_alone(config)
    except RejectedError as error:
        return _refused(str(error))


def _mcore_cpu(config: dict[str, Any], world_size: int | None) -> dict[str, Any]:
    from orchestrator.trial.mcore_cpu.validation import check

    check(config, world_size or int(config.get("parallelism", {}).get("world_size", 1)))
    return {"ok": True, "message": None, "open": [], "effective": None}


def _recompute_alone(config: dict[str, Any]) -> dict[str, Any]:
    """A recipe is only known where its framework is, so only the four settings are checked, on a model of our own.

    What the model decides is taken from the request where it is said there, and otherwise allowed.
    """
    from orchestrator.trial.mcore_cpu.limits import check_modules
    from orchestrator.trial.mcore_cpu.request import RejectedError
    from orchestrator.trial.mcore_cpu.validation import megatron_core_version, module_labels

    names = ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")
    settings = {name: config.get(name, RECIPE) for name in names}
    left_open = [name for name, value in settings.items() if value == RECIPE]
    model = config.get("model") or {}
    left_open += [name for name in _DECIDING if model.get(name, RECIPE) == RECIPE]
    if settings["recompute_granularity"] == "selective" and isinstance(settings["recompute_modules"], list):
        check_modules(settings["recompute_modules"], module_labels(), megatron_core_version())
    given = {name: model[name] for name in _DECIDING if model.get(name, RECIPE) != RECIPE}
    if not any(value == RECIPE for value in settings.values()):
        from megatron.core.transformer.transformer_config import TransformerConfig

        try:
            TransformerConfig(
                num_layers=64,
                hidden_size=64,
                num_attention_heads=1,
                add_bias_linear=False,
                **{**_DECIDING, **given, **settings},
            )
        except (ValueError, AssertionError) as error:
            raise RejectedError(f"Megatron Core refuses it: {' '.join(str(error).split())}") from error
    return {"ok": True, "message": None, "open": left_open, "effective": None}


_DECIDING: dict[str, Any] = {
    "multi_latent_attention": True,
    "num_moe_experts": 8,
    "moe_grouped_gemm": True,
    "moe_shared_expert_intermediate_size": None,
    "moe_shared_expert_overlap": False,
}
"""Settings of a model that decide whether a label is valid, each at the value that allows the most."""


def _refused(message: str) -> dict[str, Any]:
    return {"ok": False, "message": message, "open": [], "effective": None}


def _import_configuration_classes() -> None:
    """Without torch.compile, with which Megatron Core decorates functions, and without the rest of Megatron Core."""
    from orchestrator.trial.mcore_cpu.classes import import_classes
    from orchestrator.trial.mcore_cpu.standins import install_for_torch

    install_for_torch()
    with contextlib.suppress(ImportError):  # said of each question, by what needs it
        import_classes()


if __name__ == "__main__":
    sys.exit(main())
