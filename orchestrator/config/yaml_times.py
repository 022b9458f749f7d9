"""Times in configuration files stay the text that was written.

YAML 1.1 reads `10:30` as 630, a number to base 60, which sbatch would take for as many minutes. YAML 1.2 dropped that.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

_INTEGER = "tag:yaml.org,2002:int"
_WITHOUT_COLONS = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
_read: list[bool] = []


def read_times_as_text() -> None:
    """Have OmegaConf, and so Hydra, read files without numbers to base 60. Once for a process."""
    if _read:
        return
    module: Any = importlib.import_module("omegaconf._utils")
    original = module.get_yaml_loader

    def loader() -> Any:
        made = original()
        made.yaml_implicit_resolvers = {
            first: [(tag, _WITHOUT_COLONS if tag == _INTEGER else pattern) for tag, pattern in resolvers]
            for first, resolvers in made.yaml_implicit_resolvers.items()
        }
        return made

    module.get_yaml_loader = loader
    _read.append(True)
