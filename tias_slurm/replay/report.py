"""The report of a dry run: one HTML page that needs nothing else, and the files beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import tias_slurm
from tias_slurm.errors import printable
from tias_slurm.jobs import Ints
from tias_slurm.replay import figures, wording
from tias_slurm.replay.document import dumps, plain, to_document
from tias_slurm.replay.output import need_extra, prepare_dir, write_text
from tias_slurm.replay.results import DryRun, PolicyResult
from tias_slurm.replay.tables import Fate, JobFacts, facts, fate, largest, texts, write_jobs
from tias_slurm.replay.wording import amount, base, count, duration, known, percent
from tias_slurm.replay.workload import Workload

WORST = 25  # rows of a list of jobs
EXAMPLES = 5  # refused rows shown for each reason


@dataclass(frozen=True)
class Cell:
    """One measure of one policy. best: no policy that can be run does better."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Head:
    """A column head: its text, what it means, which way is better (-1 less, 1 more, 0 neither)."""

    text: str
    meaning: str
    key: str
    form: Callable[[float | None], str]
    better: int = 0


HEADS = (
    Head(
        "missed",
        "deadline jobs that ended after their deadline, of those that ran to an end",
        "missed",
        count,
    ),
    Head("miss rate", "missed as a share of the deadline jobs", "deadline_miss_rate", percent, -1),
    Head(
        "miss rate by GPU-hours",
        "the same, each job weighted by the GPU-hours it ran",
        "deadline_miss_rate_gpu_weighted",
        percent,
        -1,
    ),
    Head("deadline JCT", "mean completion time of deadline jobs", "deadline_jct_mean_s", duration),
    Head("JCT mean", "mean completion time of the other jobs", "jct_mean_s", duration, -1),
    Head("JCT median", "half of the other jobs complete within this", "jct_median_s", duration, -1),
    Head("JCT p95", "95% of the other jobs complete within this", "jct_p95_s", duration, -1),
    Head("wait mean", "mean time the other jobs did not run", "wait_mean_s", duration, -1),
    Head("GPU use", "share of all GPU time in use", "gpu_utilisation", percent),
    Head("requeues", "runs stopped so that another job could start", "requeues", count),
    Head("GPU-hours lost", "work done twice, and restarts", "gpu_hours_lost", amount),
    Head("writes", "changes sent to Slurm", "writes", count),
    Head("never ended", "jobs that the run left unfinished", "unfinished", count),
)


def _heads(run: DryRun) -> list[Head]:
    """The columns of the table; those that would be empty for every policy are left out."""
    needless = {
        k
        for k in ("unfinished", "deadline_jct_mean_s")
        if not any(p.metrics[k] for p in run.policies.values())
    }
    return [h for h in HEADS if h.key not in needless]


def _rows(run: DryRun, heads: list[Head]) -> list[dict[str, Any]]:
    best: dict[str, float] = {}
    for h in heads:
        values = [
            h.better * float(v)
            for p in run.policies.values()
            if p.realisable and known(v := p.metrics[h.key]) and h.better
        ]
        if len(values) > 1 and min(values) < max(values):
            best[h.key] = max(values)

    def cell(h: Head, p: PolicyResult) -> Cell:
        value = p.writes if h.key == "writes" else p.metrics[h.key]
        text = h.form(value)
        if h.key == "missed":
            text = f"{text} of {count(p.metrics['deadline_jobs'])}" if p.metrics["deadline_jobs"] else "–"
        top = p.realisable and known(value) and h.better * value == best.get(h.key, np.nan)
        return Cell(text, bool(top))

    return [
        {
            "name": name,
            "title": p.title,
            "realisable": p.realisable,
            "ours": base(name) == "tias",
            "css": name.split("@")[0].replace(":", "-"),
            "cells": [cell(h, p) for h in heads],
            "notes": list(p.notes),
        }
        for name, p in run.policies.items()
    ]


def _clock(work: Workload, origin: float) -> Callable[[float], str]:
    """Times for people: UTC of a history, since the first submit of a trace (whose zero means nothing)."""

    def since(t: float) -> str:
        return f"+{duration(t - origin)}" if np.isfinite(t) else "–"

    def utc(t: float) -> str:
        if not (np.isfinite(t) and 0 <= t < 253_402_300_800):  # years 1970 to 9999
            return "–"
        return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M")

    return since if work.is_trace else utc


class _Jobs:
    """Rows of jobs for the lists of the page."""

    def __init__(self, run: DryRun, work: Workload, job: JobFacts, fates: Mapping[str, Fate]) -> None:
        self.run, self.work, self.job, self.fates = run, work, job, fates
        finite = job.submit[np.isfinite(job.submit)]
        self.when = _clock(work, float(finite.min()) if len(finite) else 0.0)

    def who(self, rows: Ints) -> list[list[str]]:
        """Job id, user, GPUs, submit of the rows."""
        some = self.work.jobs.iloc[rows]
        ids, users = texts(some["job_id"]), texts(some["user"])
        return [
            [printable(i, 40), printable(u, 30), self._gpus(r), self.when(self.job.submit[r])]
            for r, i, u in zip(rows, ids, users, strict=True)
        ]

    def _gpus(self, row: int) -> str:
        gpus, weight = int(self.job.gpus[row]), float(self.job.weight[row])
        return count(gpus) if gpus or not weight else f"{weight:g}"

    def delayed(self, name: str, other: str) -> dict[str, Any]:
        """The jobs that one policy completes later than another by the most."""
        new, old = self.fates[name], self.fates[other]
        diff = np.where(new.ran & old.ran, new.jct - old.jct, np.nan)
        both = int(np.isfinite(diff).sum())
        later, sooner = int((diff > 60).sum()), int((diff < -60).sum())
        rows = largest(diff, WORST)
        requeues = self.run.policies[name].outcome.requeues
        summary = (
            f"Of {wording.plural(both, 'job')} that ended under both, {name} completes {count(sooner)} "
            f"({percent(sooner / both)}) sooner than {other} and {count(later)} ({percent(later / both)}) "
            "later, by more than a minute."
            if both
            else f"No job ended under both {name} and {other}."
        )
        return {
            "title": f"Completed later under {name} than under {other}",
            "summary": summary,
            "heads": [
                *("job", "user", "GPUs", "submitted", "deadline"),
                *(f"wait, {other}", f"wait, {name}", f"JCT, {other}", f"JCT, {name}"),
                *("later by", "requeues"),
            ],
            "rows": [
                [
                    *who,
                    "yes" if np.isfinite(self.job.deadline[r]) else "",
                    *(duration(f.wait[r]) for f in (old, new)),
                    *(duration(f.jct[r]) for f in (old, new)),
                    duration(diff[r]),
                    count(int(requeues[r])),
                ]
                for who, r in zip(self.who(rows), rows, strict=True)
            ],
            "more": max(0, int((diff > 0).sum()) - len(rows)),
        }

    def missed(self, name: str, other: str | None) -> dict[str, Any]:
        """The deadline jobs that a policy lets down by the most."""
        new = self.fates[name]
        rows = largest(new.lateness, WORST)
        total = int((new.lateness > 0).sum())

        def beside(r: int) -> list[str]:
            if other is None:
                return []
            late = float(self.fates[other].lateness[r])
            return ["–" if not np.isfinite(late) else f"late by {duration(late)}" if late > 0 else "in time"]

        return {
            "title": f"Deadlines missed under {name}",
            "summary": f"{wording.plural(total, 'deadline job')} ended after the deadline.",
            "heads": [
                *("job", "user", "GPUs", "submitted", "time allowed", "wait", "JCT", "late by"),
                *([f"under {other}"] if other else []),
            ],
            "rows": [
                [
                    *who,
                    duration(self.job.deadline[r] - self.job.submit[r]),
                    duration(new.wait[r]),
                    duration(new.jct[r]),
                    duration(new.lateness[r]),
                    *beside(r),
                ]
                for who, r in zip(self.who(rows), rows, strict=True)
            ],
            "more": max(0, total - len(rows)),
        }

    def worst(self) -> list[dict[str, Any]]:
        """The lists for the first two TIAS policies of the run, those with rows or a summary to show."""
        other, lists = wording.reference(self.run), []
        for name in wording.ours(self.run)[:2]:
            if other:
                lists.append(self.delayed(name, other))
            if np.isfinite(self.fates[name].lateness).any():
                lists.append(self.missed(name, other))
        return lists

    def stuck(self) -> dict[str, Any]:
        """The jobs that no node set of the cluster could ever hold."""
        rows = wording.never_fit(self.run)
        return {
            "total": len(rows),
            "heads": ["job", "user", "GPUs", "submitted"],
            "rows": self.who(rows[:WORST]),
            "more": max(0, len(rows) - WORST),
        }


def _refused(run: DryRun) -> list[dict[str, Any]]:
    """Refusals by reason, the most frequent first, each with its first examples."""
    examples: dict[str, list[dict[str, str]]] = defaultdict(list)
    for r in run.refused_examples:
        if len(examples[r.reason]) < EXAMPLES:
            where = f"{r.file}, line {r.line}" if r.line else str(r.file)
            examples[r.reason].append({"where": printable(where, 120), "detail": printable(r.detail)})
    out = []
    for kind, record in (("row", run.input), ("deadline", run.deadlines)):
        for reason, n in wording.ranked(record.get("refused_by_reason") or {}):
            shown = {"kind": kind, "reason": printable(reason), "n": count(n)}
            out.append({**shown, "examples": examples.pop(reason, [])})
    # An example whose reason no counter holds is shown all the same.
    out += [{"kind": "", "reason": printable(k), "n": "", "examples": v} for k, v in examples.items() if v]
    return out


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Settings as dotted names and values."""
    out: list[tuple[str, str]] = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            out += _flat(value, f"{prefix}{key}.")
        else:
            v = plain(value)
            shown = "none" if v is None else str(v).lower() if isinstance(v, bool) else str(v)
            out.append((printable(f"{prefix}{key}"), printable(shown, 400)))
    return out


def _context(run: DryRun, work: Workload) -> dict[str, Any]:
    job = facts(work.jobs)
    fates = {name: fate(job, p.outcome) for name, p in run.policies.items()}
    due = np.isfinite(job.deadline)
    plots = [
        figures.trade_off(run),
        figures.completion(run, fates, due),
        figures.lateness(run, fates),
        figures.over_time(run),
    ]
    heads = _heads(run)
    lists = _Jobs(run, work, job, fates)
    finite = job.submit[np.isfinite(job.submit)]
    ends = [f.jct for f in fates.values()]
    last = max((float(np.nanmax(job.submit + e)) for e in ends if np.isfinite(e).any()), default=np.nan)
    period = ""
    if len(finite):
        first = float(finite.min())
        period = f"{lists.when(first)} to {lists.when(last)}" + ("" if work.is_trace else " UTC")
    command = run.settings.get("command")
    settings = {k: v for k, v in run.settings.items() if k != "command"}
    return {
        "version": tias_slurm.__version__,
        "jobs": count(len(work.jobs)),
        "gpus": count(run.cluster["gpus"]),
        "period": period,
        "assumed": wording.assumed_line(run),
        "findings": [(f, f.startswith(wording.WORSE)) for f in wording.findings(run)],
        "account": [
            ("Read", wording.read_line(run)),
            ("Refused", wording.refused_line(run)),
            ("Deadlines", wording.deadlines_line(run)),
            ("Cluster", wording.cluster_line(run)),
            ("How far to trust it", wording.fidelity_line(run)),
        ],
        "heads": heads,
        "rows": _rows(run, heads),
        "unrealisable": not all(p.realisable for p in run.policies.values()),
        "plots": [p for p in plots if p],
        "worst": lists.worst(),
        "stuck": lists.stuck(),
        "notes": [printable(n, 600) for n in wording.unique([*run.notes, *work.notes])],
        "refused": _refused(run),
        "left_out": [(printable(k), count(n)) for k, n in wording.ranked(run.input.get("left_out") or {})],
        "settings": _flat(settings),
        "command": printable(str(command), 2000) if command else "",
    }


def render(run: DryRun, work: Workload) -> str:
    """The page as text. InputError without jinja2 or matplotlib."""
    try:
        import jinja2
    except ImportError:
        raise need_extra("jinja2") from None
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("tias_slurm.replay", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return env.get_template("report.html.j2").render(_context(run, work))


def write_report(run: DryRun, work: Workload, out_dir: Path) -> Path:
    """Write report.html, jobs.parquet and metrics.json to out_dir, which is made if need be.

    Each file is whole or not there, and the same for the same input (but for the version, and elapsed_s of
    metrics.json). Gives the path of the page. InputError: one line, where out_dir cannot be written or an
    optional package is missing.
    """
    page = render(run, work)  # before anything is written: a missing package leaves no half result
    out_dir = prepare_dir(Path(out_dir))
    write_jobs(out_dir / "jobs.parquet", work.jobs, run.policies)
    write_text(out_dir / "metrics.json", dumps(to_document(run)))
    write_text(out_dir / "report.html", page)
    return out_dir / "report.html"
