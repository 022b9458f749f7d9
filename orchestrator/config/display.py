"""Hydra's own flags that show a configuration, answered by Hydra itself."""

from __future__ import annotations

import argparse
import logging

from orchestrator.config.compose import composing
from orchestrator.config.overrides import parsed


def display(flags: argparse.Namespace) -> int:
    """Answer `--cfg`, `--info` or `--shell-completion` as Hydra would for an application of its own.

    Raises:
        UsageError: an override that no run would take either.
    """
    with composing(flags.config_dir, flags.config_name) as composer:
        hydra, name = composer.hydra, composer.config_name
        if flags.shell_completion:
            hydra.shell_completion(config_name=name, overrides=flags.overrides)
            return 0
        words = [override.input_line or "" for override in parsed(flags.overrides, composer.loader, with_hydra=True)]
        composer.check(words)
        if flags.info is not None:
            # Hydra logs what it shows. Where the reader has gone, logging would print a traceback for every line.
            logging.raiseExceptions = False
            hydra.show_info(flags.info, config_name=name, overrides=words)
        else:
            hydra.show_cfg(
                config_name=name, overrides=words, cfg_type=flags.cfg, package=flags.package, resolve=flags.resolve
            )
    return 0
