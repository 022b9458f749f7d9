"""Logs as files: compressed, cut, piped, several, large."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wordings import BACKWARD, FORWARD, LAYER, OOM, iterations, prefixed, raised

from orchestrator.outcome.log import judge, read, read_logs
from orchestrator.outcome.log.source import UnreadableLogError
from orchestrator.vocabulary import Cause, Stage

EXIT = "srun: error: node01: task 3: Exited with exit code 1\n"
TEXT = f"{iterations(1, 2)}\n{prefixed('[rank3]: ', raised(OOM, *BACKWARD))}\n{EXIT}"
DECIDING_LINE = next(number for number, line in enumerate(TEXT.splitlines(), 1) if "OutOfMemoryError" in line)


def written(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def test_the_deciding_line_has_its_file_and_number(tmp_path: Path) -> None:
    path = written(tmp_path / "job.log", TEXT.encode())
    place = judge(read_logs([path])).evidence[0]
    assert (place.file, place.line) == (path, DECIDING_LINE)
    assert place.text.startswith("torch.OutOfMemoryError")


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_compressed_logs_are_read_by_what_they_are_not_by_their_name(tmp_path: Path, compress: object) -> None:
    assert callable(compress)
    path = written(tmp_path / "job.txt", compress(TEXT.encode()))
    found = judge(read_logs([path]))
    assert (found.outcome.label, found.evidence[0].line) == ("OOM-bwd", DECIDING_LINE)


def test_zstd_is_read_or_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = written(tmp_path / "job.log.zst", zstandard.compress(TEXT.encode()))
    assert judge(read_logs([path])).outcome.label == "OOM-bwd"
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    if shutil.which("zstd") is not None:
        assert judge(read_logs([path])).outcome.label == "OOM-bwd"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnreadableLogError, match="zstandard"):
        read_logs([path])


def test_a_compressed_log_that_ends_too_early_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    data = gzip.compress((TEXT + "padding that compresses badly: " + "".join(map(str, range(20000)))).encode())
    assert judge(read_logs([written(tmp_path / "job.gz", data[:-20])])).outcome.label == "OOM-bwd"


def test_bytes_that_are_no_utf8_and_carriage_returns(tmp_path: Path) -> None:
    bars = b"\r".join(b" %d%%|\xff\xfe| %d/100 [00:01<00:13, 1.33s/it]" % (number, number) for number in range(100))
    path = written(tmp_path / "job.log", b"\xff\x00 no text\n" + bars + b"\r" + TEXT.replace("\n", "\r\n").encode())
    found = judge(read_logs([path]))
    assert (found.outcome.cause, found.outcome.stage, found.outcome.rank) == (Cause.DEVICE_OOM, Stage.BACKWARD, 3)


def test_standard_input_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO(gzip.compress(TEXT.encode()))

    monkeypatch.setattr(sys, "stdin", Input())
    found = judge(read_logs(["-"]))
    assert (found.outcome.label, found.evidence[0].file) == ("OOM-bwd", "-")


@pytest.mark.parametrize("name", ["absent.log", "."])
def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableLogError, match=name.replace(".", r"\.")):
        read_logs([name])


def test_several_files_are_one_job_and_name_their_ranks(tmp_path: Path) -> None:
    lost = "RuntimeError: Connection closed by peer [10.0.0.1]:1"
    paths = [
        written(tmp_path / "rank-00000.log", raised(lost, *FORWARD, LAYER).encode()),
        written(tmp_path / "rank-00001.log", raised(OOM, *BACKWARD).encode()),
    ]
    outcome = judge(read_logs(paths)).outcome
    assert (outcome.label, outcome.rank) == ("OOM-bwd", 1)
    (tmp_path / "attempt_0" / "2").mkdir(parents=True)
    other = written(tmp_path / "attempt_0" / "2" / "stderr.log", raised(OOM, *BACKWARD).encode())
    assert judge(read_logs([paths[0], other])).outcome.rank == 2


def test_times_order_ranks_of_several_files(tmp_path: Path) -> None:
    later = written(tmp_path / "rank-0.log", f"2025-10-22 08:39:09,5 {OOM}\n".encode())
    sooner = written(tmp_path / "rank-1.log", f"2025-10-22 08:39:06,5 {OOM}\n".encode())
    outcome = judge(read_logs([later, sooner])).outcome
    assert (outcome.rank, outcome.also_ranks) == (1, ())


def test_without_times_ranks_that_failed_alike_are_all_named() -> None:
    text = "\n".join(prefixed(f"[rank{rank}]: ", raised(OOM, *BACKWARD)) for rank in (2, 0, 5))
    outcome = judge([read.read_text(text)]).outcome
    assert (outcome.rank, outcome.also_ranks) == (2, (0, 5))


@pytest.mark.parametrize("offset", range(-400, 401, 100))
def test_two_processes_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """Wherever the middle of the file falls: before, inside or behind the traceback."""
    failure = prefixed("[rank3]: ", raised(OOM, *BACKWARD)) + "\n"
    before, after = iterations(*range(1, 40)) + "\n", EXIT * 200
    shift = (len(before) + len(failure) // 2 + offset) * 2 - len(before) - len(failure)
    text = before + failure + (after * 20)[: max(0, shift)]
    path = written(tmp_path / "job.log", text.encode())
    whole = judge(read_logs([path]))
    monkeypatch.setattr(read, "PARALLEL_FROM", 0)
    monkeypatch.setattr(read, "_OVERLAP", 8192)
    halves = judge(read_logs([path]))
    assert halves.outcome == whole.outcome
    assert halves.evidence == whole.evidence
    assert halves.outcome.iteration == 39


def test_memory_stays_small_on_a_log_of_many_failures(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    with path.open("w", encoding="utf-8") as stream:
        for rank in range(1000):
            stream.write(prefixed(f"[rank{rank}]: ", raised(OOM, *BACKWARD)) + "\n")
    account = read_logs([str(path)])[0]
    assert len(account.findings) <= 600
    assert judge([account]).outcome.label == "OOM-bwd"


def test_a_pipe_is_read_by_the_command(tmp_path: Path) -> None:
    path = written(tmp_path / "job.log", TEXT.encode())
    with Path(path).open("rb") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", "classify", "--json", "-"],
            stdin=stream,
            capture_output=True,
            check=True,
        )
    assert b'"label": "OOM-bwd"' in done.stdout
