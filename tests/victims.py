"""Whom `preemption.select` takes, of jobs in few words."""

import numpy as np
from worlds import occupancy

from tias_slurm.preemption import select as preemption


def select(nodes, running, waiting, *, limit=10, immune=(), loss=None):
    """Jobs as (level, node count or 0, GPUs on each node[, CPUs, memory[, GPUs in all]]).

    running: [(job, nodes held)]; waiting: [job], best first. Running jobs are rows 0.., waiting ones follow.
    Returns [(victim, waiting index)].
    """
    jobs = [(*job, 0, 0)[:5] if len(job) < 6 else job for job in [*(j for j, _ in running), *waiting]]
    n, r = len(jobs), len(running)
    level = np.array([j[0] for j in jobs])
    requests = [(j[1], j[2], j[3], j[4]) for j in jobs]
    gpus = np.array([j[5] if len(j) == 6 else j[2] * max(j[1], 1) for j in jobs])
    preemptible = np.array([i < r and i not in immune for i in range(n)])
    loss = np.array([*(loss if loss is not None else [100.0 * (i + 1) for i in range(r)]), *[0.0] * (n - r)])
    room = occupancy(nodes, requests, {i: held for i, (_, held) in enumerate(running)})
    before = [room.free_gpus.copy(), room.free_cpus.copy(), room.free_mem_mb.copy()]
    victims, wanted_by = preemption.select(np.arange(r, n), gpus, level, preemptible, loss, room, limit)
    assert all(map(np.array_equal, before, [room.free_gpus, room.free_cpus, room.free_mem_mb])), "not pure"
    return [(int(v), int(w) - r) for v, w in zip(victims, wanted_by, strict=True)]
