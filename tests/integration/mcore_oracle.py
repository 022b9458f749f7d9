"""A Megatron Core of any revision that answers, line by line, whether it accepts a configuration.

Run as a program, with that revision first on PYTHONPATH; with the argument `classes`, only its configuration classes
are imported, as planning does. Transformer Engine is taken to be present and new: its absence here is not what the
rules are compared with.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from typing import Any


def main() -> None:
    warnings.simplefilter("ignore")
    import torch

    if sys.argv[1:] == ["classes"]:
        from orchestrator.trial.mcore_cpu.classes import import_classes

        assert import_classes()
    from megatron.core import package_info
    from megatron.core.transformer import transformer_config

    transformer_config.is_te_min_version = lambda *_, **__: True
    print(json.dumps({"version": package_info.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), torch, transformer_config)), flush=True)


def answer(fields: dict[str, Any], torch: Any, transformer_config: Any) -> dict[str, Any]:
    kind = transformer_config.TransformerConfig
    if fields.get("multi_latent_attention"):
        kind = transformer_config.MLATransformerConfig
    known = {field.name for field in dataclasses.fields(kind)}
    given = {name: value for name, value in fields.items() if name in known}
    given |= {"pipeline_dtype": torch.float32, "params_dtype": torch.float32}
    try:
        kind(**given)
    except Exception as error:  # noqa: BLE001 - any refusal is an answer, whatever its type
        return {"ok": False, "message": f"{type(error).__name__}: {error}"}
    return {"ok": True, "message": None}


if __name__ == "__main__":
    main()
