"""Drives one policy over a virtual cluster, from the first submit to the last end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tias_slurm.controller import Controller
from tias_slurm.replay.cluster import VirtualCluster


def run(
    cluster: VirtualCluster,
    controller: Controller | None,
    interval_s: float,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Run until nothing is left to happen.

    Cycles lie on a grid of `interval_s`; those at which nothing waits are left out, since they could not act.
    `progress` is told the virtual time now and then.
    """
    if controller is None:
        while not cluster.finished():
            cluster.advance(cluster.next_event() + 86_400.0)
            if progress is not None:
                progress(cluster.now)
        cluster.finish()
        return
    time = np.floor(cluster.next_event() / interval_s) * interval_s if not cluster.finished() else 0.0
    cycles = 0
    while not cluster.finished():
        if cluster.idle():
            time = max(time, np.ceil(cluster.next_event() / interval_s) * interval_s)
        cluster.advance(time)
        controller.cycle()
        time += interval_s
        cycles += 1
        if progress is not None and cycles % 256 == 0:
            progress(time)
    cluster.finish()
