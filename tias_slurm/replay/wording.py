"""Numbers and findings of a dry run in plain words: the same ones on the terminal and in the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

import numpy as np

from tias_slurm.replay.results import DryRun, PolicyResult

NONE = "–"
WORSE = "Worse under "  # begins every finding that speaks against TIAS
SOURCES = {
    "comment": "in comments",
    "submit_line": "in submit lines",
    "native": "from Slurm's own --deadline",
    "trace": "in the trace",
}
SAME = 0.005  # relative changes below this are called no change


def known(value: Any) -> TypeGuard[float]:
    """Whether a measure holds a finite number."""
    return value is not None and math.isfinite(value)


def duration(seconds: float | None) -> str:
    """Seconds for people: 45 s, 9.0 min, 5.62 h, 3.1 d; a dash for None and NaN."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    sign, s = ("-" if seconds < 0 else ""), abs(seconds)
    if s < 89.5:
        return f"{sign}{s:.0f} s" if s >= 9.95 or s == int(s) else f"{sign}{s:.1f} s"
    if s < 89.5 * 60:
        return f"{sign}{s / 60:.{1 if s < 597 else 0}f} min"
    if s < 95.95 * 3600:
        return f"{sign}{s / 3600:.{2 if s < 9.995 * 3600 else 1}f} h"
    return f"{sign}{s / 86400:,.{1 if s < 99.95 * 86400 else 0}f} d"


def percent(fraction: float | None) -> str:
    """A fraction as a percentage: 0%, 0.62%, 5.1%, 100%; a dash for None and NaN."""
    if fraction is None or not math.isfinite(fraction):
        return NONE
    p = 100.0 * fraction
    if 0 < abs(p) < 0.005:
        return "<0.01%"
    if p in (0.0, 100.0):
        return f"{p:.0f}%"
    return f"{p:.{2 if abs(p) < 0.995 else 1}f}%"


def count(value: float | None) -> str:
    """A count with thousands separators; a dash for None and NaN."""
    return NONE if value is None or not math.isfinite(value) else f"{value:,.0f}"


def amount(value: float | None) -> str:
    """A measured amount such as GPU-hours: one decimal below 100, none above."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.1f}" if 0 < abs(value) < 99.95 else f"{value:,.0f}"


def plural(n: int, word: str, words: str | None = None) -> str:
    """'1 job', '2 jobs'."""
    return f"{count(n)} {word if n == 1 else words or word + 's'}"


def change(new: float | None, old: float | None, less: str = "less", more: str = "more") -> str:
    """How new differs from old: '32% less', 'the same', '2.4 times as much'; '' where not comparable."""
    if not (known(new) and known(old)) or old <= 0:
        return ""
    rel = new / old - 1.0
    if abs(rel) < SAME:
        return "the same"
    if rel >= 1.0:
        return f"{new / old:.1f} times as much"
    return f"{max(1, round(100 * abs(rel)))}% {less if rel < 0 else more}"


def ranked(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    """Reasons with their counts, most frequent first, ties by name."""
    return sorted(((str(k), int(v)) for k, v in reasons.items()), key=lambda kv: (-kv[1], kv[0]))


def top(reasons: Mapping[str, int], keep: int = 3) -> str:
    """The most frequent reasons in one phrase: '12 bad time, 3 no GPU column, 2 others'."""
    items = ranked(reasons)
    shown = [f"{count(n)} {name}" for name, n in items[:keep]]
    if rest := sum(n for _, n in items[keep:]):
        shown.append(f"{count(rest)} for other reasons")
    return "; ".join(shown)


def base(name: str) -> str:
    """The policy without preset and preemption: 'tias:guard@on' -> 'tias'."""
    return name.split("@")[0].split(":")[0]


def reference(run: DryRun) -> str | None:
    """The policy to compare with: what the site has today as replayed, else as recorded, else FIFO."""
    for wanted in ("multifactor", "recorded", "fifo"):
        for name in run.policies:
            if base(name) == wanted:
                return name
    return None


def ours(run: DryRun) -> list[str]:
    """The names of the TIAS policies of this run, in its order."""
    return [name for name in run.policies if base(name) == "tias"]


def never_fit(run: DryRun) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of the jobs that ask for more than any node set of the cluster has. Shape (k,)."""
    fits = [p.outcome.fits for p in run.policies.values()]
    if not fits:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(~np.logical_and.reduce(fits)).astype(np.int64)


def read_line(run: DryRun) -> str:
    """What was read."""
    i = run.input
    line = f"{plural(i['jobs'], 'job')} from {plural(i['rows'], 'row')} in {plural(i['files'], 'file')}"
    if left := i.get("left_out"):
        line += f"; left out: {top(left)}"
    return line


def refused_line(run: DryRun) -> str:
    """What was refused, most frequent reasons first."""
    n = run.input["refused"]
    if not n:
        return "no row"
    reasons = top(run.input.get("refused_by_reason") or {})
    return plural(n, "row") + (f": {reasons}" if reasons else "")


def deadlines_line(run: DryRun) -> str:
    """Deadlines found and refused."""
    d = run.deadlines
    line = f"{count(d['found'])} found"
    if sources := d.get("by_source"):
        line += " (" + ", ".join(f"{count(n)} {SOURCES.get(k, k)}" for k, n in ranked(sources) if n) + ")"
    line += f", {count(d['refused'])} refused"
    if d["refused"] and (reasons := d.get("refused_by_reason")):
        line += f" ({top(reasons)})"
    return line


def assumed_line(run: DryRun) -> str:
    """The warning owed to assumed deadlines; '' where all were stated by users."""
    assumed = run.deadlines["assumed"]
    if not assumed:
        return ""
    # The field may be a count or a plain yes.
    how_many = "" if assumed is True else f" ({count(assumed)} jobs)"
    return (
        f"The deadlines are ASSUMED{how_many}: drawn from the jobs' own run times, not stated by any user. "
        "Miss rates show how the policies compare, not what your users would have seen."
    )


def cluster_line(run: DryRun) -> str:
    """The cluster and how it is known."""
    c = run.cluster
    line = f"{plural(c['gpus'], 'GPU')} on {plural(c['nodes'], 'node')}"
    source = str(c.get("source") or "")
    if c["inferred"] and "inferred" not in source:
        line += ", inferred from the history"
    if source and source not in line:
        line += f" ({source})"
    if stuck := len(never_fit(run)):
        verb = "asks for more than it has and stands" if stuck == 1 else "ask for more than it has and stand"
        line += f"; {plural(stuck, 'job')} {verb} outside the measures"
    return line


def fidelity_line(run: DryRun) -> str:
    """How well the replay reproduces the record, in words. Kendall's tau compares the order of starts."""
    r = run.replayed_vs_recorded
    tau, error = r.get("start_tau"), r.get("start_error_median_s")
    if not known(tau):
        few = "fewer than two different starts of GPU jobs that ran once" if "jobs" in r else "no starts"
        return f"the input records {few}, so the replay cannot be checked against what happened"
    grades = ((0.95, "very closely"), (0.85, "well"), (0.6, "roughly"), (0.3, "only loosely"))
    grade = next((word for least, word in grades if tau >= least), "badly")
    line = f"the replay follows the recorded order of starts {grade} (Kendall's tau {tau:.2f}"
    if known(error):
        line += f", median start error {duration(abs(error))}"
    if known(r.get("jobs")) and r["jobs"] < 30:
        line += f", over only {plural(int(r['jobs']), 'job')}"
    line += ")"
    if tau < 0.6:
        line += "; compare the replayed policies with each other, not with the record"
    return line


def _times(new: PolicyResult, old: PolicyResult, key: str) -> str:
    a, b = new.metrics[key], old.metrics[key]
    diff = change(a, b).replace("as much", "as long")
    if diff == "the same" and duration(a) == duration(b):
        return f"{duration(a)} in both"
    return f"{duration(a)} instead of {duration(b)}" + (f" ({diff})" if diff else "")


def versus(run: DryRun, name: str, other: str) -> str:
    """How name compares with other in deadlines and completion times, in one sentence."""
    new, old = run.policies[name], run.policies[other]
    n, o = new.metrics, old.metrics
    parts = []
    if n["deadline_jobs"]:
        diff = change(n["missed"], o["missed"], "fewer")
        diff = diff.replace("as much", "as many")
        parts.append(
            f"misses {count(n['missed'])} of {plural(int(n['deadline_jobs'] or 0), 'deadline')} "
            f"({percent(n['deadline_miss_rate'])}) where {other} misses {count(o['missed'])} "
            f"({percent(o['deadline_miss_rate'])}{'; ' + diff if diff else ''})"
        )
    if known(n["jct_mean_s"]) and known(o["jct_mean_s"]):
        who = "the other jobs complete" if parts else "jobs complete"
        parts.append(f"{who} in {_times(new, old, 'jct_mean_s')} on average")
    if not parts:
        return f"{name} cannot be compared with {other}: no job ended in both."
    text = ", and ".join(parts)
    return f"{name} {text}." if n["deadline_jobs"] else f"Under {name}, compared with {other}, {text}."


def _grows(new: PolicyResult, old: PolicyResult, key: str, by: float) -> bool:
    a, b = new.metrics[key], old.metrics[key]
    return known(a) and known(b) and a > b * (1 + by) and a > 0


def worse(run: DryRun, name: str, other: str) -> str:
    """Every measure by which name is worse than other, in one sentence; '' if there is none."""
    new, old = run.policies[name], run.policies[other]
    n, o = new.metrics, old.metrics
    bad = []
    if _grows(new, old, "deadline_miss_rate", 0.0):
        bad.append("more deadlines are missed")
    weighted = "deadline_miss_rate_gpu_weighted"
    if _grows(new, old, weighted, 0.02):
        bad.append(f"misses weighted by GPU-hours rise from {percent(o[weighted])} to {percent(n[weighted])}")
    for key, what in (
        ("jct_mean_s", "the other jobs take longer on average"),
        ("jct_p95_s", "the slowest twentieth of them completes later, {}"),
        ("deadline_jct_mean_s", "the deadline jobs themselves take {}"),
    ):
        if _grows(new, old, key, 0.02):
            bad.append(what.format(_times(new, old, key)))
    if (n["unfinished"] or 0) > (o["unfinished"] or 0):
        bad.append(f"{plural(int(n['unfinished'] or 0), 'job')} never ended")
    return f"{WORSE}{name}: {', '.join(bad)}." if bad else ""


def _buys(run: DryRun, on: str, off: str, who: str) -> str:
    """What the preemption of `on` buys beside `off`, and its price."""
    a, b = run.policies[on], run.policies[off]
    miss = ""
    if a.metrics["deadline_jobs"]:
        before, after = (percent(p.metrics["deadline_miss_rate"]) for p in (b, a))
        same = f"the miss rate stays at {after}"
        miss = f"{same if before == after else f'the miss rate goes from {before} to {after}'}, "
    return (
        f"What consent to requeue{who} buys ({on} beside {off}): {miss}the mean completion time of the "
        f"other jobs is {_times(a, b, 'jct_mean_s')}; the price is "
        f"{plural(int(a.metrics['requeues'] or 0), 'requeue')} and "
        f"{amount(a.metrics['gpu_hours_lost'])} GPU-hours of work done twice."
    )


def _consent(run: DryRun) -> list[str]:
    """What the consent to requeue buys, where the run holds a policy both with and without preemption."""
    names = ours(run)
    lines = []
    for off in names:
        on, everyone = (off.removesuffix("@off") + suffix for suffix in ("@on", "@all"))
        if not off.endswith("@off"):
            continue
        if on in run.policies and run.policies[on].metrics["requeues"]:
            share = run.settings.get("consent")
            known_share = isinstance(share, int | float) and not isinstance(share, bool)
            who = f" by {percent(float(share))} of the jobs" if known_share else ""  # type: ignore[arg-type]
            lines.append(_buys(run, on, off, who))
        elif on in run.policies:
            advice = "" if everyone in run.policies else "; add it as @all to see what full consent would buy"
            lines.append(
                f"{on} requeued no job: none that could give way had consented to it, or none had to{advice}."
            )
        if everyone in run.policies:
            lines.append(_buys(run, everyone, off, " by every job"))
        if lines:
            return lines
    if names and run.policies[names[0]].preemption and run.policies[names[0]].metrics["requeues"]:
        only = names[0].split("@")[0]
        lines.append(f"Add {only}@off to --policies to see how much of this needs the consent to requeue.")
    return lines


def findings(run: DryRun) -> list[str]:
    """Sentences that compare TIAS with today's scheduling, made from the numbers, better or worse."""
    other, names = reference(run), ours(run)
    if not names or other is None or not run.policies:
        return ["This run holds no pair of TIAS and multifactor (or recorded) to compare."]
    lines = []
    if not any(p.metrics["deadline_jobs"] for p in run.policies.values()):
        lines.append("No job that ran has a deadline, so only completion times can be compared.")
    for name in names:
        lines += [versus(run, name, other), worse(run, name, other)]
    lines += _consent(run)
    return [x for x in lines if x]


def unfinished_line(run: DryRun) -> str:
    """The jobs that never ended, by policy; '' if all did."""
    numbers = {name: int(p.metrics["unfinished"] or 0) for name, p in run.policies.items()}
    if not any(numbers.values()):
        return ""
    if len(set(numbers.values())) == 1:
        return f"Jobs that never ended: {count(next(iter(numbers.values())))} under every policy."
    return f"Jobs that never ended: {', '.join(f'{count(n)} under {p}' for p, n in numbers.items() if n)}."


def unique(lines: Iterable[str]) -> list[str]:
    """The lines in order, each once."""
    return list(dict.fromkeys(str(x) for x in lines))
