"""The cycle over a running Slurm, put together: the same for the daemon and for who only looks."""

from __future__ import annotations

import time
from functools import partial

from tias_slurm import assemble, hands
from tias_slurm.config import Config
from tias_slurm.controller import Controller, Past, Recorder
from tias_slurm.jobs import Bools
from tias_slurm.ledger import gains
from tias_slurm.ledger.book import Store
from tias_slurm.ledger.reruns import Reruns
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.planner import Planner
from tias_slurm.policy.tias import Tias
from tias_slurm.service.slurm_guards import GuardedPreempts
from tias_slurm.slurm.live import Adapter, RawTable, SiteFacts
from tias_slurm.slurm.live_cluster import LiveCluster, Told


class LiveCycle:
    """A Controller, and its parts by their own types."""

    def __init__(
        self,
        config: Config,
        adapter: Adapter,
        facts: SiteFacts,
        store: Store | None,
        *,
        enforce: bool,
        told: Told | None = None,
        record: Recorder | None = None,
        past: Past | None = None,
    ) -> None:
        """`enforce`: writes are sent. `told`, `record`, `past`: see LiveCluster and Controller."""
        self.ledger = assemble.ledger(config, store)
        self.policy: Tias = assemble.tias(config)
        self.lever = assemble.lever(config, self.policy.levels, sum(facts.priority_weights.values()))
        self.cluster = LiveCluster(
            adapter,
            config,
            config.zone(),
            enforce=enforce,
            field=config.lever.kind,
            first_submit=self.ledger.first_submit,
            standing=self.ledger.standing,
            multifactor=facts.priority_type == "priority/multifactor",
            told=told,
            holds=self.ledger.holds,
            ignored=partial(_ignored, config.daemon.state_dir),
        )
        if isinstance(store, SqliteStore):
            self.cluster.watch.keep = partial(gains.keep, store)
            self.cluster.watch.resume(gains.watched(store, time.time()))
            if config.requeue.mode == "slurm":
                self.ledger.reruns = Reruns(store)
        kind = GuardedPreempts if config.requeue.mode == "slurm" else Planner
        planner = kind(self.lever, assemble.limits(config, requeue=config.requeue.mode == "on"))
        self.controller = Controller(self.cluster, self.ledger, self.policy, planner, record, past)

    def go_on_from(self, before: LiveCycle) -> None:
        """Take over what another one, of other settings, has in memory alone."""
        self.cluster.go_on_from(before.cluster)
        self.ledger.go_on_from(before.ledger)

    def be_calm(self, calm: bool) -> None:
        """Raise nobody, where Slurm preempts by what is raised."""
        if isinstance(self.controller.planner, GuardedPreempts):
            self.controller.planner.calm = calm


def _ignored(state_dir: str, raw: RawTable) -> Bools | None:
    names = hands.ignored(state_dir)
    return hands.named(names, raw) if names else None
