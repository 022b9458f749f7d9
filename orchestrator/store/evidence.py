"""A rank's record as it is kept: every value of the file, numbers side by side, compressed.

The software and the effective configuration are left out, because they are kept once for many ranks. A record of 40 kB
becomes about 3 kB, and every field comes back, also ones that only a newer release knows.

    E2  size of the compressed part (4 bytes)
        compressed: size of the head (4 bytes), head (JSON), words (bytes), whole numbers (64 bits, byte by byte)
        floats (64 bits), as they are: their bits do not compress

E1, which the first release wrote, is compressed by zlib instead of Zstandard.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any

import zstandard

from orchestrator.records.jsonfile import FormatError, decode
from orchestrator.records.rank import RankRecord
from orchestrator.store.turned import Row, Tables, Turned, tables_of

LEFT_OUT = ("software", "effective")

_FORMAT = b"E2"
_ZLIB_FORMAT = b"E1"
_LEVEL = 1
"""Higher levels save 3 % at most, measured on records of 16 ranks with 20 iterations; zlib takes ten times as long."""

_JSON = json.JSONEncoder(separators=(",", ":"))
_FEW = frozenset({str, bool, type(None)})
"""Types of columns with few different values. No numbers: a dictionary takes 1, 1.0 and True for the same."""
_MOST_WORDS = 64


@dataclass
class _Columns:
    """Columns one after the other, by kind. Written in an order, and read back in the same."""

    words: bytearray = field(default_factory=bytearray)
    whole: array[int] = field(default_factory=lambda: array("q"))
    floats: array[float] = field(default_factory=lambda: array("d"))


def pack(record: Row, tables: Tables | None = None) -> bytes:
    """A decoded record file in the form of the database. `tables` are its own, where they have been made already."""
    tables = tables or tables_of(record)
    head = {key: value for key, value in record.items() if key not in LEFT_OUT}
    packed: dict[str, Any] = {}
    columns = _Columns()
    if isinstance(head.get("stages"), list):
        rows = head.pop("stages")
        packed["stages"] = _pack_table(tables.stages, columns) or {"rows": rows}
    if tables.iterations is not None:
        iterations = head.pop("iterations")
        packed["iterations"] = _pack_table(tables.iterations, columns)
        packed["of_iterations"] = _pack_table(tables.of_iterations, columns) or {
            "rows": list(chain.from_iterable(one["stages"] for one in iterations))
        }
    text = _JSON.encode([head, packed]).encode()
    whole = _turned(_little(columns.whole), 8)
    compressed = _compressor()(b"".join((_size(text), text, columns.words, whole)))
    return b"".join((_FORMAT, _size(compressed), compressed, _little(columns.floats)))


def unpack(packed: bytes) -> dict[str, Any]:
    """The record as its file had it, without what is kept elsewhere.

    Raises:
        FormatError: a newer release packed it, or it is damaged.
    """
    end = 6 + int.from_bytes(packed[2:6], "little")
    data = _decompressed(packed[:2], packed[6:end])
    start = 4 + int.from_bytes(data[:4], "little")
    head, tables = json.loads(data[4:start])
    words = sum(_count(table, dict) for table in tables.values())
    rest = data[start + words :]
    columns = _Columns(
        bytearray(data[start : start + words]),
        _from_little("q", _turned(rest, len(rest) // 8)),
        _from_little("d", packed[end:]),
    )
    return _with_tables(head, {name: _unpack_table(table, columns) for name, table in tables.items()})


@cache
def _compressor() -> Callable[[bytes], bytes]:
    """Made once a process: a record is compressed in less time than a new context takes."""
    compress: Callable[[bytes], bytes] = zstandard.ZstdCompressor(level=_LEVEL).compress
    return compress


def _decompressed(form: bytes, data: bytes) -> bytes:
    try:
        if form == _ZLIB_FORMAT:
            return zlib.decompress(data)
        if form == _FORMAT:
            return bytes(zstandard.ZstdDecompressor().decompress(data))
    except (zlib.error, zstandard.ZstdError) as error:
        raise FormatError(f"damaged evidence ({error})") from error
    raise FormatError("evidence of an unknown format: a newer release wrote it")


def rank_record(packed: bytes, software: dict[str, Any] | None, effective: dict[str, Any] | None) -> RankRecord:
    """The record of one rank, whole.

    Raises:
        FormatError: as `unpack`.
    """
    return decode(RankRecord, unpack(packed) | {"software": software or {}, "effective": effective})


def _with_tables(record: dict[str, Any], tables: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    if "stages" in tables:
        record["stages"] = tables["stages"]
    if "iterations" in tables:
        at = 0
        for row in tables["iterations"]:
            count = row["stages"]
            row["stages"] = tables["of_iterations"][at : at + count]
            at += count
        record["iterations"] = tables["iterations"]
    return record


def _pack_table(table: Turned | None, to: _Columns) -> Row | None:
    """A table's columns; numbers of one type go to `to`, anything else stays JSON. None where there is none."""
    if table is None:
        return None
    columns: list[Any] = []
    for key, column in table.columns.items():
        kinds = table.kinds[key]
        if kinds == {float}:
            columns.append("d")
            to.floats.extend(column)
        elif kinds == {int} and (numbers := _integers(column)) is not None:
            columns.append("q")
            to.whole.extend(numbers)
        elif kinds <= _FEW and len(words := dict.fromkeys(column)) <= _MOST_WORDS:
            columns.append({"words": list(words)})
            index = {word: place for place, word in enumerate(words)}
            to.words.extend(map(index.__getitem__, column))
        else:
            columns.append(column)
    return {"keys": list(table.columns), "count": table.count, "columns": columns}


def _unpack_table(table: dict[str, Any], columns: _Columns) -> list[dict[str, Any]]:
    if "rows" in table:
        rows: list[dict[str, Any]] = table["rows"]
        return rows
    count = table["count"]
    found: list[list[Any]] = []
    for column in table["columns"]:
        if column == "d":
            found.append(columns.floats[:count].tolist())
            del columns.floats[:count]
        elif column == "q":
            found.append(columns.whole[:count].tolist())
            del columns.whole[:count]
        elif isinstance(column, dict):
            found.append([column["words"][place] for place in columns.words[:count]])
            del columns.words[:count]
        else:
            found.append(column)
    return [dict(zip(table["keys"], values, strict=True)) for values in zip(*found, strict=True)]


def _count(table: dict[str, Any], kind: type) -> int:
    """How many values of a table are in columns of this kind."""
    return sum(table["count"] for column in table.get("columns", ()) if isinstance(column, kind))


def _integers(column: Iterable[int]) -> array[int] | None:
    try:
        return array("q", column)
    except OverflowError:
        return None


def _turned(data: bytes, width: int) -> bytes:
    """The first byte of every group of `width`, then the second, ...: sizes share their high bytes.

    Turning with the number of groups turns back.
    """
    return b"".join([data[place::width] for place in range(width)]) if data else b""


def _little(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _from_little(code: str, data: bytes) -> array[Any]:
    numbers: array[Any] = array(code)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _size(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little")
