"""JSON files that are either whole or absent, and dataclasses read from them."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import os
import tempfile
import types
import typing
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class FormatError(ValueError):
    """A file is not what it should be. The message names the file or field."""


def write_json(path: Path, value: Any) -> None:
    """Write a dataclass or plain value so that `path` is the old file, or the new one, at any instant.

    Raises:
        OSError: the folder cannot be written or the disk is full; no partial file is left.
    """
    text = json.dumps(encode(value), indent=1, ensure_ascii=False, allow_nan=False)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        FormatError: the file is not JSON.
        OSError: it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{path}: not a JSON file ({error})") from error


def encode(value: Any) -> Any:
    """Dataclasses, enums, paths and tuples as JSON values; a float that is not finite as its name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(encode(item) for item in value)
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return str(value)


def decode(kind: type[T], value: Any, where: str = "") -> T:
    """A dataclass of type `kind` from decoded JSON. Unknown fields are ignored, so newer writers can be read.

    Raises:
        FormatError: a field is absent or has another type, or `schema` is newer than this release reads.
    """
    return typing.cast(T, _decode(kind, value, where or kind.__name__))


def _decode(kind: Any, value: Any, where: str) -> Any:
    return _reader(kind)(value, where)


@functools.cache
def _reader(kind: Any) -> Callable[[Any, str], Any]:
    """How values of a type are read, found once a type: a store reads millions of them."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(kind)
        others = tuple(option for option in options if option is not type(None))
        return functools.partial(_decode_union, others, len(others) < len(options))
    if kind is Any:
        return lambda value, _where: value
    if dataclasses.is_dataclass(kind):
        return functools.partial(_decode_dataclass, kind)
    if origin in (list, tuple):
        return functools.partial(_decode_sequence, origin, typing.get_args(kind))
    if origin is dict:
        return functools.partial(_decode_mapping, kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return functools.partial(_decode_enum, kind)
    return functools.partial(_decode_plain, kind)


def _decode_mapping(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise FormatError(f"{where}: expected an object, got {_kind_of(value)}")
    read = _reader(typing.get_args(kind)[1])
    return {key: read(inner, f"{where}.{key}") for key, inner in value.items()}


def _decode_enum(kind: type[Enum], value: Any, where: str) -> Any:
    try:
        return kind._value2member_map_[value]
    except (KeyError, TypeError):
        raise FormatError(f"{where}: {value!r} is not one of {[item.value for item in kind]}") from None


def _decode_union(options: tuple[Any, ...], optional: bool, value: Any, where: str) -> Any:
    if value is None and optional:
        return None
    if len(options) == 1:
        return _reader(options[0])(value, where)
    errors = []
    for option in options:
        try:
            return _decode(option, value, where)
        except FormatError as error:
            errors.append(error)
    raise errors[0]


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise FormatError(f"{where}: expected an object, got {_kind_of(value)}")
    newest = getattr(kind, "SCHEMA", None)
    if newest is not None and isinstance(value.get("schema"), int) and value["schema"] > newest:
        raise FormatError(
            f"{where}: schema {value['schema']} is newer than {newest}, the newest that this release reads; "
            "use the release that wrote it, or a newer one"
        )
    given = {}
    for name, read, plain in _fields_of(kind):
        if name in value:
            item = value[name]
            given[name] = item if type(item) in plain else read(item, f"{where}.{name}")
    try:
        return kind(**given)
    except TypeError as error:
        raise FormatError(f"{where}: {error}") from error


@functools.cache
def _fields_of(kind: Any) -> tuple[tuple[str, Callable[[Any, str], Any], frozenset[type]], ...]:
    """Name, reader, and the JSON types that need no reading, of each field."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (field.name, _reader(hints[field.name]), _plain_types(hints[field.name])) for field in dataclasses.fields(kind)
    )


def _plain_types(hint: Any) -> frozenset[type]:
    if hint in (str, bool, int, float, type(None)):
        return frozenset({hint})
    if hint == dict[str, Any]:
        return frozenset({dict})
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return frozenset().union(*(_plain_types(option) for option in typing.get_args(hint)))
    return frozenset()


def _decode_sequence(origin: Any, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise FormatError(f"{where}: expected a list, got {_kind_of(value)}")
    if not value and origin is list:
        return []
    if origin is list or (len(arguments) == 2 and arguments[1] is Ellipsis):
        alike = _decode_alike(arguments[0], value) if dataclasses.is_dataclass(arguments[0]) else None
        if alike is not None:
            return origin(alike)
        read = _reader(arguments[0])
        return origin([read(item, f"{where}[{index}]") for index, item in enumerate(value)])
    if len(arguments) != len(value):
        raise FormatError(f"{where}: expected {len(arguments)} items, got {len(value)}")
    return tuple(
        _decode(item_kind, item, f"{where}[{index}]")
        for index, (item_kind, item) in enumerate(zip(arguments, value, strict=True))
    )


def _decode_alike(kind: Any, rows: list[Any]) -> list[Any] | None:
    """Objects of one class and the same fields, a field of all at a time; None where one of them is not so.

    Iterations and stages, most of a record, in a third of the time; whatever is wrong is found, and named, one by one.
    """
    if len(rows) < 2 or hasattr(kind, "SCHEMA"):
        return None
    try:
        given = rows[0].keys()
        fields = [field for field in _fields_of(kind) if field[0] in given]
        if len(fields) < 2 or set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(given)}:
            return None
        names = [name for name, _, _ in fields]
        columns: list[Any] = list(zip(*map(operator.itemgetter(*names), rows), strict=True))
        for index, (_, read, plain) in enumerate(fields):
            if not plain.issuperset(map(type, columns[index])):
                columns[index] = [read(item, "") for item in columns[index]]
        positions = _positions_of(kind)
        if names == positions[: len(names)]:
            return [kind(*row) for row in zip(*columns, strict=True)]
        return [kind(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    except (AttributeError, KeyError, TypeError, FormatError):
        return None


@functools.cache
def _positions_of(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _decode_plain(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind is float and value in ("nan", "inf", "-inf"):
        return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    raise FormatError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {_kind_of(value)}")


def _kind_of(value: Any) -> str:
    return "null" if value is None else type(value).__name__
