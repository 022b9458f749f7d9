"""Reads a JSON file of a results folder by orjson, and by the plain reader what orjson refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from orchestrator.records.jsonfile import read_json


def read_record(path: Path) -> Any:
    """As `records.jsonfile.read_json`, in a third of its time.

    What orjson refuses (NaN as a literal, lone surrogates, deep nesting) the plain reader reads, or explains. A whole
    number past 64 bits comes as a float: no field may hold one either way.

    Raises:
        FormatError: the file is not JSON.
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - Path.open takes twice as long
        text = stream.read()
    try:
        return orjson.loads(text)
    except ValueError:
        return read_json(path)
