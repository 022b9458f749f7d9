"""Megatron Core's configuration classes alone, in about half of the time and with 80 MB less than all of it takes.

`megatron.core` imports its models, optimizers, checkpointing and inference with it, and these import DTensor (which
brings sympy) and wandb. A configuration object needs none of them. So the two packages around its module are entered
here without running their own `__init__.py`, whose only work is to import the rest; every module below them is the
revision's own. Checked with Megatron Core 0.16.1 and 0.15.3: the verdicts are the same (tests/integration).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_PACKAGES = ("megatron.core", "megatron.core.transformer")
_FIRST = "megatron.core.parallel_state"
"""Imported first, as `megatron/core/__init__.py` does: it and `megatron.core.utils` import each other."""
_NOT_READ = ("torch.distributed._tensor", "wandb")
"""What is imported there only `try: … except ImportError:`, and no configuration reads."""
CLASSES = "megatron.core.transformer.transformer_config"


def import_classes() -> bool:
    """Import the module of TransformerConfig, in a process that needs nothing else of Megatron Core.

    Returns whether that was possible; where a revision is built otherwise, all of it is imported.

    Raises:
        ImportError: there is no Megatron Core, or it cannot be imported.
    """
    if any(name in sys.modules for name in _PACKAGES):
        importlib.import_module(CLASSES)
        return False
    try:
        with hidden(_NOT_READ):
            for name in _PACKAGES:
                sys.modules[name] = _entered(name)
            package: Any = sys.modules["megatron.core"]
            package.__version__ = importlib.import_module("megatron.core.package_info").__version__
            importlib.import_module(_FIRST)
            importlib.import_module(CLASSES)
    except Exception:  # noqa: BLE001 - whatever it was, the whole package says better what is missing
        for name in [name for name in sys.modules if name.startswith("megatron.core")]:
            del sys.modules[name]
        importlib.import_module(CLASSES)
        return False
    return True


@contextmanager
def hidden(names: Iterable[str]) -> Iterator[None]:
    """Imports of these fail, as if they were not installed, unless they are imported already."""
    absent = [name for name in names if name not in sys.modules]
    blocked: dict[str, Any] = dict.fromkeys(absent)
    sys.modules.update(blocked)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def _entered(name: str) -> ModuleType:
    """The package with its folder and nothing in it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"{name} is no package here")
    return importlib.util.module_from_spec(spec)
