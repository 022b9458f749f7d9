"""A composed configuration checked against the schema, with errors that name the setting."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import Any, Literal

from orchestrator.config.errors import UsageError
from orchestrator.config.nearest import nearest
from orchestrator.config.schema import (
    UNSET,
    BridgeTrainer,
    LocalCluster,
    McoreCpuTrainer,
    Request,
    SlurmCluster,
)

TRAINERS: dict[str, type[Any]] = {"mcore_cpu": McoreCpuTrainer, "bridge": BridgeTrainer}
CLUSTERS: dict[str, type[Any]] = {"local": LocalCluster, "here": SlurmCluster, "slurm": SlurmCluster}


def checked(config: dict[str, Any], known: dict[tuple[str, str], dict[str, Any]] | None = None) -> dict[str, Any]:
    """The configuration with the schema's defaults filled in and its values in the schema's types.

    Optional settings that nobody gave are left out. `known` keeps checked groups by name and content for later calls:
    a group that equals one of them is the same object.

    Raises:
        UsageError: a setting that does not exist (with the nearest that does), or a value of the wrong type.
    """
    return _checked_group(Request, config, "", {} if known is None else known)


def type_at(path: str) -> Any:
    """The declared type of a dotted setting; None where no such setting exists in any variant of its group.

    A path inside a free dictionary has that dictionary's value type.
    """
    kind: Any = Request
    for part in path.split("."):
        kind = _member(kind, part)
        if kind is None:
            return None
    return kind


def settings() -> list[str]:
    """Every dotted setting of every variant."""
    return sorted(set(_paths(Request, "")))


def check_shape(path: str, value: Any) -> None:
    """Refuse a list or a dictionary where a setting is something else, and the other way round.

    Raises:
        UsageError: with what the setting takes.
    """
    options = as_alternatives(type_at(path))
    if Any not in options and not any(_shape(option) is _shape_of(value) for option in options if option is not _NONE):
        if value is None and _NONE in options:
            return
        raise UsageError(f"{path} must be {_described(options)}, not {_shown(value)}.{_hint(options, value, path)}")


def nearest_setting(path: str) -> str | None:
    """The setting that a misspelt path most likely means: the same name in another group, or the most alike."""
    known = settings()
    last = path.rsplit(".", 1)[-1]
    same = [name for name in known if name.rsplit(".", 1)[-1] == last]
    if len(same) == 1:
        return same[0]
    group = path.rpartition(".")[0]
    inside = {name.rsplit(".", 1)[-1]: name for name in known if name.rpartition(".")[0] == group}
    match = nearest(last, inside)
    if match is not None:
        return inside[match]
    match = nearest(path, [name for name in known if name != group])
    if match is not None and nearest(last, [match.rsplit(".", 1)[-1]]):
        return match
    names = {name.rsplit(".", 1)[-1]: name for name in known}
    match = nearest(last, names)
    return names[match] if match is not None else None


def _paths(kind: Any, prefix: str) -> list[str]:
    found = []
    for variant in _variants(kind):
        for name, inner in _hints(variant).items():
            path = f"{prefix}{name}"
            found.append(path)
            found.extend(_paths(inner, f"{path}."))
    return found


def _member(kind: Any, name: str) -> Any:
    for variant in _variants(kind):
        hints = _hints(variant)
        if name in hints:
            return hints[name]
    for option in as_alternatives(kind):
        if typing.get_origin(option) is dict:
            return typing.get_args(option)[1]
        if option is Any:
            return Any
    return None


def _variants(kind: Any) -> list[type[Any]]:
    return [option for option in as_alternatives(kind) if dataclasses.is_dataclass(option) and isinstance(option, type)]


def as_alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the one type itself."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _hints(kind: type[Any]) -> dict[str, Any]:
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


_HINTS: dict[type[Any], dict[str, Any]] = {}


_NONE = type(None)


def _shape(option: Any) -> type:
    origin = typing.get_origin(option)
    if origin is dict or dataclasses.is_dataclass(option):
        return dict
    return list if origin in (list, tuple) else str


def _shape_of(value: Any) -> type:
    return dict if isinstance(value, dict) else list if isinstance(value, (list, tuple)) else str


def _checked_group(
    kind: type[Any], value: Any, path: str, known: dict[tuple[str, str], dict[str, Any]] | None = None
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path or 'the configuration'} is a group of settings, not {_shown(value)}.")
    hints = _hints(kind)
    for key in value:
        if key not in hints:
            raise UsageError(_unknown_setting(f"{path}.{key}" if path else str(key), kind))
    result = {}
    for setting in dataclasses.fields(kind):
        where = f"{path}.{setting.name}" if path else setting.name
        item = value.get(setting.name, UNSET)
        if item == UNSET:
            item = _default(setting)
            if item == UNSET:
                continue
        if known is None or not isinstance(item, dict):
            result[setting.name] = _checked_value(_variant_of(hints[setting.name], where, item), item, where)
            continue
        content = (where, repr(item))
        if content not in known:
            known[content] = _checked_value(_variant_of(hints[setting.name], where, item), item, where)
        result[setting.name] = known[content]
    return result


def _unknown_setting(path: str, kind: type[Any]) -> str:
    names = [setting.name for setting in dataclasses.fields(kind)]
    group, _, name = path.rpartition(".")
    owners = [other for other in _variants(type_at(group)) if name in _hints(other)] if group else []
    if owners:
        return f"{path} is not a setting of {_choice_of(kind)}, only of {_choice_of(owners[0])}."
    match = nearest(name, names)
    if match is not None:
        return f"{path} is not a setting; did you mean {f'{group}.' if group else ''}{match}?"
    elsewhere = nearest_setting(path)
    if elsewhere is not None and elsewhere != group:
        return f"{path} is not a setting; did you mean {elsewhere}?"
    if len(names) > _MOST_NAMES:
        return f"{path} is not a setting, and no setting of {group} is like it."
    return f"{path} is not a setting; there is {', '.join(f'{group}.{other}' if group else other for other in names)}"


_MOST_NAMES = 40


def _choice_of(kind: type[Any]) -> str:
    for group, variants in (("trainer", TRAINERS), ("cluster", CLUSTERS)):
        names = [name for name, variant in variants.items() if variant is kind]
        if names:
            return " or ".join(f"{group}={name}" for name in names)
    return kind.__name__


def _default(setting: dataclasses.Field[Any]) -> Any:
    if setting.default is not dataclasses.MISSING:
        return list(setting.default) if isinstance(setting.default, tuple) else setting.default
    if setting.default_factory is not dataclasses.MISSING:
        made = setting.default_factory()
        return dataclasses.asdict(made) if dataclasses.is_dataclass(made) and not isinstance(made, type) else made
    raise UsageError(
        f"{setting.name} is not set: the configuration must have it (conf/config.yaml sets it by default)."
    )


def _variant_of(kind: Any, where: str, value: Any) -> Any:
    """The trainer's and the cluster's own schema, by the word that says which one it is."""
    for group, key, variants in (("trainer", "name", TRAINERS), ("cluster", "kind", CLUSTERS)):
        if where == group and isinstance(value, dict):
            name = value.get(key, UNSET)
            if not isinstance(name, str) or name not in variants:
                said = f"{where}.{key} is {_shown(name)}" if name != UNSET else f"{where}.{key} is not set"
                raise UsageError(f"{said}; it must be one of {', '.join(variants)}.")
            return variants[name]
    return kind


def _checked_value(kind: Any, value: Any, where: str) -> Any:
    options = as_alternatives(kind)
    for option in options:
        found, result = _as_option(option, value, where)
        if found:
            _refuse_boundless(result, where)
            return result
    raise UsageError(f"{where} must be {_described(options)}, not {_shown(value)}.{_hint(options, value, where)}")


def _refuse_boundless(value: Any, where: str) -> None:
    """Numbers that no record and no database can hold: JSON has no infinity, and a column has 64 bits."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{where} must be a finite number, not {value}.")
    if isinstance(value, int) and not -_WHOLE_NUMBERS <= value < _WHOLE_NUMBERS:
        raise UsageError(f"{where} must be a whole number of 64 bits, not {value}.")


_WHOLE_NUMBERS = 2**63


def _as_option(option: Any, value: Any, where: str) -> tuple[bool, Any]:
    origin = typing.get_origin(option)
    if option is Any:
        return True, value
    if option is type(None):
        return value is None, None
    if origin is Literal:
        return isinstance(value, str) and value in typing.get_args(option), value
    if dataclasses.is_dataclass(option) and isinstance(option, type):
        return True, _checked_group(option, value, where)
    if origin is list:
        if not isinstance(value, list):
            return False, None
        inner = typing.get_args(option)[0]
        return True, [_checked_value(inner, item, f"{where}[{index}]") for index, item in enumerate(value)]
    if origin is tuple:
        kinds = typing.get_args(option)
        if not isinstance(value, (list, tuple)) or len(value) != len(kinds):
            return False, None
        items = enumerate(zip(kinds, value, strict=True))
        return True, [_checked_value(inner, item, f"{where}[{index}]") for index, (inner, item) in items]
    if origin is dict:
        if not isinstance(value, dict):
            return False, None
        inner = typing.get_args(option)[1]
        return True, {str(key): _checked_value(inner, item, f"{where}.{key}") for key, item in value.items()}
    return _as_scalar(option, value)


def _as_scalar(option: Any, value: Any) -> tuple[bool, Any]:
    if option is bool or isinstance(value, bool):
        return option is bool and isinstance(value, bool), value
    if option is float and isinstance(value, (int, float)):
        return True, float(value)
    if option is int:
        return isinstance(value, int), value
    if option is str and isinstance(value, int):
        return True, str(value)
    return option is str and isinstance(value, str), value


def _described(options: tuple[Any, ...]) -> str:
    words: list[str] = []
    for option in options:
        origin = typing.get_origin(option)
        if origin is Literal:
            words.extend(typing.get_args(option))
        elif option is type(None):
            words.append("null")
        elif origin is tuple:
            words.append(f"a list of {len(typing.get_args(option))} integers")
        elif origin is list:
            words.append("a list")
        elif dataclasses.is_dataclass(option):
            if "a group of settings" not in words:
                words.append("a group of settings")
        else:
            words.append(_NAMES.get(origin or option, str(option)))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a dictionary",
}


def _hint(options: tuple[Any, ...], value: Any, where: str) -> str:
    if where.startswith("study.candidates"):
        return ' A candidate is a list of overrides, as ["recompute=off", "training.seed=2"].'
    words = [word for option in options if typing.get_origin(option) is Literal for word in typing.get_args(option)]
    if isinstance(value, str):
        match = nearest(value, words)
        if match is not None:
            return f" Did you mean {match}?"
        if any(typing.get_origin(option) is list for option in options) and "[" not in where:
            return f" Write {where}={value}, without quotes." if value[:1] == "[" else f" Write {where}=[{value}]."
    if isinstance(value, (bool, float)) and str in options:
        return " Quote it, so that it stays the text that you wrote."
    return ""


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
