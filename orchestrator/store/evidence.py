"""A rank's record as it is kept: every value of the file, columns of numbers side by side, compressed.

The software and the effective configuration are left out, because they are kept once for many ranks. A record of 40 kB
becomes about 4 kB, and every field comes back, also ones that only a newer release knows.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from itertools import chain
from operator import itemgetter
from typing import Any

from orchestrator.records.jsonfile import FormatError, decode
from orchestrator.records.rank import RankRecord

_FORMAT = b"E1"
_LEVEL = 1
"""Level 6 saves 4 % more and takes half as long again, measured on records of 16 ranks with 20 iterations."""

_FEW = frozenset({str, bool, type(None)})
"""Types of columns with few different values. No numbers: a dictionary takes 1, 1.0 and True for the same."""
_MOST_WORDS = 64

LEFT_OUT = ("software", "effective")


def pack(record: dict[str, Any], kinds: dict[str, set[type]] | None = None) -> bytes:
    """A decoded record file in the form of the database.

    `kinds` is given the types of the values in each field of the stages by iteration; it stays empty where these
    rows do not all have the same fields.
    """
    head = {key: value for key, value in record.items() if key not in LEFT_OUT}
    body: list[bytes] = []
    if isinstance(head.get("stages"), list):
        head["stages"] = _pack_table(head["stages"], body)
    iterations = head.get("iterations")
    if isinstance(iterations, list) and all(isinstance(one, dict) for one in iterations):
        stages = [one.get("stages") for one in iterations]
        if all(isinstance(one, list) for one in stages):
            head["iterations"] = {
                "table": _pack_table([{**one, "stages": len(one["stages"])} for one in iterations], body),
                "stages": _pack_table(list(chain.from_iterable(one["stages"] for one in iterations)), body, kinds),
            }
    text = json.dumps(head, separators=(",", ":")).encode()
    return _FORMAT + zlib.compress(b"".join((len(text).to_bytes(4, "little"), text, *body)), _LEVEL)


def unpack(packed: bytes) -> dict[str, Any]:
    """The record as its file had it, without what is kept elsewhere.

    Raises:
        FormatError: a newer release packed it, or it is damaged.
    """
    if packed[:2] != _FORMAT:
        raise FormatError("evidence of an unknown format: a newer release wrote it")
    try:
        data = zlib.decompress(packed[2:])
    except zlib.error as error:
        raise FormatError(f"damaged evidence ({error})") from error
    length = int.from_bytes(data[:4], "little")
    head: dict[str, Any] = json.loads(data[4 : 4 + length])
    body = memoryview(data)[4 + length :]
    if isinstance(head.get("stages"), dict):
        head["stages"], body = _unpack_table(head["stages"], body)
    iterations = head.get("iterations")
    if isinstance(iterations, dict):
        rows, body = _unpack_table(iterations["table"], body)
        stages, _ = _unpack_table(iterations["stages"], body)
        at = 0
        for row in rows:
            count = row["stages"]
            row["stages"] = stages[at : at + count]
            at += count
        head["iterations"] = rows
    return head


def rank_record(packed: bytes, software: dict[str, Any] | None, effective: dict[str, Any] | None) -> RankRecord:
    """The record of one rank, whole.

    Raises:
        FormatError: as `unpack`.
    """
    return decode(RankRecord, unpack(packed) | {"software": software or {}, "effective": effective})


def _pack_table(
    rows: list[dict[str, Any]], body: list[bytes], kinds_of: dict[str, set[type]] | None = None
) -> dict[str, Any]:
    """Rows of equal keys as columns; numbers of one type go to `body`, anything else stays JSON."""
    try:
        keys = list(rows[0]) if rows else []
        if set(map(len, rows)) - {len(keys)} or len(keys) < 2:
            return {"rows": rows}
        values = map(itemgetter(*keys), rows)
    except (TypeError, KeyError, AttributeError):
        return {"rows": rows}
    columns: list[Any] = []
    for key, column in zip(keys, zip(*values, strict=True), strict=True):
        kinds = set(map(type, column))
        if kinds_of is not None:
            kinds_of[key] = kinds
        if kinds == {float}:
            columns.append("d")
            body.append(_bytes(array("d", column)))
        elif kinds == {int} and (numbers := _integers(column)) is not None:
            columns.append("q")
            body.append(_bytes(numbers))
        elif kinds <= _FEW and len(words := dict.fromkeys(column)) <= _MOST_WORDS:
            columns.append({"words": list(words)})
            index = {word: place for place, word in enumerate(words)}
            body.append(bytes(map(index.__getitem__, column)))
        else:
            columns.append(column)
    return {"keys": keys, "count": len(rows), "columns": columns}


def _bytes(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _integers(column: tuple[int, ...]) -> array[int] | None:
    try:
        return array("q", column)
    except OverflowError:
        return None


def _unpack_table(table: dict[str, Any], body: memoryview) -> tuple[list[dict[str, Any]], memoryview]:
    if "rows" in table:
        return table["rows"], body
    columns: list[Any] = []
    for column in table["columns"]:
        if isinstance(column, str):
            numbers = array(column)
            size = table["count"] * numbers.itemsize
            numbers.frombytes(body[:size])
            if sys.byteorder == "big":
                numbers.byteswap()
            columns.append(numbers.tolist())
            body = body[size:]
        elif isinstance(column, dict):
            columns.append([column["words"][place] for place in body[: table["count"]]])
            body = body[table["count"] :]
        else:
            columns.append(column)
    keys = table["keys"]
    return [dict(zip(keys, values, strict=True)) for values in zip(*columns, strict=True)], body
