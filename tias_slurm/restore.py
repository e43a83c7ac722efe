"""Undo: put back every value that we changed and that is still ours, live or after a crash."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from tias_slurm.jobs import ACTIVE_STATES, Floats
from tias_slurm.ledger.store import Entry, SqliteStore
from tias_slurm.ledger.table import BEFORE, FOUND, NICE, SET, SUBMIT
from tias_slurm.levers import HELD
from tias_slurm.slurm.live import Adapter, Field, RawTable, WriteResult, by_admin
from tias_slurm.slurm.live_values import explicit


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of one job: "restored", or why not."""

    job_id: int
    old: int
    new: int
    outcome: str
    message: str = ""

    @property
    def done(self) -> bool:
        """Whether nothing of ours is left on the job that another try could put back."""
        return self.outcome in ("restored", "gone") or "left alone" in self.outcome


def restore(
    adapter: Adapter, store: SqliteStore, field: Field, states: tuple[str, ...] | None = None
) -> list[Restored]:
    """Put back the values of the ledger's jobs, one after another: of waiting ones first, so that nobody who
    runs is preempted by them. `states`: only of jobs in these; None: of all.

    A job is left alone, and said to be, if its value is no longer ours (a person changed it), if its id now
    belongs to another job, or if Slurm refuses. Tasks that were split off an array since the last cycle get
    the value of the record that they came from. When nothing of ours is left the ledger is free for another
    lever. Raises AdapterError if the controller does not answer.
    """
    ids, table, _ = store.load()
    raw = adapter.jobs()
    now = _values(adapter, raw, field)
    known = {int(job): i for i, job in enumerate(ids.tolist())}
    results: list[Restored] = []
    undone: list[int] = []
    wanted = ACTIVE_STATES if states is None else states
    for r in sorted(range(len(raw)), key=lambda r: raw.state[r] != "PENDING"):
        job = int(raw.job_id[r])
        if raw.state[r] not in wanted:
            continue
        at = known.get(job, known.get(int(raw.array_id[r])))
        if at is None or np.isnan(table[at, SET]):
            continue
        want = float(table[at, FOUND])
        # a site factor that is not shown now can only be ours, as far as we know
        old = float(table[at, SET] if np.isnan(now[r]) else now[r])
        same_job = job != ids[at] or table[at, SUBMIT] == raw.submit[r] or raw.restarts[r] > 0
        if not same_job:
            results.append(Restored(job, int(old), int(old), "another job has the id: left alone"))
            continue
        if old == HELD and not (
            by_admin(int(raw.priority[r]), raw.reason[r]) and HELD in (table[at, SET], table[at, BEFORE])
        ):
            old = 0.0  # a person's hold, which stays: it took our priority away
        if old == want:
            # nothing of ours, but where an explicit priority was and is gone, the user's nice went with it
            nice = int(table[at, NICE])
            done = (
                adapter.write(job, "nice", nice) if field == "priority" and raw.nice[r] == 0 != nice else None
            )
            if done is not None:
                results.append(Restored(job, 0, nice, _outcome(done), done.message))
            if (done is None or done.result in ("ok", "gone")) and known.get(job) == at:
                undone.append(at)
            continue
        if old not in (table[at, SET], table[at, BEFORE]):
            results.append(Restored(job, int(old), int(old), "changed by somebody else: left alone"))
            continue
        result, new = _undo(adapter, job, field, old, want, float(table[at, NICE]))
        results.append(Restored(job, int(old), int(new), _outcome(result), result.message))
        if result.result in ("ok", "gone") and known.get(job) == at:
            undone.append(at)
    store.record(
        [Entry(raw.time, x.job_id, "restore", x.old, x.new, "restore", x.outcome, x.message) for x in results]
    )
    # a controller that has just begun may show no jobs at all
    ours = bool(np.isfinite(table[:, SET]).any())
    if states is None and (len(raw) or not ours) and all(x.done for x in results):
        store.disown()
    elif undone:
        rows = np.array(sorted(set(undone)), dtype=np.int64)
        table[rows, SET] = table[rows, BEFORE] = np.nan
        store.save(ids[rows], table[rows], np.empty(0, dtype=np.int64), None)
    return results


def _outcome(result: WriteResult) -> str:
    return "restored" if result.result == "ok" else result.result


def _values(adapter: Adapter, raw: RawTable, field: Field) -> Floats:
    if field == "nice":
        return raw.nice.astype(np.float64)
    if field == "priority":
        multifactor = adapter.facts().priority_type == "priority/multifactor"
        return explicit(raw, adapter.pinned() if multifactor else None, 1.0)
    factors = adapter.site_factors()
    # under an explicit priority it is still there, but shown as 0
    factors = {job: factors[job] for job, pinned in adapter.pinned().items() if job in factors and not pinned}
    return np.array([factors.get(j, np.nan) for j in raw.job_id.tolist()], dtype=np.float64)


def _undo(
    adapter: Adapter, job: int, field: Field, old: float, want: float, nice: float
) -> tuple[WriteResult, float]:
    """A hold is released, an explicit priority is unpinned; either may have cost the user's own nice."""
    if field != "priority":
        return adapter.write(job, field, int(want)), want
    result = adapter.release(job) if old == HELD else adapter.unpin(job)
    if result.result == "ok" and nice:
        result = adapter.write(job, "nice", int(nice))
    return result, nice


def summary(results: list[Restored]) -> Counter[str]:
    """Outcomes with their counts."""
    return Counter(r.outcome for r in results)
