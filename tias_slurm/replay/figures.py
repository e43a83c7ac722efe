"""The plots of the report as inline SVG: colours from the page's CSS, text as text, always the same bytes."""

from __future__ import annotations

import html
import io
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tias_slurm.jobs import Floats
from tias_slurm.replay.output import need_extra
from tias_slurm.replay.results import DryRun, Series
from tias_slurm.replay.tables import Fate
from tias_slurm.replay.wording import base, duration, known, percent

POINTS = 201  # of a distribution
BINS = 240  # of a series over time
# CSS variables of the page by policy; matplotlib draws with stand-in colours that are replaced afterwards.
PALETTE = (
    *("recorded", "fifo", "multifactor", "edf", "deadline-qos", "las", "aemon", "tias"),
    *("tias:wide-fair", "tias:balanced", "tias:guard", "oracle-srtf", "oracle-laxity", "other"),
)
INK, GRID, PAPER = "#fe0001", "#fe0002", "#fe0003"
STAND_INS = {
    INK: "currentColor",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
    **{f"#fd00{i:02x}": f"var(--p-{name.replace(':', '-')})" for i, name in enumerate(PALETTE)},
}
RC: dict[Any, Any] = {
    "svg.hashsalt": "tias-slurm",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.linewidth": 0.8,
    "axes.unicode_minus": True,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
HOUR, DAY = 3600.0, 86400.0
TIMES = {
    1.0: "1 s",
    10.0: "10 s",
    60.0: "1 min",
    600.0: "10 min",
    HOUR: "1 h",
    10 * HOUR: "10 h",
    DAY: "1 d",
    4 * DAY: "4 d",
    14 * DAY: "14 d",
    60 * DAY: "60 d",
    365 * DAY: "1 y",
}


@dataclass(frozen=True)
class Plot:
    """One figure of the report. svg is trusted markup of our own; the rest is text."""

    key: str
    title: str
    caption: str
    svg: str


def colour(name: str) -> str:
    """The stand-in colour of a policy; presets of TIAS have their own."""
    preset = name.split("@")[0]
    found = preset if preset in PALETTE else base(name) if base(name) in PALETTE else "other"
    return f"#fd00{PALETTE.index(found):02x}"


def line_style(name: str, realisable: bool) -> dict[str, Any]:
    """How a policy's line looks, so that it can be told apart without colour too."""
    mine = base(name) == "tias"
    suffixed = {"off": (0, (5, 2)), "all": (0, (8, 1.5, 1, 1.5))}
    dashes: Any = suffixed.get(name.partition("@")[2], "-") if realisable else (0, (1, 1.6))
    return {"color": colour(name), "linewidth": 2.4 if mine else 1.5, "linestyle": dashes, "label": name}


def chosen(run: DryRun, most: int) -> list[str]:
    """The policies worth a line where all would be too many, in the run's order: TIAS and its rivals."""
    order = ["tias", "multifactor", "recorded", "deadline-qos", "las", "edf", "aemon", "fifo"]

    def rank(name: str) -> int:
        return order.index(base(name)) if base(name) in order else len(order)

    picked = sorted(run.policies, key=rank)[:most]
    return [name for name in run.policies if name in picked]


def distribution(values: Floats) -> tuple[Floats, Floats]:
    """The empirical distribution of the finite values, thinned to at most POINTS: (value, share up to it)."""
    v = np.sort(values[np.isfinite(values)])
    if not len(v):
        return v, v
    if len(v) > POINTS:
        share = np.linspace(0.0, 1.0, POINTS)
        return np.quantile(v, share), share
    return v, np.arange(1, len(v) + 1) / len(v)


def binned(series: Series, values: Any, edges: Floats) -> Floats:
    """Time-weighted mean of a step function in each bin; NaN before its first and after its last sample.

    values: shape (m,), each holds from its time to the next. edges: ascending, shape (b + 1,).
    """
    t = series.time
    if len(t) < 2:
        return np.full(len(edges) - 1, np.nan)
    area = np.concatenate([[0.0], np.cumsum(np.asarray(values[:-1], dtype=np.float64) * np.diff(t))])
    left, right = np.clip(edges[:-1], t[0], t[-1]), np.clip(edges[1:], t[0], t[-1])
    width = right - left
    total = np.interp(right, t, area) - np.interp(left, t, area)
    return np.where(width > 0, total / np.where(width > 0, width, 1.0), np.nan)


@contextmanager
def _figure(width: float, height: float, rows: int = 1) -> Iterator[tuple[Any, Any]]:
    try:
        # of a home directory that cannot be written it would speak on standard error
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise need_extra("matplotlib") from None
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's own matplotlibrc must not change the report
        mpl.rcParams.update(RC)
        fig = Figure(figsize=(width, height), layout="constrained")
        yield fig, fig.subplots(rows, 1, sharex=rows > 1, squeeze=False)[:, 0]


def _svg(fig: Any, key: str, alt: str) -> str:
    """The figure as an <svg> element fit to stand inside an HTML page beside others."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    fig.savefig(out, format="svg", metadata=nothing)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.S)
    # The ids of several figures in one page must not meet.
    text = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\1{key}-", text)
    text = re.sub(r"#f[de]00[0-9a-f]{2}\b", lambda m: STAND_INS[m[0]], text)
    text = re.sub(r"'DejaVu Sans'(?:, *(?:'[^']*'|[\w-]+))*", "var(--sans)", text)
    view = re.search(r'viewBox="[^"]+"', text)
    head = f'<svg {view[0] if view else ""} xmlns="http://www.w3.org/2000/svg" xmlns:xlink='
    head += f'"http://www.w3.org/1999/xlink" role="img" aria-label="{html.escape(alt)}">'
    return head + text[text.index(">") + 1 :].strip()


def _place(ax: Any, points: list[tuple[float, float]], names: list[str]) -> None:
    """Label points so that labels do not cover points or each other, where there is room for that."""
    scale = 72.0 / ax.figure.dpi
    ax.figure.draw_without_rendering()
    spots = ax.transData.transform(points) * scale
    box = ax.get_window_extent()
    x0, x1, y0, y1 = (v * scale for v in (box.x0, box.x1, box.y0, box.y1))
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in spots]
    tries = [(dx, dy) for dy in (0.0, 13.0, -13.0, 26.0, -26.0, 39.0, -39.0) for dx in (9.0, -9.0)]
    for i in sorted(range(len(names)), key=lambda i: (spots[i][1], spots[i][0])):
        wide, high = 6.4 * len(names[i]), 11.0
        best: tuple[float, tuple[float, float], tuple[float, ...]] | None = None
        for dx, dy in tries:
            x = spots[i][0] + dx - (wide if dx < 0 else 0)
            y = spots[i][1] + dy - high / 2
            area = (x, y, x + wide, y + high)
            cost: float = sum(
                max(0.0, min(area[2], b[2]) - max(area[0], b[0]))
                * max(0.0, min(area[3], b[3]) - max(area[1], b[1]))
                for b in taken
            )
            outside = max(0.0, x0 - x, x + wide - x1) + max(0.0, y0 - y, y + high - y1)
            cost += 100.0 * outside + 0.1 * abs(dy)
            if best is None or cost < best[0]:
                best = cost, (dx, dy), area
        assert best is not None
        taken.append((best[2][0], best[2][1], best[2][2], best[2][3]))
        dx, dy = best[1]
        ax.annotate(
            names[i],
            points[i],
            xytext=(dx, dy),
            textcoords="offset points",
            ha="left" if dx > 0 else "right",
            va="center",
            fontweight="bold" if base(names[i]) == "tias" else "normal",
            arrowprops={"arrowstyle": "-", "color": INK, "lw": 0.5, "alpha": 0.5} if abs(dy) > 13 else None,
        )


def trade_off(run: DryRun) -> Plot | None:
    """Miss rate against the mean JCT of the other jobs, one point a policy; None without both."""
    names = [
        n
        for n, p in run.policies.items()
        if known(p.metrics["deadline_miss_rate"]) and known(p.metrics["jct_mean_s"])
    ]
    if not names:
        return None
    m = {n: run.policies[n].metrics for n in names}
    points = [
        (float(m[n]["jct_mean_s"] or 0) / HOUR, 100 * float(m[n]["deadline_miss_rate"] or 0)) for n in names
    ]
    with _figure(7.6, 4.6) as (fig, (ax,)):
        for n, (x, y) in zip(names, points, strict=True):
            mine, real = base(n) == "tias", run.policies[n].realisable
            face = PAPER if n.endswith("@off") or not real else colour(n)
            size = 110 if mine else 55
            ax.scatter(
                x, y, s=size, marker="o" if real else "D", facecolor=face, edgecolor=colour(n), linewidth=1.8
            )
        xs, ys = np.array(points).T
        pad = max(float(np.ptp(xs)) * 0.18, float(xs.max()) * 0.04, 1e-6)
        ax.set_xlim(max(0.0, float(xs.min()) - pad), float(xs.max()) + pad)
        high = max(float(ys.max()) * 1.1, 0.1)
        ax.set_ylim(-0.045 * high, high)
        ax.set_xlabel("mean completion time of jobs without a deadline (hours)")
        ax.set_ylabel("deadlines missed (%)")
        _place(ax, points, names)
        alt = "Scatter plot, one point per policy. " + "; ".join(
            f"{n}: {percent(m[n]['deadline_miss_rate'])} missed, {duration(m[n]['jct_mean_s'])}"
            for n in names
        )
        svg = _svg(fig, "trade", alt)
    caption = (
        "Down and to the left is better on both counts. Hollow circles reorder the queue only (@off), "
        "diamonds know the future and cannot be run."
    )
    return Plot("trade", "Missed deadlines against the other jobs' completion time", caption, svg)


def _lines(run: DryRun, ax: Any, curves: Mapping[str, tuple[Floats, Floats]]) -> None:
    for n, (x, share) in curves.items():
        ax.plot(x, 100 * share, drawstyle="steps-post", **line_style(n, run.policies[n].realisable))
    ax.set_ylim(0, 101)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(4, len(curves)), handlelength=2.6)


def _time_ticks(ax: Any, low: float, high: float, signed: bool = False) -> None:
    ticks = {t: s for t, s in TIMES.items() if low <= t <= high and not (signed and t < HOUR)}
    if signed:
        ticks = {0.0: "0", **ticks, **{-t: f"−{s}" for t, s in TIMES.items() if HOUR <= t <= -low}}
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.minorticks_off()


def completion(run: DryRun, fates: Mapping[str, Fate], due: Any) -> Plot | None:
    """Distribution of the JCT of jobs without a deadline; None if no such job ended."""
    curves = {n: distribution(fates[n].jct[fates[n].ran & ~due]) for n in chosen(run, 6)}
    curves = {n: (np.maximum(x, 1.0), y) for n, (x, y) in curves.items() if len(x)}
    if not curves:
        return None
    low, high = min(float(x[0]) for x, _ in curves.values()), max(float(x[-1]) for x, _ in curves.values())
    with _figure(7.6, 3.9) as (fig, (ax,)):
        _lines(run, ax, curves)
        ax.set_xscale("log")
        _time_ticks(ax, low * 0.99, max(high, low * 10))
        ax.set_xlabel("completion time: end minus first submit (log scale)")
        ax.set_ylabel("jobs that took at most this (%)")
        alt = "Cumulative distribution of completion times. Medians: " + "; ".join(
            f"{n} {duration(float(np.interp(0.5, y, x)))}" for n, (x, y) in curves.items()
        )
        svg = _svg(fig, "jct", alt)
    caption = "Jobs without a deadline. A curve further to the left completes its jobs sooner."
    return Plot("jct", "Completion times", caption + _omitted(run, curves), svg)


def lateness(run: DryRun, fates: Mapping[str, Fate]) -> Plot | None:
    """Distribution of end - deadline; None without deadline jobs that ended."""
    curves = {n: distribution(fates[n].lateness) for n in chosen(run, 6)}
    curves = {n: c for n, c in curves.items() if len(c[0])}
    if not curves:
        return None
    low, high = min(float(x[0]) for x, _ in curves.values()), max(float(x[-1]) for x, _ in curves.values())
    with _figure(7.6, 3.9) as (fig, (ax,)):
        _lines(run, ax, curves)
        ax.set_xscale("symlog", linthresh=HOUR, linscale=0.6)
        _time_ticks(ax, low, high, signed=True)
        ax.axvline(0, color=INK, linewidth=1.0)
        ax.text(0.0, 3, " deadline", ha="left", va="bottom")
        ax.set_xlabel("end minus deadline (negative: in time; linear within 1 h, log beyond)")
        ax.set_ylabel("deadline jobs ended by then (%)")
        alt = "Cumulative distribution of lateness. Ended by the deadline: " + "; ".join(
            f"{n} {percent(float((fates[n].lateness <= 0).sum() / np.isfinite(fates[n].lateness).sum()))}"
            for n in curves
        )
        svg = _svg(fig, "late", alt)
    caption = "Where a curve crosses the deadline, all above it is missed."
    return Plot("late", "How early or late the deadline jobs end", caption + _omitted(run, curves), svg)


def over_time(run: DryRun) -> Plot | None:
    """Waiting jobs, GPUs that they ask for, GPUs in use; None without samples."""
    series = {n: run.policies[n].series for n in chosen(run, 4) if len(run.policies[n].series.time) > 1}
    if not series:
        return None
    first = min(float(s.time[0]) for s in series.values())
    last = max(float(s.time[-1]) for s in series.values())
    if last <= first:
        return None
    edges = np.linspace(first, last, BINS + 1)
    days = (edges[:-1] + edges[1:] - 2 * first) / (2 * DAY)
    unit, days = ("days", days) if last - first > 3 * DAY else ("hours", days * 24)
    panels = (
        ("waiting jobs", "waiting_jobs"),
        ("GPUs they ask for", "waiting_gpus"),
        ("GPUs in use", "used_gpus"),
    )
    peaks = []
    with _figure(7.6, 6.4, 3) as (fig, axes):
        for ax, (label, field) in zip(axes, panels, strict=True):
            for n, s in series.items():
                values = binned(s, getattr(s, field), edges)
                ax.plot(days, values, **line_style(n, run.policies[n].realisable))
                if field == "waiting_jobs":
                    peaks.append(f"{n} {np.nanmax(values):.0f}")
            ax.set_ylabel(label)
            ax.set_ylim(bottom=0)
        if gpus := run.cluster.get("weighted_gpus", run.cluster["gpus"]):
            axes[2].axhline(gpus, color=INK, linewidth=0.8, linestyle=":")
        axes[0].legend(
            loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(4, len(series)), handlelength=2.6
        )
        axes[2].set_xlabel(f"{unit} since the first event")
        alt = "Queue length and GPUs in use over time. Most jobs waiting: " + "; ".join(peaks)
        svg = _svg(fig, "time", alt)
    caption = f"Means over {BINS} equal slices of time. The dotted line is the size of the cluster."
    return Plot("time", "Queue and GPU use over time", caption + _omitted(run, series), svg)


def _omitted(run: DryRun, shown: Iterable[str]) -> str:
    rest = [n for n in run.policies if n not in set(shown)]
    return f" Not drawn, to keep it readable: {', '.join(rest)}." if rest else ""
