"""The cycle: observe, remember, rank, plan, apply. Live, in a dry run and in a replay the same lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from tias_slurm.jobs import PENDING, Bools, Floats, RankInput, Snapshot, unsaved
from tias_slurm.ledger.book import Ledger
from tias_slurm.planner import Applied, Plan, Planner
from tias_slurm.policy.base import Policy, Ranking

Recorder = Callable[[Snapshot, Ranking, Plan], None]
# looks for what the ledger did not see of the jobs of a snapshot; whether it found anything
Past = Callable[[Snapshot], bool]


class Cluster(Protocol):
    """The port to a cluster. Adapters cannot be told apart by the rest of the code."""

    def observe(self) -> Snapshot:
        """One look at jobs, nodes and the controller's clock."""

    def pinned(self, snapshot: Snapshot, found: Floats) -> Bools:
        """Jobs with an explicit priority that is a person's; asked for only before a write. Shapes (n,).

        `found`: see Ledger.
        """

    def apply(self, snapshot: Snapshot, plan: Plan) -> Applied:
        """Carry the actions out, writes before requeues."""


class Seen(NamedTuple):
    """What a cycle made of its snapshot. Rows are those of the snapshot."""

    snapshot: Snapshot
    known: RankInput
    ranking: Ranking
    barred: Bools  # (n,) jobs that a person or Slurm has taken out of our hands
    plan: Plan


def turned(snapshot: Snapshot, known: RankInput, ranking: Ranking) -> RankInput:
    """The jobs the other way round: those that wait run on what they would be given, those that run wait.

    A claim that came during a run goes on as one, or it would keep its job's nodes after all.
    """
    jobs = snapshot.jobs
    waits = jobs.state == PENDING
    lost = np.where(waits, 0.0, unsaved(jobs.run_time, jobs.checkpoint))
    return replace(
        known,
        running=waits | (known.running & known.late),
        gpus=known.gpus if snapshot.allocated is None else snapshot.allocated,
        executed=np.maximum(known.executed - lost, 0.0),
        slot=ranking.slot,
    )


class Controller:
    """One pass through the five steps for each call of `cycle`."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        policy: Policy,
        planner: Planner,
        record: Recorder | None = None,
        past: Past | None = None,
    ) -> None:
        self.cluster = cluster
        self.ledger = ledger
        self.policy = policy
        self.planner = planner
        self.record = record
        self.past = past
        self.writes = 0
        self.held_back = 0  # writes that the last cycle left for the next
        self.seen: Seen | None = None  # by the last cycle; None: nothing waited
        self.only_looks = False  # a cycle ends with its plan
        self.step: Callable[[str], None] = lambda _: (
            None
        )  # told of each step as it begins; "": the last ended
        self._snapshot: Snapshot | None = None

    def standing(self) -> tuple[Snapshot, RankInput, Ranking]:
        """How the jobs stood at the last look, also where nothing waited, so that nobody had to rank them."""
        if self.seen is not None:
            return self.seen[:3]
        assert self._snapshot is not None, "no cycle yet"
        known = self.ledger.view(self._snapshot)
        return (
            self._snapshot,
            known,
            self.policy.rank(self._snapshot.now, known, self.ledger.learner.survival()),
        )

    def cycle(self) -> None:
        """Do what one poll asks for."""
        try:
            self._cycle()
        finally:
            self.step("")

    def _cycle(self) -> None:
        self.step("observe")
        self.held_back, self.seen = 0, None
        self._snapshot = snapshot = self.cluster.observe()
        self.step("remember")
        known = self.ledger.remember(snapshot)
        if self.past is not None and self.past(snapshot):
            known = self.ledger.view(snapshot)
        if self.planner.waiting_only and not np.any(snapshot.jobs.state == PENDING):
            return
        self.step("rank")
        ranking = self.policy.rank(snapshot.now, known, self.ledger.learner.survival())
        self.ledger.note(ranking)
        if self.planner.compares(snapshot) and (self.only_looks or not self.planner.waiting_only):
            ranking = self._both_ways(snapshot, known, ranking)
        self.step("plan")
        barred = self.ledger.overridden(snapshot) | self.ledger.refused
        plan = self.planner.plan(snapshot, self.ledger.history(), ranking, barred)
        if len(plan.write):
            pinned = self.cluster.pinned(snapshot, self.ledger.found)
            if pinned[plan.write].any():
                barred |= pinned
                plan = self.planner.plan(snapshot, self.ledger.history(), ranking, barred)
        if ranking.turned is None and (len(plan.victims) or len(plan.warn)):
            # few cycles have others requeued: only then it matters how both would stand after it
            both = self._both_ways(snapshot, known, ranking)
            if self.planner.in_turn(snapshot, both, plan):
                ranking = both
                plan = self.planner.plan(snapshot, self.ledger.history(), ranking, barred)
        self.held_back = plan.held_back
        self.seen = Seen(snapshot, known, ranking, barred, plan)
        if self.only_looks:
            return
        if not len(plan.write) and not len(plan.victims) and not len(plan.warn):
            return
        self.step("apply")
        self.ledger.intend(snapshot, plan)
        self.writes += len(plan.write)
        try:
            if self.record is not None:
                self.record(snapshot, ranking, plan)
            applied = self.cluster.apply(snapshot, plan)
        except Exception:
            # writes come first, and what fails there ends it: nobody was requeued
            self.ledger.applied(Applied(np.empty(0, dtype=np.int64), plan.victims), snapshot.now)
            raise
        self.ledger.applied(applied, snapshot.now)

    def _both_ways(self, snapshot: Snapshot, known: RankInput, ranking: Ranking) -> Ranking:
        """The ranking, and how those that wait would stand if they ran, those that run if they waited."""
        other = turned(snapshot, known, ranking)
        levels = self.policy.rank(snapshot.now, other, self.ledger.learner.survival()).level
        return replace(ranking, turned=levels)
