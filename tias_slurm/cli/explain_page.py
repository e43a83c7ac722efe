"""The account of one job as a page."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from rich.text import Text

from tias_slurm.cli.words import cell, console, grid, moment, service, span
from tias_slurm.gpu_weights import spoken
from tias_slurm.replay.wording import plural

Rows = list[tuple[str, str]]
MOST_UNITS = 4  # days to seconds


def page(job: dict[str, Any], zone: ZoneInfo) -> None:
    """Print what `explain.describe` made of a job; the first line is the answer."""
    out = console()
    answer = cell(job["answer"])
    answer.stylize("bold")
    out.print(answer)
    if "level" not in job:
        return
    out.print()
    if job["out_of_scope"] or not job["weight"]:
        out.print(grid([*_who(job, zone), *_out_of_scope(job), *_requeue(job, zone)]))
        return
    rows = [*_ledger(job), *_who(job, zone), *_standing(job), *_claim(job, zone), *_shares(job)]
    out.print(grid([*rows, *_lever(job), *_place(job), *_requeue(job, zone)]))
    coming = _coming(job)
    if coming:
        alone = job["state"] == "PENDING" and job["lever"]["state"] == "left alone"
        out.print()
        out.print(Text(f"What would change {'its level' if alone else 'it'}", style="bold"))
        out.print(grid(coming))


def _out_of_scope(job: dict[str, Any]) -> Rows:
    """Of a job that no cycle ranks for its own sake: its level does not count."""
    rows = [("left alone", rule) for rule in job["out_of_scope"][:1]]
    rows += [("", rule) for rule in job["out_of_scope"][1:]]
    if job["claim_said"] is not None or job["claim_refused"] or job["claim_unaccepted"]:
        rows.append(("deadline", "nobody looks at it: the job is out of scope"))
    lever = job["lever"]
    shielded = job["state"] != "PENDING" and job["requeue"]["mode"] == "slurm"
    rows += _lever(job) if shielded else [("lever", f"{lever['field']} {_value(lever['now'])}, not ours")]
    order = job["slurm_order"]
    if order is None:
        return rows
    if order["ahead"] is not None:
        words = f"priority {order['priority']}; {plural(order['ahead'], 'waiting job')} before it"
        rows.append(("Slurm's order", f"{words} that may use its partitions and can start"))
    return [*rows, ("Slurm says", job["slurm_reason"])]


def _ledger(job: dict[str, Any]) -> Rows:
    """What is not known here, before anything that may be wrong for it."""
    ledger = job["ledger"]
    if ledger["all"]:
        return []
    words = "what others have of the daemon, and what finished jobs taught, is not known"
    if not ledger["known"]:
        words = "first submit, service, deadline, value and requeues may be others than those shown"
    return [("not known", f"{ledger['why']}: {words}")]


def _who(job: dict[str, Any], zone: ZoneInfo) -> Rows:
    gpus = spoken(job["gpus"], job["shards"], job["weight"])
    guess = " or earlier: runs before that are not known" if job["first_submit_guessed"] else ""
    runs = f", executed {span(job['executed_s'])}" if job["executed_s"] else ""
    return [
        ("job", f"{job['user']}, account {job['account'] or '-'}, {job['partition']}, {gpus}"),
        ("first submit", f"{moment(job['first_submit'], zone)}{guess}{runs}"),
    ]


def _standing(job: dict[str, Any]) -> Rows:
    words = job["reason"]
    if job["urgency"] is not None:
        words += f"; urgency {job['urgency']:,.0f} (the smaller goes first)"
    rows = [("standing", words)]
    queue = "none: behind all queues" if job["queue"] is None else f"{job['queue']}"
    queue += f"; attained {service(job['attained_gpu_s'])}"
    if job["queue"] is not None:
        ahead = job["next_threshold_gpu_s"]
        if ahead is None:
            queue += ", the last queue"
        else:
            left = service(max(0.0, ahead - job["attained_gpu_s"]))
            queue += f", the next queue begins at {service(ahead)}: {left} more"
    return [*rows, ("queue", queue)]


def _claim(job: dict[str, Any], zone: ZoneInfo) -> Rows:
    rows: Rows = []
    for refusal in job["claim_refused"]:
        rows.append(("refused", ": ".join(filter(None, (refusal["code"], refusal["text"])))))
    if job["claim_unaccepted"]:
        rows.append(("not taken", job["claim_unaccepted"]))
    if job["claim_over_quota"]:
        rows.append(("deadline", "does not count: the account is over its quota"))
    claim = job["claim"]
    if claim is None:
        if not job["ledger"]["known"] and (said := job["claim_said"]) is not None:
            past = "passed " if said <= job["time"] else ""
            words = f"{past}{moment(said, zone)} by its comment; whether that counts the daemon alone knows"
            rows.append(("deadline", words))
        if job["claim_lost"]:
            rows.append(("deadline", "given up after it was lost: the job stays in the last queue"))
        return rows
    left = claim["left_s"]
    when = f"{span(left)} left" if left > 0 else f"{span(left).lstrip('-')} ago"
    changed = f"; changed {plural(job['claim_changes'], 'time')}" if job["claim_changes"] else ""
    rows.append(
        ("deadline", f"{moment(claim['deadline'], zone)}, {when} of {span(claim['window_s'])}{changed}")
    )
    rows.append(("time without progress", span(claim["lost_s"])))
    if claim["chance"] is None:
        return rows
    chance = f"{claim['chance']:.2f} if it {'waits no longer' if job['state'] == 'PENDING' else 'runs on'}"
    rows.append(("chance", f"{chance}; a waiting job is hopeless below {claim['hopeless_below']:g}"))
    rows.append(
        ("risk", f"{claim['risk']:.3f} of that would be lost by more waiting; urgent from "
                 f"{claim['urgent_from']:g}, warming from {claim['warming_from']:g}")
    )  # fmt: skip
    if claim["kept_from"]:
        rows.append(("served", f"{claim['served']:.2f} of its window; a job that runs is kept from "
                     f"{claim['kept_from']:g} on"))  # fmt: skip
    if claim["caps"]:
        caps = ", ".join(
            f"level {c['level']} at most from {c['from']:g}" if c["from"] else f"level {c['level']} at most"
            for c in claim["caps"]
        )
        rows.append(("accumulated loss", f"{claim['accumulated_loss']:.3f}; once there is any: {caps}"))
    return rows


def _shares(job: dict[str, Any]) -> Rows:
    rows: Rows = []
    slot, front = job["slot"], job["front"]
    if slot["held"]:
        rows.append(("long slot", "held"))
    elif slot["share_needed"] is not None:
        rows.append(
            ("long slot", f"in line: slots may take {slot['share']:.0%} of the GPUs, and it would have one at"
                          f" {slot['share_needed']:.1%}")
        )  # fmt: skip
    if front["at_front"]:
        rows.append(
            ("front", "goes before all levels" if job["state"] == "PENDING" else "started from there")
        )
    elif front["waited_s"] is not None and front["starving_s"]:
        rows.append(("front", f"has waited {span(front['waited_s'])} of {span(front['starving_s'])}"))
    return rows


def _lever(job: dict[str, Any]) -> Rows:
    lever = job["lever"]
    values = f"{lever['field']} {_value(lever['now'])}"
    if lever["state"] == "not known":
        return [("lever", f"{values}; what it should be is not known")]
    if lever["found"] is not None and (lever["now"] != lever["found"] or lever["set"] is not None):
        values += f", found {_value(lever['found'])}"
    if lever["set"] is not None and lever["set"] != lever["now"]:
        values += f", set {_value(lever['set'])}"
    alone = lever["state"] == "left alone"
    if (
        lever["should_be"] is not None
        and lever["should_be"] != lever["now"]
        and lever["because"] != "it runs"
    ):
        values += f", {'would' if lever['dry_run'] or alone else 'should'} be {_value(lever['should_be'])}"
    state = lever["state"] + (f" ({lever['because']})" if lever["because"] else "")
    strict = "" if lever["strict"] else "; levels are not strict here"
    return [("lever", f"{values}: {state}{strict}")]


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.0f}"


def _place(job: dict[str, Any]) -> Rows:
    place = job["place"]
    if place is None:
        return []
    n, more = place["startable"], place["jobs"] - place["startable"]
    gpus = spoken(place["gpus"], 0, place["weight"])
    words = f"{plural(n, 'waiting job')} ({gpus}) before it in its partitions"
    if more:
        words += f", and {more} that cannot start"
    if place["startable_planned"] not in (None, place["startable"]):
        sent = not job["lever"]["dry_run"] and job["lever"]["state"] != "not written"
        when = "once the next cycle has written" if sent else "if what is planned were written"
        words += f"; {plural(place['startable_planned'], 'job')} {when}"
    return [("place", words), ("Slurm says", job["slurm_reason"])]


def _requeue(job: dict[str, Any], zone: ZoneInfo) -> Rows:
    r = job["requeue"]
    words = []
    if r["mode"] == "off":
        words.append("is off here")
    elif r["mode"] == "slurm" and r["possible"] is None:
        words.append("Slurm itself preempts here, by the places of jobs")
    elif r["possible"] is not None:
        words.append(_possible(job))
    if r["mode"] != "off" or r["by_us"]:
        saves = f"saves itself every {span(r['checkpoint_s'])}" if r["checkpoint_s"] else "saves nothing"
        words.append(saves)
    if r["by_us"]:
        often = f"requeued {plural(r['by_us'], 'time')} (at most {r['at_most']})"
        words.append(f"{often}, {span(r['work_redone_s'])} redone")
    if r["others_requeued_for_it"] is not None:
        words.append(f"others were requeued for it at {moment(r['others_requeued_for_it'], zone)}")
    rows = [("requeue", "; ".join(words))]
    if (nobody := r["nobody_for_it"]) is not None and not job["out_of_scope"]:
        rows.append(("others for it", _nobody(nobody, zone)))
    return rows


def _possible(job: dict[str, Any]) -> str:
    r = job["requeue"]
    if r["possible"]:
        sure = "" if job["ledger"]["known"] else ", unless that was done too often already"
        return f"may be requeued for others{sure}"
    why = r["spared"]
    if why.startswith("younger"):
        why = f"not in the first {span(r['min_run_s'])} of a run"
    return f"is not requeued for others: {why}"


def _nobody(nobody: dict[str, Any], zone: ZoneInfo) -> str:
    """Whether others are requeued for a waiting job, and why not."""
    if nobody["planned"]:
        n = nobody["planned"]
        words = f"{plural(n, 'job')} to be requeued or warned for it in the next cycle"
        return words + (f", but not sent: {nobody['idle']}" if nobody["idle"] else "")
    words = f"nobody is requeued for it: {nobody['why']}"
    if nobody["cool_down_until"] is not None:
        words += f"; again from {moment(nobody['cool_down_until'], zone)} on"
    worse = dict(nobody["worse"])
    able = worse.pop("", 0)
    if worse or able:
        parts = [f"{able} may be requeued"] if able else []
        parts += [f"{n} {why}" for why, n in sorted(worse.items(), key=lambda x: -x[1])]
        words += f". Running jobs that stand worse: {', '.join(parts)}"
    return words


def _coming(job: dict[str, Any]) -> Rows:
    rows = []
    for at, change in enumerate(job["changes"]):
        when = _when(job["changes"], at)
        if change["if_it"] == "waits":
            rows.append((f"in {when}", f"{change['text']}, if it still waits"))
        else:
            more = "more " if job["state"] != "PENDING" else ""
            rows.append((f"after {when} {more}of running", change["text"]))
    rows += [(name, f"level {v['level']} ({v['class']})") for name, v in job["what_if"].items()]
    return rows


def _when(changes: list[dict[str, Any]], at: int) -> str:
    """When a change comes: as finely as it takes to tell it from those beside it."""
    mine = changes[at]
    beside = [c for c in changes[max(0, at - 1) : at + 2] if c is not mine and c["if_it"] == mine["if_it"]]
    units = 2
    while units < MOST_UNITS and any(
        span(c["after_s"], units) == span(mine["after_s"], units) for c in beside
    ):
        units += 1
    return span(mine["after_s"], units)
