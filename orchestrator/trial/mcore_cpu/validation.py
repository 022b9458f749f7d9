"""Whether a request can run here: this trainer's limits first, then Megatron Core's own TransformerConfig."""

from __future__ import annotations

import ast
import re
import warnings
from functools import lru_cache
from typing import Any

from orchestrator.trial.mcore_cpu.limits import check_limits, check_modules
from orchestrator.trial.mcore_cpu.request import RejectedError, Request, read_request
from orchestrator.trial.mcore_cpu.transformer import build_transformer_config

_BOGUS = "__no_such_label__"


def check(config: dict[str, Any], world_size: int) -> tuple[Request, Any]:
    """The request in a trial's configuration and the finished TransformerConfig.

    Needs no process group and touches no device; the first call imports Megatron Core.

    Raises:
        RejectedError: it cannot run; the message says what is wrong, which setting, and what would work.
    """
    request = read_request(config, world_size)
    if request.recompute.granularity == "selective":
        check_modules(request.recompute.modules, module_labels(), megatron_core_version())
    check_limits(request)
    return request, build_transformer_config(request)


def megatron_core_version() -> str:
    from megatron.core import __version__ as version

    return str(version)


@lru_cache(maxsize=1)
def module_labels() -> tuple[str, ...]:
    """The labels that the installed Megatron Core allows, as it says itself when it is given a wrong one.

    Raises:
        RejectedError: it says nothing that can be read.
    """
    from megatron.core.transformer.transformer_config import TransformerConfig

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TransformerConfig(
                num_layers=1,
                hidden_size=4,
                num_attention_heads=1,
                recompute_granularity="selective",
                recompute_modules=[_BOGUS],
            )
    except AssertionError as error:
        found = re.search(r"Allowed modules are: (\{[^}]*\}|\[[^\]]*\])", str(error))
        if found:
            return tuple(sorted(ast.literal_eval(found.group(1))))
    raise RejectedError(
        f"Megatron Core {megatron_core_version()} does not say which labels recompute_modules may have: "
        "this release was checked with 0.16.1 and 0.15.3"
    )
