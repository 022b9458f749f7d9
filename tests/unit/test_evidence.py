"""Packing of records for the database: everything comes back."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
import recorded
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.jsonfile import FormatError, encode
from orchestrator.store.evidence import pack, rank_record, unpack

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
stage_rows = st.lists(
    st.fixed_dictionaries(
        {"stage": st.sampled_from(["forward", "replay"]), "peak": scalars, "seconds": st.floats(0, 9)}
    )
    | st.dictionaries(st.text(max_size=4), scalars, max_size=3),
    max_size=5,
)
iterations = st.lists(
    st.fixed_dictionaries({"number": st.integers(), "loss": scalars, "stages": stage_rows}) | values, max_size=4
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of equal types at any depth: 1 is not True, and 1.0 is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@given(st.dictionaries(st.text(max_size=5), values, max_size=4), iterations | values, values)
def test_whatever_a_file_holds_comes_back(rest: dict[str, Any], some: Any, stages: Any) -> None:
    record = {**rest, "iterations": some, "stages": stages}
    record.pop("software", None)
    record.pop("effective", None)
    assert same(unpack(pack(record)), record)


def test_real_shaped_record_takes_a_tenth_of_its_file() -> None:
    record = recorded.rank_record("t", 3, world_size=16, iterations=20, every_stage=True)
    file = json.dumps(encode(record), indent=1)
    packed = pack(encode(record))
    assert len(packed) * 10 < len(file)
    assert rank_record(packed, record.software, None) == record


def test_fields_of_a_newer_release_are_kept() -> None:
    raw = encode(recorded.rank_record("t", 0)) | {"invented_later": {"x": [1, 2.0, None]}}
    assert unpack(pack(raw))["invented_later"] == {"x": [1, 2.0, None]}


@pytest.mark.parametrize("damage", [b"", b"E9abc", b"E1\x08\0\0\0not zlib", b"E2\x08\0\0\0not zstd"])
def test_damaged_evidence_says_so(damage: bytes) -> None:
    with pytest.raises(FormatError):
        unpack(damage)


def test_evidence_that_the_first_release_wrote_is_read() -> None:
    raw = encode(recorded.rank_record("t", 0, iterations=2))
    packed = pack(raw)
    end = 6 + int.from_bytes(packed[2:6], "little")
    inner = zlib.compress(zstandard.ZstdDecompressor().decompress(packed[6:end]))
    assert unpack(b"E1" + len(inner).to_bytes(4, "little") + inner + packed[end:]) == unpack(packed)
