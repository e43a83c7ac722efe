"""When the nodes of a running Slurm are asked for, and what else a requeue has to know."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tias_slurm.gpu_weights import by_type, weigh
from tias_slurm.holds import in_pools
from tias_slurm.jobs import PENDING, Bools, Floats, Ints, JobTable, Pools, Snapshot
from tias_slurm.settings import Requeue
from tias_slurm.slurm.live import Adapter, Partition, RawNodes, RawRequests, RawTable, Share
from tias_slurm.slurm.live_nodes import Placed, occupancy, of_nodes

# so long is it believed what a waiting job asks for, s; before somebody is requeued for it, it is asked again
REQUESTS_S = 900.0
# looks after which the nodes are asked for anew where only their number is needed
NODES_EVERY = 10
IN_VAIN = "did not start, with others requeued for it"


class NodeLook:
    """Asks no more than it must: all of it only where somebody waits and somebody may be requeued."""

    def __init__(self, adapter: Adapter, settings: Requeue) -> None:
        self._adapter, self._settings = adapter, settings
        self._looks = 0
        self._nodes: RawNodes | None = None
        self._requests: RawRequests = {}
        self._submit: dict[int, float] = {}  # of the jobs whose requests are known
        self._all_at = -math.inf  # when all of them were read
        self._partitions: dict[str, Partition] = {}
        self._partitions_at = -math.inf

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

    def settle(
        self, raw: RawTable, rows: Ints, snapshot: Snapshot, placed: Placed, weights: Mapping[str, float]
    ) -> Snapshot:
        """The snapshot with what only a look at the nodes tells of its jobs."""
        jobs = snapshot.jobs
        if placed.there is not None and placed.there.any():
            jobs = replace(jobs, can_start=jobs.can_start | placed.there)
        allocated = self.allocated(raw, rows, jobs, weights)
        if raw.exclusive is not None:
            # it ranks as what it will hold, or it would preempt as small and be preempted as large
            jobs = replace(jobs, weight=np.where(raw.exclusive[rows], allocated, jobs.weight))
        return replace(snapshot, jobs=jobs, allocated=allocated)

    def allocated(self, raw: RawTable, rows: Ints, jobs: JobTable, weights: Mapping[str, float]) -> Floats:
        """See Snapshot.allocated. `rows`: as below. Shape (n,).

        A job that gets whole nodes has all of their GPUs, and which nodes it will get nobody knows: those
        with the most are taken. One whose type of GPU is not asked for may get the one that counts the most;
        of one that runs nobody knows whether it asked for its type.
        """
        made, nodes = jobs.weight.copy(), self._nodes
        waits = np.flatnonzero(jobs.state == PENDING)
        if nodes is None or not len(waits) or not (weights or raw.exclusive is not None):
            return made
        whole = np.zeros(len(raw), dtype=np.bool_) if raw.exclusive is None else raw.exclusive
        if weights:
            typed = (jobs.state != PENDING) & (jobs.gpus > 0) & ~whole[rows]
            made[typed] = np.minimum(jobs.weight, jobs.gpus)[typed]
        exclusive = {p for p, known in self._partitions.items() if known.exclusive}
        total = weigh(nodes.gpus, nodes.gpu_types, weights)
        known: dict[tuple[object, ...], float] = {}
        for i in waits.tolist():
            r = int(rows[i])
            names = frozenset(raw.partition[r].split(","))
            takes_all = bool(whole[r]) or not names.isdisjoint(exclusive)
            if not takes_all and (raw.gpu_type[r] or not weights):
                continue
            key = (raw.partition[r], raw.gpu_type[r], int(raw.nodes[r]), int(raw.gpus[r]), takes_all)
            if key not in known:
                known[key] = _most(nodes, total, names, *key[1:])
            made[i] = max(made[i], known[key])
        return made

    def look(
        self, raw: RawTable, rows: Ints, jobs: JobTable, vain: Bools, doubtful: Bools | None = None
    ) -> Placed:
        """The nodes for the `jobs` of a snapshot, `rows`: where these are in the raw table.

        `vain`, shape (n,): jobs for which others were requeued in vain. `doubtful`: see occupancy. Raises
        AdapterError.
        """
        self._looks += 1
        doubt = np.zeros(len(jobs), dtype=np.bool_) if doubtful is None else doubtful
        waits = (jobs.state == PENDING) & (jobs.can_start | doubt)
        self._look_at_partitions(raw, rows[waits], bool(doubt.any()))
        ripe = jobs.requeueable & (jobs.run_time >= self._settings.min_run_s)
        if self._settings.mode != "on" or not waits.any() or not ripe.any():
            if self._nodes is None or self._looks % NODES_EVERY == 0:
                self._nodes = self._adapter.nodes()
            if not doubt.any():
                return Placed(of_nodes(self._nodes, len(jobs)))
            there = self._places(raw, rows, jobs, self._known(raw, rows[doubt]), {}, doubt).there
            return Placed(of_nodes(self._nodes, len(jobs)), there=there)
        requests = self._known(raw, rows[waits])
        wide = bool((raw.nodes[rows[ripe]] > 1).any())
        shares = self._adapter.shares() if wide else {}
        placed = self._places(raw, rows, jobs, requests, shares, doubt)
        certain = placed.occupancy.certain
        if certain is not None and (certain & vain).any():
            placed.unsure[IN_VAIN] = int((certain & vain).sum())
            placed.why.update(dict.fromkeys(np.flatnonzero(certain & vain).tolist(), IN_VAIN))
            return replace(placed, occupancy=replace(placed.occupancy, certain=certain & ~vain))
        return placed

    def _places(
        self,
        raw: RawTable,
        rows: Ints,
        jobs: JobTable,
        requests: RawRequests,
        shares: dict[int, Share],
        doubt: Bools,
    ) -> Placed:
        # last: what has ended meanwhile then shows as free, and is noticed
        self._nodes = self._adapter.nodes()
        more = (self._adapter.reservations(), self._partitions, doubt)
        return occupancy(raw, rows, jobs, self._nodes, requests, shares, *more)

    def _look_at_partitions(self, raw: RawTable, waits: Ints, needed: bool) -> None:
        """What partitions are like matters where jobs ask for several, or share nodes with higher ones."""
        needed = needed or any("," in raw.partition[r] for r in waits.tolist())
        if needed and not 0.0 <= raw.time - self._partitions_at < REQUESTS_S:
            self._partitions, self._partitions_at = self._adapter.partitions(), raw.time

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


def _most(
    nodes: RawNodes, total: Floats, names: frozenset[str], kind: str, count: int, gpus: int, takes_all: bool
) -> float:
    """See NodeLook.allocated. `total`: GPUs of each node, weighted."""
    wanted = frozenset(by_type(gpus, kind)) - {""}
    may = np.array([not names.isdisjoint(p) for p in nodes.partitions], dtype=np.bool_) & (nodes.gpus > 0)
    if wanted:
        has = [not wanted.isdisjoint(by_type(1, text)) for text in nodes.gpu_types]
        may &= np.array(has, dtype=np.bool_)
    if not may.any():
        return 0.0
    if takes_all:
        count = max(1, count, -(-gpus // int(nodes.gpus[may].max())))
        return float(total[may].max()) * count
    return float((total[may] / nodes.gpus[may]).max()) * gpus
