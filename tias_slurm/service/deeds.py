"""What one cycle of the daemon sends: in the audit trail before it is sent, and what became of it."""

from __future__ import annotations

import time
from typing import Any

from tias_slurm.cycle import Outcome
from tias_slurm.jobs import Snapshot
from tias_slurm.ledger import audit
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.observe.show import Show
from tias_slurm.planner import Plan
from tias_slurm.policy.base import Ranking
from tias_slurm.service.live_cycle import LiveCycle
from tias_slurm.slurm.live import DRY_RUN, WriteResult
from tias_slurm.slurm.live_requeue import outcome

# after "no rights" nothing is written for so long, s
NO_RIGHTS_PAUSE_S = 600.0


class Deeds:
    """Of the cycle at work. `begin`, then `record` and `told` while it lasts, `settle` in the end."""

    def __init__(self, log: Any, show: Show) -> None:
        self._log, self._show = log, show
        self._numbers: list[int] = []
        self._no_rights_until = 0.0
        self.begin()

    def begin(self) -> None:
        """A cycle begins."""
        self.actions: list[audit.Action] = []
        self.outcomes: list[Outcome] = []
        self.requeued = 0

    def rights_again(self, made: LiveCycle) -> None:
        """Rights that were missing are tried again after a while."""
        if self._no_rights_until and time.monotonic() > self._no_rights_until:
            made.cluster.no_rights, self._no_rights_until = "", 0.0

    def record(
        self, made: LiveCycle, store: SqliteStore, snapshot: Snapshot, ranking: Ranking, plan: Plan
    ) -> bool:
        """The audit trail, before anything is sent; whether there is anything. Raises LedgerError."""
        cluster = made.cluster
        if cluster.raw is None or cluster.observed is None:
            return False
        rows = cluster.observed.rows
        self.actions = audit.actions(
            cluster.config, made.policy, cluster.raw, rows, snapshot, ranking, plan, cluster.claims.warning
        )
        self._numbers = store.record([action.entry for action in self.actions])
        return True

    def announce(self, *, enforce: bool) -> None:
        """Tell the log what is about to be sent, or would be."""
        for action in self.actions:
            self._log.info(action.event if enforce else f"would {action.event}", **action.said)

    def told(self, made: LiveCycle, number: int, result: WriteResult) -> None:
        """What became of the action of that number."""
        self.outcomes.append((self._numbers[number], result.result, result.message))
        cluster, action = made.cluster, self.actions[number]
        became = outcome(result) if action.event == "requeue" else result.result
        self._show.sent(action.event, cluster.field, became if cluster.enforce else DRY_RUN)
        if action.event == "requeue" and outcome(result) == "done":
            self.requeued += 1
        if result.result == "no rights" and self._no_rights_until:
            return  # said once
        if result.result == "no rights":
            self._no_rights_until = time.monotonic() + NO_RIGHTS_PAUSE_S
            self._log.error(
                "no rights: nothing is written for a while; the account needs AdminLevel=Operator",
                message=result.message,
                seconds=NO_RIGHTS_PAUSE_S,
            )
        elif result.result not in ("ok", "gone") and cluster.enforce:
            self._log.warning(
                f"{action.event} failed", job=action.said["job"], result=result.result, message=result.message
            )

    def settle(self, store: SqliteStore) -> None:
        """Keep what became of it. Raises LedgerError."""
        if self.outcomes:
            store.settle(self.outcomes)
