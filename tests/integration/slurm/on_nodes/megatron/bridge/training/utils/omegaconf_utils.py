"""Bridge's own overrides."""

import json
from typing import Any

from omegaconf import DictConfig, OmegaConf


def create_omegaconf_dict_config(container: Any) -> tuple[DictConfig, dict[str, Any]]:
    return OmegaConf.create(
        {name: dict(vars(part)) for name, part in vars(container).items() if name != "env_vars"}
    ), {}


def process_config_with_overrides(container: Any, cli_overrides: list[str]) -> None:
    for line in cli_overrides:
        path, _, value = line.removeprefix("++").partition("=")
        section, _, name = path.partition(".")
        setattr(getattr(container, section), name, json.loads(value))
