"""A dry run as one JSON document. Its documented keys are an interface: add, never rename."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

import tias_slurm
from tias_slurm.replay.results import DryRun, PolicyResult
from tias_slurm.replay.wording import findings, never_fit, ranked, reference, unique

INTEGERS = ("deadline_jobs", "missed", "non_deadline_jobs", "requeues", "writes", "unfinished")
COUNTED = ("refused_by_reason", "left_out", "by_source")
POLICY_KEYS = (
    "deadline_jobs",
    "missed",
    "deadline_miss_rate",
    "deadline_miss_rate_gpu_weighted",
    "deadline_jct_mean_s",
    "non_deadline_jobs",
    "jct_mean_s",
    "jct_median_s",
    "jct_p95_s",
    "wait_mean_s",
    "gpu_utilisation",
    "requeues",
    "gpu_hours_lost",
    "writes",
    "unfinished",
)


def plain(value: Any) -> Any:
    """The value in JSON's own types: NaN and infinity are null, NumPy numbers plain, keys strings."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # A lone surrogate (an undecodable byte) is no JSON text that every reader takes.
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(v) for v in value), key=str)
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, PurePath):
        return str(value)
    return str(value)


def _whole(value: Any) -> int | None:
    number = plain(value)
    return None if number is None else int(number)


def _rest(record: Mapping[str, Any], taken: tuple[str, ...]) -> dict[str, Any]:
    """The keys of a record beyond the stable ones; breakdowns by reason sorted by count."""
    out = {}
    for key, value in record.items():
        if key in taken:
            continue
        out[str(key)] = plain(dict(ranked(value)) if key in COUNTED and value else value)
    return out


def _policy(name: str, p: PolicyResult) -> dict[str, Any]:
    measures = {k: _whole(p.metrics[k]) if k in INTEGERS else plain(p.metrics[k]) for k in POLICY_KEYS}
    measures["writes"] = _whole(p.writes) if measures["writes"] is None else measures["writes"]
    return {
        **measures,
        **_rest(p.metrics, POLICY_KEYS),
        "name": name,
        "title": p.title,
        "realisable": bool(p.realisable),
        "preemption": bool(p.preemption),
        "notes": [str(n) for n in p.notes],
    }


def to_document(run: DryRun) -> dict[str, Any]:
    """The run as a JSON object.

    Stable: input.{files,rows,jobs,refused}, deadlines.{found,refused,assumed}, cluster.{nodes,gpus,inferred},
    replayed_vs_recorded.{start_tau,start_error_median_s}, policies.NAME.* (POLICY_KEYS), elapsed_s. The other
    keys are for people and may grow. Durations in seconds, rates as fractions, null over nothing.
    Only `version` and `elapsed_s` differ between two runs of the same input.
    """
    i, d, c, r = run.input, run.deadlines, run.cluster, run.replayed_vs_recorded
    counts = ("files", "rows", "jobs", "refused")
    # `assumed` is a number of jobs or a plain yes or no: kept as it came.
    assumed = plain(d["assumed"])
    return {
        "version": tias_slurm.__version__,
        "input": {**{k: _whole(i[k]) for k in counts}, **_rest(i, counts)},
        "deadlines": {
            "found": _whole(d["found"]),
            "refused": _whole(d["refused"]),
            "assumed": assumed,
            **_rest(d, ("found", "refused", "assumed")),
        },
        "cluster": {
            "nodes": _whole(c["nodes"]),
            "gpus": _whole(c["gpus"]),
            "inferred": bool(c["inferred"]),
            **_rest(c, ("nodes", "gpus", "inferred")),
        },
        "replayed_vs_recorded": {
            "start_tau": plain(r.get("start_tau")),
            "start_error_median_s": plain(r.get("start_error_median_s")),
            **_rest(r, ("start_tau", "start_error_median_s")),
        },
        "policies": {name: _policy(name, p) for name, p in run.policies.items()},
        "never_fit": len(never_fit(run)),
        "compared_with": reference(run),
        "findings": findings(run),
        "notes": unique(run.notes),
        "settings": plain(run.settings),
        "refused_examples": [
            {"file": str(x.file), "line": int(x.line), "reason": x.reason, "detail": x.detail}
            for x in run.refused_examples
        ],
        "elapsed_s": plain(float(run.elapsed_s)),
    }


def dumps(doc: Mapping[str, Any]) -> str:
    """The document as text: keys in the document's order, ASCII, no NaN, a newline at the end."""
    return json.dumps(plain(doc), indent=2, ensure_ascii=True, allow_nan=False) + "\n"
