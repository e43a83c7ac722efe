"""Frames between the daemon and its pyslurm worker: a JSON header and raw columns behind it.

No pickle on purpose: the worker runs libslurm on whatever a controller sends, and a broken worker must be
able to give wrong numbers at worst, never code. JSON and plain arrays cannot carry any. Text columns
travel as their different values and one code a row, since users, states and reasons repeat.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints

Column = Ints | Floats | Bools | list[str]
_HEAD = struct.Struct("!4sIQ")  # magic, bytes of JSON, bytes of columns
_MAGIC = b"TIA1"
MAX_JSON = 1 << 30
MAX_COLUMNS = 1 << 31
_KINDS = {"i": np.dtype("<i8"), "f": np.dtype("<f8"), "b": np.dtype("?"), "t": np.dtype("<i4")}


class PipeError(Exception):
    """The other side is gone, late, or talks nonsense. One line."""


class LateError(PipeError):
    """The deadline passed."""


def pack(header: Mapping[str, Any], columns: Mapping[str, Column]) -> list[bytes]:
    """One frame, to be written piece by piece. `header` is plain JSON; columns may differ in length."""
    listed: list[list[Any]] = []
    bodies: list[bytes] = []
    for name, column in columns.items():
        if isinstance(column, list):
            index: dict[str, int] = {}
            codes = np.fromiter((index.setdefault(t, len(index)) for t in column), _KINDS["t"], len(column))
            listed.append([name, "t", len(column), list(index)])
            bodies.append(codes.tobytes())
        else:
            kind = column.dtype.kind
            listed.append([name, kind, len(column), None])
            bodies.append(np.ascontiguousarray(column, dtype=_KINDS[kind]).tobytes())
    text = json.dumps({"h": header, "c": listed}, ensure_ascii=False).encode("utf-8", "replace")
    return [_HEAD.pack(_MAGIC, len(text), sum(map(len, bodies))), text, *bodies]


def write(fd: int, pieces: Iterable[bytes]) -> None:
    """Write a frame whole; PipeError if nobody reads."""
    for piece in pieces:
        view = memoryview(piece)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except OSError as error:
                raise PipeError(f"pipe: {error.strerror}") from None


def read(fd: int, deadline: float | None) -> tuple[dict[str, Any], dict[str, Column]]:
    """One frame; `deadline` on the clock of time.monotonic(), None: wait for ever. PipeError, LateError."""
    magic, text_bytes, column_bytes = _HEAD.unpack(_exactly(fd, _HEAD.size, deadline))
    if magic != _MAGIC or text_bytes > MAX_JSON or column_bytes > MAX_COLUMNS:
        raise PipeError("an answer that is no frame")
    text = _exactly(fd, text_bytes, deadline)
    return _unpack(text, _exactly(fd, column_bytes, deadline))


def _unpack(text: bytearray, body: bytearray) -> tuple[dict[str, Any], dict[str, Column]]:
    try:
        whole = json.loads(text)
        header = dict(whole["h"])
        columns: dict[str, Column] = {}
        at = 0
        for name, kind, length, values in whole["c"]:
            array: Any = np.frombuffer(body, _KINDS[kind], int(length), at)
            at += array.nbytes
            columns[name] = _texts(values, array) if kind == "t" else array
        if at != len(body):
            raise ValueError("bytes left over")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise PipeError(f"an answer that cannot be read: {type(error).__name__}") from None
    return header, columns


def _texts(values: list[Any], codes: Any) -> list[str]:
    if not all(isinstance(value, str) for value in values) or (len(codes) and codes.min() < 0):
        raise ValueError("text column")
    return list(map(values.__getitem__, codes.tolist()))


def _exactly(fd: int, size: int, deadline: float | None) -> bytearray:
    # grown as bytes come, so that a false length costs nothing
    got = bytearray()
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    while len(got) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0 or not waiting.poll(max(1, int(left * 1000))):
                raise LateError("no answer in time")
        try:
            some = os.read(fd, min(size - len(got), 1 << 20))
        except OSError as error:
            raise PipeError(f"pipe: {error.strerror}") from None
        if not some:
            raise PipeError("the worker has ended")
        got += some
    return got
