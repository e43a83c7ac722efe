"""A dry run from a workload to its results: every policy over the same jobs, nodes and costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from tias_slurm import assemble
from tias_slurm.anonymise import Names
from tias_slurm.config import Config
from tias_slurm.controller import Controller
from tias_slurm.errors import InputError
from tias_slurm.jobs import Bools, Floats, RankInput
from tias_slurm.levers import ExactLever, Lever
from tias_slurm.planner import Planner
from tias_slurm.policy.base import Policy
from tias_slurm.policy.baselines import Baseline
from tias_slurm.policy.tias import Tias
from tias_slurm.replay import claims, metrics, simulate
from tias_slurm.replay.assumptions import assume_deadlines
from tias_slurm.replay.cluster import Costs, VirtualCluster
from tias_slurm.replay.decisions import recorder
from tias_slurm.replay.output import prepare_dir, replacing
from tias_slurm.replay.policies import ENTRIES, Wanted
from tias_slurm.replay.requests import Requests, requests
from tias_slurm.replay.results import DryRun, Outcome, PolicyResult, Series
from tias_slurm.replay.site_priority import SitePriority, Weights
from tias_slurm.replay.textbook import run_textbook
from tias_slurm.replay.workload import Workload, shards_alone, weigh_jobs
from tias_slurm.slurm.node_set import NodeSet

# told the policy that runs, and how much of it is done (0..1)
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Options:
    """What the command line says beside the files."""

    preemption: Literal["off", "on"] | None = None
    consent: float | None = None
    consent_seed: int = 1
    assume_deadlines: str | None = None
    placement: Literal["nodes", "count"] = "nodes"


def dry_run(
    work: Workload,
    nodes: NodeSet,
    wanted: list[Wanted],
    config: Config,
    options: Options,
    out_dir: Path | None = None,
    progress: Progress | None = None,
    *,
    names: Names | None = None,
    found: claims.ClaimReport | None = None,
) -> DryRun:
    """Replay `work` under each policy; with `out_dir`, stream the decisions to decisions.jsonl there.

    `names`: stand-ins for all names. `found`: the deadlines, where `work` has them already.
    """
    began = time.perf_counter()
    work.jobs["weight"] = weigh_jobs(work.jobs, config.gpus.weights)
    if found is None:
        found = claims.find_deadlines(work, config, config.zone())
    if names is not None:
        names.workload(work, found)
        nodes = names.nodes(nodes)
    notes = [*work.notes, *nodes.notes, *found.notes]
    assumed = 0
    if options.assume_deadlines is not None:
        assumed, note = assume_deadlines(work, options.assume_deadlines, config.zone())
        notes.append(note)
    run = Run(work, nodes, config, options, notes)
    results: dict[str, PolicyResult] = {}
    with ExitStack() as stack:
        sink = None
        if out_dir is not None:
            temporary = stack.enter_context(replacing(prepare_dir(out_dir) / "decisions.jsonl"))
            sink = stack.enter_context(open(temporary, "w", encoding="ascii"))
        for one in wanted:
            results[one.name] = run.policy(one, sink, progress)
    fidelity: dict[str, Any] = {"start_tau": None, "start_error_median_s": None}
    if not work.is_trace:
        judge = results.get("multifactor") or run.policy(
            Wanted("multifactor", "multifactor", ENTRIES["multifactor"], "off"), None, progress
        )
        fidelity = metrics.fidelity(work.jobs, judge.outcome)
    return DryRun(
        input={
            "files": work.files,
            "rows": work.rows,
            "jobs": len(work.jobs),
            "refused": work.refused.total,
            "refused_by_reason": dict(work.refused.by_reason),
            "left_out": dict(work.left_out),
            "running_at_end": int((work.jobs["state"] == "RUNNING").sum()),
            "cancelled_waiting": int((work.jobs["runs"] == 0).sum()),
        },
        deadlines={
            "found": found.found,
            "refused": found.refused.total,
            "assumed": assumed,
            "by_source": dict(found.by_source),
            "refused_by_reason": dict(found.refused.by_reason),
            "without_gpus": found.without_gpus,
            "other_keys_refused": dict(found.refused_other.by_reason),
        },
        cluster={
            "nodes": len(nodes),
            "gpus": nodes.total_gpus,
            "inferred": nodes.inferred,
            "source": nodes.source,
            **({"weighted_gpus": float(run.requests.weighted.sum())} if config.gpus.weights else {}),
        },
        replayed_vs_recorded=fidelity,
        policies=results,
        settings=run.settings(),
        notes=notes,
        refused_examples=[*work.refused.examples, *found.refused.examples, *found.refused_other.examples],
        elapsed_s=time.perf_counter() - began,
    )


class Run:
    """What all policies of a run share."""

    def __init__(
        self, work: Workload, nodes: NodeSet, config: Config, options: Options, notes: list[str]
    ) -> None:
        self.work, self.nodes, self.config, self.options = work, nodes, config, options
        jobs = work.jobs
        jobs["weight"] = weigh_jobs(jobs, config.gpus.weights)
        if not (jobs["weight"] > 0).any():
            raise InputError("no job of the input asks for GPUs: there is nothing to rank")
        self.requests: Requests = requests(jobs, nodes, config.gpus.weights)
        self.labels: list[str] = jobs["job_id"].astype(str).tolist()
        self.sample_at = metrics.sample_times(jobs)
        self.consent = self._consent(notes)
        # what the site says of its own jobs counts before what the model assumes
        setting = "replay.checkpoint_s"
        if not work.is_trace and config.origin("requeue.checkpoint_s") != "default":
            setting = "requeue.checkpoint_s"
        every = config.replay.checkpoint_s if setting.startswith("replay") else config.requeue.checkpoint_s
        silent = jobs["checkpoint"].isna().to_numpy()
        self.checkpoint: Floats = np.where(silent, every, jobs["checkpoint"].to_numpy(np.float64))
        if not work.is_trace and silent.any():
            n = int(silent.sum())
            who = (
                "1 job does not say how often it saves itself"
                if n == 1
                else (f"{n:,} jobs do not say how often they save themselves")
            )
            notes.append(f"{who}; {f'every {every:g} s' if every else 'never'} is assumed ({setting})")
        late = int((jobs["eligible"] > jobs["first_submit"] + 60.0).sum())
        if late:
            who = "1 job was" if late == 1 else f"{late:,} jobs were"
            notes.append(f"{who} not eligible until more than a minute after the submit")
        if not self.requests.fits.all():
            n = int((~self.requests.fits).sum())
            who = "1 job asks" if n == 1 else f"{n:,} jobs ask"
            notes.append(f"{who} for more than the cluster has: reported, not waited for")

    def _consent(self, notes: list[str]) -> Bools:
        work, share = self.work, self.options.consent
        if share is None and work.is_trace:
            share = 1.0
        if share is not None:
            claims.assign_consent(work, share, self.options.consent_seed)
        said = work.jobs["consent"].to_numpy(np.int64)
        agreed = assemble.consents(self.config, said)
        if share is None:
            share_now = float(agreed[work.jobs["weight"].to_numpy() > 0].mean())
            notes.append(
                f"{100 * share_now:.1f}% of the GPU jobs consent to be requeued "
                "(comments, and requeue.consent_default); @all shows what it would buy if all of them did"
            )
        return agreed

    def settings(self) -> dict[str, Any]:
        """What the run was made with."""
        c = self.config
        return {
            "interval_s": c.cycle.interval_s,
            "preemption": self.options.preemption,
            "consent": self.options.consent,
            "placement": self.options.placement,
            "preset": c.policy.preset,
            "assume_deadlines": self.options.assume_deadlines,
            "lever": c.lever.model_dump(),
            "planner": c.planner.model_dump(),
            "requeue": c.requeue.model_dump(),
            "replay": c.replay.model_dump(),
        }

    def policy(self, wanted: Wanted, sink: IO[str] | None, progress: Progress | None) -> PolicyResult:
        """Run one policy."""
        if progress is not None:
            progress(wanted.name, 0.0)
        if wanted.entry.kind == "recorded":
            outcome, series, writes = self._recorded()
        elif wanted.entry.kind == "textbook":
            outcome, series, writes = self._textbook(wanted.key)
        else:
            outcome, series, writes = self._replayed(wanted, sink, progress)
        entry = wanted.entry
        title = entry.title
        if entry.preempts:
            title += {"off": ", no preemption", "on": "", "all": ", every job consents"}[wanted.preemption]
        return PolicyResult(
            name=wanted.name,
            title=title,
            realisable=entry.realisable,
            preemption=wanted.preemption != "off",
            outcome=outcome,
            series=series,
            metrics=metrics.measure(self.work.jobs, outcome, float(self.requests.weighted.sum()), writes),
            writes=writes,
        )

    def _recorded(self) -> tuple[Outcome, Series, int]:
        outcome = metrics.recorded_outcome(self.work.jobs)
        return outcome, metrics.series_of(self.work.jobs, outcome, self.sample_at), 0

    def _textbook(self, name: str) -> tuple[Outcome, Series, int]:
        if self.options.placement != "count" and len(self.nodes) > 1:
            raise InputError(f"--policies: {name} counts GPUs as one pool; add --placement count")
        jobs = self.work.jobs
        # in shards, where jobs have such
        shards = shards_alone(jobs, self.config.gpus.weights)
        each = max(1, int(self.requests.shards_of_gpu.max(initial=0))) if shards.any() else 1
        gpus = jobs["gpus"].to_numpy(np.int64) * each + shards
        ran = np.flatnonzero((jobs["runs"].to_numpy() > 0) & (gpus > 0))
        duration = jobs["work"].to_numpy(np.float64)
        starts, ends = np.full(len(jobs), np.nan), np.full(len(jobs), np.nan)
        preempted = np.zeros(len(jobs), dtype=np.int64)
        arrivals = np.fmax(jobs["eligible"].to_numpy(np.float64), jobs["first_submit"].to_numpy(np.float64))
        starts[ran], ends[ran], preempted[ran] = run_textbook(
            name, arrivals[ran], duration[ran], gpus[ran], self.nodes.total_gpus * each
        )
        outcome = Outcome(
            start=starts,
            end=ends,
            executed=np.where(np.isfinite(ends), duration, 0.0),
            lost_gpu_s=np.zeros(len(jobs)),
            requeues=preempted,
            fits=~np.isin(np.arange(len(jobs)), ran[np.isnan(ends[ran])]),
        )
        return outcome, metrics.series_of(jobs, outcome, self.sample_at), 0

    def _replayed(
        self, wanted: Wanted, sink: IO[str] | None, progress: Progress | None
    ) -> tuple[Outcome, Series, int]:
        cluster, controller = self.prepare(wanted, sink)
        req = self.requests
        first, last = float(req.eligible[0]), float(req.eligible[-1])
        told = None
        if progress is not None:
            span = max(last - first, 1.0)

            def told(now: float) -> None:
                progress(wanted.name, min(max((now - first) / span, 0.0), 1.0))

        simulate.run(cluster, controller, self.config.cycle.interval_s, told)
        return *self._outcome(cluster), controller.writes if controller else 0

    def prepare(
        self, wanted: Wanted, sink: IO[str] | None = None
    ) -> tuple[VirtualCluster, Controller | None]:
        """A policy's cluster before the first submit, and the daemon beside it where the policy has one."""
        c, req, entry = self.config, self.requests, wanted.entry
        policy = entry.build(c, req.work) if entry.build is not None else None
        ours = isinstance(policy, Tias)
        # the model leaves inside a level the order of submits, to which the site's weights add nothing
        lever: Lever = assemble.lever(c, policy.levels, 0) if isinstance(policy, Tias) else ExactLever()
        restart = c.requeue.restart_s if c.replay.restart_s is None else c.replay.restart_s
        costs = Costs(restart, c.replay.requeue_delay_s)
        site = None
        if entry.site:
            r = c.replay
            weights = Weights(
                r.priority_weight_age,
                r.priority_max_age_s,
                r.priority_weight_fairshare,
                r.usage_half_life_s,
                r.priority_calc_period_s,
            )
            site = SitePriority(weights, max(len(req.users), 1), req.first_submit, float(req.eligible[0]))
        consent = (
            np.ones(len(req.row), dtype=np.bool_) if wanted.preemption == "all" else self.consent[req.row]
        )
        cluster = VirtualCluster(
            req,
            consent=consent,
            checkpoint=self.checkpoint[req.row],
            costs=costs,
            site=site,
            sample_at=self.sample_at,
            lever=_submitted_with(policy, lever, req),
            rises=lever.kind in ("site_factor", "priority"),
        )
        if policy is None:
            return cluster, None
        limits = assemble.limits(
            c, requeue=wanted.preemption != "off", max_writes=None if ours else len(req.row)
        )
        record = None
        if sink is not None and ours:
            record = recorder(sink, wanted.name, policy, lever.kind, self.labels, req.row)
        ledger = assemble.ledger(c, None, told_at_submit=True)
        return cluster, Controller(cluster, ledger, policy, Planner(lever, limits), record)

    def _outcome(self, cluster: VirtualCluster) -> tuple[Outcome, Series]:
        s, number = cluster.state, self.requests.number
        outcome = Outcome(
            start=s.started[number],
            end=s.end[number],
            executed=s.executed[number],
            lost_gpu_s=(s.lost * s.weight)[number],
            requeues=s.restarts[number],
            fits=self.requests.fits[number],
        )
        # what was sampled after the last end says nothing
        last = np.nanmax(s.end) if np.isfinite(s.end).any() else -np.inf
        kept = int(np.searchsorted(self.sample_at, last, side="right"))
        jobs, gpus, used = np.round(s.samples[:kept].T, 6)
        return outcome, Series(self.sample_at[:kept], jobs.astype(np.int64), gpus, used)


def _submitted_with(policy: Policy | None, lever: Lever, req: Requests) -> Floats | None:
    """The place at which a job enters the queue: a baseline's is known at its submit, as papers have it and
    as a site's QOS gives it; TIAS first has to see the job."""
    if not isinstance(policy, Baseline):
        return None
    nothing = np.zeros(len(req.row))
    nobody = np.zeros(len(req.row), dtype=np.bool_)
    fresh = RankInput(
        job_id=np.arange(len(req.row)),
        running=nobody,
        first_submit=req.first_submit,
        deadline=req.deadline,
        gpus=req.weight,
        executed=nothing,
        attained=nothing,
        claim_lost=nobody,
        since=req.eligible,
        time_limit=req.time_limit,
        slot=nobody,
        front=nobody,
        able=~nobody,
        late=nobody,
        capacity=float(req.weighted.sum()),
    )
    return lever.target(nothing, policy.rank(req.eligible, fresh, np.empty(0)))
