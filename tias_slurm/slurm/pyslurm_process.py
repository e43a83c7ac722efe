"""The worker process seen from outside: started when needed, each request within a limit, ended by force."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final, NoReturn

from tias_slurm.errors import printable
from tias_slurm.slurm import pyslurm_pipe
from tias_slurm.slurm.live import AdapterError
from tias_slurm.slurm.pyslurm_pipe import Column

# -P: a directory that the daemon happens to be started in is no place to import from
WORKER: Final = (sys.executable, "-P", "-m", "tias_slurm.slurm.pyslurm_worker")
_BACK_OFF_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
_PIPE_BYTES: Final = 1 << 20  # what pipe(7) grants to anyone
_MAX_NOISE: Final = 1 << 20  # bytes that a worker may have printed before its output is thrown away


class WorkerProcess:
    """One worker at a time. Thread-safe; requests wait for one another.

    After a death, an overrun or a nonsensical answer the worker is ended with SIGKILL; the next request
    starts a new one, at once the first time, then after 1, 2, 4 ... 60 s, until one has answered.
    """

    def __init__(
        self,
        start_limit_s: float,
        before_start: Callable[[], None],
        argv: Sequence[str] = WORKER,
    ) -> None:
        """`start_limit_s`: from the start to its greeting. `before_start`: may raise to prevent a start."""
        self._start_limit_s = start_limit_s
        self._before_start = before_start
        self._argv = tuple(argv)
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._noise: IO[bytes] | None = None
        self._requests = self._answers = -1
        self._failures = 0
        self._not_before = 0.0
        self._number = 0
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Of the worker, None while there is none."""
        return self._process.pid if self._process else None

    def call(
        self, name: str, limit_s: float, **arguments: Any
    ) -> tuple[dict[str, Any], Mapping[str, Column]]:
        """The answer to one request. AdapterError: whether it was carried out is open."""
        with self._lock:
            if self._process is None:
                self._start()
            self._number += 1
            request = {"call": name, "with": arguments, "id": self._number}
            deadline = time.monotonic() + limit_s
            try:
                pyslurm_pipe.write(self._requests, pyslurm_pipe.pack(request, {}))
                header, columns = pyslurm_pipe.read(self._answers, deadline)
                if header.get("id") != self._number or not isinstance(header.get("ok"), bool):
                    raise pyslurm_pipe.PipeError("an answer to another question")
            except pyslurm_pipe.LateError:
                self._failed(f"no answer to {name} within {limit_s:g} s")
            except pyslurm_pipe.PipeError as error:
                self._failed(str(error))
            except BaseException:
                # interrupted in the middle of a frame: the pipe cannot be used any more
                self.end()
                raise
            self._failures = 0
            self._quieten()
            return header, columns

    def end(self) -> None:
        """End the worker, if there is one, also in the middle of another thread's call, which then fails.

        The next request starts another.
        """
        # before the lock: whoever holds it may be waiting for this very worker
        _kill(self._process)
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                _kill(process)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)  # one that is stuck in the kernel is left to init
            for fd in (self._requests, self._answers):
                if fd >= 0:
                    os.close(fd)
            self._requests = self._answers = -1
            if self._noise is not None:
                self._noise.close()
                self._noise = None

    def _start(self) -> None:
        wait = self._not_before - time.monotonic()
        if wait > 0:
            raise AdapterError(f"pyslurm worker: the next start is in {wait:.0f} s", retry=True)
        self._before_start()
        child_in, self._requests = os.pipe()
        self._answers, child_out = os.pipe()
        with contextlib.suppress(OSError):
            # a queue in few pieces: each switch between the two processes may wait for a busy machine
            fcntl.fcntl(child_out, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            # its own output goes to a file that nobody has to empty
            self._noise = tempfile.TemporaryFile("a+b")  # noqa: SIM115  closed by end()
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter, a list, no shell
                [*self._argv, str(child_in), str(child_out)],
                stdin=subprocess.DEVNULL,
                stdout=self._noise,
                stderr=self._noise,
                pass_fds=(child_in, child_out),
                start_new_session=True,  # an interrupt at the terminal is not for it
            )
        except OSError as error:
            self.end()
            raise AdapterError(f"pyslurm worker: cannot be started: {error.strerror}", retry=True) from None
        finally:
            os.close(child_in)
            os.close(child_out)
        self.starts += 1
        try:
            header, _ = pyslurm_pipe.read(self._answers, time.monotonic() + self._start_limit_s)
        except pyslurm_pipe.LateError:
            self._failed(f"not ready within {self._start_limit_s:g} s")
        except pyslurm_pipe.PipeError as error:
            self._failed(str(error))
        except BaseException:
            self.end()
            raise
        if header.get("ok") is not True:
            self._failed("no greeting")

    def _failed(self, what: str) -> NoReturn:
        """End it, note when the next may start, and tell."""
        process = self._process
        status = None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(0.2)
        words = self._last_words()
        self.end()
        pause = _BACK_OFF_S[min(self._failures, len(_BACK_OFF_S) - 1)]
        self._failures += 1
        self._not_before = time.monotonic() + pause
        how = "" if status is None else f" ({_ending(status)})"
        said = f": {words}" if words else ""
        raise AdapterError(f"pyslurm worker: {what}{how}{said}", retry=True)

    def _last_words(self) -> str:
        """The last line that it printed, made safe."""
        if self._noise is None:
            return ""
        try:
            size = self._noise.seek(0, os.SEEK_END)
            self._noise.seek(max(0, size - 4096))
            lines = self._noise.read().decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        return printable(next((line.strip() for line in reversed(lines) if line.strip()), ""), 200)

    def _quieten(self) -> None:
        if self._noise is not None and os.fstat(self._noise.fileno()).st_size > _MAX_NOISE:
            self._noise.truncate(0)


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-status).name}"
    return f"ended by signal {-status}"
