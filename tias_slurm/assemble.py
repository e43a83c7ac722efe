"""The parts of a cycle as the settings want them: the same for the daemon, its dry run and the replay."""

from __future__ import annotations

import json

import numpy as np

from tias_slurm import deadlines
from tias_slurm.config import Config
from tias_slurm.jobs import Bools, Ints
from tias_slurm.ledger import quota
from tias_slurm.ledger.book import Ledger, Store
from tias_slurm.levers import Lever, NiceLever, PriorityLever, SiteFactorLever
from tias_slurm.planner import Limits
from tias_slurm.policy.learning import LearnSettings
from tias_slurm.policy.tias import Tias, preset

# [policy]: choices of the site that no preset makes
SITE = ("overdue", "starving_s", "starving_share", "size_hint", "time_limit_factor", "prior_upper")


def tias(config: Config, name: str | None = None) -> Tias:
    """TIAS with the configured preset, or with another one by name.

    Single constants of [policy] belong to the configured preset, but for what a site decides for all of them;
    the others are taken as they are published.
    """
    c = config.policy
    own = c.overrides()
    if name not in (None, c.preset):
        own = {key: value for key, value in own.items() if key in SITE}
    return Tias(preset(name or c.preset, **own, interval_s=config.cycle.interval_s))


def lever(config: Config, levels: int, site_weights: int) -> Lever:
    """The configured lever. `site_weights`: sum of the site's PriorityWeight* values."""
    c = config.lever
    if c.kind == "priority":
        return PriorityLever(levels, c.urgency_steps)
    kind = NiceLever if c.kind == "nice" else SiteFactorLever
    return kind(levels, c.urgency_steps, site_weights, c.span)


def limits(config: Config, *, requeue: bool, max_writes: int | None = None) -> Limits:
    """The budgets of one cycle. `max_writes`: another one than the configured."""
    r, p = config.requeue, config.planner
    return Limits(
        dead_band_steps=p.dead_band_steps,
        max_writes=p.max_writes_per_cycle if max_writes is None else max_writes,
        requeue=requeue,
        min_run_s=r.min_run_s,
        max_requeues_per_job=r.max_per_job,
        max_preemptors=r.max_preemptors_per_cycle,
        restart_s=r.restart_s,
        cooldown_s=r.cooldown_s,
        max_per_hour=r.max_per_hour,
        max_per_user_per_hour=r.max_per_user_per_hour,
        grace_s=r.grace_s,
        warning_lasts_s=r.warning_lasts_s,
        long_share=p.long_share,
        long_window_s=p.long_window_s,
        prior_upper=config.policy.prior_upper,
    )


def quota_settings(config: Config) -> quota.Settings | None:
    """The quota of GPU time under deadlines; None: there is none."""
    d = config.deadlines
    if d.quota_rate is None:
        return None
    return quota.Settings(d.quota_rate, d.quota_burst_s, d.quota_shares, d.quota_reserve_s)


def learning(config: Config) -> LearnSettings:
    """How finished jobs are learned from."""
    s = config.learning
    return LearnSettings(config.policy.prior_upper, s.prior_jobs, s.half_life_s, s.user_jobs, s.user_share)


def ledger(config: Config, store: Store | None, *, told_at_submit: bool = False) -> Ledger:
    """The ledger as the settings want it. See Ledger."""
    return Ledger(
        store,
        config.deadlines.max_changes,
        quota=quota_settings(config),
        learn=learning(config),
        told_at_submit=told_at_submit,
        claim_rules=_claim_rules(config),
    )


def _claim_rules(config: Config) -> str:
    """What decides which deadlines are read out of comments and admitted, as text."""
    d = config.deadlines
    lists = (sorted(names) for names in (d.accounts, d.qos, d.partitions, d.users))
    return json.dumps([d.key, str(config.zone()), d.min_window_s, d.max_window_s, *lists])


def consents(config: Config, said: Ints) -> Bools:
    """Whether jobs may be requeued. `said`: 1 yes, 0 no, -1 nothing, as their comments do. Shapes (n,)."""
    return np.asarray(np.where(said < 0, config.requeue.consent_default, said == 1), dtype=np.bool_)


def claim_limits(config: Config) -> deadlines.Limits:
    """The site's limits on claims, as deadlines.admit takes them."""
    site = config.deadlines
    return deadlines.Limits(
        accounts=frozenset(site.accounts),
        qos=frozenset(site.qos),
        partitions=frozenset(site.partitions),
        users=frozenset(site.users),
        min_window_s=site.min_window_s,
        max_window_s=site.max_window_s,
    )
