"""Results of bench/evaluation.py as Markdown: one table for each trace, kind of deadlines and consent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]
BLIND = ("fifo", "multifactor", "edf")
NOTE = {1.0: "all jobs may be requeued", 0.5: "half of the jobs may be requeued", 0.0: "nobody is requeued"}


def sections(rows: Sequence[Row]) -> Iterator[str]:
    """The tables, and a summary over the traces before them."""
    yield "### Means over traces, kinds of deadlines and seeds\n"
    for consent in _values(rows, "consent", reverse=True):
        part = _with(rows, consent=consent, blind=True)
        over = ", ".join(_values([r for r in part if r["policy"] == "las"], "trace"))
        yield f"Consent {consent:.0%}: {NOTE.get(consent, '')}; over {over}.\n"
        yield _table(part, summary=True) + "\n"
    for trace in _values(rows, "trace"):
        for deadlines in _values(_with(rows, trace=trace), "deadlines"):
            part = _with(rows, trace=trace, deadlines=deadlines)
            nodes = {r["load"]: r["nodes"] for r in part}
            sizes = ", ".join(f"{n} nodes at load {load:g}" for load, n in sorted(nodes.items()))
            seeds = len({r["seed"] for r in part})
            impossible = np.mean([r["impossible"] / max(r["impossible"] + r["claims"], 1) for r in part])
            yield f"### {trace}, {'its own' if deadlines == 'own' else deadlines} deadlines\n"
            yield (
                f"{part[0]['jobs']:,} jobs; {sizes}; "
                f"{seeds} seed{'s' if seeds > 1 else ''}; {impossible:.1%} of the deadlines lie nearer than "
                "the job runs, and count in no rate.\n"
            )
            for consent in _values(part, "consent", reverse=True):
                yield f"Consent {consent:.0%}: {NOTE.get(consent, '')}.\n"
                yield _table(_with(part, consent=consent, blind=True), summary=False) + "\n"


def _values(rows: Sequence[Row], key: str, *, reverse: bool = False) -> list[Any]:
    return sorted({r[key] for r in rows}, reverse=reverse)


def _with(rows: Sequence[Row], *, blind: bool = False, **wanted: Any) -> list[Row]:
    """Rows with these values; `blind`: policies that never requeue belong to every consent."""
    return [
        r
        for r in rows
        if all(r[k] == v or (k == "consent" and blind and r["policy"] in BLIND) for k, v in wanted.items())
    ]


def _group(row: Row) -> tuple[Any, ...]:
    return row["trace"], row["load"], row["deadlines"], row["seed"]


def _table(rows: Sequence[Row], *, summary: bool) -> str:
    """Policies down, loads across: miss %, by GPU-hours %, JCT of the others and of themselves x las."""
    las = {_group(r): r for r in rows if r["policy"] == "las"}
    rows = [r for r in rows if _group(r) in las]  # a run that was stopped lacks some
    loads = _values(rows, "load")
    head = "| policy |" + "".join(
        f" {load:g}: miss % | GPU-h miss % | JCT x las | deadline JCT x las | requeues a job "
        "| GPU time lost % |"
        for load in loads
    )
    lines = [head, "|---" * (1 + 6 * len(loads)) + "|"]
    for policy in dict.fromkeys(r["policy"] for r in rows):
        cells = []
        for load in loads:
            here = [r for r in rows if r["policy"] == policy and r["load"] == load]
            if summary:
                # every trace weighs the same, and inside it every kind of deadlines
                kinds = sorted({(r["trace"], r["deadlines"]) for r in here})
                parts = [[r for r in here if (r["trace"], r["deadlines"]) == k] for k in kinds]
            else:
                parts = [here]
            miss, gpu, jct, own, requeues, lost = (
                [float(np.mean([value(r) for r in part])) for part in parts]
                for value in (
                    lambda r: 100 * r["miss"],
                    lambda r: 100 * r["miss_gpu"],
                    lambda r: r["jct"] / las[_group(r)]["jct"],
                    lambda r: r["deadline_jct"] / las[_group(r)]["deadline_jct"],
                    lambda r: r["requeues"],
                    lambda r: 100 * r["lost"],
                )
            )
            spread = ""
            if len(here) > 1 and not summary:
                values = [100 * r["miss"] for r in here]
                spread = f" ({min(values):.2f}–{max(values):.2f})"
            cells.append(
                f" {np.mean(miss):.2f}{spread} | {np.mean(gpu):.1f} | {np.mean(jct):.2f} "
                f"| {np.mean(own):.2f} | {np.mean(requeues):.2f} | {np.mean(lost):.2f} |"
            )
        mark = " †" if policy.startswith("oracle") else ""
        lines.append(f"| {policy}{mark} |" + "".join(cells))
    return "\n".join(lines)
