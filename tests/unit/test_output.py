"""A trainer's output on its way to the log."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.assemble import TAIL_BYTES
from orchestrator.trial.output import Output


def test_a_secret_that_comes_in_two_pieces_is_hidden(tmp_path: Path) -> None:
    output = Output(tmp_path / "log")
    output.feed("stderr", b"HF_TOKEN=hf_abcdefgh")
    output.feed("stderr", b"ijklmnopqrstuvwx\n")
    output.finish()
    assert (tmp_path / "log").read_bytes() == b"HF_TOKEN=<redacted>\n"
    assert output.tail == "HF_TOKEN=<redacted>\n"


def test_streams_do_not_mix_within_a_line(tmp_path: Path) -> None:
    output = Output(tmp_path / "log")
    output.feed("stdout", b"one ")
    output.feed("stderr", b"warning\n")
    output.feed("stdout", b"line\nlast")
    output.finish()
    assert (tmp_path / "log").read_bytes() == b"warning\none line\nlast"
    assert output.tail == "warning\n"


def test_a_line_that_never_ends_is_written_in_pieces(tmp_path: Path) -> None:
    output = Output(tmp_path / "log")
    for _ in range(20):
        output.feed("stdout", b"." * 10_000)
    assert (tmp_path / "log").stat().st_size > 100_000


@given(chunks=st.lists(st.binary(max_size=200).map(lambda chunk: chunk.replace(b"=", b"-").replace(b":", b"-"))))
def test_bytes_of_any_kind_arrive_whole(tmp_path_factory: object, chunks: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("output")  # type: ignore[attr-defined]
    output = Output(folder / "log")
    for chunk in chunks:
        output.feed("stderr", chunk)
    output.finish()
    assert (folder / "log").read_bytes() == b"".join(chunks)
    assert len(output.tail.encode("utf-8", "replace")) <= 3 * TAIL_BYTES


def test_a_disk_that_is_full_is_noted_once_and_the_tail_goes_on() -> None:
    output = Output(Path("/dev/full"))
    output.feed("stderr", b"one\n")
    output.feed("stderr", b"two\n")
    assert output.notes == ["the log is not complete: no room"]
    assert output.tail == "one\ntwo\n"


def test_a_log_that_cannot_be_opened_is_noted_and_the_tail_is_kept(tmp_path: Path) -> None:
    output = Output(tmp_path / "absent" / "log")
    output.feed("stderr", b"one\n")
    assert output.notes == [f"no log: {tmp_path}/absent/log: No such file or directory"]
    assert output.tail == "one\n"
