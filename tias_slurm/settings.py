"""The sections of the settings file: every key with its type, bounds, default and meaning.

Durations are in seconds (`_s`), service in GPU-seconds (`_gpu_s`).
"""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic import model_validator as check

from tias_slurm.setting_kinds import (
    Caps,
    Names,
    Section,
    Shares,
    Thresholds,
    Weights,
    absolute,
    comment_key,
    listen_address,
    signal_name,
    zone_name,
)


class Cycle(Section):
    """How often the daemon looks."""

    interval_s: float = Field(60.0, ge=5, le=3600, description="seconds from one cycle to the next")


class Deadlines(Section):
    """Where deadlines are read and who may claim one. Empty lists: everybody may."""

    key: Annotated[str, BeforeValidator(comment_key)] = Field(
        "deadline", min_length=1, max_length=32, description="the key in a job's comment"
    )
    timezone: Annotated[str, BeforeValidator(zone_name)] = Field(
        "", description="IANA name of the zone of times without an offset; empty: the machine's"
    )
    accounts: Names = Field((), description="accounts that may claim a deadline; empty: all")
    qos: Names = Field((), description="QOS in which a deadline may be claimed; empty: all")
    partitions: Names = Field((), description="partitions in which a deadline may be claimed; empty: all")
    users: Names = Field((), description="users who may claim a deadline; empty: all")
    min_window_s: float = Field(
        0.0, ge=0, description="a deadline nearer than this to the first submit is refused"
    )
    max_window_s: float | None = Field(
        None,
        gt=0,
        description="a deadline further than this from the first submit is refused; unset: no limit",
    )
    max_changes: int = Field(
        3, ge=0, description="how often a job may change its deadline; further changes are refused"
    )
    quota_rate: float | None = Field(
        None,
        gt=0,
        le=10,
        description="GPU time that an account may use under deadlines, over its share of the cluster; "
        "unset: no quota",
    )
    quota_burst_s: float = Field(
        259_200.0, gt=0, description="an account saves up its quota for as long as this"
    )
    quota_shares: Shares = Field(
        {}, description="fair shares of accounts, by name; others share what is left equally"
    )
    quota_reserve_s: float = Field(
        3_600.0, ge=0, description="so much of each job is set apart before the quota lets the next one in"
    )

    @check(mode="after")
    def _window(self) -> Deadlines:
        if self.max_window_s is not None and self.max_window_s < self.min_window_s:
            raise ValueError("max_window_s is less than min_window_s: no deadline could be claimed")
        return self


class Policy(Section):
    """The preset, and single values that differ from it. Unset: the preset's."""

    preset: Literal["jct-first", "steady", "wide-fair", "balanced", "guard", "slots"] = Field(
        "jct-first", description="the set of values to start from"
    )
    thresholds_gpu_s: Thresholds | None = Field(
        None,
        min_length=1,
        max_length=15,
        description="attained service at which a job falls to the next queue",
    )
    risk: Literal["closed-form", "learned"] | None = Field(
        None, description="how the chance of meeting a deadline is found"
    )
    delta_s: float | None = Field(None, gt=0, description="the wait whose cost in that chance is the risk")
    urgent_risk: float | None = Field(None, gt=0, le=1, description="a risk of at least this is urgent")
    warming_ratio: float | None = Field(
        None, ge=0, le=1, description="a risk of at least this share of urgent_risk is warming"
    )
    window_hint: float | None = Field(
        None, ge=0, le=1, description="share of GPUs x window that counts as size before a job has run"
    )
    hopeless_chance: float | None = Field(
        None, ge=0, le=1, description="a waiting job whose chance is below this is hopeless"
    )
    overdue: Literal["last", "best-effort"] = Field(
        "last", description="hopeless and overdue jobs: behind all others, or as if they had no deadline"
    )
    queue_urgency: Literal["u", "edf", "laxity", "elapsed"] = Field(
        "u", description="the order inside a level of deadline jobs"
    )
    slot_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of the cluster's GPUs that long deadline jobs may hold in slots; 0: no slots",
    )
    slot_window_s: float | None = Field(
        None, gt=0, description="a window of at least this makes a deadline job long"
    )
    slot_level: int | None = Field(
        None, ge=0, le=33, description="the level of a job in a slot is at most this"
    )
    keep_served: float | None = Field(
        None,
        ge=0,
        le=1,
        description="a running deadline job served this share of its window is at level 0; 0: never",
    )
    caps: Caps | None = Field(
        None,
        max_length=8,
        description="pairs [loss, level]: once a job has lost that share of the time that it may need, its "
        "level is at most this; loss 0: one cycle",
    )
    prior_upper: float = Field(
        1.28, ge=0.5, le=10, description="the longest that a job may run, as a share of its window"
    )
    starving_s: float = Field(
        2_592_000.0,
        ge=0,
        description="a job that has waited so long goes before all levels, without preempting; 0: never",
    )
    starving_share: float = Field(
        0.1, ge=0, le=1, description="share of the cluster's GPUs for jobs brought to the front"
    )
    size_hint: Literal["none", "time-limit"] = Field(
        "none", description="what tells the size of a job without a deadline before it has run"
    )
    time_limit_factor: float = Field(
        3.0, ge=1, le=100, description="with that hint: a time limit is so many times the run time"
    )

    @check(mode="after")
    def _ascending(self) -> Policy:
        values = self.thresholds_gpu_s or ()
        if any(a >= b for a, b in itertools.pairwise(values)):
            raise ValueError("thresholds_gpu_s must ascend, each larger than the one before")
        return self

    def overrides(self) -> dict[str, object]:
        """The values that differ from the preset's, by name. Without `preset` itself."""
        return {
            name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if name != "preset" and getattr(self, name) != field.default
        }


class Learning(Section):
    """How finished deadline jobs are learned from, where the risk is learned."""

    prior_jobs: float = Field(
        5.0,
        gt=0,
        le=10_000,
        description="jobs that the prior is worth, and the cluster to one class of windows",
    )
    half_life_s: float = Field(
        2_592_000.0, ge=86_400, description="what was learned has half its weight after this"
    )
    user_jobs: float = Field(
        10.0, gt=0, description="one user's jobs may weigh as much as so many in a class of windows"
    )
    user_share: float = Field(
        0.25, ge=0, le=1, description="or as much as this share of what all others' weigh there"
    )


class Daemon(Section):
    """How the daemon runs."""

    mode: Literal["dry-run", "enforce"] = Field(
        "dry-run", description="dry-run: say what would be written; enforce: write it"
    )
    backend: Literal["auto", "pyslurm", "commands"] = Field(
        "auto", description="how slurmctld is spoken to; auto: pyslurm where it matches, else commands"
    )
    allow_version_mismatch: bool = Field(
        False, description="use a pyslurm that was built for another Slurm release, at your own risk"
    )
    state_dir: str = Field(
        "/var/lib/tias-slurm", min_length=1, description="where the ledger and the lock are kept"
    )
    rpc_timeout_s: float = Field(30.0, gt=0, le=600, description="an answer of slurmctld may take this long")
    jitter_s: float = Field(5.0, ge=0, description="cycles begin up to this much earlier or later")
    writes_per_second: float = Field(
        50.0, gt=0, description="writes are sent no faster; below 2 for an Operator under rl_enable"
    )
    keep_days: float = Field(90.0, gt=0, description="how long the ledger keeps what has ended")
    max_ledger_mb: float = Field(
        2000.0, ge=1, description="a larger ledger drops sooner what ended longest ago; never what is needed"
    )
    user_export: str = Field(
        "",
        description="where users find what explain needs of the ledger, each of their own jobs; empty: none",
    )
    lease_path: str = Field(
        "",
        description="a file that the daemons of all controllers see, so that one acts; empty: only one",
    )
    log_format: Literal["json", "console"] = Field("json", description="form of the log on standard error")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level logged")


class Scope(Section):
    """Whose jobs may be written. Empty lists: everybody's. What is in a not_ list is out in any case."""

    only_partitions: Names = Field((), description="only jobs whose partitions are all among these")
    not_partitions: Names = Field((), description="no job of one of these partitions")
    only_accounts: Names = Field((), description="only jobs of these accounts")
    not_accounts: Names = Field((), description="no job of these accounts")
    only_users: Names = Field((), description="only jobs of these users")
    not_users: Names = Field((), description="no job of these users")
    only_qos: Names = Field((), description="only jobs in these QOS")
    not_qos: Names = Field((), description="no job in these QOS")


class Gpus(Section):
    """What GPUs count for in service and urgency."""

    weights: Weights = Field(
        {}, description="weight of a GPU by type, as Slurm names it, and of a shard; 1 where unsaid"
    )


class Lever(Section):
    """Which field of a job carries its place, and how coarsely."""

    kind: Literal["nice", "site_factor", "priority"] = Field(
        "nice", description="the field of a job that is written"
    )
    urgency_steps: int = Field(32, ge=1, le=256, description="steps of urgency inside a level")
    span: int | None = Field(
        None,
        ge=1,
        le=2_147_483_645,
        description="largest nice to use; unset: strict levels, each step above the site's summed weights",
    )


class Requeue(Section):
    """Preemption by requeue: whether, whom, how often."""

    mode: Literal["off", "on", "slurm"] = Field(
        "off", description="whether running jobs may be requeued for others; slurm: by Slurm's own preemption"
    )
    consent_default: bool = Field(False, description="consent of a job whose comment does not say requeue=")
    min_run_s: float = Field(600.0, ge=0, description="a run is left alone for this long")
    max_per_job: int = Field(8, ge=0, description="requeues of one job at most")
    max_preemptors_per_cycle: int = Field(
        10, ge=0, description="waiting jobs that others are requeued for, per cycle"
    )
    checkpoint_s: float = Field(
        0.0,
        ge=0,
        description="how often a job saves itself if its comment is silent; 0: a requeue loses the whole run",
    )
    restart_s: float = Field(
        60.0, ge=0, description="run time that a restart costs, part of what a requeue loses"
    )
    max_per_hour: int | None = Field(None, ge=0, description="jobs requeued in any hour; unset: no limit")
    max_per_user_per_hour: int | None = Field(
        None, ge=0, description="jobs of one user requeued in any hour; unset: no limit"
    )
    cooldown_s: float = Field(
        300.0, ge=0, description="a job that others were requeued for has no more requeued for so long"
    )
    max_in_vain: int = Field(
        3, ge=1, description="times others are requeued for a job that does not start; then no more are"
    )
    grace_s: float = Field(
        0.0, ge=0, le=3600, description="a job is warned so long before it is requeued; 0: it is not"
    )
    warning_lasts_s: float = Field(
        600.0, ge=0, description="a warning counts for so long after grace_s; then the job is warned anew"
    )
    signal: Annotated[str, BeforeValidator(signal_name)] = Field(
        "TERM", description="the signal that warns the job's batch script"
    )


class Planner(Section):
    """Budgets of one cycle."""

    dead_band_steps: int = Field(
        0, ge=0, le=256, description="a value that is off by no more steps of urgency than this is left alone"
    )
    max_writes_per_cycle: int = Field(1000, ge=0, description="jobs that one cycle may write")
    long_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the GPUs for all but near deadlines; what is over it is held; unset: all",
    )
    long_window_s: float = Field(
        86_400.0, gt=0, description="a deadline job that may run longer than this counts as long"
    )


class Notify(Section):
    """What owners of jobs are told: refused and impossible claims, and requeues; once a job and reason."""

    how: Literal["off", "output", "mail"] = Field(
        "off", description="off; output: in the job's own output, needs SlurmUser; mail: by MailProg"
    )
    mail_prog: Annotated[str, BeforeValidator(absolute)] = Field(
        "", description="the program that sends mail, called as Slurm calls it; empty: slurm.conf's MailProg"
    )
    mail_domain: str = Field(
        "",
        max_length=190,
        pattern=r"^[A-Za-z0-9.-]*$",
        description="the domain of users' addresses; empty: slurm.conf's MailDomain",
    )
    max_per_hour: int = Field(
        100, ge=0, description="messages that are sent in any hour, in all; the others wait"
    )
    timeout_s: float = Field(30.0, gt=0, le=600, description="the mail program may take this long")


class Metrics(Section):
    """What Prometheus is shown."""

    listen: Annotated[str, BeforeValidator(listen_address)] = Field(
        "", description="ADDRESS:PORT of /metrics, /readyz and /healthz, as 127.0.0.1:9418; empty: none"
    )
    textfile: str = Field(
        "", description="a file for the textfile collector of node_exporter, ending in .prom; empty: none"
    )

    @property
    def address(self) -> tuple[str, int] | None:
        """Where to listen: address and port; None: nowhere."""
        host, _, port = self.listen.rpartition(":")
        return (host.strip("[]"), int(port)) if self.listen else None


class Replay(Section):
    """What the dry run assumes of the jobs and of the site's Slurm."""

    checkpoint_s: float = Field(600.0, ge=0, description="how often the jobs of a trace save themselves")
    restart_s: float | None = Field(
        None, ge=0, description="run time that a restart costs; unset: as in [requeue]"
    )
    requeue_delay_s: float = Field(120.0, ge=0, description="a requeued job may start after this long")
    priority_weight_age: int = Field(1000, ge=0, description="Slurm's PriorityWeightAge")
    priority_max_age_s: float = Field(604_800.0, gt=0, description="Slurm's PriorityMaxAge")
    priority_weight_fairshare: int = Field(1000, ge=0, description="Slurm's PriorityWeightFairshare")
    usage_half_life_s: float = Field(604_800.0, gt=0, description="Slurm's PriorityDecayHalfLife")
    priority_calc_period_s: float = Field(300.0, gt=0, description="Slurm's PriorityCalcPeriod")
