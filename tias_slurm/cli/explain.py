"""`tias-slurm explain`: why a job stands where it stands, and what would change that."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tias_slurm.cli.config_commands import AnonymiseOption, JsonOption, PathOption
from tias_slurm.cli.in_use import load_in_use

if TYPE_CHECKING:
    from tias_slurm.anonymise import Names
    from tias_slurm.cli.look import Look
    from tias_slurm.config import Config
    from tias_slurm.preemption.why_nobody import Asked
    from tias_slurm.slurm.live import RawTable

JobArgument = Annotated[
    str, typer.Argument(metavar="JOBID", help="4711; 4711_3, a task; 4711+1, a component of a het job.")
]
NO_SUCH_JOB = 3
# jobs that Slurm does not let start, see observer
NO_CURE, NOT_ELIGIBLE = "waits for what priority cannot give", "not eligible yet"


def explain(
    job: JobArgument,
    config: PathOption = None,
    as_json: JsonOption = False,
    anonymise: AnonymiseOption = False,
) -> None:
    """Explain one job: why it waits, its place term by term, what would change it, and when.

    Changes nothing. Exit codes: 1 the controller gave no answer, 3 no such job waits or runs.

    Example: tias-slurm explain 4711
    """
    from tias_slurm import hands
    from tias_slurm.anonymise import Names
    from tias_slurm.cli.look import look
    from tias_slurm.cli.lookup import find
    from tias_slurm.jobs import ACTIVE_STATES

    name = hands.job_name(job)
    settings = load_in_use(config)
    seen = look(settings, pins=True)
    at, why_not = find(seen.raw, name)
    if at is None or seen.raw.state[at] not in ACTIVE_STATES:
        if at is not None:
            why_not = f"{name} has ended: {seen.raw.state[at]}"
        _gone(settings, name, why_not, as_json)
        raise typer.Exit(NO_SUCH_JOB)
    document = describe(settings, seen, at, Names() if anonymise else None)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    from tias_slurm.cli.explain_page import page

    page(document, settings.zone())


def describe(settings: Config, seen: Look, at: int, names: Names | None = None) -> dict[str, Any]:
    """The whole account of the job in row `at` of the queue, ready for JSON. `names`: stand-ins."""
    import numpy as np

    from tias_slurm.cli.explain_answer import answer
    from tias_slurm.cli.lookup import ahead, names_of, peers, startable
    from tias_slurm.explain import Case, account, place
    from tias_slurm.gpu_weights import spoken
    from tias_slurm.ledger.claim_life import REASONS
    from tias_slurm.levers import HELD
    from tias_slurm.preemption.why_nobody import nobody_for, spared_by

    raw = seen.raw if names is None else names.queue(seen.raw)
    job: dict[str, Any] = {
        "job": names_of(raw, at),
        "job_id": int(raw.job_id[at]),
        "user": raw.user[at],
        "account": raw.account[at],
        "partition": raw.partition[at],
        "qos": raw.qos[at],
        "state": raw.state[at],
        "slurm_reason": raw.reason[at],
        "gpus": int(raw.gpus[at]),
        "shards": 0 if raw.shards is None else int(raw.shards[at]),
        "time": raw.time,
    }
    job["out_of_scope"] = _out_of_scope(settings, seen.raw, raw, at)
    job["slurm_order"] = None
    if job["out_of_scope"] and not _runs(job):
        job["slurm_order"] = {"priority": int(raw.priority[at]), "ahead": ahead(raw, at)}
    rows = np.flatnonzero(seen.observed.rows == at)
    if not len(rows):
        but = ""
        if job["shards"]:
            but = f" but for {spoken(0, job['shards'], 0.0)}, which have no weight in [gpus]"
        job["answer"] = f"{job['job']} asks for no GPUs{but}: the daemon neither ranks nor writes it"
        if not _runs(job):
            job["answer"] += f"; it waits as Slurm alone orders it, which says {raw.reason[at]}"
        return job
    row, made, ledger = int(rows[0]), seen.seen, seen.cycle.ledger
    jobs, history = made.snapshot.jobs, ledger.history()
    planned = jobs.lever.copy()
    planned[made.plan.write] = made.plan.new
    target = float(seen.cycle.lever.target(history.found, made.ranking)[row])
    if planned[row] == HELD and jobs.writable[row]:
        target = HELD
    if settings.requeue.mode == "slurm" and _runs(job):
        target = float(planned[row])  # a running job stands by other rules, see preemption.by_slurm
    case = Case(
        made.snapshot,
        made.known,
        made.ranking,
        ledger.learner.survival(),
        seen.cycle.policy,
        seen.cycle.lever,
        history.found,
        planned,
    )
    kept = ledger.row(row)
    refusals = seen.cycle.cluster.claims.refusals(int(raw.job_id[at]))
    if names is not None:
        refusals = names.refusals(refusals)
    ledger_known, asked = _ledger(seen, int(raw.job_id[at])), _asked(seen)
    spared = spared_by(asked, row) if _runs(job) else ""
    begins = float(raw.eligible[at])
    over_quota = bool(kept["counts"] == 0 and np.isfinite(kept["claim"]))
    job |= account(case, row, kept["claim"] if over_quota else None, settings.cycle.interval_s)
    job |= {
        "ledger": ledger_known,
        "can_start": bool(jobs.can_start[row]),
        "het_leader": int(raw.het_id[at]) if raw.het_offset[at] else None,
        "restarts": int(raw.restarts[at]),
        "begins": begins if begins > raw.time else None,
        "weight": float(jobs.weight[row]),
        "first_submit_guessed": bool(kept["unseen"] > 0),
        "claim_refused": [{"code": r.code, "text": r.text} for r in refusals],
        "claim_unaccepted": REASONS[int(ledger.unaccepted[row])] or None,
        "claim_said": _finite(float(jobs.deadline[row])),
        "claim_changes": max(0, int(kept["accepted"]) - 1),
        "claim_over_quota": over_quota,
        "claim_lost": bool(kept["lost"] > 0),
        "lever": _lever(settings, seen, row, target),
        "place": None,
        "requeue": {
            "possible": not spared if _runs(job) else None,
            "spared": spared or None,
            "nobody_for_it": None,
            "mode": settings.requeue.mode,
            "batch": bool(raw.batch[at]),
            "slurm_requeue": bool(raw.requeue[at]),
            "checkpoint_s": float(jobs.checkpoint[row]) or None,
            "run_s": float(jobs.run_time[row]),
            "min_run_s": settings.requeue.min_run_s,
            "by_us": int(history.requeues[row]),
            "at_most": settings.requeue.max_per_job,
            "last": _finite(kept["requeued_at"]),
            "others_requeued_for_it": _finite(kept["preempted_at"]),
            "work_redone_s": kept["redone"],
        },
    }
    if not _runs(job) and settings.requeue.mode == "on" and ledger_known["all"]:
        job["requeue"]["nobody_for_it"] = nobody_for(asked, row, _left_alone(seen, row)) | {
            "idle": _idle(settings) or None
        }
    if not _runs(job):
        rows = seen.observed.rows
        job["place"] = vars(place(case, row, peers(raw, rows, at), startable(raw, rows)))
    if not ledger_known["known"]:
        _leave_out(job)
    elif not ledger_known["all"] and job["place"] is not None:
        job["place"]["startable_planned"] = None
    job["answer"] = answer(job, settings.zone())
    return job


def _out_of_scope(settings: Config, raw: RawTable, shown: RawTable, at: int) -> list[str]:
    """The rules of [scope] that leave a job out, in words. `shown`: the queue with names that may be told."""
    from tias_slurm.slurm.scope import why_out

    def fields(queue: RawTable) -> dict[str, str]:
        texts = {
            "partitions": queue.partition,
            "accounts": queue.account,
            "users": queue.user,
            "qos": queue.qos,
        }
        return {part: values[at] for part, values in texts.items()}

    return why_out(settings.scope, fields(raw), fields(shown))


def _ledger(seen: Look, number: int) -> dict[str, Any]:
    """What is known of the job beside what Slurm shows; of all jobs; and why not."""
    if not seen.unread and seen.exported is None:
        return {"known": True, "all": True, "why": None}
    why = seen.unread or "no ledger is here"
    if seen.exported is not None:
        why += "; what the daemon leaves for this account "
        if number in seen.exported:
            return {"known": True, "all": False, "why": f"{why}has this job, and no others'"}
        why += "has no such job"
    return {"known": False, "all": False, "why": why}


def _leave_out(job: dict[str, Any]) -> None:
    """What only the ledger tells, and may be told wrongly without it."""
    job["first_submit_guessed"] = True
    names = ("claim_unaccepted", "claim_changes", "claim_over_quota", "claim_lost")
    job |= dict.fromkeys(names)
    job["lever"] |= dict.fromkeys(("found", "set", "should_be"))
    if job["lever"]["state"] != "left alone":
        job["lever"] |= {"state": "not known", "because": None}
    kept = ("by_us", "last", "others_requeued_for_it", "work_redone_s")
    job["requeue"] |= dict.fromkeys(kept)
    if job["place"] is not None:
        job["place"]["startable_planned"] = None


def _asked(seen: Look) -> Asked:
    """What the planner is asked about requeues with."""
    from tias_slurm.preemption.why_nobody import Asked

    made, cycle = seen.seen, seen.cycle
    return Asked(
        cycle.controller.planner,
        made.snapshot,
        cycle.ledger.history(),
        made.ranking,
        made.barred,
        made.plan,
        seen.observed.may_not,
        seen.observed.unsure_why,
    )


def _lever(settings: Config, seen: Look, row: int, target: float) -> dict[str, Any]:
    """The field: as it was found, as it stands, as it should be; and why it is not written."""
    from tias_slurm.levers import HELD, HOLD_REASON

    jobs, kept = seen.seen.snapshot.jobs, seen.cycle.ledger.row(row)
    now = float(jobs.lever[row])
    refused = kept["refused"] == kept["refused"]
    because = ""
    changed = bool(seen.cycle.ledger.overridden(seen.seen.snapshot)[row])
    whose = "somebody changed it meanwhile" if seen.dry else "somebody changed what we had set"
    runs = bool(jobs.state[row] != 0)
    if runs and settings.requeue.mode == "slurm":
        # written as well; a person's value is only held against others
        because = whose if changed and row not in seen.seen.plan.write else ""
    elif runs:
        because = f"it runs; overridden: {whose}" if changed else "it runs"
    elif why := seen.observed.why(row):
        because = why
    elif changed:
        because = f"overridden: {whose}"
    elif refused:
        because = "Slurm refused it"
    elif seen.pinned[row]:
        because = "pinned: somebody gave it an explicit priority"
    written = _finite(kept["set"])
    # a value that stands was set, whatever mode these settings are of
    dry = seen.dry and not (written is not None and written == now != kept["found"])
    if because:
        state = "left alone"
    elif row not in seen.seen.plan.write:
        state = "in place" if now == target else "near enough, or left for a later cycle"
        because = HOLD_REASON if now == target == HELD else ""
    elif idle := _idle(settings):
        state, because = "not written", idle
    else:
        state = "to be written by the next cycle"
    return {
        "field": settings.lever.kind,
        "found": _value(kept["found"]),
        # a dry run sets nothing
        "set": None if written is None or dry else _value(written),
        "dry_run": dry,
        "now": _value(now),
        "should_be": _value(target),
        "strict": seen.cycle.lever.strict,
        "state": state,
        "because": because or None,
    }


def _idle(settings: Config) -> str:
    """Why nothing that a cycle plans is sent now; "": it is."""
    from tias_slurm import hands, status
    from tias_slurm.service.leadership import this_host

    state_dir = settings.daemon.state_dir
    host = this_host() if settings.daemon.lease_path else ""
    seen_by_us = not os.path.isdir(state_dir) or os.access(state_dir, os.R_OK | os.X_OK)
    running = not seen_by_us or (os.path.isdir(state_dir) and status.holder(state_dir, host).running)
    left = (status.left(state_dir, host) or {}) if running else {}
    if left.get("mode", settings.daemon.mode) != "enforce":
        return "a dry run"
    if hands.paused(state_dir):
        return "the daemon is paused"
    return "" if running else "no daemon runs"


def _left_alone(seen: Look, row: int) -> str:
    """Why a job that waits cannot start by a better place."""
    why = seen.observed.why(row)
    if why and why not in (NO_CURE, NOT_ELIGIBLE):
        return f"it is left alone: {why}"
    return f"it does not wait for nodes alone: Slurm says {seen.raw.reason[int(seen.observed.rows[row])]}"


def _value(value: float) -> float | str:
    from tias_slurm.levers import HELD

    return "held" if value == HELD else value


def _runs(job: dict[str, Any]) -> bool:
    return bool(job["state"] != "PENDING")


def _finite(value: float) -> float | None:
    return value if value == value else None


def _gone(settings: Config, name: str, why: str, as_json: bool) -> None:
    """Say that no such job is there, and what the ledger remembers of it."""
    from tias_slurm.cli.history import recall, recollection
    from tias_slurm.cli.look import unreadable

    unread = unreadable(settings)
    memory = recall(settings, int(name)).memory if name.isdecimal() and not unread else None
    if as_json:
        document = {"job": name, "answer": why, "remembered": memory, "ledger_unread": unread or None}
        typer.echo(json.dumps(document))
        return
    typer.echo(why)
    if unread:
        typer.echo(f"What the ledger remembers of it is not told: {unread}.")
    if memory is not None:
        typer.echo(f"The ledger remembers: {recollection(memory, settings.zone())}.")
        typer.echo(f"What was done to it: tias-slurm history {name}")
