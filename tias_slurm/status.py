"""How the queue stands after a cycle, as counts, and the file in which the daemon leaves them."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tias_slurm import hands
from tias_slurm.errors import InputError
from tias_slurm.jobs import PENDING, Bools, Floats, Ints, RankInput, Snapshot
from tias_slurm.levers import HELD
from tias_slurm.policy.base import Ranking
from tias_slurm.policy.tias import CLASSES, Tias

FILE = "status.json"
VERSION = 1  # of the document
# a deadline with less than this chance is at risk (docs/policy.md)
AT_RISK = 0.5


def queues(policy: Tias, ranking: Ranking) -> Ints:
    """The queue of each job, -1 of hopeless and overdue ones. Shape (n,)."""
    kinds = policy.classes(ranking)
    queue = np.where(kinds == CLASSES.index("no deadline"), (ranking.level - 1) // 2, -1)
    if t := ranking.terms:
        queue[t["rows"]] = np.where(ranking.fallen[t["rows"]], -1, t["q_d"].astype(np.int64))
    return np.asarray(queue, dtype=np.int64)


def queue_summary(
    snapshot: Snapshot,
    known: RankInput,
    ranking: Ranking,
    policy: Tias,
    uncounted: Floats | None = None,
    survival: Floats | None = None,
) -> dict[str, Any]:
    """Counts only: nothing in it names a job, a user or an account.

    `uncounted`, (n,): deadlines that do not count for want of a quota, NaN: none; None: there are none. How
    these stand is counted as well: the policy is asked again. `survival`: as was ranked by.
    """
    waits = snapshot.jobs.state == PENDING
    gpus, weight, capacity = snapshot.jobs.gpus, snapshot.jobs.weight, known.capacity
    kinds, queue = policy.classes(ranking), queues(policy, ranking)
    cells = kinds * policy.levels + queue + 1  # one number for class and queue
    classes = [
        {
            "class": CLASSES[kind],
            "queue": q if q >= 0 else None,
            **_both(waits, snapshot, cells == cell),
        }
        for cell in np.flatnonzero(np.bincount(cells)).tolist()
        for kind, q in [(cell // policy.levels, cell % policy.levels - 1)]
    ]
    claims = np.zeros(len(waits), dtype=np.bool_)
    overdue, hopeless, risky = claims.copy(), claims.copy(), claims.copy()
    over = claims if uncounted is None else np.isfinite(uncounted)
    t = ranking.terms
    if uncounted is not None and survival is not None and over.any():
        counted = replace(known, deadline=np.where(over, uncounted, known.deadline))
        t = policy.rank(snapshot.now, counted, survival).terms
    if t:
        rows = t["rows"]
        claims[rows] = True
        overdue[rows], hopeless[rows] = t["overdue"], t["hopeless"]
        risky[rows] = t["M0"] < AT_RISK
    hopeless &= ~overdue
    risky &= ~overdue & ~hopeless
    slot_gpus = float(known.gpus[ranking.slot].sum())
    return {
        "time": snapshot.now,
        "jobs": len(waits),
        "waiting": int(waits.sum()),
        "running": int((~waits).sum()),
        "gpus_waiting": int(gpus[waits].sum()),
        "gpus_running": int(gpus[~waits].sum()),
        "weight_waiting": round(float(weight[waits].sum()), 6),
        "weight_running": round(float(weight[~waits].sum()), 6),
        "classes": classes,
        "deadlines": {
            "on_time": _both(waits, snapshot, claims & ~overdue & ~hopeless & ~risky),
            "at_risk": _both(waits, snapshot, risky),
            "impossible": _both(waits, snapshot, hopeless),
            "missed": _both(waits, snapshot, overdue),
        },
        "over_quota": _both(waits, snapshot, over),
        "slots": {
            "jobs": int(ranking.slot.sum()),
            "gpus": slot_gpus,
            "share": slot_gpus / capacity if capacity > 0 else None,
            "most": policy.settings.slot_share,
        },
        "front": _both(waits, snapshot, ranking.front),
        # by us: a job that somebody else holds is not writable
        "held": _both(waits, snapshot, snapshot.jobs.writable & (snapshot.jobs.lever == HELD)),
    }


def _both(waits: Bools, snapshot: Snapshot, which: Bools) -> dict[str, float]:
    return {
        "waiting": int((which & waits).sum()),
        "running": int((which & ~waits).sum()),
        "gpus": int(snapshot.jobs.gpus[which].sum()),
        "weight": round(float(snapshot.jobs.weight[which].sum()), 6),
    }


def written(writes: int, mode: str | None) -> str:
    """How many values a cycle wrote in that mode, or would have written."""
    return f"{writes} {'written' if mode == 'enforce' else 'would be written'}"


def lock_path(state_dir: str, host: str = "") -> str:
    """The lock of the daemon of a state directory; `host`: of that host's, where several share it."""
    return os.path.join(state_dir, f"lock.{host}" if host else "lock")


def path(state_dir: str, host: str = "") -> str:
    """What the daemon of a state directory leaves; `host`: as for `lock_path`."""
    return os.path.join(state_dir, f"status.{host}.json" if host else FILE)


def leave(state_dir: str, document: dict[str, Any], host: str = "") -> None:
    """Leave a document for `status`. Raises InputError."""
    text = json.dumps({"version": VERSION, **document}, ensure_ascii=True)
    hands.replace_file(path(state_dir, host), text + "\n")


def left(state_dir: str, host: str = "") -> dict[str, Any] | None:
    """What the daemon left last; None: nothing that this version can read."""
    document = hands.read_file(path(state_dir, host))
    return document if document and document.get("version") == VERSION else None


class Holder(NamedTuple):
    """Who holds the lock of a state directory."""

    running: bool
    pid: int | None  # as it noted it


def holder(state_dir: str, host: str = "") -> Holder:
    """Whether a daemon runs on this state directory. Raises InputError if the lock may not be looked at."""
    path = lock_path(state_dir, host)
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            try:
                # given back at once; who takes the lock in earnest tries more than once
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                word = file.read(20).strip()
                return Holder(True, int(word) if word.isdecimal() else None)
    except FileNotFoundError:
        return Holder(False, None)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; run as the account that owns the directory") from None
    return Holder(False, None)
