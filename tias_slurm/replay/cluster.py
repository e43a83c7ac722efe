"""The `Cluster` port over a model of Slurm in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tias_slurm.holds import in_pools
from tias_slurm.jobs import PENDING, Bools, Ended, Floats, Ints, JobTable, Occupancy, Snapshot
from tias_slurm.jobs import RUNNING as RUNS
from tias_slurm.levers import HELD
from tias_slurm.planner import Applied, Plan
from tias_slurm.replay import engine as e
from tias_slurm.replay.requests import Requests
from tias_slurm.replay.site_priority import SitePriority


@dataclass(frozen=True)
class Costs:
    """What a requeue costs, and how often a job of unknown habits saves itself. Seconds."""

    restart_s: float = 60.0
    requeue_delay_s: float = 120.0
    checkpoint_s: float = 600.0


class VirtualCluster:
    """A Slurm that lives in arrays. `advance` moves its clock; `observe` and `apply` are the port."""

    def __init__(
        self,
        req: Requests,
        *,
        consent: Bools,
        checkpoint: Floats,
        costs: Costs,
        site: SitePriority | None = None,
        sample_at: Floats | None = None,
        lever: Floats | None = None,
        rises: bool = False,
    ) -> None:
        """`consent` and `checkpoint` (seconds, 0: never) by job number, shape (n,).

        `site` is how Slurm itself orders jobs; None: by first submit. `rises`: a larger value of the lever
        goes first (site factor, priority), not a smaller one (nice). `lever`: the value that each job is
        submitted with; None: 0, as when a user says nothing about nice.
        """
        n, size = len(req.row), len(req.total_gpus)
        self.req = req
        self.consent = consent
        self.checkpoint = checkpoint
        self.site = site
        self.now = -np.inf
        # the engine knows a lever as something to subtract
        self._sign = -1.0 if rises else 1.0
        samples = np.empty(0) if sample_at is None else sample_at
        # a job that can never fit is not waited for
        work = np.where(req.fits, req.work, np.nan)
        leaves = np.where(req.fits & ~np.isnan(req.leaves), req.leaves, -np.inf)
        zero = np.zeros(n)
        none = np.zeros(n, dtype=np.int64)
        self.state = e.State(
            eligible=req.eligible,
            work=work,
            leaves=leaves,
            gpus=req.gpus,
            weight=req.weight,
            partition=req.partition,
            nodes=req.nodes,
            node_gpus=req.node_gpus,
            node_cpus=req.node_cpus,
            node_mem=req.node_mem,
            node_shards=req.node_shards,
            shape=req.shape,
            checkpoint=checkpoint,
            user=req.user,
            first=req.first,
            tie=req.tie,
            status=none.copy(),
            submit=req.first_submit.copy(),
            base=zero.copy(),
            lever=zero.copy() if lever is None else lever.astype(np.float64),
            run_start=zero.copy(),
            kept=zero.copy(),
            restarts=none.copy(),
            front=np.zeros(n, dtype=np.bool_),
            nodes_held=none.copy(),
            held=np.zeros(max(req.room, 1) + size, dtype=np.int64),
            started=np.full(n, np.nan),
            end=np.full(n, np.nan),
            executed=zero.copy(),
            lost=zero.copy(),
            free_gpus=req.total_gpus.copy(),
            free_cpus=req.total_cpus.copy(),
            free_mem=req.total_mem.copy(),
            total_gpus=req.total_gpus,
            total_cpus=req.total_cpus,
            total_mem=req.total_mem,
            used_shards=np.zeros(size, dtype=np.int64),
            total_shards=req.total_shards,
            shards_of_gpu=req.shards_of_gpu,
            member=req.member,
            aside=np.zeros(size, dtype=np.bool_),
            queue=none.copy(),
            heap=none.copy(),
            when=zero.copy(),
            where=np.full(n, -1, dtype=np.int64),
            active=none.copy(),
            place=none.copy(),
            ended=none.copy(),
            failed=np.full(int(req.shape.max()) + 1 if n else 1, -1, dtype=np.int64),
            arrival_base=np.zeros(max(len(req.users), 1)),
            sample_at=samples,
            samples=np.zeros((len(samples), 3)),
            counter=np.zeros(10, dtype=np.int64),
            load=np.zeros(2),
            costs=np.array([costs.restart_s, costs.requeue_delay_s]),
        )
        # nobody is requeued for a place on a node whose GPUs may be had in pieces (slurm/live_nodes.py)
        self._member = req.member & ~req.pieces if req.pieces.any() else req.member
        self._looked_at_changes = -1
        self._holds = False  # whether a job was ever held
        self._next: float | None = None
        self._unseen: list[Ints] = []
        if site is not None:
            self.state.arrival_base[:] = site.arrival()

    # -- the clock

    def next_event(self) -> float:
        """When something happens next; inf if nothing does."""
        if self._next is None:
            self._next = float(e.next_event(self.state))
        return self._next

    def idle(self) -> bool:
        """Nothing waits, not even for the end of a requeue delay."""
        s = self.state
        return bool(s.counter[e.QUEUE] == 0 and s.counter[e.WAIT_JOBS] == 0)

    def finished(self) -> bool:
        """No event is left: every job that can run has ended."""
        return self.next_event() == np.inf

    def advance(self, until: float) -> None:
        """Move the clock, with Slurm's own recalculation of priorities on the way."""
        s = self.state
        if self.site is not None:
            while self.site.next_tick <= until and not self.finished():
                self._next = e.advance(s, self.site.next_tick)
                self._collect_ended()
                self.site.tick(s)
                self._sort_queue()
                if self.idle():
                    self.site.skip_to(self.next_event())
        self._next = e.advance(s, until)
        self.now = until
        self._collect_ended()

    def finish(self) -> None:
        """Take the samples that are still due."""
        e.sample(self.state, np.inf)

    # -- the port

    def observe(self) -> Snapshot:
        """See controller.Cluster."""
        s, req = self.state, self.req
        if s.counter[e.CHANGES] != self._looked_at_changes:
            self._looked_at_changes = int(s.counter[e.CHANGES])
            a = np.sort(s.active[: s.counter[e.ACTIVE]])
            self._active = a
            self._static = (s.gpus[a], req.deadline[a], self.consent[a], self.checkpoint[a], s.tie[a])
            self._plain = (req.weight[a] > 0.0, np.zeros(len(a)), np.zeros(len(a), dtype=np.int64))
            self._facts = (
                req.weight[a],
                req.time_limit[a],
                np.maximum(req.eligible[a], req.first_submit[a]),
                req.user[a],
                req.account[a],
            )
            self._requests = (
                s.partition[a],
                s.nodes[a],
                s.node_gpus[a],
                s.node_cpus[a],
                s.node_mem[a],
                s.first[a],
            )
        a = self._active
        gpus, deadline, consent, checkpoint, tie = self._static
        writable, nice, array_id = self._plain
        weight, time_limit, eligible, user, account = self._facts
        status = s.status[a]
        running = status == e.RUNNING
        lever, can_start = s.lever[a] * self._sign, (status == e.WAITING) & ~np.isnan(s.work[a])
        if self._holds:
            held = np.isinf(lever)
            lever[held], can_start[held] = HELD, False
        jobs = JobTable(
            job_id=a,
            state=np.where(running, RUNS, PENDING),
            submit=s.submit[a],
            gpus=gpus,
            deadline=deadline,
            run_time=np.where(running, self.now - s.run_start[a], 0.0),
            restarts=s.restarts[a],
            requeueable=consent,
            checkpoint=checkpoint,
            lever=lever,
            can_start=can_start,
            writable=writable & ~running,
            nice=nice,
            array_id=array_id,
            weight=weight,
            time_limit=time_limit,
            since=np.maximum(eligible, s.submit[a]),
            user=user,
            account=account,
        )
        partition, nodes, node_gpus, node_cpus, node_mem, first = self._requests
        occupancy = Occupancy(
            free_gpus=s.free_gpus,
            free_cpus=s.free_cpus,
            free_mem_mb=s.free_mem,
            total_gpus=s.total_gpus,
            member=self._member,
            partition=partition,
            nodes=nodes,
            node_gpus=node_gpus,
            node_cpus=node_cpus,
            node_mem_mb=node_mem,
            first=first,
            count=s.nodes_held[a],
            held=s.held,
        )
        pools = None
        if self._member is not s.member:
            pools = in_pools(s.member, partition, req.weighted)
        return Snapshot(
            self.now, jobs, s.base[a], tie, self._take_ended(), occupancy, req.users, req.accounts,
            weighted=req.weighted, pools=pools,
        )  # fmt: skip

    def pinned(self, snapshot: Snapshot, found: Floats) -> Bools:
        """See controller.Cluster. Nobody is there who would set a priority."""
        return np.zeros(len(snapshot.jobs), dtype=np.bool_)

    def apply(self, snapshot: Snapshot, plan: Plan) -> Applied:
        """See controller.Cluster."""
        s = self.state
        ids = snapshot.jobs.job_id
        front = np.zeros(len(ids), dtype=np.bool_)
        front[plan.front] = True
        if not np.array_equal(front, s.front[ids]):
            s.front[ids] = front
            s.counter[e.RELEASES] += 1  # what did not fit beside nodes set aside may fit now
        let_go = False
        if len(plan.write):
            # an explicit priority of 0: the engine starts nobody with an endless lever
            s.lever[ids[plan.write]] = np.where(plan.new == HELD, np.inf, plan.new * self._sign)
            self._holds |= bool((plan.new == HELD).any())
            let_go = self._holds and bool((plan.old == HELD).any())
            self._sort_queue()
        if len(plan.victims) or let_go:
            for row in plan.victims:
                e.requeue(s, int(ids[row]), self.now)
            s.counter[e.RELEASES] += let_go
            e.walk(s, self.now)
            self._next = None
        return Applied(_NOBODY, _NOBODY)

    def _sort_queue(self) -> None:
        s = self.state
        waiting = s.queue[: s.counter[e.QUEUE]]
        waiting[:] = waiting[np.lexsort((s.tie[waiting], s.lever[waiting] - s.base[waiting]))]

    def _collect_ended(self) -> None:
        s = self.state
        if s.counter[e.ENDED]:
            ended = s.ended[: s.counter[e.ENDED]].copy()
            s.counter[e.ENDED] = 0
            self._unseen.append(ended)
            if self.site is not None:
                self.site.ended(ended, s)

    def _take_ended(self) -> Ended:
        if not self._unseen:
            return _NOTHING_ENDED
        ids = np.concatenate(self._unseen)
        self._unseen.clear()
        s = self.state
        return Ended(
            job_id=ids,
            submit=self.req.first_submit[ids],
            deadline=self.req.deadline[ids],
            run_time=s.end[ids] - s.run_start[ids],
            completed=self.req.completed[ids],
            user=self.req.user[ids],
        )


_NOBODY = np.empty(0, dtype=np.int64)
_NOTHING_ENDED = Ended(_NOBODY, np.empty(0), np.empty(0), np.empty(0), np.empty(0, dtype=np.bool_), _NOBODY)
