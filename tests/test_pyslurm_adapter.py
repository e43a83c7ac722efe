"""The side of the pyslurm adapter that watches the worker, against workers that misbehave as a real one
cannot be made to: hang, die, talk nonsense, be ended by libslurm. What a real worker does is in
tests/live/test_pyslurm.py."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tias_slurm.errors import InputError
from tias_slurm.slurm import choose as choose_module
from tias_slurm.slurm import pyslurm_errors, pyslurm_pipe, pyslurm_rows
from tias_slurm.slurm.commands import CommandsAdapter
from tias_slurm.slurm.live import NICE_UNKNOWN, PRIORITY_UNKNOWN, AdapterError, RawTable
from tias_slurm.slurm.pyslurm_adapter import PyslurmAdapter, Versions, with_gpus
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
    answer = {"ok": True, "id": request.get("id")}
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


# ---- frames ----


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


# ---- the adapter ----


@pytest.fixture
def no_slurm(tmp_path: Path) -> str:
    """A directory of commands that fail: what follows never gets as far as a controller."""
    where = tmp_path / "bin"
    where.mkdir()
    for name in ("squeue", "scontrol", "sprio"):
        (where / name).write_text("#!/bin/sh\necho 'slurm: fatal: no' >&2\nexit 1\n")
        (where / name).chmod(0o755)
    return str(where)


MATCH = Versions("25.11.2", "25.11.4", "25.11.4")


def adapter(
    no_slurm: str, script: Path, tmp_path: Path, versions: Versions = MATCH, **kw: Any
) -> PyslurmAdapter:
    argv = [sys.executable, str(script), CHECKOUT, "greet", str(tmp_path / "starts")]
    return PyslurmAdapter(
        CommandsAdapter(5.0, no_slurm),
        call_limit_s=5.0,
        slurm_bin=no_slurm,
        worker=argv,
        versions=lambda: versions,
        **kw,
    )


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (MATCH, ""),
        (Versions("25.11.2", "25.11.0", "26.05.1"), ""),  # a controller may be ahead
        (Versions("", "25.11.0", "25.11.0"), "not installed"),
        (Versions("25.11.2", "26.05.5", "26.05.5"), "install pyslurm 26.05"),
        (Versions("25.11.2", "25.11.0", "25.05.9"), "upgrade the controller"),
        (Versions("25.11.2", "25.1.0", "25.1.0"), "install pyslurm 25.1."),
        (Versions("nonsense", "25.11.0", "25.11.0"), "install pyslurm"),
    ],
)
def test_versions_have_to_fit(versions: Versions, words: str) -> None:
    problem = versions.problem()
    assert (words in problem) if words else not problem


def test_a_mismatch_starts_nothing_unless_allowed(
    no_slurm: str, script: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = Versions("25.11.2", "26.05.5", "26.05.5")
    refused = adapter(no_slurm, script, tmp_path, wrong)
    with pytest.raises(AdapterError, match=r"26\.05") as caught:
        refused.facts()
    assert not caught.value.retry
    assert not (tmp_path / "starts").exists()
    allowed = adapter(no_slurm, script, tmp_path, wrong, allow_version_mismatch=True)
    allowed.write(1, "nice", 5)
    allowed.worker.end()
    allowed.write(1, "nice", 5)
    allowed.close()
    allowed.close()
    assert sum("may be wrong" in record.message for record in caplog.records) == 1  # said once


def test_a_write_that_dies_is_to_be_tried_again(no_slurm: str, script: Path, tmp_path: Path) -> None:
    one = adapter(no_slurm, script, tmp_path)
    one.write(1, "nice", 1)
    assert one.worker.pid is not None
    os.kill(one.worker.pid, signal.SIGKILL)
    assert one.write(1, "nice", 1).result == "retry"
    assert one.write(1, "nice", 1).result == "ok"
    one.close()


@pytest.mark.parametrize("call", ["jobs", "nodes", "facts"])
def test_an_answer_without_what_was_asked_for(no_slurm: str, script: Path, tmp_path: Path, call: str) -> None:
    one = adapter(no_slurm, script, tmp_path)
    with pytest.raises(AdapterError):
        getattr(one, call)()
    one.close()


# ---- error numbers ----


def test_error_numbers_are_classified() -> None:
    known = pyslurm_errors.by_number(lambda name, usual: usual)
    expected = {
        2017: "gone", 2021: "gone", 2084: "gone", 2002: "no rights", 2010: "no rights", 2095: "no rights",
        2042: "refused", 2037: "refused", 2096: "refused", 2027: "retry", 111: "retry", 1800: "retry",
        1803: "retry", 5004: "retry", 6000: "retry", 2050: "refused", 9999: "refused", -1: "refused",
    }  # fmt: skip
    assert {code: pyslurm_errors.result_of(code, known) for code in expected} == expected
    # a release that numbers them otherwise is believed
    moved = pyslurm_errors.by_number(lambda name, usual: usual + 500)
    assert pyslurm_errors.result_of(2517, moved) == "gone"


# ---- records ----


def tres(*gres: tuple[str, int], mem: int | None = None) -> SimpleNamespace:
    found = {name: SimpleNamespace(name=name, count=count) for name, count in gres}
    return SimpleNamespace(gres=found, mem=None if mem is None else SimpleNamespace(count=mem))


class Record:
    """Attributes as pyslurm shows them; an exception as a value is raised on access."""

    def __init__(self, **kw: Any) -> None:
        self.__dict__["_values"] = {
            **dict.fromkeys(pyslurm_rows.ATTRIBUTES),
            "id": 7, "state": "PENDING", "tres": tres(("gpu", 2)), "cpus": 4, "num_nodes": 1, "user_id": 0,
            "partition": "gpu", "submit_time": 1000, "priority": 5, "nice": 0, "is_requeueable": True,
            "is_batch_job": True, "is_cronjob": False, "allocated_tres": None,
            "requested_tres": tres(("gpu", 2)), "run_time": 0,
            "exit_code": 0, "exit_code_signal": 0,
            **kw,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        try:
            value = self._values[name]
        except KeyError:
            raise AttributeError(name) from None
        if isinstance(value, Exception):
            raise value
        return value


def read(*records: Record, now: float = 5000.0) -> tuple[dict[str, Any], int, int]:
    columns, refused, repaired = pyslurm_rows.job_columns(records, now, str)
    return {k: v if isinstance(v, list) else v.tolist() for k, v in columns.items()}, refused, repaired


def table_of(*records: Record) -> RawTable:
    columns: Any = pyslurm_rows.job_columns(records, 5000.0, str)[0]
    return RawTable(time=5000.0, **columns)


def bad_bytes(raw: bytes) -> UnicodeDecodeError:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return error
    raise AssertionError("those bytes are fine")


def test_bytes_that_are_not_utf8_cost_a_character_not_the_job() -> None:
    got, refused, repaired = read(
        Record(id=1, comment=bad_bytes(b"caf\xe9 deadline=+3h")), Record(id=2, comment="plain", account="a")
    )
    assert got["comment"] == ["caf\ufffd deadline=+3h", "plain"]
    assert (refused, repaired) == (0, 1)
    assert got["account"] == ["", "a"]


def test_a_record_that_cannot_be_read_is_counted_and_left_out() -> None:
    got, refused, _ = read(
        Record(id=3),
        Record(id=1, state=RuntimeError("?")),
        Record(id=2, cpus=ValueError("?")),
        Record(id=4, priority=ValueError("?"), nice=ValueError("?")),
    )
    assert got["job_id"] == [3, 4]
    assert refused == 2
    assert got["priority"] == [5, PRIORITY_UNKNOWN]
    assert got["nice"] == [0, NICE_UNKNOWN]


def test_values_that_stand_for_others() -> None:
    got, refused, _ = read(
        Record(id=1, priority="UNLIMITED", nice=None, time_limit=None, heterogeneous_offset=2**32 - 2),
        Record(id=2, array_id=2, array_tasks_waiting="3-9", priority=0, time_limit=30),
        Record(id=3, array_id=2, array_task_id=None),
        Record(id=4, array_id=2, array_task_id=2, heterogeneous_id=4),
        Record(id=5, heterogeneous_id=4, heterogeneous_offset=1),
    )
    assert refused == 0
    assert got["priority"] == [PRIORITY_UNKNOWN, 0, 5, 5, 5]
    assert got["nice"] == [NICE_UNKNOWN, 0, 0, 0, 0]
    assert got["time_limit_s"][:2] == [math.inf, 1800.0]
    assert got["array_task"] == ["", "3-9", "0", "2", ""]
    assert got["het_offset"] == [0, 0, 0, 0, 1]


def test_what_ended_without_nodes_counts_as_it_was_asked_for() -> None:
    # a controller that is started anew gives such records an allocation without GPUs
    gone = {"state": "CANCELLED", "allocated_tres": tres(), "requested_tres": tres(("gpu", 8), mem=70)}
    got, refused, _ = read(
        Record(id=1, array_id=1, requeue_count=1, **gone),  # an array of one task, which ran and was requeued
        Record(id=2, array_id=1, **gone),
        Record(id=3, array_id=3, **gone),  # each task of it was cancelled by itself
        Record(id=4, array_id=4, allocated_nodes="n1", **gone),
    )
    assert refused == 0
    assert got["array_task"] == ["0", "0", "", "0"]
    assert got["array_id"] == [1, 1, 0, 4]
    assert got["gpus"] == [8, 8, 8, 0]
    assert got["mem_mb"] == [70.0, 70.0, 70.0, 0.0]


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (tres(("gpu", 4), ("gpu:a100", 4)), (4, "a100")),
        (tres(("gpu:a100", 2), ("gpu:v100", 2)), (4, "a100=2,v100=2")),
        (tres(("gpu", 6), ("gpu:a100", 2), ("gpu:v100", 4)), (6, "a100=2,v100=4")),
        (tres(("gpu", 6), ("gpu:a100", 2)), (6, "a100=2")),
        (tres(("gpu", 3), ("shard", 9), ("gpumem", 80)), (3, "")),
        (tres(), (0, "")),
    ],
)
def test_gpus_are_never_counted_twice(held: SimpleNamespace, expected: tuple[int, str]) -> None:
    assert pyslurm_rows.gpu_count(held) == expected


def test_gpus_that_pyslurm_fails_on_are_asked_of_squeue() -> None:
    # a TRES with a unit makes pyslurm raise
    broken = ValueError("invalid literal for int(): '10G'")
    got, refused, _ = read(
        Record(id=1),
        Record(id=2, tres=broken),
        Record(id=3, tres=None),
        Record(id=4, state="SUSPENDED", allocated_tres=broken, allocated_nodes="n1", start_time=1),
    )
    assert refused == 0
    assert got["gpus"] == [2, pyslurm_rows.GPUS_UNKNOWN, 0, pyslurm_rows.GPUS_UNKNOWN]
    one, other = (
        table_of(Record(id=1), Record(id=2, tres=broken), Record(id=3, tres=broken)),
        table_of(Record(id=1, tres=tres(("gpu", 9))), Record(id=2, tres=tres(("gpu:a100", 4), mem=70))),
    )
    merged = with_gpus(one, other)
    assert merged.gpus.tolist() == [2, 4, 0]
    assert merged.gpu_type == ["", "a100", ""]
    assert merged.mem_mb.tolist() == [0.0, 70.0, 0.0]
    assert with_gpus(one, table_of()).gpus.tolist() == [2, 0, 0]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ({"state": "COMPLETING", "start_time": 1000, "end_time": 2000, "run_time": 1000}, "COMPLETED"),
        (
            {"state": "COMPLETING", "start_time": 1000, "end_time": 2000, "run_time": 1000, "exit_code": 1},
            "FAILED",
        ),
        (
            {
                "state": "COMPLETING",
                "start_time": 1000,
                "end_time": 2000,
                "run_time": 1000,
                "exit_code_signal": 15,
            },
            "CANCELLED",
        ),
        (
            {
                "state": "COMPLETING",
                "start_time": 1000,
                "end_time": 2000,
                "run_time": 1000,
                "state_reason": "TimeLimit",
            },
            "TIMEOUT",
        ),
        # requeued, its nodes not yet clean: the start is still the old one
        ({"state": "COMPLETING", "start_time": 1000, "end_time": 2000, "run_time": 0}, "PENDING"),
        ({"state": "CONFIGURING", "start_time": 4990, "end_time": 9000, "run_time": 10}, "RUNNING"),
        ({"state": "RESIZING", "start_time": 1000, "end_time": 9000, "run_time": 4000}, "RUNNING"),
        ({"state": "REQUEUE_HOLD", "start_time": None, "priority": 0}, "PENDING"),
        ({"state": "SPECIAL_EXIT", "start_time": 1000, "end_time": 2000}, "PENDING"),
        ({"state": "REQUEUED", "start_time": None}, "PENDING"),
        ({"state": "EXPEDITING", "start_time": 6000}, "PENDING"),
    ],
)
def test_the_state_behind_a_flag(shown: dict[str, Any], expected: str) -> None:
    got, refused, _ = read(Record(**shown), Record(id=9))
    assert refused == 0
    assert got["state"] == [expected, "PENDING"]
    assert got["flags"] == [shown["state"], ""]


def test_seconds_suspended() -> None:
    got, _, _ = read(
        Record(id=1, state="RUNNING", start_time=1000, suspend_time=3000, pre_suspension_time=500),
        Record(id=2, state="SUSPENDED", start_time=1000, suspend_time=3000, pre_suspension_time=2000),
        Record(id=3, state="RUNNING", start_time=1000),
        Record(id=4, state="PENDING", start_time=None, suspend_time=3000, pre_suspension_time=10),
        Record(id=5, state="SUSPENDED", start_time=4000, suspend_time=4000),
    )
    assert got["suspended_s"] == [1500.0, 2000.0, 0.0, 0.0, 1000.0]


def test_no_jobs_at_all() -> None:
    got, refused, repaired = read()
    assert (refused, repaired) == (0, 0)
    assert set(map(len, got.values())) == {0}


# ---- the choice ----


def test_the_choice_without_pyslurm(no_slurm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_module, "installed_pyslurm", lambda: "")
    for backend in ("auto", "commands"):
        found, why = choose_module.choose(backend, slurm_bin=no_slurm)  # type: ignore[arg-type]
        assert found.name == "commands"
        assert why.startswith("commands: ")
    with pytest.raises(InputError, match="not installed here"):
        choose_module.choose("pyslurm", slurm_bin=no_slurm)


def test_only_the_worker_imports_pyslurm() -> None:
    package = Path(CHECKOUT) / "tias_slurm"
    named = [
        path.name
        for path in package.rglob("*.py")
        if any(
            line.split()[:2] in (["import", "pyslurm"], ["from", "pyslurm"])
            for line in path.read_text().splitlines()
        )
        or 'import_module("pyslurm")' in path.read_text()
    ]
    assert named == ["pyslurm_worker.py"]
    assert "pyslurm" not in sys.modules


def test_json_of_a_request_is_plain(make: Make) -> None:
    """What the worker is asked travels as JSON: nothing in it can be run."""
    pieces = pyslurm_pipe.pack({"call": "write", "with": {"job_id": 1}}, {})
    assert json.loads(pieces[1]) == {"h": {"call": "write", "with": {"job_id": 1}}, "c": []}
