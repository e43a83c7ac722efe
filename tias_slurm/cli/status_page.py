"""The status of the daemon and the queue as a page."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tias_slurm.cli.budgets import rows as budget_rows
from tias_slurm.cli.messages import status_line
from tias_slurm.cli.words import ago, cell, grid, moment, span
from tias_slurm.errors import printable
from tias_slurm.gpu_weights import spoken
from tias_slurm.ledger import gains, reruns
from tias_slurm.replay.wording import plural
from tias_slurm.slurm.scope import words as words_of
from tias_slurm.status import written

Rows = list[tuple[str, str]]


def page(document: dict[str, Any], zone: ZoneInfo) -> RenderableType:
    """What `status.gather` found, for a terminal; the first line says whether all is well."""
    daemon, queue = document["daemon"], document["queue"]
    parts: list[RenderableType] = [headline(daemon), grid(_daemon(daemon, zone))]
    if queue is not None:
        enforce = daemon["mode"] == "enforce"
        parts += [Text(), Text(_counts(queue), style="bold"), _classes(queue), grid(_queue(queue, enforce))]
    more = _ledger(document, zone)
    if more:
        parts += [Text(), grid(more)]
    return Group(*parts)


def headline(daemon: dict[str, Any]) -> Text:
    """Whether all is well."""
    if not daemon["running"]:
        last = daemon["time"]
        return Text("not running" + (f"; last cycle {ago(last)}" if last else ""), style="bold red")
    words = f"running (process {daemon['pid']}), mode {daemon['mode']}"
    if daemon["late"]:
        last = f"for {ago(daemon['last_ok'])[:-4]}" if daemon["last_ok"] else "yet"
        return Text(f"{words}, but no good cycle {last}", style="bold red")
    if daemon["trouble"]:
        return Text(
            f"{words}, but nothing can be done: {printable(daemon['trouble'], 200)}", style="bold red"
        )
    if daemon["stands_by"]:
        return Text(f"{words}, stands by: {daemon['leadership']['why']}", style="bold yellow")
    if daemon["no_rights"]:
        return Text(f"{words}, but it has no rights to write", style="bold red")
    if daemon["paused"]:
        return Text(f"{words}, paused", style="bold yellow")
    return Text(words, style="bold green")


def _daemon(daemon: dict[str, Any], zone: ZoneInfo) -> Rows:
    rows: Rows = []
    cycle = daemon["cycle"]
    if cycle:
        words = f"{ago(daemon['time'])}, {cycle['result']}, took {cycle['seconds']:.2f} s"
        words += f", {written(cycle['writes'], daemon['mode'])}"
        words += "".join(f", {cycle[k]} {k.replace('_', ' ')}" for k in ("failed", "held_back") if cycle[k])
        words += f": {cycle['message']}" if cycle["message"] else ""
        rows.append(("last cycle", words))
        strict = "strict levels" if daemon["strict"] else "levels not strict"
        rows.append(
            (
                "works with",
                f"Slurm {daemon['slurm']} by {daemon['backend']}, lever {daemon['lever']} ({strict}), "
                f"preset {daemon['preset']}, every {span(daemon['interval_s'])}",
            )
        )
        rows.append(("up since", moment(daemon["started"], zone)))
    if daemon.get("scope") is not None:  # a daemon of an older version does not say
        rows.append(("scope", printable(words_of(daemon["scope"]), 300)))
    if daemon["mode"] == "enforce" and daemon.get("written") is not None:
        rows.append(("written", f"{plural(daemon['written'], 'value')} since it started"))
    if daemon.get("user_export"):
        rows.append(("users' files", f"are not left: {printable(daemon['user_export'], 300)}"))
    if daemon.get("no_raise"):
        rows.append(("nobody is raised", printable(daemon["no_raise"], 300)))
    if (last := daemon.get("reload")) and last["problem"]:
        words = f"{ago(last['time'])}, the old settings hold: {printable(last['problem'], 300)}"
        rows.append(("reload refused", words))
    if (lead := daemon["leadership"]) is not None:
        who = "this daemon" if lead["leads"] else lead["leader"] or "nobody"
        rows.append(("leads", f"{who}, term {lead['term']}"))
    if daemon["paused"]:
        by = daemon["pause"] or {}
        when = by.get("time")
        who = f"by {by['by']}" if by.get("by") else "by hand"
        when_words = f", {ago(when)}" if isinstance(when, int | float) else ""
        rows.append(("paused", f"{who}{when_words}{': ' + str(by['reason']) if by.get('reason') else ''}"))
    if daemon["no_rights"]:
        rows.append(("no rights", str(daemon["no_rights"])))
    if daemon["ignored"]:
        some = ", ".join(daemon["ignored"][:10])
        more = f" and {len(daemon['ignored']) - 10} more" if len(daemon["ignored"]) > 10 else ""
        rows.append(("ignored", some + more))
    return rows


def _counts(queue: dict[str, Any]) -> str:
    return (
        f"{plural(queue['waiting'], 'job waits', 'jobs wait')} ({_gpus(queue, '_waiting')}), "
        f"{queue['running']} run ({_gpus(queue, '_running')})"
    )


def _gpus(counts: dict[str, Any], of: str = "") -> str:
    """GPUs, and by their weights where these make a difference; a daemon of an older version has none."""
    gpus = counts[f"gpus{of}"]
    return spoken(gpus, 0, counts.get(f"weight{of}", gpus))


def _classes(queue: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("class", "queue"):
        table.add_column(heading)
    weighed = any(c.get("weight", c["gpus"]) != c["gpus"] for c in queue["classes"])
    for heading in ("waiting", "running", "GPUs", *(["by weight"] if weighed else [])):
        table.add_column(heading, justify="right")
    for c in queue["classes"]:
        number = "-" if c["queue"] is None else str(c["queue"])
        more = [f"{c.get('weight', c['gpus']):g}"] if weighed else []
        table.add_row(*map(cell, (c["class"], number, c["waiting"], c["running"], c["gpus"], *more)))
    return table


def _queue(queue: dict[str, Any], enforce: bool) -> Rows:
    d = queue["deadlines"]
    words = [
        f"{name.replace('_', ' ')} {v['waiting'] + v['running']} ({v['waiting']} waiting)"
        for name, v in d.items()
    ]
    over = queue.get("over_quota")  # a daemon of an older version does not say
    if over and (n := over["waiting"] + over["running"]):
        words.append(f"over quota {n} of these ({over['waiting']} waiting), which do not count")
    rows: Rows = [("deadlines", ", ".join(words))]
    slots, front = queue["slots"], queue["front"]
    if slots["most"] > 0:
        share = "" if slots["share"] is None else f", {slots['share']:.0%} of the cluster"
        rows.append(
            (
                "long slots",
                f"{slots['jobs']} held, {slots['gpus']:g} GPUs{share} (at most {slots['most']:.0%})",
            )
        )
    if front["waiting"] or front["running"]:
        rows.append(("front", f"{front['waiting']} waiting, {front['running']} running, {_gpus(front)}"))
    held = queue.get("held")  # a daemon of an older version does not say
    if held and held["waiting"]:
        words_ = f"{held['waiting']} waiting, {_gpus(held)}: long jobs have their share of the GPUs"
        rows.append(("held", words_))
    for name, key in (("left alone", "left_alone"), ("claims refused", "refused_claims")):
        if queue.get(key):
            rows.append((name, ", ".join(f"{why} {n}" for why, n in queue[key].items())))
    for name, key in (("overridden", "overridden"), ("writes refused", "refused_writes")):
        if queue.get(key) or enforce:  # where values are written, that all is well is said, too
            rows.append((name, plural(queue.get(key, 0), "job")))
    return rows


def _ledger(document: dict[str, Any], zone: ZoneInfo) -> Rows:
    rows: Rows = []
    ended, budgets = document["ended_7d"], document["budgets"]
    requeues, learned = document["requeues"], document["learned"]
    if ended and ended["with_deadline"]:
        jobs = plural(ended["with_deadline"], "job")
        rows.append(("last 7 days", f"{jobs} with a deadline ended, {ended['after_it']} after it"))
    if budgets:
        rows += budget_rows(budgets)
    if requeues and requeues["week"]:
        bought = gains.summary_words(requeues["bought"], span)
        rows.append(("requeues", f"{requeues['week']} in 7 days{bought}"))
        for r in requeues["last"][-5:]:
            redone = f"; {span(r['work_redone_s'])} redone so far" if r["work_redone_s"] else ""
            what = f"; {gains.words(r['for'], span)}" if r["for"] else ""
            words = f"{moment(r['time'], zone)} job {r['job_id']}: {printable(r['reason'], 120)}"
            rows.append(("", words + redone + what))
    if requeues and (found := requeues["by_slurm"])["requeues"]:
        jobs = plural(found["jobs"], "job")
        words = f"{found['requeues']} in 7 days, of {jobs}; {span(found['lost_s'])} of work not saved"
        rows.append(("requeued by Slurm", words))
        for r in found["last"][-5:]:
            ran = reruns.words(r["ran_s"], r["lost_s"], span)
            rows.append(("", f"{moment(r['time'], zone)} job {r['job_id']}: had run {ran}"))
    if learned:
        total = sum(c["jobs"] for c in learned["classes"])
        if not total:
            words = "nothing yet: the prior holds"
        else:
            words = "; ".join(
                f"{c['window']}: {c['jobs']:g} jobs, half done in {c['share_of_window']['0.5']:.0%} of the "
                f"window, 90% in {c['share_of_window']['0.9']:.0%}"
                for c in learned["classes"]
                if c["jobs"]
            )
        rows.append(("learned", words + ("" if learned["used"] else " (this preset does not use it)")))
    if document.get("notify") and (words := status_line(document["notify"])):
        rows.append(("messages", words))
    if kept := document["ledger"]:
        words = f"{kept['bytes'] / 1e6:.1f} MB of at most {kept['max_ledger_mb']:g}"
        words += f", back to {moment(kept['oldest'], zone)}" if kept["oldest"] else ", nothing has ended yet"
        words += f", kept for {kept['keep_days']:g} days"
        if (gone := kept["dropped_for_size"])["last"]:
            words += f"; at its bound: {plural(gone['jobs'], 'job')} and {plural(gone['audit'], 'record')}"
            words += " dropped before that"
        rows.append(("ledger", words))
    return rows
