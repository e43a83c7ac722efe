"""The waiting queue placed on a shadow of the cluster, best first, with requeues where they help. Pure.

Vectors over the queue; numba compiles them for the replay, as in shadow.py.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jit import njit
from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.preemption.room import make_room, sort_slots, undo
from tias_slurm.preemption.shadow import freeable, hopeless, keep_for, move, place
from tias_slurm.preemption.tables import Budget, Entries, Queue, Shadow, Slots

# waiting rows that are looked at together, and requests that are remembered to have failed
_CHUNK, _FAILURES = 4096, 256
# so many jobs fit and have not been started: Slurm is behind, and nobody after them has others requeued yet
_BEHIND = 1000


@njit
def _bar(s: Shadow, e: Entries, budget: Budget, spent_of: Ints) -> None:
    """Jobs of users with nothing left are no possible victims any more."""
    s.usable[:] = s.usable & (spent_of < budget.left_of)[budget.user]
    s.gain[:] = freeable(s.level, s.usable, e, s.gain.shape[1], s.gain.shape[2])


@njit
def _still(q: Queue, at: Ints, f: int) -> Ints:
    """Which places in the queue are not known not to fit, since the one at f does not.

    Those that ask for no less and stand no better are.
    """
    worse = (
        (q.partition[at] == q.partition[f])
        & (q.node_gpus[at] >= q.node_gpus[f])
        & (q.node_cpus[at] >= q.node_cpus[f])
        & (q.node_mem[at] >= q.node_mem[f])
        & (q.eff[at] >= q.eff[f])
    )
    if q.nodes[f] == 0:
        worse &= (q.nodes[at] == 0) & (q.gpus[at] >= q.gpus[f])
    else:
        worse &= q.nodes[at] >= q.nodes[f]
    left: Ints = at[~worse]
    return left


@njit
def _overtaken(s: Shadow, blocked: Ints, row: int, chosen: Ints) -> bool:
    """Whether jobs that go first but may not preempt would take the room; if not, they are placed now."""
    taken = np.empty(len(blocked), dtype=np.int64)
    start = np.zeros(len(blocked) + 1, dtype=np.int64)
    where = np.empty(len(blocked) * len(chosen), dtype=np.int64)
    placed = 0
    for b in blocked:
        got = place(s, b, chosen)
        if got > 0:
            taken[placed] = b
            where[start[placed] : start[placed] + got] = chosen[:got]
            start[placed + 1] = start[placed] + got
            placed += 1
            move(s, b, chosen[:got], -1)
    if place(s, row, chosen) > 0:
        return False
    for i in range(placed):
        move(s, taken[i], where[start[i] : start[i + 1]], 1)
    return True


@njit
def walk(
    s: Shadow, q: Queue, entries: Entries, loss: Floats, limit: int, budget: Budget, upto: int, must: Bools
) -> tuple[Ints, Ints, Bools, int]:
    """Place the first `upto` jobs of the queue, with requeues for at most `limit` of them.

    Ends early when one in `must`, shape (n,), does not start. Returns victims and for whom, shape (v,), who
    starts, shape (n,), and at how many jobs it had to look.
    """
    n, size = len(s.level), len(s.free_gpus)
    chosen = np.empty(size, dtype=np.int64)
    mine = np.empty(n, dtype=np.int64)
    victims = np.empty(n, dtype=np.int64)
    wanted_by = np.empty(n, dtype=np.int64)
    started = np.zeros(n, dtype=np.bool_)
    spent_of = np.zeros_like(budget.left_of)
    # on one node a victim costs all of its loss; in a gang a victim may make room on several
    share = loss / np.maximum(s.spread, 1)
    none = np.empty((0, 0), dtype=np.int64)
    by_loss = by_share = Slots(none, none, none, none)
    failed = np.empty(_FAILURES, dtype=np.int64)
    blocked = np.empty(_FAILURES, dtype=np.int64)
    total, preemptors, starts, failures, blocks, aside, at, looks = 0, 0, 0, 0, 0, False, 0, 0
    while at < upto:
        todo = np.arange(at, min(at + _CHUNK, upto))
        at += len(todo)
        for f in failed[:failures]:
            todo = _still(q, todo, f)
            if not len(todo):
                break
        i = 0
        while i < len(todo):
            p = todo[i]
            row = q.row[p]
            i += 1
            looks += 1
            got = place(s, row, chosen)
            able = got == 0 and preemptors < limit and not hopeless(s, row, q.eff[p])
            if able:
                if s.nodes[row] == 1:
                    if not len(by_loss.job):
                        by_loss = sort_slots(entries, loss, size)
                    taken = make_room(s, row, loss, by_loss, loss, budget, spent_of, mine)
                else:
                    if not len(by_share.job):
                        by_share = sort_slots(entries, share, size)
                    taken = make_room(s, row, loss, by_share, share, budget, spent_of, mine)
                if taken > 0:
                    within = total + taken <= budget.left
                    if within and not _overtaken(s, blocked[:blocks], row, chosen):
                        got = place(s, row, chosen)
                        victims[total : total + taken] = mine[:taken]
                        wanted_by[total : total + taken] = row
                        total += taken
                        preemptors += 1
                        users = budget.user[mine[:taken]]
                        if (spent_of[users] >= budget.left_of[users]).any():
                            _bar(s, entries, budget, spent_of)
                    else:
                        undo(s, mine[:taken], budget, spent_of)
            if got > 0:
                move(s, row, chosen[:got], -1)
                started[row] = True
                starts += 1
                if limit and starts - preemptors > _BEHIND:
                    return victims[:total], wanted_by[:total], started, looks
                if able:
                    if preemptors == limit or total >= budget.left or not s.usable.any():
                        return victims[:total], wanted_by[:total], started, looks
                    # what did not fit may fit beside what a victim leaves over
                    failures, at = 0, p + 1
                    break
                continue
            if must[row]:
                return victims[:total], wanted_by[:total], started, looks
            todo, i = _still(q, todo[i:], p), 0
            if failures < _FAILURES:
                failed[failures] = p
                failures += 1
            if (able or q.eff[p] == len(s.gain[0]) - 1) and blocks < _FAILURES:
                blocked[blocks] = row
                blocks += 1
            if q.front[p] and not aside:
                aside = keep_for(s, row, chosen)
    return victims[:total], wanted_by[:total], started, looks
