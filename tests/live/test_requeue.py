"""Requeues on a real Slurm: the right victim, and nobody else."""

from __future__ import annotations

import pytest
from daemon_bed import Site
from live_bed import shown, wait_for
from requeue_bed import YES, asked, fill, old_enough, on, requeues_on, restarts, state, urgent


@pytest.mark.core
def test_an_urgent_job_takes_the_nodes_of_the_right_victim(site: Site) -> None:
    requeues_on(site)
    fill(site)
    small = on(site, "n1", YES, "--requeue", gpus=2)
    large = on(site, "n1", YES, "--requeue", gpus=6)
    job = urgent(site, gpus=4)
    old_enough(small, large)
    done = site.once()
    # only the larger one makes room, and the smaller one would be in vain
    assert [line["job"] for line in asked(done)] == [str(large)]
    assert done.json["requeues"] == 1
    wait_for(lambda: state(job) == "RUNNING", 30)
    assert shown(job, "NodeList") == "n1"
    assert (restarts(large), restarts(small), state(small)) == (1, 0, "RUNNING")
    # the next cycle says so, and requeues nobody
    done = site.once()
    assert done.json["requeues"] == 0
    assert site.known(large, "requeues") == 1
    sent = site.query("SELECT new, result FROM audit WHERE job_id = ? AND action = 'requeue'", large)
    assert sent == [(float(job), "ok")]
