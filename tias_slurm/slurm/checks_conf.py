"""Checks of slurm.conf and the partitions against the settings. Pure; see checks_live.py.

Sources: slurm.conf(5), scontrol(1), priority_multifactor.html, preempt.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tias_slurm import assemble
from tias_slurm.config import Config
from tias_slurm.gpu_weights import SHARD
from tias_slurm.slurm import scope as scopes
from tias_slurm.slurm.checks_preempt import problems
from tias_slurm.slurm.finding import NONE, Finding, options
from tias_slurm.slurm.live import SiteFacts
from tias_slurm.slurm.probes import Probes

# slurm.conf(5) SlurmctldParameters=rl_*: what holds where nothing is set
_RL_RATE: Final = 2
_RL_PERIOD: Final = 1


def no_site_factor(facts: SiteFacts) -> str:
    """Why a site factor of ours would not count; "": it would."""
    if facts.site_factor_plugin.lower() not in NONE:
        return f"PrioritySiteFactorPlugin={facts.site_factor_plugin} sets the same field"
    return "" if facts.priority_type == "priority/multifactor" else "only multifactor adds a site factor"


def lever(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether the lever moves jobs, and whether it moves them far enough."""
    kind, multifactor = config.lever.kind, facts.priority_type == "priority/multifactor"
    shown = f"lever {kind}, PriorityType={facts.priority_type}"
    if kind == "site_factor" and (why := no_site_factor(facts)):
        yield Finding("lever", "error", shown, why, 'set [lever] kind = "nice"')
    elif kind == "priority" and not multifactor:
        yield Finding(
            "lever",
            "warning",
            shown,
            "without multifactor a person's explicit priority cannot be told from Slurm's own",
            'set [lever] kind = "nice"',
        )
    elif kind == "priority":
        yield Finding(
            "lever",
            "warning",
            shown,
            "an explicit priority replaces age, fair share and QOS, and wipes users' nice until restore",
            'set [lever] kind = "nice" unless that is what you want',
        )
    else:
        yield Finding("lever", "ok", shown)
    total = sum(facts.priority_weights.values())
    if config.lever.span is not None and kind != "priority" and config.lever.span <= total:
        yield Finding(
            "lever-span",
            "warning",
            f"span {config.lever.span}, the site's PriorityWeight* sum to {total}",
            "age, fair share and QOS can outweigh a level",
            "leave [lever] span unset for strict levels",
        )


def flags(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """What of PriorityFlags and SchedulerParameters works against writes."""
    if "incr_only" in options(facts.priority_flags) and config.lever.kind != "priority":
        yield Finding(
            "incr-only",
            "warning",
            "PriorityFlags=INCR_ONLY",
            "Slurm's periodic recalculation never lowers a priority, so a job that falls back stays in front",
            "remove INCR_ONLY",
        )
    scheduler = options(facts.scheduler_parameters)
    if "bf_continue" in scheduler:
        yield Finding("bf-continue", "ok", "SchedulerParameters has bf_continue")
    else:
        yield Finding(
            "bf-continue",
            "warning",
            "SchedulerParameters lacks bf_continue",
            "every write ends the backfill pass that is under way",
            "add bf_continue to SchedulerParameters",
        )
    if "enable_user_top" in scheduler and config.lever.kind == "nice":
        yield Finding(
            "user-top",
            "warning",
            "SchedulerParameters has enable_user_top",
            "scontrol top rewrites the nice of jobs, which then count as changed by a person",
            'remove enable_user_top, or set [lever] kind = "site_factor"',
        )


def tiers(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether Slurm compares the jobs in scope by priority at all."""
    scope = config.scope
    tiers = {name: tier for name, tier in p.tiers.items() if scopes.lets_in(scope, name)}
    unknown = scopes.unknown(scope, p.tiers)
    if p.tiers and unknown:
        yield Finding(
            "scope",
            "warning",
            f"[scope] names partitions that are not here: {', '.join(unknown)}",
            "a name that is wrong lets no job in, or none out",
            "correct the names in [scope]",
        )
    if len(set(tiers.values())) > 1:
        order = sorted(tiers, key=lambda name: (-tiers[name], name))
        shown = ", ".join(f"{name}={tiers[name]}" for name in order)
        yield Finding(
            "priority-tier",
            "warning",
            f"partitions of several PriorityTier: {shown}",
            "Slurm looks at a higher tier first, whatever the priorities: order holds inside a tier only",
            "one tier for partitions that share nodes, or [scope] only_partitions",
        )
    else:
        yield Finding("priority-tier", "ok", "the partitions share one PriorityTier")


def in_scope(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Where jobs in scope compete with jobs out of scope."""
    weights = sum(facts.priority_weights.values())
    lever = assemble.lever(config, assemble.tias(config).levels, weights)
    found = scopes.splits(config.scope, lever, p.node_partitions)
    for split in found:
        yield Finding(f"scope-{split.kind}", "warning", split.what, split.why, split.do)
    there = frozenset().union(*p.node_partitions)
    if not found and any(scopes.lets_in(config.scope, name) for name in there):
        yield Finding("scope-nodes", "ok", "partitions in scope share no nodes with others")


def accounting(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether the history keeps comments."""
    if "job_comment" in options(facts.accounting_store_flags):
        yield Finding("job-comment", "ok", "AccountingStoreFlags has job_comment")
    else:
        yield Finding(
            "job-comment",
            "warning",
            "AccountingStoreFlags lacks job_comment",
            "the history does not keep comments, so that tias-slurm dry-run finds few deadlines in it",
            "add job_comment to AccountingStoreFlags",
        )


def gpu_weights(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether accounting tells the GPUs apart that [gpus] weights names."""
    if not config.gpus.weights:
        return
    tracked = {name.strip().lower() for name in facts.tracked_tres.split(",")}
    names = [f"gres/{SHARD}" if name == SHARD else f"gres/gpu:{name}" for name in config.gpus.weights]
    missing = [name for name in names if name.lower() not in tracked]
    if not missing:
        yield Finding("gpu-weights", "ok", "AccountingStorageTRES has all that [gpus] weights names")
        return
    yield Finding(
        "gpu-weights",
        "warning",
        f"AccountingStorageTRES lacks {', '.join(missing)}, which [gpus] weights names",
        "such GPUs count 1 and such shards nothing wherever only the accounting tells of them: after a "
        "requeue, in the dry run, and through pyslurm",
        f"slurm.conf: AccountingStorageTRES={','.join(['gres/gpu', *names])}, and start slurmctld anew",
    )


def preemption(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether Slurm itself preempts, and by priorities."""
    if config.requeue.mode == "slurm":
        found = list(problems(config, facts, p.qos, p.preempt_mode))
        for what, do in found:
            why = "Slurm would preempt the wrong jobs, and cancel those that it cannot requeue"
            yield Finding("preemption", "error", what, why, do)
        if not found:
            yield Finding(
                "preemption",
                "warning",
                f"PreemptType={facts.preempt_type}: Slurm preempts by the priorities that are written here",
                "jobs that start while the daemon is paused or ended are protected by PreemptExemptTime only",
                "tias-slurm restore when it is to be off for longer",
            )
        return
    kind, mode = facts.preempt_type.lower(), options(facts.preempt_mode)
    if kind in NONE or not mode:
        yield Finding("preemption", "ok", "Slurm itself preempts nothing")
        return
    shown = f"PreemptType={facts.preempt_type}, PreemptMode={facts.preempt_mode}"
    # `scontrol show config` prints options that it does not know as UNKNOWN
    if {"within", "priority", "unknown"} & mode.keys():
        yield Finding(
            "preemption",
            "warning",
            shown,
            "Slurm compares priorities to choose victims: a job that is raised may requeue or cancel others",
            "take WITHIN and PRIORITY out of PreemptMode, or accept that and set PreemptExemptTime",
        )
    else:
        yield Finding("preemption", "ok", f"{shown}: does not compare priorities of jobs")


def rate(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether slurmctld takes as many writes as we send."""
    said = options(facts.slurmctld_parameters)
    if "rl_enable" not in said or p.is_root or p.user == facts.slurm_user:
        return
    rate = _number(said.get("rl_refill_rate"), _RL_RATE) / _number(said.get("rl_refill_period"), _RL_PERIOD)
    wanted = config.daemon.writes_per_second
    if wanted < rate:
        yield Finding("rate-limit", "ok", f"rl_enable allows {rate:g} requests/s, we send {wanted:g}")
    else:
        yield Finding(
            "rate-limit",
            "warning",
            f"rl_enable allows {rate:g} requests/s, writes_per_second = {wanted:g}",
            "Slurm's client then sleeps inside each call; only SlurmUser and root are exempt",
            f"set [daemon] writes_per_second below {rate:g}, or raise rl_refill_rate",
        )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and 0 < int(text) < 10**9 else otherwise


def times(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    """Whether timeouts and MinJobAge fit the cycle."""
    if config.daemon.rpc_timeout_s < facts.message_timeout_s:
        yield Finding(
            "timeout",
            "warning",
            f"rpc_timeout_s = {config.daemon.rpc_timeout_s:g}, MessageTimeout={facts.message_timeout_s}",
            "a busy controller may take longer to answer than we wait",
            f"set [daemon] rpc_timeout_s above {facts.message_timeout_s}",
        )
    if facts.min_job_age_s < 2 * config.cycle.interval_s:
        yield Finding(
            "min-job-age",
            "warning",
            f"MinJobAge={facts.min_job_age_s}, [cycle] interval_s = {config.cycle.interval_s:g}",
            "jobs may end and be forgotten between two looks; what they teach about run times is lost",
            "a MinJobAge of two intervals or more",
        )
