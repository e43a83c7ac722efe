"""JSON of sacct and squeue, in the shapes of all data_parser versions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sacct_rows import BERLIN, conserved, read

from tias_slurm.errors import InputError
from tias_slurm.slurm.history import read_history
from tias_slurm.slurm.sacct_json import number


def of(value: int | None, style: str) -> Any:
    """A number in the style of a data_parser; None: not set."""
    if style == "object":
        return {"set": value is not None, "infinite": False, "number": value or 0}
    return value


def database_job(style: str = "object", **more: Any) -> dict[str, Any]:
    tres = [
        {"type": "cpu", "name": "", "id": 1, "count": 8},
        {"type": "mem", "name": "", "id": 2, "count": 65536},
        {"type": "energy", "name": "", "id": 3, "count": -2},
        {"type": "node", "name": "", "id": 4, "count": 1},
        {"type": "gres", "name": "gpu", "id": 1001, "count": 2},
        {"type": "gres", "name": "gpu:a100", "id": 1002, "count": 2},
    ]
    job: dict[str, Any] = {
        "job_id": 100, "user": "ann", "account": "lab", "partition": "gpu", "qos": "normal",
        "cluster": "alpha",
        "array": {"job_id": 0, "task_id": of(None, style), "task": ""},
        "het": {"job_id": 0, "job_offset": of(None, style)},
        "comment": {"administrator": "", "job": "deadline=+2h", "system": ""},
        "state": {"current": ["COMPLETED"] if style == "object" else "COMPLETED", "reason": "None"},
        "time": {
            "submission": 1740819600, "eligible": 1740819600, "start": 1740820200, "end": 1740823800,
            "elapsed": 3600, "suspended": 0, "limit": of(120, style),
        },
        "tres": {"allocated": tres, "requested": tres}, "submit_line": "sbatch run.sh", "restart_cnt": 0,
    }  # fmt: skip
    return job | more


def controller_job(**more: Any) -> dict[str, Any]:
    job: dict[str, Any] = {
        "job_id": 100, "user_name": "ann", "account": "lab", "partition": "gpu", "qos": "normal",
        "cluster": "alpha",
        "array_job_id": of(0, "object"), "array_task_id": of(None, "object"), "array_task_string": "",
        "het_job_id": of(0, "object"), "het_job_offset": of(0, "object"), "comment": "deadline=+2h",
        "job_state": ["COMPLETED"], "submit_time": of(1740819600, "object"), "eligible_time": 1740819600,
        "start_time": of(1740820200, "object"), "end_time": of(1740823800, "object"),
        "time_limit": of(120, "object"), "deadline": of(0, "object"),
        "tres_req_str": "cpu=8,mem=64G,node=1,gres/gpu=2",
        "tres_alloc_str": "cpu=8,mem=64G,node=1,gres/gpu=2,gres/gpu:a100=2", "node_count": of(1, "object"),
        "suspend_time": of(0, "object"), "pre_sus_time": of(0, "object"),
    }  # fmt: skip
    return job | more


def document(*jobs: Any, **more: Any) -> str:
    return json.dumps({"meta": {}, "jobs": jobs, "errors": []} | more)


EXPECTED = {
    "job_id": "100", "cluster": "alpha", "user": "ann", "state": "COMPLETED", "first_submit": 1740819600,
    "start": 1740820200, "end": 1740823800, "work": 3600, "runs": 1, "gpus": 2, "gpu_type": "a100", "cpus": 8,
    "mem_mb": 65536, "nodes": 1, "time_limit": 7200, "comment": "deadline=+2h",
}  # fmt: skip


@pytest.mark.parametrize("job", [database_job("object"), database_job("plain"), controller_job()])
def test_the_same_job_in_each_shape(tmp_path: Path, job: dict[str, Any]) -> None:
    work = read(tmp_path, document(job))
    found = work.jobs.loc[0]
    assert {k: found[k] for k in EXPECTED} == EXPECTED
    assert work.notes == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5), (None, math.nan), ("Infinity", math.inf), ({"set": True, "infinite": False, "number": 7}, 7),
        ({"set": False, "infinite": True, "number": 0}, math.inf),
        ({"set": False, "infinite": False, "number": 0}, math.nan),
        ({"set": True, "infinite": False, "number": 2.5}, 2.5), ("12", 12), (4294967294, math.nan),
        (4294967295, math.inf),
        (True, math.nan), ([], math.nan), ({}, math.nan),
    ],
)  # fmt: skip
def test_numbers(value: Any, expected: float) -> None:
    assert number(value) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("array", "het", "job_id"),
    [
        ({"job_id": 12, "task_id": of(3, "object"), "task": ""}, {}, "12_3"),
        ({"job_id": 12, "task_id": 0, "task": None}, {}, "12_0"),
        ({"job_id": 12, "task_id": of(None, "object"), "task": "4-9%2"}, {}, "12_[4-9%2]"),
        ({"job_id": 0, "task_id": None}, {"job_id": 20, "job_offset": 1}, "20+1"),
        ({"job_id": 0}, {"job_id": 0, "job_offset": None}, "100"),
    ],
)
def test_ids_of_arrays_and_het_jobs(
    tmp_path: Path, array: dict[str, Any], het: dict[str, Any], job_id: str
) -> None:
    assert read(tmp_path, document(database_job(array=array, het=het))).jobs.loc[0, "job_id"] == job_id


def test_deadline_of_the_controller(tmp_path: Path) -> None:
    work = read(tmp_path, document(controller_job(deadline=1740906000), controller_job(job_id=101)))
    np.testing.assert_array_equal(work.jobs["native_deadline"], [1740906000, np.nan])


def test_running_job_of_the_controller_ran_until_the_document(tmp_path: Path) -> None:
    running = controller_job(job_state=["RUNNING"], end_time=of(1740830000, "object"))
    resumed = controller_job(
        job_id=101, job_state=["RUNNING"], suspend_time=1740820800, pre_sus_time=of(60, "object")
    )
    work = read(tmp_path, document(running, resumed, last_update=of(1740821000, "object")))
    assert work.jobs["work"].tolist() == [800, 260]
    assert work.jobs["end"].isna().all()
    with pytest.raises(InputError, match="runs but has no Elapsed"):
        read(tmp_path, document(running))


@pytest.mark.parametrize(
    ("fields", "gpus"),
    [
        ({"gres_detail": ["gpu:h100:2(IDX:0-1)", "gpu:h100:2(IDX:0-1)"]}, 4),
        ({"gres_detail": [], "tres_per_job": "gres/gpu:4"}, 4),
        ({"tres_per_node": "gres/gpu:h100:1,gres/gpu:h200:1", "node_count": 3}, 6),
        ({}, 0),
    ],
)
def test_gpus_where_no_tres_counts_them(tmp_path: Path, fields: dict[str, Any], gpus: int) -> None:
    job = controller_job(tres_alloc_str="cpu=8,mem=64G,node=1", tres_req_str="cpu=8", **fields)
    assert read(tmp_path, document(job)).jobs.loc[0, "gpus"] == gpus


def test_steps_are_counted(tmp_path: Path) -> None:
    work = read(tmp_path, document(database_job(steps=[{}, {}])))
    assert work.rows == 3
    assert work.left_out == {"steps": 2}


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (7, "not a job record"),
        ({}, "not a job record"),
        (database_job(job_id=None), "not a job id"),
        (database_job(state={"current": []}), "not a job state"),
        (database_job(state="DONE"), "not a job state"),
        (database_job(tres=None), "no TRES"),
        (database_job(time={"submission": -5}), "Submit: negative time"),
        (database_job(tres={"allocated": [1]}), "not a job record"),
        (database_job(time=database_job()["time"] | {"end": 1740819700}), "ends before its start"),
    ],
)
def test_bad_records_are_refused_by_their_place(tmp_path: Path, job: Any, reason: str) -> None:
    work = read(tmp_path, document(database_job(job_id=1), job, database_job(job_id=2)))
    assert work.jobs["job_id"].tolist() == ["1", "2"]
    assert [(r.line, r.reason) for r in work.refused.examples] == [(2, reason)]


def test_cut_document_gives_what_it_holds(tmp_path: Path) -> None:
    content = document(*(database_job(job_id=i) for i in range(1, 6)))
    work = read(tmp_path, content[: content.rindex('"job_id": 5') + 300])
    assert len(work.jobs) == 4
    assert work.refused.by_reason == {"the document ends here (cut file)": 1}


def test_documents_put_one_behind_the_other(tmp_path: Path) -> None:
    content = document(database_job(job_id=1)) + "\n" + document(database_job(job_id=2))
    assert read(tmp_path, content).jobs["job_id"].tolist() == ["1", "2"]


@pytest.mark.parametrize("content",
    ["{}", "[]", "[1, 2]", '{"a": {"jobs": []}}', '{"jobs": 3}', "{", '{"jobs"', "[" * 9999,
                                     '{"type": "FeatureCollection", "features": []}',
                                     '{"a": ' + "[" * 9999])  # fmt: skip
def test_json_of_something_else(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)
    assert "export with: " in str(caught.value)


@pytest.mark.parametrize("job", [database_job, controller_job])
@pytest.mark.parametrize(
    ("nodes", "kept"), [("gn[1-2]", "gn[1-2]"), ("None assigned", ""), ("", ""), (None, ""), (7, "")]
)
def test_nodes_are_kept_where_asked_for(tmp_path: Path, job: Any, nodes: Any, kept: str) -> None:
    content = document(job(nodes=nodes))
    assert read(tmp_path, content, keep_nodes=True).jobs["node_list"].tolist() == [kept]
    assert "node_list" not in read(tmp_path, content).jobs


def test_no_jobs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no jobs"):
        read(tmp_path, document())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([database_job(), database_job("plain"), controller_job()]), st.data(), VALUES)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_anywhere_is_read_or_refused(
    tmp_path: Path, job: dict[str, Any], data: st.DataObject, value: Any
) -> None:
    path = data.draw(st.sampled_from(sorted(job)))
    if isinstance(job[path], dict) and data.draw(st.booleans()):
        inner = data.draw(st.sampled_from(sorted(job[path])))
        changed = job | {path: job[path] | {inner: value}}
    else:
        changed = job | {path: value}
    work = read(
        tmp_path, document(database_job(job_id=1, cluster=changed["cluster"]), changed), keep_nodes=True
    )
    assert work.jobs["job_id"].tolist()[0] == "1"


@pytest.mark.parametrize("version", ["24.05_0.0.41", "24.11_0.0.42", "25.05_0.0.43"])
def test_public_documents(shared_data: Path, version: str) -> None:
    directory = shared_data / "sacct"
    expected = {"24.05_0.0.41": (14, 13), "24.11_0.0.42": (16, 14), "25.05_0.0.43": (19, 17)}[version]
    work = read_history([str(directory / f"slurmweb-{version}-slurm-jobs.json")], zone=BERLIN)
    assert conserved(work)
    assert not work.refused.total
    assert (work.rows, len(work.jobs)) == expected
    work = read_history([str(directory / f"slurmweb-{version}-slurmdb-job-gpus-completed.json")], zone=BERLIN)
    assert work.jobs.loc[0, "state"] == "COMPLETED"
    with pytest.raises(InputError, match="1 pending"):
        read_history([str(directory / f"slurmweb-{version}-slurm-job-gpus-pending.json")], zone=BERLIN)


def test_public_database_documents(shared_data: Path) -> None:
    path = str(shared_data / "sacct" / "json-22.05.json")
    old = read_history([path], zone=BERLIN, keep_nodes=True).jobs.loc[0]
    assert old["node_list"] == "ng[30103,30203,30706-30707]"
    assert (old["job_id"], old["gpus"], old["nodes"], old["work"]) == ("20247445_100", 16, 4, 124403)
    new = read_history([str(shared_data / "sacct" / "json-23.02.json")], zone=BERLIN).jobs.loc[0]
    assert (new["state"], new["gpus"], new["time_limit"], new["work"]) == ("RUNNING", 2, 432000, 83853331)
    assert math.isnan(new["end"])
