"""The process beside us, against workers that misbehave. A real one: tests/live/test_pyslurm.py."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyslurm_worker_double
import pytest
from pyslurm_worker_double import CHECKOUT, Make

from tias_slurm.slurm import pyslurm_pipe
from tias_slurm.slurm.live import AdapterError
from tias_slurm.slurm.pyslurm_process import WorkerProcess

script = pyslurm_worker_double.script
make = pyslurm_worker_double.make


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_an_answer_comes_back_with_its_columns(make: Make) -> None:
    worker = make()
    header, columns = worker.call("echo", 5.0, say={"word": "é\n\x00"})
    assert header["word"] == "é\n\x00"
    assert np.asarray(columns["n"]).tolist() == [0.0, 1.0, 2.0]
    first = worker.pid
    worker.call("echo", 5.0)
    assert worker.pid == first
    assert worker.starts == 1


@pytest.mark.parametrize("fault", ["hang", "half", "garbage", "huge", "other", "codes", "list", "cut"])
def test_a_worker_that_hangs_or_talks_nonsense_is_killed_and_replaced(make: Make, fault: str) -> None:
    worker = make()
    worker.call("echo", 5.0)
    first = worker.pid
    assert first is not None
    begin = time.monotonic()
    with pytest.raises(AdapterError) as caught:
        worker.call(fault, 0.5)
    assert caught.value.retry
    assert "\n" not in str(caught.value)
    assert time.monotonic() - begin < 5.0
    assert worker.pid is None
    assert gone(first)
    worker.call("echo", 5.0)
    assert worker.starts == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [("fatal", "exit status 1"), ("segfault", "SIGSEGV")],
)
def test_how_a_worker_died_is_told(make: Make, fault: str, words: str) -> None:
    worker = make()
    with pytest.raises(AdapterError, match=words) as caught:
        worker.call(fault, 10.0)
    assert caught.value.retry
    if fault == "fatal":
        # libslurm's own last line, with nothing in it that a terminal would act on
        assert "Could not establish" in str(caught.value)
        assert "\x1b" not in str(caught.value)


def test_killed_from_outside(make: Make) -> None:
    worker = make()
    worker.call("echo", 5.0)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(AdapterError, match=r"SIGKILL|ended") as caught:
        worker.call("echo", 5.0)
    assert caught.value.retry
    worker.call("echo", 5.0)


@pytest.mark.parametrize("start", ["hang", "fatal", "garbage"])
def test_a_worker_that_never_gets_ready(make: Make, start: str) -> None:
    worker = make(start, start_limit_s=1.0)
    with pytest.raises(AdapterError) as caught:
        worker.call("echo", 5.0)
    assert caught.value.retry
    assert worker.pid is None


def test_starts_are_further_and_further_apart(make: Make, tmp_path: Path) -> None:
    worker = make("fatal", start_limit_s=10.0)
    messages = []
    begin = time.monotonic()
    while time.monotonic() - begin < 2.5:
        with pytest.raises(AdapterError) as caught:
            worker.call("echo", 5.0)
        assert caught.value.retry
        messages.append(str(caught.value))
        time.sleep(0.01)
    # at once, at once again, after 1 s, and the next only after 2 s more
    assert len((tmp_path / "starts").read_text()) == 3
    assert any("next start is in" in message for message in messages)


def test_an_answer_ends_the_back_off(make: Make) -> None:
    worker = make()
    for _ in range(4):
        with pytest.raises(AdapterError):
            worker.call("segfault", 5.0)
        worker.call("echo", 5.0)  # no wait: the one before had answered
    assert worker.starts == 5


def test_what_a_worker_prints_neither_blocks_it_nor_is_kept(make: Make) -> None:
    worker = make()
    for _ in range(4):
        worker.call("noise", 20.0)
    assert worker.starts == 1


def test_ending_twice_leaves_nothing(make: Make) -> None:
    worker = make()
    worker.call("echo", 5.0)
    pid, before = worker.pid, len(os.listdir("/proc/self/fd"))
    worker.end()
    worker.end()
    assert pid is not None
    assert gone(pid)
    assert len(os.listdir("/proc/self/fd")) == before - 3  # two ends of pipes and what it printed


def test_ending_does_not_wait_for_a_call_that_hangs(make: Make) -> None:
    worker = make()
    worker.call("echo", 5.0)
    errors: list[AdapterError] = []

    def hang() -> None:
        try:
            worker.call("hang", 60.0)
        except AdapterError as error:
            errors.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    time.sleep(0.3)
    begin = time.monotonic()
    worker.end()
    thread.join(10.0)
    assert time.monotonic() - begin < 5.0
    assert len(errors) == 1
    assert errors[0].retry


def test_a_refused_start_starts_nothing(script: Path, tmp_path: Path) -> None:
    def refuse() -> None:
        raise AdapterError("no", retry=False)

    argv = [sys.executable, str(script), CHECKOUT, "greet", str(tmp_path / "starts")]
    worker = WorkerProcess(5.0, refuse, argv)
    with pytest.raises(AdapterError, match="no"):
        worker.call("echo", 1.0)
    assert not (tmp_path / "starts").exists()


def test_columns_survive_a_frame() -> None:
    texts = ["", "é", "a,b|c\n", "a,b|c\n", "\ud800broken", "\x00"]
    columns: dict[str, pyslurm_pipe.Column] = {
        "i": np.array([-(2**63), 0, 2**62]),
        "f": np.array([math.nan, math.inf, -0.5]),
        "b": np.array([True, False]),
        "t": texts,
        "none": np.empty(0),
        "no texts": [],
    }
    read_end, write_end = os.pipe()
    try:
        pyslurm_pipe.write(write_end, pyslurm_pipe.pack({"ok": True}, columns))
        header, back = pyslurm_pipe.read(read_end, time.monotonic() + 1)
    finally:
        os.close(read_end)
        os.close(write_end)
    assert header == {"ok": True}
    assert back["t"] == [*texts[:4], "?broken", texts[5]]
    assert back["no texts"] == []
    for name in ("i", "f", "b", "none"):
        np.testing.assert_array_equal(back[name], columns[name])


def test_json_of_a_request_is_plain(make: Make) -> None:
    """What the worker is asked travels as JSON: nothing in it can be run."""
    pieces = pyslurm_pipe.pack({"call": "write", "with": {"job_id": 1}}, {})
    assert json.loads(pieces[1]) == {"h": {"call": "write", "with": {"job_id": 1}}, "c": []}
