"""Record files are read as the plain reader does, only faster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import recorded
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.jsonfile import FormatError, encode
from orchestrator.store.record_file import read_record

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(_VALUES)
def test_whatever_json_holds_is_read_as_the_plain_reader_does(tmp_path_factory: Any, value: Any) -> None:
    path = tmp_path_factory.mktemp("files") / "one.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    assert repr(read_record(path)) == repr(json.loads(json.dumps(value)))


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    raw = encode(recorded.rank_record("t", 0, iterations=3, every_stage=True))
    path = tmp_path / "rank-00000.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    assert read_record(path) == raw


@pytest.mark.parametrize("damage", [b"", b"{", b'{"a": }', b"\xff\xfe", b"[" * 100_000])
def test_damaged_file_is_said_with_its_name(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "rank-00000.json"
    path.write_bytes(damage)
    with pytest.raises(FormatError, match=r"rank-00000\.json: not a JSON file"):
        read_record(path)
