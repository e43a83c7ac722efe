"""When the nodes of a running Slurm are asked for, and what else a requeue has to know."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tias_slurm.gpu_weights import weigh
from tias_slurm.holds import in_pools
from tias_slurm.jobs import PENDING, Bools, Floats, Ints, JobTable, Pools
from tias_slurm.settings import Requeue
from tias_slurm.slurm.live import Adapter, RawNodes, RawRequests, RawTable
from tias_slurm.slurm.live_nodes import Placed, occupancy, of_nodes

# so long is it believed what a waiting job asks for, s; before somebody is requeued for it, it is asked again
REQUESTS_S = 900.0
# looks after which the nodes are asked for anew where only their number is needed
NODES_EVERY = 10


class NodeLook:
    """Asks no more than it must: all of it only where somebody waits and somebody may be requeued."""

    def __init__(self, adapter: Adapter, settings: Requeue) -> None:
        self._adapter, self._settings = adapter, settings
        self._looks = 0
        self._nodes: RawNodes | None = None
        self._requests: RawRequests = {}
        self._submit: dict[int, float] = {}  # of the jobs whose requests are known
        self._all_at = -math.inf  # when all of them were read

    def weighted(self, placed: Placed, weights: Mapping[str, float]) -> Floats | None:
        """GPUs of each node that is there, weighted. Shape (N,). None: each counts 1."""
        if not weights or self._nodes is None:
            return None
        whole = weigh(self._nodes.gpus, self._nodes.gpu_types, weights)
        return np.where(placed.occupancy.total_gpus > 0, whole, 0.0)

    def pools(self, raw: RawTable, rows: Ints, gpus: Floats) -> Pools | None:
        """Which jobs share nodes, by the partitions of all nodes, whatever their state. `rows`: as below.

        `gpus`: what those of each node count for. A job in several partitions counts to the first that has
        nodes; with none it belongs to no pool.
        """
        if self._nodes is None:
            return None
        names = sorted(set().union(*self._nodes.partitions))
        member = np.array([[p in listed for listed in self._nodes.partitions] for p in names], dtype=np.bool_)
        # the last one is of nobody
        member = np.vstack(
            [member.reshape(len(names), len(self._nodes.name)), np.zeros(len(self._nodes.name), np.bool_)]
        )
        number = {name: p for p, name in enumerate(names)}
        known: dict[str, int] = {}
        for text in {raw.partition[r] for r in rows.tolist()}:
            known[text] = next((number[p] for p in text.split(",") if p in number), len(names))
        partition = np.array([known[raw.partition[r]] for r in rows.tolist()], dtype=np.int64)
        return in_pools(member, partition, gpus)

    def look(self, raw: RawTable, rows: Ints, jobs: JobTable, vain: Bools) -> Placed:
        """The nodes for the `jobs` of a snapshot, `rows`: where these are in the raw table.

        `vain`, shape (n,): jobs for which others were requeued in vain. Raises AdapterError.
        """
        self._looks += 1
        waits = (jobs.state == PENDING) & jobs.can_start
        ripe = jobs.requeueable & (jobs.run_time >= self._settings.min_run_s)
        if self._settings.mode != "on" or not waits.any() or not ripe.any():
            if self._nodes is None or self._looks % NODES_EVERY == 0:
                self._nodes = self._adapter.nodes()
            return Placed(of_nodes(self._nodes, len(jobs)))
        asking = rows[waits]
        requests = self._known(raw, asking)
        wide = bool((raw.nodes[rows[ripe]] > 1).any())
        shares = self._adapter.shares() if wide else {}
        # last: what has ended meanwhile then shows as free, and is noticed
        self._nodes = self._adapter.nodes()
        placed = occupancy(raw, rows, jobs, self._nodes, requests, shares, self._adapter.reservations())
        certain = placed.occupancy.certain
        if certain is not None and (certain & vain).any():
            placed.unsure["did not start, with others requeued for it"] = int((certain & vain).sum())
            return replace(placed, occupancy=replace(placed.occupancy, certain=certain & ~vain))
        return placed

    def _known(self, raw: RawTable, rows: Ints) -> RawRequests:
        """What the waiting jobs in these rows of the table ask for; asked only of new ones."""
        here = dict(zip(raw.job_id[rows].tolist(), raw.submit[rows].tolist(), strict=True))
        stale = not 0.0 <= raw.time - self._all_at < REQUESTS_S
        new = list(here) if stale else [j for j, at in here.items() if self._submit.get(j) != at]
        if new:
            found = self._adapter.requests(None if stale else new)
            if stale:
                self._requests, self._submit, self._all_at = {}, {}, raw.time
            for job in new:
                self._requests.pop(job, None)
            self._requests |= {job: found[job] for job in new if job in found}
            self._submit |= {job: here[job] for job in new if job in found}
        return self._requests

    def same_request(self, job: int) -> bool:
        """Whether a waiting job still asks for what it was planned with. Raises AdapterError."""
        if self._adapter.requests([job]).get(job) == self._requests.get(job):
            return True
        self._all_at = -math.inf
        return False
