"""A disk that can be filled: a small tmpfs of a test's own."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted directory, and what fills it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, leave: int = 0) -> None:
        """Take all the room there is, but `leave` bytes."""
        with contextlib.suppress(FileNotFoundError):
            self._filler.unlink()
        file = os.open(self._filler, os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(file, bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
            os.ftruncate(file, os.fstat(file).st_size - leave)
        finally:
            os.close(file)

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink()


@contextmanager
def small_disk(path: Path, megabytes: float) -> Iterator[SmallDisk]:
    """Mount one at `path`; skips the test where that is not allowed."""
    path.mkdir(exist_ok=True)
    options = f"size={int(megabytes * 1024)}k,mode=0755"
    argv = ["mount", "-t", "tmpfs", "-o", options, "tias-test", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here, which takes root: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
