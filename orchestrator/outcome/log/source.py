"""A log's bytes, in blocks of whole lines, decompressed where needed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

STDIN = "-"
BLOCK = 4 * 2**20
"""Bytes read at a time: bounds the memory that a log of any size takes."""


class UnreadableLogError(Exception):
    """A log that is absent or cannot be decompressed here. The message is for users."""


@dataclass(frozen=True)
class Block:
    """Whole lines, but for the last block of a log that was cut. `offset` and `line` are of its first byte."""

    data: bytes
    offset: int
    line: int
    cut: bool = False
    """The compressed data that it comes from ended too early."""


def is_plain(path: str) -> bool:
    """Whether a file can be read from anywhere in its middle: not compressed, not a pipe."""
    if path == STDIN or not Path(path).is_file():
        return False
    with Path(path).open("rb") as stream:
        return _decoder_of(stream.read(6)) is None


def blocks(path: str, start: int = 0, end: int | None = None) -> Iterator[Block]:
    """The lines of a log; of a plain file those that begin from offset `start` on and before `end`.

    Raises:
        UnreadableLogError: the file is absent, a folder, unreadable, or needs a decompressor that is not installed.
    """
    stream = _opened(path)
    try:
        offset = start
        if start:
            stream.seek(start - 1)
            offset += len(stream.readline()) - 1
        if end is None or offset < end:
            yield from _whole_lines(_Reads(stream, path), offset, end)
    finally:
        if path != STDIN:
            stream.close()


def _whole_lines(reads: _Reads, offset: int, end: int | None) -> Iterator[Block]:
    line = 1
    rest = b""
    for read in reads:
        data = rest + read if rest else read
        if end is not None and offset + len(data) >= end:
            last = data.find(b"\n", max(0, end - offset - 1)) + 1
            if last:
                yield Block(data[:last], offset, line)
                return
        cut = data.rfind(b"\n") + 1
        if cut == 0 and len(data) < BLOCK:
            rest = data
            continue
        cut = cut or len(data)  # one line larger than a block is looked at in pieces
        yield Block(data[:cut], offset, line)
        line += data.count(b"\n", 0, cut)
        offset += cut
        rest = data[cut:]
    if rest or reads.cut:
        yield Block(rest, offset, line, reads.cut)


class _Reads:
    """The log in large pieces. Compressed data that ends too early counts as far as it goes, and `cut` says so."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path
        self.cut = False

    def __iter__(self) -> Iterator[bytes]:
        whole, read = True, 0
        while whole:
            pieces: list[bytes] = []
            size = 0
            while whole and size < BLOCK:
                piece = self._piece(BLOCK - size)
                whole = bool(piece)
                pieces.append(piece)
                size += len(piece)
            read += size
            if size:
                yield b"".join(pieces)
        if not read and not isinstance(self._stream, io.BufferedReader):
            self.cut = True  # packed, and nothing comes out

    def _piece(self, size: int) -> bytes:
        try:
            piece: bytes = self._stream.read1(size)
        except (EOFError, zlib.error, lzma.LZMAError):
            piece, self.cut = b"", True
        except OSError as error:
            if not isinstance(error, gzip.BadGzipFile) and "Invalid data stream" not in str(error):
                raise UnreadableLogError(f"{self._path} cannot be read: {error.strerror or error}") from error
            piece, self.cut = b"", True
        return piece


def _opened(path: str) -> IO[bytes]:
    if path == STDIN:
        return _decoded(sys.stdin.buffer, "standard input")
    try:
        return _decoded(Path(path).open("rb"), path)
    except FileNotFoundError:
        raise UnreadableLogError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise UnreadableLogError(f"{path} is a folder: name the log files in it, {_for_example(path)}") from None
    except OSError as error:
        raise UnreadableLogError(f"{path} cannot be read: {error.strerror}") from error


def _for_example(folder: str) -> str:
    """How a person could name the logs of a folder."""
    found = {one.suffix for one in Path(folder).iterdir() if one.is_file()}
    ending = next((ending for ending in (".log", ".out", ".err", ".txt", ".gz") if ending in found), "")
    below = "" if found else "*/"
    return f"for example {folder.rstrip('/')}/{below}*{ending}"


def _decoder_of(magic: bytes) -> str | None:
    for name, start in (
        ("gzip", b"\x1f\x8b"),
        ("zstd", b"\x28\xb5\x2f\xfd"),
        ("xz", b"\xfd7zXZ\x00"),
        ("bzip2", b"BZh"),
    ):
        if magic.startswith(start):
            return name
    return None


def _decoded(raw: IO[bytes], name: str) -> IO[bytes]:
    """The stream decompressed, by its first bytes and not by its name."""
    buffered: Any = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)
    decoded: Any = buffered
    decoder = _decoder_of(buffered.peek(6)[:6])
    if decoder == "gzip":
        decoded = gzip.GzipFile(fileobj=buffered)
    elif decoder == "xz":
        decoded = lzma.LZMAFile(buffered)  # noqa: SIM115 - `blocks` closes it
    elif decoder == "bzip2":
        decoded = bz2.BZ2File(buffered)
    elif decoder == "zstd":
        decoded = _zstd(buffered, name)
    stream: IO[bytes] = decoded
    return stream


def _zstd(raw: IO[bytes], name: str) -> IO[bytes]:
    """Python has zstd from 3.14 on; before that a package or the command does it."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        return zstd.ZstdFile(raw)  # type: ignore[no-any-return,unused-ignore]
    except ImportError:
        pass
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]

        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)  # type: ignore[no-any-return,unused-ignore]
    except ImportError:
        pass
    command = shutil.which("zstd")
    if command is None or name == "standard input":
        raise UnreadableLogError(
            f"{name} is compressed with zstd, which this Python cannot read: install the `zstandard` package, "
            "or pipe it through `zstdcat`"
        )
    process = subprocess.Popen([command, "-dcq", "--", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    raw.close()
    assert process.stdout is not None
    return process.stdout
