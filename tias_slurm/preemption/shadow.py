"""The waiting queue placed on a shadow of the cluster, with requeues where they help. Pure.

Vectors over nodes and over the queue in place of loops over single ones: fast without numba, and numba
compiles the same lines for the replay.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jit import njit
from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.placement import could_hold, enough, find_nodes, occupy, set_aside
from tias_slurm.preemption.tables import Budget, Entries, Queue, Shadow, Slots

# waiting rows that are looked at together, and requests that are remembered to have failed
_CHUNK, _FAILURES = 4096, 256
# so many jobs fit and have not been started: Slurm is behind, and nobody after them has others requeued yet
_BEHIND = 1000


@njit
def _place(s: Shadow, row: int, out: Ints) -> int:
    """Nodes that the job would get now; see placement.find_nodes."""
    return find_nodes(
        s.free_gpus,
        s.free_cpus,
        s.free_mem,
        s.total_gpus,
        s.member[s.partition[row]],
        s.nodes[row],
        s.gpus[row],
        s.node_gpus[row],
        s.node_cpus[row],
        s.node_mem[row],
        out,
    )


@njit
def _move(s: Shadow, row: int, held: Ints, sign: int) -> None:
    """Take or give back what the job has on the nodes in `held`."""
    occupy(
        s.free_gpus,
        s.free_cpus,
        s.free_mem,
        s.total_gpus,
        held,
        s.nodes[row],
        s.node_gpus[row],
        s.node_cpus[row],
        s.node_mem[row],
        sign,
    )


@njit
def requeue(s: Shadow, row: int, sign: int) -> None:
    """Requeue a running job (sign +1), or not after all (-1)."""
    s.usable[row] = sign < 0
    held = s.held[s.first[row] : s.first[row] + s.spread[row]]
    _move(s, row, held, sign)
    for v in held:
        s.gain[0, : s.level[row], v] -= sign * (s.total_gpus[v] if s.nodes[row] == 0 else s.node_gpus[row])
        s.gain[1, : s.level[row], v] -= sign * s.node_cpus[row]
        s.gain[2, : s.level[row], v] -= sign * s.node_mem[row]


@njit
def _without(s: Shadow, row: int, level: int) -> Bools:
    """Nodes with room for the job's share if every job beyond the level that may go were gone. Shape (N,)."""
    return could_hold(
        s.free_gpus + s.gain[0, level],
        s.free_cpus + s.gain[1, level],
        s.free_mem + s.gain[2, level],
        s.total_gpus,
        s.member[s.partition[row]],
        s.nodes[row],
        s.node_gpus[row],
        s.node_cpus[row],
        s.node_mem[row],
    )


@njit
def _hopeless(s: Shadow, row: int, eff: int) -> bool:
    """Whether the job would not fit even if every job beyond the level were gone."""
    able = _without(s, row, eff)
    return not enough(s.total_gpus, able, s.nodes[row], s.gpus[row])


@njit
def _slots(e: Entries, price: Floats, size: int) -> Slots:
    """The entries by node, cheapest first; ties by row."""
    by_price = np.argsort(price[e.job], kind="mergesort")
    by = by_price[np.argsort(e.node[by_price], kind="mergesort")]
    node = e.node[by]
    rank = np.arange(len(by)) - np.searchsorted(node, node)
    depth = rank.max() + 1
    at = rank * size + node
    job = np.full(depth * size, -1, dtype=np.int64)
    gpus, cpus, mem = np.zeros_like(job), np.zeros_like(job), np.zeros_like(job)
    job[at], gpus[at], cpus[at], mem[at] = e.job[by], e.gpus[by], e.cpus[by], e.mem[by]
    shape = (depth, size)
    return Slots(job.reshape(shape), gpus.reshape(shape), cpus.reshape(shape), mem.reshape(shape))


@njit
def _choose(
    s: Shadow, row: int, nodes: Ints, slots: Slots, price: Floats, budget: Budget, spent_of: Ints
) -> tuple[Bools, Floats]:
    """Whom the job needs gone from each of the nodes, (K, m), and what that costs, (m,); inf: no way.

    The cheapest one after another until the share fits, of each user as many as his budget leaves; a later
    one can make an earlier one needless, so that they are given back from the costliest down.
    """
    limited = _limited(budget, len(s.level))
    want = s.total_gpus[nodes] if s.nodes[row] == 0 else np.full(len(nodes), s.node_gpus[row])
    gpus = want - s.free_gpus[nodes]
    cpus = s.node_cpus[row] - s.free_cpus[nodes]
    mem = s.node_mem[row] - s.free_mem[nodes]
    depth = len(slots.job)
    take = np.zeros((depth, len(nodes)), dtype=np.bool_)
    cost = np.zeros(len(nodes))
    for k in range(depth):
        short = (gpus > 0) | (cpus > 0) | (mem > 0)
        if not short.any():
            break
        job = slots.job[k][nodes]
        # -1 looks at the last job, which is of no account
        mine = short & (job >= 0) & s.usable[job] & (s.level[job] > s.level[row])
        if limited:
            user = budget.user[job]
            of_his = spent_of[user]
            for i in range(k):
                of_his = of_his + (take[i] & (budget.user[slots.job[i][nodes]] == user))
            mine = mine & (of_his < budget.left_of[user])
        take[k] = mine
        gpus = gpus - mine * slots.gpus[k][nodes]
        cpus = cpus - mine * slots.cpus[k][nodes]
        mem = mem - mine * slots.mem[k][nodes]
    short = (gpus > 0) | (cpus > 0) | (mem > 0)
    for k in range(depth - 1, -1, -1):
        if not take[k].any():
            continue
        g, c, m = slots.gpus[k][nodes], slots.cpus[k][nodes], slots.mem[k][nodes]
        back = take[k] & (gpus + g <= 0) & (cpus + c <= 0) & (mem + m <= 0)
        gpus, cpus, mem = gpus + back * g, cpus + back * c, mem + back * m
        take[k] = take[k] & ~back
    for k in range(depth):
        if take[k].any():
            cost = cost + np.where(take[k], price[slots.job[k][nodes]], 0.0)
    return take, np.where(short, np.inf, cost)


@njit
def _limited(budget: Budget, n: int) -> bool:
    """Whether the budgets of users can matter to n jobs."""
    return bool(budget.left_of.min() < n)


@njit
def _give_back(s: Shadow, row: int, loss: Floats, mine: Ints, budget: Budget, spent_of: Ints) -> int:
    """Of the victims `mine` keep those without whom the row would not fit; their number.

    A victim on several nodes frees more than the one node that it was chosen for.
    """
    keep = np.ones(len(mine), dtype=np.bool_)
    fits = _without(s, row, len(s.gain[0]) - 1)  # nobody is beyond the last level
    whole = s.nodes[row] == 0
    spare = (s.total_gpus[fits].sum() - s.gpus[row]) if whole else (fits.sum() - s.nodes[row])
    for i in np.argsort(-loss[mine], kind="mergesort"):
        j = mine[i]
        cost = 0
        held = s.held[s.first[j] : s.first[j] + s.spread[j]]
        for v in held:
            if fits[v] and not _fits_beside(s, row, j, v):
                cost += s.total_gpus[v] if whole else 1
        if cost <= spare:
            for v in held:
                fits[v] = fits[v] and _fits_beside(s, row, j, v)
            requeue(s, j, -1)
            spent_of[budget.user[j]] -= 1
            spare -= cost
            keep[i] = False
    kept = mine[keep]
    mine[: len(kept)] = kept
    return len(kept)


@njit
def _fits_beside(s: Shadow, row: int, j: int, v: int) -> bool:
    """Whether the row's share still fits node v when job j is back there."""
    taken = s.total_gpus[v] if s.nodes[j] == 0 else s.node_gpus[j]
    want = s.total_gpus[v] if s.nodes[row] == 0 else s.node_gpus[row]
    return bool(
        s.free_gpus[v] - taken >= want
        and s.free_cpus[v] - s.node_cpus[j] >= s.node_cpus[row]
        and s.free_mem[v] - s.node_mem[j] >= s.node_mem[row]
    )


@njit
def _make_room(
    s: Shadow,
    row: int,
    loss: Floats,
    slots: Slots,
    price: Floats,
    budget: Budget,
    spent_of: Ints,
    victims: Ints,
) -> int:
    """Requeue in the shadow what lets the row fit, and write them to `victims`; their number, 0: no way.

    Counts them in `spent_of`. That users' budgets leave a way is not certain before it is tried.
    """
    able = np.flatnonzero(_without(s, row, s.level[row]))
    take, cost = _choose(s, row, able, slots, price, budget, spent_of)
    limited = _limited(budget, len(s.level))
    have, used, taken, moved, fits = 0, 0, 0, False, False
    for i in np.argsort(cost, kind="mergesort"):
        if cost[i] == np.inf:
            break
        v = able[i]
        column = take[:, i]
        if moved or (limited and taken > 0):
            # a victim on several nodes has freed part of this one, or his user's budget is used up
            now, costs = _choose(s, row, able[i : i + 1], slots, price, budget, spent_of)
            if costs[0] == np.inf:
                continue
            column = now[:, 0]
        have += s.total_gpus[v]
        used += 1
        for j in slots.job[:, v][column]:
            victims[taken] = j
            taken += 1
            spent_of[budget.user[j]] += 1
            moved = moved or s.spread[j] > 1
            requeue(s, j, 1)
        fits = (have >= s.gpus[row]) if s.nodes[row] == 0 else (used == s.nodes[row])
        if fits:
            break
    if not fits:
        _undo(s, victims[:taken], budget, spent_of)
        return 0
    if taken > 1:
        taken = _give_back(s, row, loss, victims[:taken], budget, spent_of)
    return taken


@njit
def _undo(s: Shadow, victims: Ints, budget: Budget, spent_of: Ints) -> None:
    """Nobody is requeued after all."""
    for j in victims:
        requeue(s, j, -1)
        spent_of[budget.user[j]] -= 1


@njit
def freeable(level: Ints, usable: Bools, e: Entries, levels: int, size: int) -> Ints:
    """What jobs beyond each level may be made to free on each node: GPUs, CPUs, memory. (3, levels, N)."""
    gain = np.zeros((3, levels, size), dtype=np.int64)
    where = level[e.job] * size + e.node
    for kind, amount in enumerate((e.gpus, e.cpus, e.mem)):
        mine = (amount * usable[e.job]).astype(np.float64)
        held = np.bincount(where, weights=mine, minlength=levels * size)
        by_level = held.astype(np.int64).reshape((levels, size))
        for beyond in range(levels - 2, -1, -1):
            gain[kind, beyond] = gain[kind, beyond + 1] + by_level[beyond + 1]
    return gain


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
def _keep_for(s: Shadow, row: int, out: Ints) -> bool:
    """Set nodes aside for a job in front."""
    able = s.member[s.partition[row]] & (s.total_cpus >= s.node_cpus[row]) & (s.total_mem >= s.node_mem[row])
    got = set_aside(s.free_gpus, s.total_gpus, able, s.nodes[row], s.gpus[row], s.node_gpus[row], out)
    for v in out[:got]:
        s.member[:, v] = False
    return got > 0


@njit
def _overtaken(s: Shadow, blocked: Ints, row: int, chosen: Ints) -> bool:
    """Whether jobs that go first but may not preempt would take the room; if not, they are placed now."""
    taken = np.empty(len(blocked), dtype=np.int64)
    start = np.zeros(len(blocked) + 1, dtype=np.int64)
    where = np.empty(len(blocked) * len(chosen), dtype=np.int64)
    placed = 0
    for b in blocked:
        got = _place(s, b, chosen)
        if got > 0:
            taken[placed] = b
            where[start[placed] : start[placed] + got] = chosen[:got]
            start[placed + 1] = start[placed] + got
            placed += 1
            _move(s, b, chosen[:got], -1)
    if _place(s, row, chosen) > 0:
        return False
    for i in range(placed):
        _move(s, taken[i], where[start[i] : start[i + 1]], 1)
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
            got = _place(s, row, chosen)
            able = got == 0 and preemptors < limit and not _hopeless(s, row, q.eff[p])
            if able:
                if s.nodes[row] == 1:
                    if not len(by_loss.job):
                        by_loss = _slots(entries, loss, size)
                    taken = _make_room(s, row, loss, by_loss, loss, budget, spent_of, mine)
                else:
                    if not len(by_share.job):
                        by_share = _slots(entries, share, size)
                    taken = _make_room(s, row, loss, by_share, share, budget, spent_of, mine)
                if taken > 0:
                    within = total + taken <= budget.left
                    if within and not _overtaken(s, blocked[:blocks], row, chosen):
                        got = _place(s, row, chosen)
                        victims[total : total + taken] = mine[:taken]
                        wanted_by[total : total + taken] = row
                        total += taken
                        preemptors += 1
                        users = budget.user[mine[:taken]]
                        if (spent_of[users] >= budget.left_of[users]).any():
                            _bar(s, entries, budget, spent_of)
                    else:
                        _undo(s, mine[:taken], budget, spent_of)
            if got > 0:
                _move(s, row, chosen[:got], -1)
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
                aside = _keep_for(s, row, chosen)
    return victims[:total], wanted_by[:total], started, looks
