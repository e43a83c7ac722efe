"""Requeue mode "slurm" while the daemon runs: what the start checked may change in slurm.conf or a QOS.

While a guard fails nobody is raised: what is above running jobs already stays, and nobody joins it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from tias_slurm.config import Config
from tias_slurm.jobs import PENDING, Bools, History, Snapshot
from tias_slurm.planner import Plan
from tias_slurm.policy.base import Ranking
from tias_slurm.preemption.by_slurm import SlurmPreempts
from tias_slurm.service import start
from tias_slurm.slurm.checks_preempt import Qos
from tias_slurm.slurm.live import Adapter, AdapterError
from tias_slurm.slurm.probes import look_at_qos

# how long a look at the QOS holds, s: slurmdbd may be slow, and slurmctld knows them without it
QOS_AGE_S = 300.0


class GuardedPreempts(SlurmPreempts):
    """See SlurmPreempts; `calm`: nobody is raised."""

    calm = False

    def plan(
        self, snapshot: Snapshot, history: History, ranking: Ranking, barred: Bools | None = None
    ) -> Plan:
        """See Planner."""
        plan = super().plan(snapshot, history, ranking, barred)
        return without_raises(plan, snapshot) if self.calm else plan


def without_raises(plan: Plan, snapshot: Snapshot) -> Plan:
    """The plan without what would raise a waiting job; that counts as held back. Pure."""
    raises = (snapshot.jobs.state[plan.write] == PENDING) & (plan.new > plan.old)
    return replace(
        plan,
        write=plan.write[~raises],
        old=plan.old[~raises],
        new=plan.new[~raises],
        held_back=plan.held_back + int(raises.sum()),
    )


class Guards:
    """Looks at the guards again before each cycle, and says what has changed."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._qos: tuple[Qos, ...] | None = None
        self._looked = -QOS_AGE_S
        self.problem = ""  # why nobody is raised; "": the guards hold

    def look(self, config: Config, adapter: Adapter) -> bool:
        """Whether all guards hold, as far as Slurm tells now. Never raises for what Slurm does."""
        # a dry run harms nobody, and is to show what would be
        if config.requeue.mode != "slurm" or config.daemon.mode == "dry-run":
            self.problem = ""
            return True
        try:
            facts = adapter.facts()
        except AdapterError:
            return not self.problem  # the cycle will get no answer either
        now = time.monotonic()
        if now - self._looked >= QOS_AGE_S or self.problem:
            self._looked = now
            # a database that is away has changed nothing that slurmctld goes by
            self._qos = look_at_qos(config.daemon.rpc_timeout_s) or self._qos
        found = start.preemption_problems(config, facts, self._qos)
        problem = "; ".join(f"{what}: needs {do}" for what, do in found)
        if problem and problem != self.problem:
            self._log.error('requeue mode "slurm": nobody is raised while this is so', message=problem)
        elif self.problem and not problem:
            self._log.info('requeue mode "slurm": the guards hold again')
        self.problem = problem
        return not problem
