"""`tias-slurm status`: the daemon and the queue, from what the daemon leaves after each cycle."""

from __future__ import annotations

import json
import os
import time
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tias_slurm.cli.config_commands import AnonymiseOption, JsonOption, PathOption
from tias_slurm.cli.in_use import load_in_use

if TYPE_CHECKING:
    from tias_slurm.anonymise import Names
    from tias_slurm.config import Config
    from tias_slurm.policy.learning import Learner

WatchOption = Annotated[bool, typer.Option("--watch", help="Show it again and again until Ctrl-C.")]
WEEK_S = 7 * 86_400.0
# a daemon that has had no good cycle for so many intervals needs a look
LATE_INTERVALS = 3


def status(
    config: PathOption = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
    anonymise: AnonymiseOption = False,
) -> None:
    """Show the daemon and the queue as its last cycle left them. Asks Slurm nothing.

    Exit code 1: no daemon runs here, or it has neither led nor stood by well for three intervals.

    Example: tias-slurm status --watch
    """
    from tias_slurm.anonymise import Names

    settings = load_in_use(config)
    names = Names() if anonymise else None
    document = gather(settings, names)
    if as_json and watch:
        while True:
            typer.echo(json.dumps(document))
            sleep(settings.cycle.interval_s)
            document = gather(settings, names)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    elif watch:
        _watch(settings, names)
    else:
        from tias_slurm.cli.status_page import page
        from tias_slurm.cli.words import console

        console().print(page(document, settings.zone()))
    if not document["daemon"]["well"]:
        raise typer.Exit(1)


def _watch(settings: Config, names: Names | None) -> None:
    """One page an interval, on the screen that was there before."""
    from rich.live import Live

    from tias_slurm.cli.status_page import page
    from tias_slurm.cli.words import console

    with Live(console=console(), auto_refresh=False, screen=False) as live:
        while True:
            live.update(page(gather(settings, names), settings.zone()), refresh=True)
            sleep(settings.cycle.interval_s)


def gather(settings: Config, names: Names | None = None) -> dict[str, Any]:
    """All that there is to say, ready for JSON: times in epoch s. `names`: stand-ins. Raises InputError."""
    from tias_slurm import hands
    from tias_slurm import status as state
    from tias_slurm.service.leadership import this_host

    state_dir = settings.daemon.state_dir
    if not hands.is_there(state_dir):
        from tias_slurm.errors import InputError

        raise InputError(f"{state_dir}: no such directory; has the daemon run? check [daemon] state_dir")
    host = this_host() if settings.daemon.lease_path else ""
    holder, left = state.holder(state_dir, host), state.left(state_dir, host) or {}
    pause = hands.why_paused(state_dir)
    if names is not None:
        left, pause = names.left(left), names.pause(pause)
    leadership: dict[str, Any] | None = left.get("leadership")
    stands_by = leadership is not None and not leadership["leads"]
    queue = left.get("queue")
    # a standby has no cycles, but it leaves word as often
    last_ok, interval = left.get("last_ok"), left.get("interval_s", settings.cycle.interval_s)
    last = left.get("time") if stands_by else last_ok
    late = last is None or time.time() - last > LATE_INTERVALS * interval
    if leadership is not None and stands_by and leadership["leader"]:
        queue = (state.left(state_dir, leadership["leader"]) or {}).get("queue")
    daemon: dict[str, Any] = {
        "running": holder.running,
        "pid": holder.pid,
        "well": holder.running and not late and not left.get("trouble"),
        "late": holder.running and late,
        "stands_by": stands_by,
        "leadership": leadership,
        "paused": hands.paused(state_dir),
        "pause": pause,
        "ignored": list(hands.ignored(state_dir)),
    }
    kept = ("mode", "started", "time", "last_ok", "interval_s", "backend", "slurm", "preset", "lever",
            "strict", "no_rights", "trouble", "no_raise", "reload", "cycle", "scope", "written",
            "user_export")  # fmt: skip
    daemon |= {name: left.get(name) for name in kept}
    return {
        "time": time.time(),
        "daemon": daemon,
        "queue": queue,
        **_ledger(settings, daemon["mode"] or settings.daemon.mode, left, names),
    }


def _ledger(settings: Config, mode: str, left: dict[str, Any], names: Names | None) -> dict[str, Any]:
    """What the ledger of a mode tells: budgets, requeues, what was learned. `left`: see budgets."""
    from tias_slurm import hands
    from tias_slurm.assemble import learning
    from tias_slurm.cli.budgets import budgets
    from tias_slurm.cli.messages import summary, works_since
    from tias_slurm.ledger import gains, reruns
    from tias_slurm.ledger.store import SqliteStore
    from tias_slurm.ledger.trim import DROPPED, dropped
    from tias_slurm.policy.learning import Learner
    from tias_slurm.service.start import ledger_path

    path = ledger_path(settings, mode)
    if not hands.is_there(path):
        return dict.fromkeys(("budgets", "requeues", "learned", "ended_7d", "ledger", "notify"))
    now = time.time()
    store = SqliteStore(path, older="refuse")
    try:
        week = [e for e in store.actions("requeue", now - WEEK_S) if e.result in (None, "ok")]
        gained = gains.bought(store, week, now)
        by_slurm = sorted(store.actions(reruns.PREEMPTED, now - WEEK_S), key=lambda e: e.time)
        left_of = budgets(settings, store, left, now, names)
        lost = {e.job_id: store.memory(e.job_id) or {} for e in week[-20:]}
        _, _, counts = store.load()
        learned = store.get("learned") or ""
        ended, missed = store.ended_claims(now - WEEK_S)
        kept = {"file": os.path.basename(path), "bytes": store.bytes, "oldest": store.oldest}
        kept["dropped_for_size"] = dropped(store.get(DROPPED))
        notify = summary(store, settings.notify.how, now, works_since(settings))
    finally:
        store.close()
    learner = Learner(learning(settings), counts)
    learner.loads(learned)
    return {
        "budgets": left_of,
        "requeues": {
            "week": len(week),
            "bought": gains.summary(gained),
            "by_slurm": reruns.summary(by_slurm),
            "last": [
                {"time": e.time, "job_id": e.job_id, "reason": e.reason, "result": e.result,
                 "times": lost[e.job_id].get("requeues"), "work_redone_s": lost[e.job_id].get("redone"),
                 "for": what}
                for e, what in zip(week[-20:], gained[-20:], strict=True)
            ],
        },
        "learned": _learned(learner, settings),
        "ended_7d": {"with_deadline": ended, "after_it": missed},
        "notify": notify,
        "ledger": kept
        | {"keep_days": settings.daemon.keep_days, "max_ledger_mb": settings.daemon.max_ledger_mb},
    }  # fmt: skip


def _learned(learner: Learner, settings: Config) -> dict[str, Any]:
    """What finished jobs taught, by window class: their weight, and which share of the window was enough."""
    from tias_slurm.assemble import tias

    classes = [
        {
            "window": known.windows,
            "jobs": round(known.jobs, 2),
            "share_of_window": {f"{q:g}": round(share, 3) for q, share in known.quantiles.items()},
        }
        for known in learner.learned()
    ]
    return {"used": tias(settings).settings.risk == "learned", "classes": classes}
