"""Input files as bounded blocks of bytes and lines: plain, gzip, xz or zstd by content, `-` for standard
input.
"""

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
from typing import Any

from tias_slurm.errors import InputError, printable

BLOCK = 1 << 22  # bytes that are unfolded at a time
MAX_LINE = 1 << 22  # bytes of one line; a longer one is refused
PEEK = 1 << 16
ROOM = 96  # zero bytes behind the lines of a block, so that fixed widths can be read from any place
# A compressed file may unfold to at most so many times its size (after the first FREE bytes), and never to
# more than LIMIT. Text exports of sacct reach ratios of 10 to 60. gzip cannot see repeats farther apart than
# 32 KiB, and bombs in it have 1000; xz and zstd can, so that a hundred exports of the same days in one file
# have 1100 with them, and bombs 5000 and far more.
RATIO_GZIP, RATIO_OTHERS = 400, 2500
FREE = 1 << 25
AHEAD = 1 << 18  # bytes as stored that may have been taken, but not unfolded yet
LIMIT = 1 << 38

Progress = Callable[[int], None]  # gets the bytes of input taken since the last call

_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_BINARY = (b"PK\x03\x04", b"PAR1", b"SQLite format 3", b"\x7fELF", b"%PDF", b"BZh", b"\x89PNG", b"\x89HDF")

# Pipes can be opened once only: what was peeked at is kept for the reader that follows.
_pipes: dict[str, tuple[Any, _Counting]] = {}


class _Counting(io.RawIOBase):
    """Counts the bytes taken from a raw file."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size: int = self.raw.readinto(buffer) or 0
        self.count += size
        return size

    def close(self) -> None:
        if not self.closed and self.raw is not getattr(sys.stdin, "buffer", None):
            self.raw.close()
        super().close()


def label(path: str) -> str:
    """The name of an input in messages: safe to print, one line."""
    return "standard input" if path == "-" else printable(path, 200)


def _open(path: str) -> tuple[Any, _Counting]:
    """Open an input, or take the pipe that was peeked at. Raises InputError."""
    if path in _pipes:
        return _pipes.pop(path)
    name = label(path)
    try:
        if path == "-":
            raw: Any = sys.stdin.buffer
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


def _unfold(reader: Any, name: str) -> Any:
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
        return context.stream_reader(reader, read_across_frames=True)
    return reader


def _read(stream: Any, size: int, name: str) -> bytes:
    """Up to size bytes; fewer only at the end."""
    parts: list[bytes] = []
    have = 0
    try:
        while have < size:
            part = stream.read(size - have)
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
    return parts[0] if len(parts) == 1 else b"".join(parts)


def peek(path: str, size: int = PEEK) -> bytes:
    """The first bytes of an input, unfolded; what is peeked at can still be read. Raises InputError."""
    reader, counting = _open(path)
    name = label(path)
    if path == "-" or not stat.S_ISREG(os.stat(path).st_mode):
        _pipes[path] = reader, counting
        head: bytes = reader.peek(PEEK)[:PEEK]
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
    held: list[bytes] = []  # nothing is handed out of what may be a bomb, as reading its lines takes long
    try:
        stream = _unfold(reader, name)
        folded = stream is not reader
        ratio = RATIO_GZIP if isinstance(stream, gzip.GzipFile) else RATIO_OTHERS
        while data := _read(stream, BLOCK, name):
            if not total:
                _refuse_binary(data, name)
            total += len(data)
            if folded and total > FREE and total > ratio * counting.count:
                raise InputError(
                    f"{name} unfolds to more than {ratio} times its size: not an export "
                    f"(unpack it yourself if it is)"
                )
            if total > limit:
                raise InputError(
                    f"{name} holds more than {limit >> 20} MiB: split it, or export a shorter time"
                )
            if progress and counting.count > told:
                progress(counting.count - told)
                told = counting.count
            held.append(data)
            if not folded or total > FREE or total <= ratio * (counting.count - AHEAD):
                yield from held
                held.clear()
        yield from held
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

    first: int  # line number of the first, from 1
    data: bytes  # lines, each with a line break at its end, and after them ROOM zero bytes
    too_long: set[int] = field(
        default_factory=set
    )  # lines (0: the first) over MAX_LINE: only their start is kept
    last: bool = False
    # set by whoever uses the block: from which byte on, and which line, it wants to have it again before
    # the next
    again: tuple[int, int] | None = None


def line_blocks(path: str, progress: Progress | None = None) -> Iterator[LineBlock]:
    """The lines of a text, many at a time; the last block may be empty. Raises InputError."""
    carry = b""  # what is given again, and the start of a line whose end is not read yet
    number = 1
    pending: set[int] = set()  # lines of the carry that were too long
    skipping = False
    for data in blocks(path, progress):
        if number == 1 and not carry:
            data = data.removeprefix(b"\xef\xbb\xbf")
        if skipping:
            _, newline, data = data.partition(b"\n")
            if not newline:
                continue
            pending.add(carry.count(b"\n"))
            carry, skipping = carry + b"\n", False
        cut = data.rfind(b"\n") + 1
        if not cut:
            carry += data
        else:
            block = _block(number, b"".join((carry, memoryview(data)[:cut], bytes(ROOM))), pending)
            yield block
            number, carry, pending = _rest(block)
            carry += data[cut:]
        line = carry.rfind(b"\n") + 1
        if len(carry) - line > MAX_LINE:
            carry, skipping = carry[: line + 256], True
    if skipping:
        pending.add(carry.count(b"\n"))
    if carry and not carry.endswith(b"\n"):
        carry += b"\n"
    block = _block(number, carry + bytes(ROOM), pending)
    block.last = True
    yield block


def _rest(block: LineBlock) -> tuple[int, bytes, set[int]]:
    """What of a block is to be given again: number of its first line, its bytes, its lines that are too
    long.
    """
    byte, line = block.again or (len(block.data) - ROOM, block.data.count(b"\n"))
    return block.first + line, block.data[byte:-ROOM], {i - line for i in block.too_long if i >= line}


def _block(first: int, data: bytes, too_long: set[int]) -> LineBlock:
    if b"\r" in data:  # a single byte is found much faster than two
        data = data.replace(b"\r\n", b"\n")
    block = LineBlock(first, data, too_long)
    at = 0
    while at + MAX_LINE < len(data):
        end = data.rfind(b"\n", at, at + MAX_LINE + 1)
        if end < 0:
            break  # one is too long
        at = end + 1
    else:
        return block
    lines = data.split(b"\n")
    block.too_long = too_long | {i for i, line in enumerate(lines) if len(line) > MAX_LINE}
    for i in block.too_long:
        lines[i] = lines[i][:256]
    block.data = b"\n".join(lines)
    return block
