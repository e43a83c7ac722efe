"""The reader of histories gets out of the bundled export what the made-up site did, job by job."""

import sys
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tias_slurm.slurm.history import read_history
from tias_slurm.slurm.node_files import read_nodes

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import make_export  # noqa: E402
import virtual_site as site  # noqa: E402
import virtual_slurm  # noqa: E402


@pytest.fixture(scope="module")
def work():
    return read_history([str(EXAMPLES / "cluster-export.txt.gz")], zone=ZoneInfo("Europe/Berlin"))


@pytest.fixture(scope="module")
def truth():
    """Jobs with records of their own, by label and first submit (labels come again)."""
    jobs = virtual_slurm.history(make_export.SEED)
    return {
        (make_export.job_label(j), j.first_submit): j
        for j in jobs
        if j.runs[-1].state != "PENDING" and not (j.array and j.runs[0].start is None)
    }


def test_every_row_is_accounted_for(work):
    assert work.rows == len(work.jobs) + work.refused.total + work.left_out.total()


def test_only_broken_records_are_refused(work):
    # three names with the delimiter, three cut lines, two with start and end swapped, two TRES, and one each
    # of submit, end and state
    assert work.refused.total == 13
    assert work.left_out["duplicate rows"] == 4


def test_jobs_are_what_they_were(work, truth):
    unknown, seen = [], set()
    for row in work.jobs.itertuples():
        job = truth.get((row.job_id, row.first_submit))
        if job is None:
            unknown.append(row)
            continue
        seen.add((row.job_id, row.first_submit))
        assert row.state == job.runs[-1].state
        assert (row.user, row.account, row.partition) == (job.user, job.account, job.partition)
        assert (row.gpus, row.cpus, row.nodes) == (job.gpus, job.cpus, job.nodes)
        assert row.time_limit == (np.inf if job.limit is None else 60 * job.limit)
        started = [r for r in job.runs if r.start is not None]
        assert row.runs == len(started)
        if not started or started[-1] is not job.runs[-1]:
            continue
        run = started[-1]
        end = site.FINISH if run.end is None else run.end
        assert row.work == end - run.start - min(run.suspended, end - run.start)
        assert row.lost_work == sum(r.end - r.start for r in started[:-1])
        doubled = abs(run.start - site.SUMMER_TIME_ENDS) <= site.HOUR
        assert row.start == run.start or (doubled and row.start == run.start - site.HOUR)
    # what is left is one record for the tasks of an array that never started, and what was refused
    assert all("_[" in row.job_id and row.runs == 0 for row in unknown)
    assert len(truth) - len(seen) == work.refused.total


def test_nodes_are_those_of_the_site():
    nodes = read_nodes(str(EXAMPLES / "nodes.txt"))
    for node in site.make_nodes():
        i = nodes.names.index(node.name)
        assert (nodes.gpus[i], nodes.cpus[i], nodes.mem_mb[i]) == (node.gpus, node.cpus, node.mem_mb)
        assert nodes.partitions[i] == set(node.partitions)
    assert nodes.gpus.sum() == 80  # gn11 is down
