"""From records to jobs: on which nodes they ran, and what becomes of a job withdrawn after a requeue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacct_rows import COLUMNS, at, read, record, run, text

from tias_slurm.replay.metrics import measure, recorded_outcome
from tias_slurm.replay.requests import requests
from tias_slurm.replay.workload import COLUMNS as JOB_COLUMNS
from tias_slurm.replay.workload import NODE_COLUMNS as NODE_LIST
from tias_slurm.slurm.node_set import uniform


def test_a_job_withdrawn_after_a_requeue_is_in_no_measure(tmp_path: Path) -> None:
    rows = [
        run("10:00", "10:10", "10:40", "REQUEUED", NodeList="g1"),
        run("10:40", "None", "12:00", "CANCELLED by 1000", AllocTRES="", NodeList="None assigned"),
        run("10:00", "10:10", "11:10", JobID="200", NodeList="g1"),
    ]
    columns = (*COLUMNS[:-1], "NodeList", "SubmitLine")
    work = read(tmp_path, text(*rows, columns=columns), keep_nodes=True)
    assert work.jobs["node_list"].tolist() == ["", "g1"]
    work.jobs["deadline"] = at("10:30")
    outcome = recorded_outcome(work.jobs)
    assert np.isnan(outcome.start[0])
    assert np.isnan(outcome.end[0])
    assert (outcome.executed[0], outcome.lost_gpu_s[0], outcome.requeues[0]) == (0, 0, 0)
    found = measure(work.jobs, outcome, 8, 0)
    assert (found["deadline_jobs"], found["missed"], found["unfinished"]) == (1, 1, 0)
    request = requests(work.jobs, uniform(8, 8))
    waiting = request.number[0]
    assert np.isnan(request.work[waiting])
    assert request.leaves[waiting] == at("12:00")


NODE_COLUMNS = (*COLUMNS[:-1], "NodeList", "SubmitLine")


def test_nodes_are_kept_where_asked_for(tmp_path: Path) -> None:
    long = "n[" + ",".join(str(i) for i in range(1, 99, 2)) + "]"
    lists = ["g1", "None assigned", "", "g[01-03,7]", "(null)", " g1 ", long, "g1"]
    rows = [record(JobID=i, NodeList=x) for i, x in enumerate(lists, 1)]
    # told from the lines around it although its name is torn
    rows.append(record(JobID=20, NodeList="g[4,6]", JobName="a|b"))
    content = text(*rows, columns=NODE_COLUMNS)
    assert "node_list" not in read(tmp_path, content).jobs
    work = read(tmp_path, content, keep_nodes=True)
    expected = ["g1", "", "", "g[01-03,7]", "", "g1", long, "g1", "g[4,6]"]
    assert work.jobs["node_list"].tolist() == expected
    assert work.jobs["node_list"].dtype == NODE_LIST["node_list"][0]
    assert list(work.jobs.columns) == [*JOB_COLUMNS, *NODE_LIST]
    without = read(tmp_path, text(record()), keep_nodes=True)
    assert without.jobs["node_list"].tolist() == [""]


def test_nodes_are_those_of_the_last_run(tmp_path: Path) -> None:
    rows = [
        run("10:00", "10:10", "10:40", "NODE_FAIL", NodeList="g1"),
        run("10:41", "11:00", "12:00", NodeList="g[2-3]"),
    ]
    work = read(tmp_path, text(*rows, columns=NODE_COLUMNS), keep_nodes=True)
    assert work.jobs["node_list"].tolist() == ["g[2-3]"]


@given(st.lists(st.sampled_from(["", "None assigned", "a", "b[1-2]", "c" * 200, "d|e"]), min_size=1))
def test_keeping_nodes_changes_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, lists: list[str]
) -> None:
    path = tmp_path_factory.mktemp("nodes")
    rows = [record(JobID=i, NodeList=x) for i, x in enumerate(lists, 1)]
    content = text(record(JobID=99), *rows, columns=NODE_COLUMNS)
    kept, other = read(path, content, keep_nodes=True), read(path, content)
    pd.testing.assert_frame_equal(kept.jobs.drop(columns="node_list"), other.jobs)
    assert (kept.rows, kept.left_out, kept.notes) == (other.rows, other.left_out, other.notes)
    assert kept.refused.by_reason == other.refused.by_reason
