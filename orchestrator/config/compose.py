"""Overrides to a plain configuration, by Hydra's Compose API in this process."""

from __future__ import annotations

import importlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.conf_dirs import search_folders
from orchestrator.config.errors import UsageError
from orchestrator.config.finish import finished
from orchestrator.config.overrides import check_value, first_line, is_group, parsed
from orchestrator.config.plain import Word, is_literal, with_values
from orchestrator.config.secrets import refuse_secret_values, secrets_of
from orchestrator.config.typecheck import checked
from orchestrator.config.yaml_times import read_times_as_text

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

OPEN_GROUPS = ("model", "parallelism", "precision", "training", "trainer", "cluster", "revisions", "study", "store")


@dataclass(frozen=True)
class _Base:
    """The configuration of a set of group choices, with its interpolations as they were written."""

    config: dict[str, Any]
    is_literal: bool


@dataclass(frozen=True)
class Composer:
    """Hydra, opened on one search path. Use `composing` to get one."""

    hydra: Hydra
    config_name: str
    folders: tuple[Path, ...]
    _bases: dict[tuple[str, ...], _Base | None] = field(default_factory=dict, repr=False)
    """By the words that choose files; None where Hydra refuses them."""
    _words: dict[str, Word] = field(default_factory=dict, repr=False)
    _checked: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict, repr=False)
    """Groups that the schema was applied to, by name and content."""
    _secrets: dict[str, str] = field(default_factory=lambda: secrets_of(os.environ), repr=False)
    _harmless: dict[int, Any] = field(default_factory=dict, repr=False)
    """What no secret stands in, by identity: requests share it."""

    @property
    def loader(self) -> ConfigLoader:
        return self.hydra.config_loader

    def raw(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The composed configuration with its interpolations resolved, before the schema is applied.

        It equals Hydra's own composition (a test holds the two against each other on random grids), and shares its
        parts with other results: it must not be changed.

        Raises:
            UsageError: in Hydra's or OmegaConf's words, on one line.
        """
        words = [self._word(word) for word in overrides]
        base = self._base(tuple(word.text for word in words if word.is_group))
        config = None if base is None else with_values(base.config, words, OPEN_GROUPS)
        if base is None or config is None:
            return self.composed_by_hydra(overrides)
        return config if base.is_literal else _resolved(config)

    def composed_by_hydra(self, overrides: Sequence[str]) -> dict[str, Any]:
        """As `raw`, by Hydra alone.

        Raises:
            UsageError: as `raw`.
        """
        words = parsed(overrides, self.loader)
        texts = [override.input_line or "" for override in words]
        try:
            with _one_line():
                config = self._composed(texts, with_hydra=False)
            return _resolved(config)
        except UsageError as error:
            for override in words:
                if not is_group(override, self.loader):
                    check_value(override)
            raise self._blamed(error, texts) from error

    def compose(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The request: a plain, resolved, checked configuration. Requests of one composer share equal groups, so they
        must not be changed.

        Raises:
            UsageError: a setting that does not exist or has the wrong type, or that holds a secret of the environment.
        """
        try:
            request = finished(checked(self.raw(overrides), self._checked))
        except UsageError as error:
            raise self._with_shadow(error) from error
        self._refuse_secrets(request)
        return request

    def _refuse_secrets(self, request: Mapping[str, Any]) -> None:
        for key, group in request.items():
            # The database's address is written nowhere, and holds a password by its nature.
            if self._secrets and key != "store" and self._harmless.get(id(group)) is not group:
                refuse_secret_values(group, key, self._secrets)
                self._harmless[id(group)] = group

    def check(self, overrides: Sequence[str]) -> None:
        """Compose and drop the result, so that what is wrong is said in one line.

        Raises:
            UsageError: as `raw`.
        """
        try:
            with _one_line():
                self._composed(overrides, with_hydra=True)
        except UsageError as error:
            raise self._with_shadow(error) from error

    def _with_shadow(self, error: UsageError) -> UsageError:
        """With the user's primary configuration that has no defaults list, where there is one."""
        file = f"{self.config_name}.yaml"
        shadow = next((folder / file for folder in self.folders if (folder / file).is_file()), None)
        if shadow is None or shadow.parent == self.folders[-1] or str(shadow) in str(error):
            return error
        if re.search(r"^[\"']?defaults[\"']?\s*:", shadow.read_text(errors="replace"), re.MULTILINE):
            return error
        ours = self.folders[-1] / "config.yaml"
        return UsageError(
            f"{error} {shadow} is read as the primary configuration and has no defaults list: begin it with the one of "
            f"{ours}, or remove it."
        )

    def sweeper_params(self) -> dict[str, str]:
        """What a configuration file declares in `hydra.sweeper.params`: overrides, most of them sweeps."""
        with _one_line():
            params = self._composed([], with_hydra=True).hydra.sweeper.get("params")
        return {str(key): str(value) for key, value in (params or {}).items()}

    def _blamed(self, error: UsageError, overrides: Sequence[str]) -> UsageError:
        """With the override that is at fault in front, where the message names none."""
        said = str(error)
        keys = {text: re.split("[=@]", text.lstrip("+~"))[0] for text in overrides}
        if any(key in said for key in keys.values()):
            return error
        alone = [text for text in overrides if not self._composes(text)]
        return UsageError(f"{alone[0]}: {said}") if alone and self._composes() else error

    def _composes(self, *overrides: str) -> bool:
        try:
            with _one_line():
                _resolved(self._composed(overrides, with_hydra=False))
        except UsageError:
            return False
        return True

    def _word(self, text: str) -> Word:
        if text not in self._words:
            try:
                (override,) = parsed([text], self.loader)
            except UsageError:
                return Word(text)  # refused with the whole, by Hydra
            self._words[text] = Word.of(override, is_group(override, self.loader))
        return self._words[text]

    def _base(self, choices: tuple[str, ...]) -> _Base | None:
        if choices not in self._bases:
            self._bases[choices] = self._made(choices)
        return self._bases[choices]

    def _made(self, choices: tuple[str, ...]) -> _Base | None:
        from omegaconf import OmegaConf

        try:
            with _one_line():
                config: Any = OmegaConf.to_container(self._composed(choices, with_hydra=False), resolve=False)
        except UsageError:
            return None  # refused with the whole, by Hydra
        return _Base(config, is_literal(config)) if isinstance(config, dict) else None

    def _composed(self, overrides: Sequence[str], with_hydra: bool) -> DictConfig:
        from hydra import compose as hydra_compose

        return hydra_compose(self.config_name, overrides=list(overrides), return_hydra_config=with_hydra)


def _resolved(config: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    with _one_line():
        node = config if OmegaConf.is_config(config) else OmegaConf.create(config)
        plain = OmegaConf.to_container(node, resolve=True)
    if not isinstance(plain, dict):
        raise UsageError("The primary configuration is not a dictionary of settings.")
    return {str(key): value for key, value in plain.items()}


@contextmanager
def _one_line() -> Iterator[None]:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    yaml_error: type[Exception] = importlib.import_module("yaml").YAMLError
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="provider=.* is not available", category=UserWarning)
            warnings.filterwarnings("ignore", message=".*missing `_self_`", category=UserWarning)
            yield
    except UserWarning as warning:
        where = str(warning).partition("path=")[2].partition(" is not available")[0]
        raise UsageError(f"hydra.searchpath names {where}, and there is no such folder.") from None
    except (HydraException, OmegaConfBaseException, yaml_error) as error:
        raise UsageError(_sentence(error)) from error
    except RecursionError as error:
        raise UsageError("It leads back to itself, or is nested too deeply.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"A configuration file is no UTF-8 text ({error.reason} at byte {error.start}).") from error
    except ValueError as error:  # Hydra's of a defaults list
        raise UsageError(_sentence(error)) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise UsageError(f"A configuration file is not a dictionary of settings: {error}.") from error


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
    read_times_as_text()
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


def _sentence(error: BaseException) -> str:
    said = re.sub(r"^\w+ raised while resolving interpolation: ", "", first_line(error)).strip('"')
    said = said.removesuffix("; Config search path:").replace("ConfigTypeError raised while composing config:; ", "")
    said = said.replace("Cannot merge DictConfig with ListConfig", "it is a list, not a dictionary of settings")
    said = said.replace("must be a DictConfig, got ListConfig", "is a list, not a dictionary of settings")
    cause = error.__cause__ or error.__context__
    setting = getattr(error, "full_key", None)
    if said.startswith("Error merging override") and cause is not None:
        said = f"{said.rstrip('.').replace('Error merging override', 'Cannot set', 1)}: {first_line(cause)}"
    elif setting and str(setting) not in said:
        return f"{setting}: {said.rstrip('.')}."
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
