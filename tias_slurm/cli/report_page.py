"""The report of some time on a terminal: what was done, how deadlines came out, what it was worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tias_slurm.cli.words import cell, console, grid, moment, span
from tias_slurm.ledger.gains import summary_words
from tias_slurm.replay.wording import amount, count, duration, percent, plural, top, unique
from tias_slurm.worth import LIFE, WITHOUT

_MOST_REQUEUES = 20
_MOST_USERS = 5
Rows = list[tuple[str, str]]


def page(document: dict[str, Any], zone: ZoneInfo) -> None:
    """Print what cli.report.gather made."""
    out = console()
    dates = f"{moment(document['since'], zone)} to {moment(document['until'], zone)}"
    out.print(Text(f"From {dates} ({zone.key})", style="bold"))
    _head(out, "What was done" if not document["dry_run"] else "What would have been done")
    out.print(grid(_done(document)))
    if document["done"]["requeue_list"]:
        out.print(_requeues(document["done"], zone))
    if document["outcome"] is not None:
        _head(out, "How it came out")
        out.print(grid(_outcome(document)))
    if document["worth"] is not None:
        _head(out, "What it was worth")
        out.print(_side_by_side(document["worth"]))
        for line in sentences(document):
            out.print(Text(line))
        out.print()
        for note in unique(document["notes"]):
            out.print(Text(f"Note: {note}", style="dim"))
    if document["problem"]:
        out.print()
        out.print(cell(f"Nothing to judge: {document['problem']}.", 600))


def _head(out: Console, text: str) -> None:
    out.print()
    out.print(Text(text, style="bold underline"))


def _done(document: dict[str, Any]) -> Rows:
    d = document["done"]
    if not d["on_record"]:
        return [("record", "the ledger has no record of that time: no cycle, no write, no requeue")]
    rows: Rows = [("record", _record(d))]
    if d["lacks"]:
        rows.append(("not on record", d["lacks"]))
    if document["dry_run"]:
        rows.append(("mode", "a dry run: nothing of this was sent to Slurm"))
    for lever, found in d["writes"].items():
        rows.append((f"writes of {lever}", f"{top(found, 6)}; {plural(d['written_jobs'], 'job')} written"))
    if not d["writes"]:
        rows.append(("writes", "none"))
    if d["warnings"]:
        rows.append(("warnings", top(d["warnings"], 6)))
    rows += _requeued(d, document["dry_run"])
    if (n := d["by_slurm"])["requeues"]:
        lost = f"{amount(n['lost_gpu_hours'])} GPU-hours not saved"
        lost += f"; of {n['lost_not_known']} it is not known" if n["lost_not_known"] else ""
        rows.append(
            ("requeued by Slurm", f"{plural(n['requeues'], 'time')}; {plural(n['jobs'], 'job')}; {lost}")
        )
    refused = document["history"]["deadlines_refused"]
    rows.append(("claims not taken", top(d["claims_not_taken"], 6) or "none"))
    if refused:
        rows.append(("", f"in the comments of the history: {top(refused, 6)}"))
    most = d["most_at_once"]
    rows.append(
        ("left alone", f"at most {most['overridden']} overridden, {most['ignored']} ignored, "
                       f"{most['refused']} refused by Slurm at once")
    )  # fmt: skip
    return rows


def _record(d: Mapping[str, Any]) -> str:
    if not d["hours_with_cycles"]:
        return f"{plural(d['records'], 'action')}; how many cycles there were was not kept"
    cycles = top(d["cycles"], 6)
    paused = f"; paused in {plural(d['paused_cycles'], 'cycle')}" if d["paused_cycles"] else ""
    return f"cycles in {d['hours_with_cycles']} of {plural(d['hours'], 'hour')}: {cycles}{paused}"


def _requeued(d: Mapping[str, Any], dry: bool) -> Rows:
    if not d["requeues"]:
        return [("requeues", "none")]
    rows: Rows = [("requeues", f"{top(d['requeues'], 6)}; {plural(d['requeued_jobs'], 'job')}")]
    if not dry:
        lost = f"{amount(d['lost_gpu_hours'])} GPU-hours in all"
        if d["lost_not_known_jobs"]:
            lost += f"; of {plural(d['lost_not_known_jobs'], 'job')} it is not known"
        rows.append(("work done again", lost))
    if words := summary_words(d["bought"], span):
        rows.append(("bought", words.removeprefix("; ")))
    whom = d["for_whom"]
    words = f"{plural(whom['jobs'], 'job')}: {count(whom['deadline'])} times one with a deadline"
    words += f", {count(whom['no_deadline'])} times one without"
    words += f", {count(whom['not_known'])} times one that the history lacks" if whom["not_known"] else ""
    rows.append(("for whom", words))
    for name, users in (("for users", whom["users"]), ("of users", d["of_users"])):
        if users:
            rows.append((name, top(users, _MOST_USERS)))
    return rows


def _requeues(d: Mapping[str, Any], zone: ZoneInfo) -> Table:
    made = d["requeue_list"]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("requeued", "job", "user", "GPUs", "for", "user", "deadline", "result", "bought"):
        table.add_column(heading)
    for m in made[-_MOST_REQUEUES:]:
        other = m["for"] or {"job": "-", "user": None, "deadline": None}
        due = {True: "yes", False: "no", None: "?"}[other["deadline"]]
        words = (
            moment(m["time"], zone), m["job"], m["user"] or "?", m["gpus"] if m["gpus"] is not None else "?",
            other["job"], other["user"] or "?", due, m["result"],
            _bought(m["bought"]),
        )  # fmt: skip
        table.add_row(*(cell(word, 40) for word in words))
    if len(made) > _MOST_REQUEUES:
        table.caption = f"the last {_MOST_REQUEUES} of {len(made)}; --json has all"
    return table


def _bought(what: Mapping[str, Any] | None) -> str:
    if what is None or what["became"] is None:
        return "-" if what is None else "not known"
    after = f" after {span(what['after_s'])}" if what["became"] == "started" else ""
    met = {True: ", in time", False: ", too late", None: ""}[what["met"]]
    return f"{what['became']}{after}{met}"


def _outcome(document: dict[str, Any]) -> Rows:
    o, known = document["outcome"], document["history"]["from_ledger"]
    rows: Rows = []
    if o["deadline_jobs"]:
        words = (
            f"{count(o['met'])} met, {count(o['missed'])} missed of {count(o['deadline_jobs'])} that ended"
        )
        words += f" ({percent(o['deadline_miss_rate'])}; by GPU-hours "
        words += f"{percent(o['deadline_miss_rate_gpu_weighted'])})"
        rows.append(("deadlines", words))
        if o["impossible"]:
            rows.append(("", f"{count(o['impossible'])} of them ran longer than their whole time allowed: "
                             "nobody could have met those"))  # fmt: skip
    else:
        rows.append(("deadlines", "no job with a deadline came to its end"))
    rows.append(
        ("other jobs", f"{count(o['non_deadline_jobs'])} ended, in {duration(o['jct_mean_s'])} on average "
                       f"(median {duration(o['jct_median_s'])}), {duration(o['wait_mean_s'])} of it waiting")
    )  # fmt: skip
    if o["still_running"]:
        rows.append(("still running", f"{plural(o['still_running'], 'job')}, not counted"))
    better = [
        (known["claims"], "deadline", "that the accounting does not tell"),
        (known["moved"], "deadline", "as it held, not as the comment says now"),
        (known["not_held"], "deadline", "of a comment that never held, left out"),
        (known["over_quota"], "deadline", "over its account's quota, left out"),
        (known["withdrawn"], "deadline", "given up when it was lost, left out"),
        (known["first_submits"], "first submit", "from before a requeue"),
        (known["kept"], "job", "with work that earlier runs had saved"),
    ]
    words = ", ".join(f"{plural(n, what)} {how}" for n, what, how in better if n)
    if words:
        rows.append(("from the ledger", words))
    return rows


def _side_by_side(worth: Mapping[str, Any]) -> Table:
    """The same jobs in life and in the replays."""
    heads = {LIFE: "in life", WITHOUT: "replay without it", worth["ours"]: f"replay of {worth['ours']}"}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("the same jobs")
    for name in heads.values():
        table.add_column(name, justify="right")
    forms = (
        ("deadlines missed", "missed", count),
        ("miss rate", "deadline_miss_rate", percent),
        ("by GPU-hours", "deadline_miss_rate_gpu_weighted", percent),
        ("JCT of deadline jobs", "deadline_jct_mean_s", duration),
        ("JCT of the others", "jct_mean_s", duration),
        ("their wait", "wait_mean_s", duration),
        ("requeues", "requeues", count),
        ("never ended", "unfinished", count),
    )
    for title, key, form in forms:
        values = [worth["policies"][name][key] for name in heads]
        if key != "unfinished" or any(values):
            table.add_row(title, *(form(v) for v in values))
    return table


def sentences(document: dict[str, Any]) -> list[str]:
    """What the replays say beside the record, and how far they can be trusted."""
    w = document["worth"]
    without, model, life = w["without"], w["model"], w["policies"][LIFE]
    if document["dry_run"]:
        lines = [
            "The daemon sent nothing in that time, so the record is what Slurm did by itself: the replay "
            "without it shows the error of the model, the replay of "
            f"{model['policy']} what the daemon would have done, as far as the model knows."
        ]
        return [*lines, _agreement(without, life, w["policies"][WITHOUT])]
    lines = []
    d = document["done"]
    if d["hours_with_cycles"] < d["hours"]:
        lines.append(
            f"The ledger tells of cycles in {count(d['hours_with_cycles'])} of {plural(d['hours'], 'hour')}; "
            "the replay of tias has the daemon at work all the time."
        )
    if without["deadline_jobs"]:
        lines.append(
            f"Of {plural(without['deadline_jobs'], 'deadline')}, {count(without['met_only_in_life'])} "
            f"{'was' if without['met_only_in_life'] == 1 else 'were'} met that the replay without it "
            f"misses, and {count(without['met_only_in_replay'])} missed that it meets (--json names the "
            "jobs)."
        )
    lines += [text[0].upper() + text[1:] for text in w["findings"]]
    lines.append(_agreement(model, life, w["policies"][w["ours"]]))
    gain = without["met_only_in_life"] - without["met_only_in_replay"]
    error = model["met_only_in_life"] + model["met_only_in_replay"]
    if without["deadline_jobs"] and abs(gain) <= error:
        lines.append(
            "The difference in deadlines is no larger than the model's own error: from this time alone "
            "nothing follows."
        )
    return lines


def _agreement(same: Mapping[str, Any], life: Mapping[str, Any], replayed: Mapping[str, Any]) -> str:
    """How a replay of what really was in force differs from the record: the model's own error."""
    text = f"The replay is a model. Its {same['policy']}, which is what was in force, "
    n = same["deadline_jobs"]
    if n:
        agrees = same["met_in_both"] + same["missed_in_both"]
        text += f"agrees with the record on {count(agrees)} of {plural(n, 'deadline')} "
        text += f"(it misses {count(same['met_only_in_life'])} that were met and meets "
        text += f"{count(same['met_only_in_replay'])} that were missed)"
    else:
        text += "has no deadline to be checked by"
    if life["jct_mean_s"] is not None and replayed["jct_mean_s"] is not None:
        text += f", has the other jobs complete in {duration(replayed['jct_mean_s'])} where it was "
        text += f"{duration(life['jct_mean_s'])}"
    if same["start_error_median_s"] is not None:
        text += f", and starts jobs {duration(same['start_error_median_s'])} off (median)"
    return text + ". What was waiting or running at the end ends in it as it stood then."
