"""Each lever brings about the planned order on a real Slurm, and what users set survives it."""

from __future__ import annotations

import time

import pytest
from daemon_bed import CALM, URGENT, Site, priority
from live_bed import run, wait_for

LEVERS = ("nice", "site_factor", "priority")


def in_slurms_order(jobs: list[int]) -> list[int]:
    """Waiting jobs as Slurm will look at them: by priority, then by id."""
    return sorted(jobs, key=lambda job: (-priority(job), job))


@pytest.mark.core
@pytest.mark.parametrize("kind", LEVERS)
def test_slurm_starts_the_jobs_in_the_order_planned(site: Site, kind: str) -> None:
    site.lever(kind)
    blocker, order = site.block(), site.order()
    overdue = site.submit("--comment=deadline=+1s", script=site.tell)
    calm = site.submit(f"--comment={CALM}", script=site.tell)
    first = site.submit(script=site.tell)
    second = site.submit("--comment=no claim at all", script=site.tell)
    urgent = site.submit(f"--comment={URGENT}", script=site.tell)
    planned = [urgent, first, second, calm, overdue]
    time.sleep(1)
    assert in_slurms_order(planned) != planned
    seen = site.once().json
    assert (seen["result"], seen["writes"], seen["failed"]) == ("ok", 5, 0)
    assert in_slurms_order(planned) == planned
    run("scancel", str(blocker))
    wait_for(lambda: len(order()) == 5, 60)
    assert order() == planned
