"""Does this site's Slurm let the daemon do what its settings ask for? Pure: facts in, findings out.

Sources: slurm.conf(5), scontrol(1), priority_multifactor.html, user_permissions.html, preempt.html.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tias_slurm import assemble
from tias_slurm.config import Config
from tias_slurm.gpu_weights import SHARD
from tias_slurm.slurm import scope as scopes
from tias_slurm.slurm.checks_preempt import problems
from tias_slurm.slurm.live import SiteFacts
from tias_slurm.slurm.probes import Probes

Severity = Literal["ok", "warning", "error"]
TESTED: Final = ((22, 5), (26, 5))
# slurm.conf(5) SlurmctldParameters=rl_*: what holds where nothing is set
_RL_RATE: Final = 2
_RL_PERIOD: Final = 1
_NONE: Final = frozenset({"", "(null)", "none", "preempt/none", "off", "n/a"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str  # a short name that stays the same over releases
    severity: Severity
    what: str  # what was seen
    why: str = ""  # what it means for the daemon
    do: str = ""  # what to do about it


def judge(config: Config, facts: SiteFacts, probes: Probes) -> list[Finding]:
    """All findings, in the order of `CHECKS`."""
    return [finding for check in CHECKS for finding in check(config, facts, probes)]


def _options(text: str) -> dict[str, str]:
    """`a,b=1` -> {"a": "", "b": "1"}, names in lower case. pyslurm prints lists in brackets."""
    found: dict[str, str] = {}
    for word in re.split(r"[,\s\[\]{}']+", text.lower()):
        name, _, value = word.partition("=")
        if name and name not in _NONE:
            found[name] = value
    return found


def _rights(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    level = f", AdminLevel={p.admin_level} in the accounting database" if p.admin_level else ""
    account = f"account {p.user}{level}"
    if p.rights == "yes":
        yield Finding("rights", "ok", f"{account}: slurmctld takes it for an Operator or more")
        return
    grant = f"sacctmgr modify user {p.user} set AdminLevel=Operator"
    if not p.admin_level:
        grant = (
            f"add the account to the accounting database, then {grant}; without one, run as SlurmUser "
            f"({facts.slurm_user})"
        )
    if p.rights == "unknown":
        yield Finding(
            "rights",
            "warning",
            f"{account}: slurmctld's answer was not understood: {p.rights_words}",
            "priority, negative nice and site factor of others' jobs need AdminLevel=Operator",
            grant,
        )
        return
    if p.admin_level.lower() in ("operator", "administrator"):
        grant = "slurmctld has not taken that over: is slurmdbd connected? scontrol reconfigure"
    enforce = config.daemon.mode == "enforce"
    yield Finding(
        "rights",
        "error" if enforce else "warning",
        f"{account}: slurmctld takes it for an ordinary user",
        "nothing can be written" if enforce else "a dry run works, writing will not",
        grant,
    )


def _account(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    if p.is_root:
        yield Finding(
            "account",
            "warning",
            "this is root",
            "the daemon needs none of root's rights",
            "run it, and this check, as a system account of its own with AdminLevel=Operator",
        )


def _private(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    hidden = "jobs" in _options(facts.private_data) or "all" in _options(facts.private_data)
    if hidden and p.rights == "no":
        yield Finding(
            "private-data",
            "error",
            f"PrivateData={facts.private_data}",
            "others' jobs are hidden from this account: the queue would look empty",
            "give the account AdminLevel=Operator",
        )
    else:
        yield Finding("private-data", "ok", "all jobs can be seen")


def _lever(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    kind, multifactor = config.lever.kind, facts.priority_type == "priority/multifactor"
    shown = f"lever {kind}, PriorityType={facts.priority_type}"
    plugin = facts.site_factor_plugin.lower() not in _NONE
    if kind == "site_factor" and (not multifactor or plugin):
        why = "only multifactor adds a site factor"
        if plugin:
            why = f"PrioritySiteFactorPlugin={facts.site_factor_plugin} sets the same field"
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


def _flags(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    if "incr_only" in _options(facts.priority_flags) and config.lever.kind != "priority":
        yield Finding(
            "incr-only",
            "warning",
            "PriorityFlags=INCR_ONLY",
            "Slurm's periodic recalculation never lowers a priority, so a job that falls back stays in front",
            "remove INCR_ONLY",
        )
    scheduler = _options(facts.scheduler_parameters)
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


def _tiers(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
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


def _scope(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    weights = sum(facts.priority_weights.values())
    lever = assemble.lever(config, assemble.tias(config).levels, weights)
    found = scopes.splits(config.scope, lever, p.node_partitions)
    for split in found:
        yield Finding(f"scope-{split.kind}", "warning", split.what, split.why, split.do)
    there = frozenset().union(*p.node_partitions)
    if not found and any(scopes.lets_in(config.scope, name) for name in there):
        yield Finding("scope-nodes", "ok", "partitions in scope share no nodes with others")


def _accounting(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    if "job_comment" in _options(facts.accounting_store_flags):
        yield Finding("job-comment", "ok", "AccountingStoreFlags has job_comment")
    else:
        yield Finding(
            "job-comment",
            "warning",
            "AccountingStoreFlags lacks job_comment",
            "the history does not keep comments, so that tias-slurm dry-run finds few deadlines in it",
            "add job_comment to AccountingStoreFlags",
        )


def _gpu_weights(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
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


def _preemption(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
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
    kind, mode = facts.preempt_type.lower(), _options(facts.preempt_mode)
    if kind in _NONE or not mode:
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


def _rate(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    said = _options(facts.slurmctld_parameters)
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


def _times(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
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


def _versions(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    release = tuple(int(n) for n in re.findall(r"\d{1,4}", facts.version)[:2])
    if TESTED[0] <= release <= TESTED[1]:
        yield Finding("version", "ok", f"Slurm {facts.version}")
    else:
        yield Finding(
            "version",
            "warning",
            f"Slurm {facts.version}",
            "tested with 22.05 to 26.05",
            'try mode = "dry-run" and tias-slurm plan first',
        )
    if p.backend_problem:
        yield Finding("backend", "error", p.backend_problem, "the daemon will not start", "see there")
    elif p.backend == "commands" and p.pyslurm and config.daemon.backend == "auto":
        yield Finding(
            "backend",
            "warning",
            p.backend_why,
            "Slurm's commands serve, but take longer to read a large queue",
            'install the pyslurm that matches, or set backend = "commands"',
        )
    elif config.daemon.allow_version_mismatch and "allow_version_mismatch" in p.backend_why:
        yield Finding(
            "backend",
            "warning",
            p.backend_why,
            "structures of two releases may differ in silence",
            'install the pyslurm that matches, or set backend = "commands"',
        )
    else:
        yield Finding("backend", "ok", p.backend_why)


def _state(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    path = config.daemon.state_dir
    if p.state in ("absent, cannot be made", "not writable"):
        yield Finding(
            "state-dir",
            "error",
            f"{path}: {p.state} by {p.user}",
            "the ledger and the lock are kept there",
            f"install -d -m 0750 -o {p.user} {path}",
        )
    elif p.state == "ours" and p.state_mode & 0o027:
        yield Finding(
            "state-dir",
            "warning",
            f"{path}: mode {p.state_mode:04o}",
            "others may read or change the ledger",
            f"chmod 0750 {path}",
        )
    else:
        yield Finding("state-dir", "ok", f"{path}: {'there' if p.state == 'ours' else p.state}")


def _user_export(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    path, (what, do) = config.daemon.user_export, p.export
    if what:
        yield Finding("user-export", "warning", what, "users could not explain their own jobs", do)
    elif path:
        yield Finding("user-export", "ok", f"{path}: the daemon's own, with ACLs")


def _controllers(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    if len(p.controllers) > 1:
        yield Finding(
            "controllers",
            "warning",
            f"{len(p.controllers)} SlurmctldHosts: {', '.join(p.controllers)}",
            "the lock holds on one machine only; two daemons on two machines would both write",
            "run the daemon on one machine, or share a state_dir that honours flock",
        )


Check = Callable[[Config, SiteFacts, Probes], Iterator[Finding]]


def _notify(config: Config, facts: SiteFacts, p: Probes) -> Iterator[Finding]:
    if config.notify.how == "output" and not p.is_root and p.user != facts.slurm_user:
        yield Finding(
            "notify",
            "warning",
            f'[notify] how = "output", as account {p.user}',
            "slurmctld lets no Operator write into others' output: nobody would be told anything",
            f'run the daemon as SlurmUser ({facts.slurm_user}), or set how = "mail"',
        )


CHECKS: tuple[Check, ...] = (
    _versions,
    _rights,
    _account,
    _private,
    _lever,
    _flags,
    _tiers,
    _scope,
    _accounting,
    _gpu_weights,
    _preemption,
    _rate,
    _times,
    _state,
    _user_export,
    _controllers,
    _notify,
)
