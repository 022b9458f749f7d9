"""Overrides to a plain configuration, by Hydra's Compose API in this process."""

from __future__ import annotations

import copy
import importlib
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.conf_dirs import search_folders
from orchestrator.config.errors import UsageError
from orchestrator.config.overrides import first_line, is_group, parsed
from orchestrator.config.schema import RECIPE, RECOMPUTE_KEYS
from orchestrator.config.typecheck import checked
from orchestrator.vocabulary.units import GB

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

OPEN_GROUPS = ("model", "parallelism", "precision", "training", "trainer", "cluster", "revisions", "study", "store")
TRAINED_GROUPS = ("model", "parallelism", "precision", "training")


@dataclass(frozen=True)
class Composer:
    """Hydra, opened on one search path. Use `composing` to get one."""

    hydra: Hydra
    config_name: str
    folders: tuple[Path, ...]
    composed: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)
    """Configurations before values are set, by the files chosen."""

    @property
    def loader(self) -> ConfigLoader:
        return self.hydra.config_loader

    def raw(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The composed configuration with its interpolations resolved, before the schema is applied.

        Raises:
            UsageError: in Hydra's or OmegaConf's words, on one line.
        """
        from omegaconf import OmegaConf

        with _one_line():
            plain = OmegaConf.to_container(self._derived(parsed(overrides, self.loader)), resolve=True)
        if not isinstance(plain, dict):
            raise UsageError(f"{self.config_name}.yaml is not a dictionary of settings.")
        return {str(key): value for key, value in plain.items()}

    def check(self, overrides: Sequence[str]) -> None:
        """Compose and drop the result, so that what is wrong is said in one line.

        Raises:
            UsageError: as `raw`.
        """
        with _one_line():
            self._composed(overrides, with_hydra=True)

    def sweeper_params(self) -> dict[str, str]:
        """What a configuration file declares in `hydra.sweeper.params`: overrides, most of them sweeps."""
        with _one_line():
            params = self._composed([], with_hydra=True).hydra.sweeper.get("params")
        return {str(key): str(value) for key, value in (params or {}).items()}

    def _derived(self, overrides: Sequence[Override]) -> DictConfig:
        """As Hydra composes it, but files are read once for each choice of files: a grid mostly varies values."""
        from omegaconf import OmegaConf
        from omegaconf.errors import ConfigAttributeError, ConfigKeyError

        choices = [override for override in overrides if is_group(override, self.loader)]
        values = [override for override in overrides if override not in choices]
        texts = [override.input_line or "" for override in overrides]
        if not all(_changes_value(override) for override in values):
            return self._composed(texts, with_hydra=False)
        chosen = tuple(override.input_line or "" for override in choices)
        if chosen not in self.composed:
            self.composed[chosen] = self._composed(chosen, with_hydra=False)
        config = copy.deepcopy(self.composed[chosen])
        try:
            for override in values:
                OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        except (ConfigAttributeError, ConfigKeyError):
            return self._composed(texts, with_hydra=False)
        return config

    def _composed(self, overrides: Sequence[str], with_hydra: bool) -> DictConfig:
        from hydra import compose as hydra_compose

        return hydra_compose(self.config_name, overrides=list(overrides), return_hydra_config=with_hydra)

    def compose(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The request: a plain, resolved, checked configuration.

        Raises:
            UsageError: a setting that does not exist or has the wrong type.
        """
        return finished(checked(self.raw(overrides)))


def _changes_value(override: Override) -> bool:
    """Whether it only changes a value, so that files and their order stay the same."""
    adds = override.is_add() or override.is_force_add()
    return not (adds or override.is_delete() or override.is_hydra_override())


@contextmanager
def _one_line() -> Iterator[None]:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    yaml_error: type[Exception] = importlib.import_module("yaml").YAMLError
    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml_error) as error:
        raise UsageError(_sentence(error)) from error


@contextmanager
def composing(
    config_dir: str | None = None, config_name: str | None = None, working_dir: Path | None = None
) -> Iterator[Composer]:
    """Open Hydra on the user's own conf folders and then ours.

    Raises:
        UsageError: `config_dir` is no folder.
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    folders = search_folders(config_dir, working_dir or Path.cwd())
    _register(folders)
    opened_before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        initialize_config_dir(str(folders[-1]), job_name="orchestrator", version_base="1.3")
        hydra = GlobalHydra.instance().hydra
        if hydra is None:
            raise RuntimeError("Hydra did not open")
        yield Composer(hydra, config_name or "config", tuple(folders))
    finally:
        GlobalHydra.instance().hydra = opened_before


def compose(
    overrides: Sequence[str] = (), config_dir: str | None = None, config_name: str | None = None
) -> dict[str, Any]:
    """The request of one set of overrides, none of which may be a sweep.

    Raises:
        UsageError: as `Composer.compose`, and for sweeps.
    """
    with composing(config_dir, config_name) as composer:
        words = parsed(overrides, composer.loader)
        for override in words:
            if override.is_sweep_override():
                raise UsageError(f"{override.input_line} is a sweep, and one configuration was asked for.")
        return composer.compose([word.input_line or "" for word in words])


def finished(request: dict[str, Any]) -> dict[str, Any]:
    """The request in its one spelling: times in seconds, and an explicit list of modules as selective recompute.

    Raises:
        UsageError: a value that no trainer could take, or the word `recipe` where there is no recipe.
    """
    trainer = request["trainer"]
    if trainer["name"] != "bridge":
        _refuse_recipe(request)
    if isinstance(request["recompute_modules"], list) and request["recompute_granularity"] == RECIPE:
        request["recompute_granularity"] = "selective"
        request["recompute_method"] = None
        request["recompute_num_layers"] = None
    trainer["time_limit"] = seconds(trainer["time_limit"], "trainer.time_limit")
    for setting, value in (
        ("trainer.memory_limit_gb", trainer["memory_limit_gb"]),
        ("trainer.stall_seconds", trainer["stall_seconds"]),
        ("trainer.time_limit", trainer["time_limit"]),
        ("training.train_iters", request["training"]["train_iters"]),
        ("study.repeats", request["study"]["repeats"]),
        ("study.target_gb", request["study"]["target_gb"]),
        ("study.gpu_hours", request["study"]["gpu_hours"]),
        ("cluster.parallel_trials", request["cluster"]["parallel_trials"]),
        ("parallelism.world_size", request["parallelism"]["world_size"]),
    ):
        if isinstance(value, (int, float)) and not value > 0:
            raise UsageError(f"{setting} must be above zero, not {value:g}.")
        if value == math.inf:
            raise UsageError(f"{setting} must be a finite number, or null for no limit.")
    limit = trainer["memory_limit_gb"]
    if limit is not None and limit * GB >= 2**63:
        raise UsageError(
            f"trainer.memory_limit_gb={limit:g} is more bytes than 64 bits can count; null means no limit."
        )
    if request["cluster"]["retries"] < 0:
        raise UsageError(f"cluster.retries must be zero or more, not {request['cluster']['retries']}.")
    if not request["study"]["name"].strip():
        raise UsageError("study.name is empty: `compare`, `show` and `cancel` need a name to find the study by.")
    return request


def seconds(value: float | str | None, setting: str) -> float | None:
    """A duration in seconds, from seconds, `90m`, `1.5h` or `1:30:00`.

    Raises:
        UsageError: none of these.
    """
    if value is None or isinstance(value, (int, float)):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", value.strip())
    if match:
        return float(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match.group(2)]
    match = re.fullmatch(r"(\d+):(\d{1,2}):(\d{1,2})", value.strip())
    if match:
        hours, minutes, rest = (int(part) for part in match.groups())
        return float(hours * 3600 + minutes * 60 + rest)
    raise UsageError(f"{setting} must be seconds, or a time as 90m, 1.5h or 1:30:00, not {value!r}.")


def _refuse_recipe(request: dict[str, Any]) -> None:
    found = [key for key in RECOMPUTE_KEYS if request[key] == RECIPE]
    found += [f"{group}.{key}" for group in TRAINED_GROUPS for key, value in request[group].items() if value == RECIPE]
    if found:
        raise UsageError(
            f"{found[0]}=recipe means as the recipe has it, and trainer={request['trainer']['name']} has no recipe: "
            "give it a value, or use trainer=bridge."
        )


def _sentence(error: BaseException) -> str:
    said = first_line(error)
    cause = error.__cause__ or error.__context__
    if cause is not None and (not str(error) or said == type(error).__name__):
        said = first_line(cause)
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        what = ", ".join(part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part)
        said = f"{mark.name}, line {mark.line + 1}, is no YAML: {what}"
    return said[:1].upper() + said[1:].rstrip(".") + "."


_FOLDERS: list[Path] = []


def _register(folders: Sequence[Path]) -> None:
    """Tell Hydra of every folder but the last, which it is opened on."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin
    from omegaconf import OmegaConf

    first_time = not _REGISTERED
    _FOLDERS[:] = folders[:-1]
    if not first_time:
        return

    class UserFolders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for folder in reversed(_FOLDERS):
                search_path.prepend(provider="orchestrator", path=f"file://{folder}")

    Plugins.instance().register(UserFolders)
    # A group's node is left open, so that `model.kv_channels=64` needs no `+`: the schema knows which names exist.
    node = OmegaConf.create({group: {} for group in OPEN_GROUPS})
    for group in OPEN_GROUPS:
        node[group]._set_flag("struct", False)
    ConfigStore.instance().store(name="orchestrator", node=node)
    _REGISTERED.append(True)


_REGISTERED: list[bool] = []
