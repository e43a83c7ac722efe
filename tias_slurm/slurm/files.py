"""Input files as bounded blocks of bytes and lines: plain, gzip, xz or zstd by content, `-` for standard input."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from tias_slurm.replay.workload import InputError, printable

BLOCK = 1 << 23  # bytes that are unfolded at a time
MAX_LINE = 1 << 22  # bytes of one line; a longer one is refused
PEEK = 1 << 16
# A compressed file may unfold to at most RATIO times its size (after the first FREE bytes), and never to more than
# LIMIT. Text exports of sacct reach ratios of 20 to 60; a bomb has 1000 and far more.
RATIO = 400
FREE = 1 << 26
LIMIT = 1 << 38

Progress = Callable[[int], None]  # gets the bytes of input taken since the last call

_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_BINARY = (b"PK\x03\x04", b"PAR1", b"SQLite format 3", b"\x7fELF", b"%PDF", b"BZh", b"\x89PNG", b"\x89HDF")

# Pipes can be opened once only: what was peeked at is kept for the reader that follows.
_pipes: dict[str, tuple[io.BufferedReader, _Counting]] = {}


class _Counting(io.RawIOBase):
    """Counts the bytes taken from a raw file."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw = raw
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.raw.read(len(buffer)) or b""
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed and self.raw is not getattr(sys.stdin, "buffer", None):
            self.raw.close()
        super().close()


def label(path: str) -> str:
    """The name of an input in messages: safe to print, one line."""
    return "standard input" if path == "-" else printable(path, 200)


def _open(path: str) -> tuple[io.BufferedReader, _Counting]:
    """Open an input, or take the pipe that was peeked at. Raises InputError."""
    if path in _pipes:
        return _pipes.pop(path)
    name = label(path)
    try:
        if path == "-":
            raw: IO[bytes] = sys.stdin.buffer
            regular = False
        else:
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode):
                raise InputError(f"{name} is a directory: give the files in it by name")
            regular = stat.S_ISREG(mode)
            raw = open(path, "rb", buffering=0)  # noqa: SIM115  closed by the reader
    except FileNotFoundError:
        raise InputError(f"{name} does not exist: check the path") from None
    except PermissionError:
        raise InputError(f"{name} cannot be read: no permission (chmod it or run as its owner)") from None
    except (OSError, ValueError) as e:
        raise InputError(f"{name} cannot be opened: {printable(str(e))}") from None
    counting = _Counting(raw)
    reader = io.BufferedReader(counting, PEEK)
    if not regular:
        reader.peek(1)
    return reader, counting


def _unfold(reader: io.BufferedReader, name: str) -> IO[bytes]:
    """The decompressed stream, by the first bytes of the content."""
    magic = reader.peek(6)[:6]
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=reader)
    if magic.startswith(_XZ):
        return lzma.LZMAFile(reader)
    if magic.startswith(_ZSTD):
        try:
            import zstandard
        except ImportError:
            raise InputError(
                f"{name} is zstd-compressed: install tias-slurm[replay], or unpack it with `zstd -d`"
            ) from None
        context = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        stream: IO[bytes] = context.stream_reader(reader, read_across_frames=True)
        return stream
    return reader


def _read(stream: IO[bytes], size: int, name: str) -> bytes:
    """Up to size bytes; fewer only at the end."""
    parts: list[bytes] = []
    have = 0
    try:
        while have < size:
            part = stream.read(min(size - have, 1 << 20))
            if not part:
                break
            parts.append(part)
            have += len(part)
    except EOFError:
        raise InputError(f"{name} ends in the middle of its compressed data: copy it again") from None
    except (OSError, zlib.error, lzma.LZMAError) as e:
        raise InputError(f"{name} cannot be read: {printable(str(e))}") from None
    except Exception as e:  # zstandard.ZstdError, known only where the package is installed
        if type(e).__module__.partition(".")[0] == "zstandard":
            raise InputError(f"{name} cannot be unpacked: {printable(str(e))}") from None
        raise
    return b"".join(parts)


def peek(path: str, size: int = PEEK) -> bytes:
    """The first bytes of an input, unfolded; what is peeked at can still be read. Raises InputError."""
    reader, counting = _open(path)
    name = label(path)
    if path == "-" or not stat.S_ISREG(os.stat(path).st_mode):
        _pipes[path] = reader, counting
        head = reader.peek(PEEK)[:PEEK]
        inner = io.BufferedReader(_Counting(io.BytesIO(head)), PEEK)
        if (stream := _unfold(inner, name)) is inner:
            return head[:size]
        out = b""
        try:
            while len(out) < size and (part := stream.read(1024)):
                out += part
        except Exception:
            return out  # the head of a stream that is cut by the peek
        return out
    try:
        return _read(_unfold(reader, name), size, name)
    finally:
        reader.close()


def blocks(path: str, progress: Progress | None = None, *, limit: int = LIMIT) -> Iterator[bytes]:
    """The content in blocks of BLOCK bytes (the last is shorter); at least one byte in all.

    progress gets the number of bytes newly taken from the input as stored (compressed). Raises InputError for
    what cannot be opened, unfolded or read as text, and for a file that unfolds without measure.
    """
    reader, counting = _open(path)
    name = label(path)
    told = total = 0
    try:
        stream = _unfold(reader, name)
        folded = stream is not reader
        while data := _read(stream, BLOCK, name):
            if not total:
                _refuse_binary(data, name)
            total += len(data)
            if folded and total > FREE and total > RATIO * counting.count:
                raise InputError(
                    f"{name} unfolds to more than {RATIO} times its size: not an export; unpack it yourself to read it"
                )
            if total > limit:
                raise InputError(
                    f"{name} holds more than {limit >> 20} MiB: split it, or export a shorter time"
                )
            if progress and counting.count > told:
                progress(counting.count - told)
                told = counting.count
            yield data
        if not total:
            raise InputError(f"{name} is empty: export the history again")
    finally:
        reader.close()


def _refuse_binary(data: bytes, name: str) -> None:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{name} is UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`")
    if data.startswith(_BINARY) or b"\0" in data:
        raise InputError(
            f"{name} is a binary file, not a text export (gzip, xz and zstd are unpacked by themselves)"
        )


@dataclass
class LineBlock:
    """Successive lines of a text."""

    first: int  # line number of lines[0], from 1
    lines: list[str]  # without line ends
    too_long: set[int] = field(
        default_factory=set
    )  # indices of lines longer than MAX_LINE: only their start is kept


def line_blocks(path: str, progress: Progress | None = None) -> Iterator[LineBlock]:
    """The lines of a text, many at a time. Bytes that are not UTF-8 become U+FFFD. Raises InputError."""
    carry = b""
    number = 1
    skipping = False
    start = True
    for data in blocks(path, progress):
        if start and data.startswith(b"\xef\xbb\xbf"):
            data = data[3:]
        start = False
        if skipping:
            _, newline, data = data.partition(b"\n")
            if not newline:
                continue
            yield LineBlock(number, [carry.decode("utf-8", "replace")], {0})
            number += 1
            carry, skipping = b"", False
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            block = _lines(number, carry + head)
            number += len(block.lines)
            yield block
            carry = tail
        else:
            carry += data
        if len(carry) > MAX_LINE:
            carry, skipping = carry[:256], True
    if carry or skipping:
        block = _lines(number, carry)
        if skipping:
            block.too_long.add(0)
        yield block


def _lines(first: int, data: bytes) -> LineBlock:
    text = data.decode("utf-8", "replace")
    lines = text.split("\n")
    if "\r" in text:
        lines = [line[:-1] if line.endswith("\r") else line for line in lines]
    block = LineBlock(first, lines)
    if len(data) > MAX_LINE:
        for i, line in enumerate(lines):
            if len(line) > MAX_LINE:
                lines[i] = line[:256]
                block.too_long.add(i)
    return block
