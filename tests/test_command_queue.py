"""What squeue prints, parsed: hostile texts, odd values, arrays. Live: tests/live."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tias_slurm.slurm.command_parse import all_failed
from tias_slurm.slurm.command_queue import (
    FIELDS,
    doubtful,
    format_option,
    parse_queue,
    ranges,
    tasks_of,
    unknown_fields,
    with_tasks,
)
from tias_slurm.slurm.live import NICE_UNKNOWN, PRIORITY_UNKNOWN, RawTable

TOKEN = "0123456789abcdef"
END = f"\x1e{TOKEN}\n".encode()
# a waiting job as squeue 26.05 prints it
PLAIN = {
    "JobID": "7", "ArrayJobID": "7", "ArrayTaskID": "N/A", "HetJobID": "N/A", "HetJobOffset": "N/A",
    "State": "PENDING", "SubmitTime": "1000", "EligibleTime": "1000", "StartTime": "N/A", "EndTime": "N/A",
    "exit_code": "0:0", "TimeUsed": "0:00", "TimeLimit": "UNLIMITED", "PriorityLong": "1000", "Nice": "0",
    "NumNodes": "1", "NumCPUs": "1", "NumTasks": "1", "Requeue": "1", "BatchFlag": "1", "RestartCnt": "0",
    "Deadline": "N/A", "CronJob": "No",
    "OverSubscribe": "NO", "Exclusive": "NO", "tres-alloc": "cpu=1,mem=16000M,node=1,billing=1,gres/gpu=2",
    "tres-per-job": "N/A", "tres-per-node": "N/A", "tres-per-socket": "N/A", "tres-per-task": "N/A",
    "UserName": "root", "Account": "a1", "QOS": "normal", "Partition": "gpu", "NodeList": "",
    "Reason": "Priority", "Comment": "(null)",
}  # fmt: skip


def record(said: dict[str, str | bytes] | None = None, /, **more: str | bytes) -> bytes:
    values = {**PLAIN, **(said or {}), **more}
    return b"\x1f".join(v if isinstance(v, bytes) else v.encode() for v in values.values()) + END


def table(*records: bytes, begin: float = 5000.0, end: float = 5000.0) -> RawTable:
    return parse_queue(b"".join(records), TOKEN, begin, end)


def one(said: dict[str, str | bytes] | None = None, /, **more: str | bytes) -> dict[str, object]:
    found = table(record(said, **more))
    assert len(found) == 1
    return {f.name: getattr(found, f.name)[0] for f in fields(RawTable) if f.name not in ("time", "refused")}


@given(st.lists(st.tuples(st.binary(), st.binary(max_size=9)), max_size=5))
def test_whatever_bytes_a_comment_holds_it_is_one_comment(texts: list[tuple[bytes, bytes]]) -> None:
    rows = [
        record(JobID=str(at), Comment=comment + b"|\x1f\n\x1e" + more)
        for at, (comment, more) in enumerate(texts)
    ]
    found = table(*rows)
    assert found.refused == 0
    assert found.job_id.tolist() == list(range(len(texts)))
    assert found.comment == [(c + b"|\x1f\n\x1e" + m).decode("utf-8", "replace") for c, m in texts]
    assert set(found.account) <= {"a1"}
    assert set(found.gpus.tolist()) <= {2}


def test_a_comment_cannot_forge_a_record() -> None:
    forged = record(JobID="99", Nice="-5").replace(TOKEN.encode(), b"fedcba9876543210")
    found = table(record(Comment=forged), record(JobID="8"))
    assert found.job_id.tolist() == [7, 8]
    assert found.comment[0] == forged.decode()
    assert found.nice.tolist() == [0, 0]


@given(st.binary(max_size=300))
def test_garbage_is_counted_and_never_raises(raw: bytes) -> None:
    found = table(record(), raw + END, record(JobID="9"))
    assert {7, 9} <= set(found.job_id.tolist())
    assert found.refused == 1
    columns = [f.name for f in fields(RawTable) if f.name not in ("time", "refused")]
    assert all(len(getattr(found, name)) == len(found) for name in columns)


def test_an_answer_that_is_cut_off() -> None:
    found = table(record(), record(JobID="8")[:-9])
    assert found.job_id.tolist() == [7]
    assert found.refused == 1


@given(
    st.sampled_from(FIELDS[1:]),
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x1f"), max_size=40),
)
def test_any_text_in_any_field(name: str, text: str) -> None:
    row = one({name: text})
    assert row["job_id"] == 7
    if name not in ("NumNodes", "NumTasks", "tres-alloc") and not name.startswith("tres-per"):
        assert row["gpus"] == 2


def test_an_empty_queue() -> None:
    found = table()
    assert len(found) == 0
    assert found.refused == 0
    assert found.suspended_s.shape == (0,)


def test_an_ordinary_record() -> None:
    row = one()
    assert (row["job_id"], row["array_id"], row["array_task"], row["het_id"]) == (7, 0, "", 0)
    assert (row["state"], row["flags"], row["reason"], row["comment"]) == ("PENDING", "", "Priority", "")
    assert (row["gpus"], row["gpu_type"], row["cpus"], row["mem_mb"], row["nodes"]) == (2, "", 1, 16000.0, 1)
    assert row["time_limit_s"] == math.inf
    assert math.isnan(float(str(row["start"])))
    assert (bool(row["requeue"]), bool(row["batch"]), bool(row["cron"])) == (True, True, False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10:00", 600),
        ("1-00:00:00", 86400),
        ("365-00:00:00", 31536000),
        ("UNLIMITED", math.inf),
        ("NOT_SET", math.nan),
    ],
)
def test_time_limits(text: str, seconds: float) -> None:
    np.testing.assert_equal(one(TimeLimit=text)["time_limit_s"], seconds)


@pytest.mark.parametrize(
    ("said", "gpus", "kind", "why"),
    [
        ({"tres-alloc": "cpu=1,gres/gpu=4,gres/gpu:a100=4"}, 4, "a100", "the same GPUs twice"),
        ({"tres-alloc": "cpu=1,gres/gpu:a100=2,gres/gpu:v100=2"}, 4, "a100=2,v100=2", "of several types"),
        ({"tres-alloc": "cpu=1,gres/gpu=4,gres/gpu:a100=1"}, 4, "a100=1", "one type of two is tracked"),
        ({"tres-alloc": "gres/gpu=6", "tres-per-node": "gres/gpu:h100:1,gres/gpu:1g.5gb:2", "NumNodes": "2"},
         6, "1g.5gb=4,h100=2", "several types on each of two nodes"),
        ({"tres-alloc": "cpu=1,gres/gpu:a100=3"}, 3, "a100", "only the type is tracked"),
        ({"tres-alloc": "cpu=1,gres/gpu=3", "tres-per-job": "gres/gpu:a100:3"}, 3, "a100", "only the sum is"),
        ({"tres-alloc": "cpu=4", "tres-per-job": "gres:gpu:2"}, 2, "", "not tracked, as 22.05 prints it"),
        ({"tres-alloc": "cpu=4", "tres-per-node": "gres/gpu:3", "NumNodes": "2"}, 6, "", "per node"),
        ({"tres-alloc": "cpu=4", "tres-per-node": "gres/gpu:3", "NumNodes": "2-4"}, 6, "", "at least two"),
        ({"tres-alloc": "cpu=4", "tres-per-task": "cpu=2,gres/gpu=2", "NumTasks": "3"}, 6, "", "per task"),
        ({"tres-alloc": "cpu=4", "tres-per-task": "cpu=2"}, 0, "", "a task without a GPU"),
        ({"tres-alloc": "cpu=4", "tres-per-node": "gres/shard:3"}, 0, "", "not a GPU"),
        ({"tres-alloc": "gres/gpu=x"}, 0, "", "not a number"),
    ],
)  # fmt: skip
def test_gpus(said: dict[str, str], gpus: int, kind: str, why: str) -> None:
    row = one({**said})
    assert (row["gpus"], row["gpu_type"]) == (gpus, kind), why


@pytest.mark.parametrize(
    ("said", "state", "flags"),
    [
        ({"State": "CONFIGURING"}, "RUNNING", "CONFIGURING"),
        ({"State": "SPECIAL_EXIT"}, "PENDING", "SPECIAL_EXIT"),
        ({"State": "OUT_OF_MEMORY"}, "OUT_OF_MEMORY", ""),
        # as seen: requeued, failed, cancelled within the second it started; the last two on 22.05
        ({"State": "COMPLETING", "StartTime": "90", "EndTime": "NONE"}, "PENDING", "COMPLETING"),
        ({"State": "COMPLETING", "StartTime": "90", "EndTime": "91", "TimeUsed": "0:01", "exit_code": "3:0"},
         "FAILED", "COMPLETING"),
        ({"State": "COMPLETING", "StartTime": "90", "EndTime": "90", "exit_code": "0:15"},
         "CANCELLED", "COMPLETING"),
        ({"State": "COMPLETING", "StartTime": "90", "EndTime": "91", "TimeUsed": "0:01", "exit_code": "768"},
         "FAILED", "COMPLETING"),
        ({"State": "COMPLETING", "StartTime": "90", "EndTime": "91", "TimeUsed": "0:01", "exit_code": "15"},
         "CANCELLED", "COMPLETING"),
        ({"State": "COMPLETING", "StartTime": "90", "EndTime": "99", "TimeUsed": "0:09",
          "Reason": "TimeLimit"}, "TIMEOUT", "COMPLETING"),
        ({"State": "COMPLETING", "StartTime": "90", "EndTime": "99", "TimeUsed": "0:09"},
         "COMPLETED", "COMPLETING"),
    ],
)  # fmt: skip
def test_base_states(said: dict[str, str], state: str, flags: str) -> None:
    row = one({**said})
    assert (row["state"], row["flags"]) == (state, flags)


def test_suspended_seconds() -> None:
    found = table(
        record(JobID="1", State="RUNNING", StartTime="4000", TimeUsed="16:40"),
        record(JobID="2", State="RUNNING", StartTime="4000", TimeUsed="16:00"),
        record(JobID="3", State="SUSPENDED", StartTime="4000", TimeUsed="1:00"),
        record(JobID="4", State="COMPLETED", StartTime="4000", EndTime="4100", TimeUsed="1:30"),
        record(JobID="5", State="PENDING", StartTime="6000"),
        record(JobID="6", State="RUNNING", StartTime="4000", TimeUsed="16:39"),
        begin=4999.8,
        end=5000.8,
    )
    assert found.suspended_s.tolist() == [0, 40, 940, 10, 0, 0]


def test_odd_numbers() -> None:
    assert one(PriorityLong="4294967295")["priority"] == PRIORITY_UNKNOWN
    assert one(PriorityLong="4294967293")["priority"] == 4294967293
    assert one(PriorityLong="0")["priority"] == 0
    assert one(Nice="-2147483645")["nice"] == -2147483645
    assert one(Nice="x")["nice"] == NICE_UNKNOWN
    assert one(Nice="9" * 30)["nice"] == NICE_UNKNOWN


def test_the_controllers_clock() -> None:
    assert parse_queue(record(), TOKEN, 10.0, 12.0, ahead=60.0).time == 71.0


def test_records_of_an_array() -> None:
    found = table(
        *(record(JobID="20", ArrayJobID="20", ArrayTaskID=str(t)) for t in (0, 1, 2, 5, 9)),
        record(JobID="21", ArrayJobID="20", ArrayTaskID="3", Nice="8"),
        record(JobID="22", ArrayJobID="20", ArrayTaskID="0-4%2"),
    )
    assert found.job_id.tolist() == [20, 21, 22]
    assert found.array_id.tolist() == [20, 20, 20]
    assert found.array_task == ["0-2,5,9", "3", "0-4"]
    assert doubtful(found) == []


@given(st.sets(st.integers(0, 3000), min_size=1))
def test_lists_of_tasks_there_and_back(tasks: set[int]) -> None:
    assert tasks_of(ranges(tasks)) == tasks
    assert not all_failed("20_[7]: Job has already finished", ranges(tasks | {1, 2}))


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-9:0", "1-99999999", "1--2", "1,", "-1", "²"])
def test_no_list_of_tasks(text: str) -> None:
    with pytest.raises(ValueError, match="tasks"):
        tasks_of(text)


def test_tasks_with_a_step_are_asked_for_again() -> None:
    found = table(
        *(record(JobID="20", ArrayJobID="20", ArrayTaskID=str(t)) for t in (1, 3, 5, 7)),  # squeue drops 9
        record(JobID="21", ArrayJobID="20", ArrayTaskID="11"),
        record(JobID="30", ArrayJobID="30", ArrayTaskID="1"),
        record(JobID="40", ArrayJobID="40", ArrayTaskID="1"),
    )
    assert doubtful(found) == [20, 30, 40]
    raw = b"20\x1f1-11:2%4\n21\x1f1\n30\x1f1-13:12\nsomething else\n"
    whole = with_tasks(found, raw, doubtful(found))
    assert whole.array_task == ["1,3,5,7,9", "11", "1-13:12", "1"]
    assert found.array_task[0] == "1,3,5,7"


def test_the_format() -> None:
    text = format_option(FIELDS, TOKEN)
    assert text.startswith("JobID:\x1f,ArrayJobID:\x1f,")
    assert text.endswith(f"Reason:\x1f,Comment:\x1e{TOKEN}")
    assert FIELDS[-1] == "Comment"
    assert set(FIELDS) == set(PLAIN)


def test_a_field_that_this_squeue_does_not_have() -> None:
    said = "squeue: error: Invalid job format specification: CronJob"
    assert unknown_fields(said, FIELDS) == {"CronJob"}
    assert unknown_fields("Invalid job format specification: what", FIELDS) == set()
    kept = [f for f in FIELDS if f != "CronJob"]
    raw = b"\x1f".join(PLAIN[f].encode() for f in kept) + END
    found = parse_queue(raw, TOKEN, 0.0, 0.0, fields=kept)
    assert found.gpus.tolist() == [2]
    assert found.account == ["a1"]
    assert found.cron.tolist() == [False]
