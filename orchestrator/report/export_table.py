"""Flat records as CSV and as Parquet."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.report.export_rows import FIELDS
from orchestrator.report.text import plain

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """RFC 4180 with a header; absent is empty. No cell of text can act as a formula in a spreadsheet."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\r\n")
    writer.writerow([field.name for field in FIELDS])
    for row in rows:
        writer.writerow([_cell(row[field.name]) for field in FIELDS])
    return stream.getvalue()


def parquet_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """One row group with typed, nullable columns.

    Raises:
        EnvironmentFailure: pyarrow is not installed.
    """
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise EnvironmentFailure("Parquet needs pyarrow: pip install 'recompute-orchestrator[parquet]'.") from error
    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema([(field.name, kinds[field.kind]) for field in FIELDS])
    columns = {field.name: [row[field.name] for row in rows] for field in FIELDS}
    stream = io.BytesIO()
    parquet.write_table(arrow.table(columns, schema=schema), stream)
    return stream.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    text = plain(value)
    # OWASP: a leading apostrophe keeps Excel, LibreOffice and Google Sheets from evaluating a cell.
    return f"'{text}" if value.startswith(_FORMULA_STARTS) else text
