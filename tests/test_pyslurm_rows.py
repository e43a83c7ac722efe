"""pyslurm's jobs as columns: bytes, flags, counts that come twice, values that stand for others."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tias_slurm.slurm import pyslurm_rows
from tias_slurm.slurm.live import NICE_UNKNOWN, PRIORITY_UNKNOWN, RawTable
from tias_slurm.slurm.pyslurm_adapter import with_gpus


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


ENDED = {"state": "COMPLETING", "start_time": 1000, "end_time": 2000, "run_time": 1000}


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (ENDED, "COMPLETED"),
        ({**ENDED, "exit_code": 1}, "FAILED"),
        ({**ENDED, "exit_code_signal": 15}, "CANCELLED"),
        ({**ENDED, "state_reason": "TimeLimit"}, "TIMEOUT"),
        # requeued, its nodes not yet clean: the start is still the old one
        ({**ENDED, "run_time": 0}, "PENDING"),
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
