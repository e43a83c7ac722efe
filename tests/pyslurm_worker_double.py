"""Workers that misbehave as a real one cannot be made to: hang, die, talk nonsense, are ended by libslurm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tias_slurm.slurm.pyslurm_process import WorkerProcess

# A worker that greets and then does what the first word of each request says.
WORKER = """
import json, os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from tias_slurm.slurm import pyslurm_pipe as pipe
start, counter = sys.argv[2], sys.argv[3]
fd_in, fd_out = int(sys.argv[4]), int(sys.argv[5])
with open(counter, "a") as f:
    f.write("x")
def act(what, request):
    answer = {"ok": True, "id": request.get("id"), "tracked": True}
    if what == "hang":
        time.sleep(600)
    elif what == "fatal":
        print("slurm: fatal: Could not establish \\x1b[31ma source", file=sys.stderr, flush=True)
        os._exit(1)
    elif what == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "garbage":
        os.write(fd_out, b"gres/foo unknown type\\n" * 10)
        time.sleep(600)
    elif what == "huge":
        os.write(fd_out, b"TIA1" + b"\\xff" * 12)
        time.sleep(600)
    elif what == "half":
        whole = b"".join(pipe.pack(answer, {"a": np.arange(1000)}))
        os.write(fd_out, whole[: len(whole) // 2])
        time.sleep(600)
    elif what == "cut":
        os.write(fd_out, b"".join(pipe.pack(answer, {"a": np.arange(1000)}))[:-5])
        os._exit(0)
    elif what == "other":
        pipe.write(fd_out, pipe.pack({"ok": True, "id": -1}, {}))
    elif what == "codes":
        pieces = pipe.pack(answer, {"t": ["a", "b"]})
        pieces[-1] = np.array([0, 9], dtype="<i4").tobytes()
        pipe.write(fd_out, pieces)
    elif what == "list":
        body = json.dumps({"h": [1], "c": []}).encode()
        pipe.write(fd_out, [pipe._HEAD.pack(b"TIA1", len(body), 0), body])
    elif what == "noise":
        sys.stdout.write("noise " * 400000)
        sys.stdout.flush()
        pipe.write(fd_out, pipe.pack(answer, {}))
    elif what == "greet":
        pipe.write(fd_out, pipe.pack({"ok": True}, {}))
    else:
        pipe.write(fd_out, pipe.pack({**answer, **request["with"].get("say", {})}, {"n": np.arange(3.0)}))
act(start, {"with": {}})
while True:
    request, _ = pipe.read(fd_in, None)
    act(request["call"], request)
"""

CHECKOUT = str(Path(__file__).parents[1])
Make = Callable[..., WorkerProcess]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    return path


@pytest.fixture
def make(script: Path, tmp_path: Path) -> Iterator[Make]:
    made: list[WorkerProcess] = []

    def one(start: str = "greet", start_limit_s: float = 20.0) -> WorkerProcess:
        argv = [sys.executable, str(script), CHECKOUT, start, str(tmp_path / "starts")]
        made.append(WorkerProcess(start_limit_s, lambda: None, argv))
        return made[-1]

    yield one
    for process in made:
        process.end()
