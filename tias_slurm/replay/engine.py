"""The clockwork of the virtual cluster: events in virtual time, and Slurm's main scheduler over the queue.

On every submit, end and requeue the waiting jobs are looked at in priority order; one that does not fit is
skipped. For the first one in front of all levels that does not fit, nodes are set aside: nobody behind it
starts there in that walk. Everything lives in the arrays of `State`, indexed by job number, so that the loops
compile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.placement import find_nodes, occupy, set_aside
from tias_slurm.replay.compiled import njit
from tias_slurm.replay.shards import could_cut, cut

FUTURE, WAITING, DELAYED, RUNNING, DONE = 0, 1, 2, 3, 4
# slots of State.counter
QUEUE, ARRIVED, HEAP, RELEASES, ACTIVE, ENDED, SAMPLED, WAIT_JOBS, CHANGES, ASIDE = range(10)
# slots of State.load
WAIT_GPUS, USED_GPUS = 0, 1


class State(NamedTuple):
    """n jobs, N nodes, P partitions. Jobs are numbered in the order of their arrival."""

    # requests, constant
    eligible: Floats
    work: Floats  # seconds; NaN: the job never starts (cancelled while waiting)
    leaves: Floats  # when such a job leaves
    gpus: Ints
    weight: Floats  # what all of its GPUs or shards count for; 0: no GPU job
    partition: Ints
    nodes: Ints  # 0: whole nodes
    node_gpus: Ints
    node_cpus: Ints
    node_mem: Ints
    node_shards: Ints  # shards of GPUs on each node
    shape: Ints  # equal for equal requests
    checkpoint: Floats  # seconds; 0: never saves itself
    user: Ints
    first: Ints  # held[first:] is the job's room
    tie: Ints
    # where each job stands
    status: Ints
    submit: Floats  # reset by a requeue
    base: Floats  # Slurm's priority without our lever
    lever: Floats
    run_start: Floats
    kept: Floats  # work saved by earlier runs
    restarts: Ints
    front: Bools  # stands in front of all levels
    nodes_held: Ints  # how many nodes it holds now
    held: Ints
    # outcome
    started: Floats  # start of the last run
    end: Floats
    executed: Floats
    lost: Floats  # seconds redone or spent on restarts
    # nodes
    free_gpus: Ints
    free_cpus: Ints
    free_mem: Ints
    total_gpus: Ints
    total_cpus: Ints
    total_mem: Ints
    used_shards: Ints  # (N,)
    total_shards: Ints  # (N,)
    shards_of_gpu: Ints  # (N,) 0: its GPUs are not cut
    member: Bools  # (P, N)
    aside: Bools  # (N,) kept for a job in front, of use while counter[ASIDE] > 0
    # the scheduler's own
    queue: Ints  # waiting jobs in priority order
    heap: Ints  # jobs with an event, earliest first
    when: Floats  # (n,) time of the job's event
    where: Ints  # (n,) its place in the heap, -1: none
    active: Ints  # jobs that wait or run, unordered
    place: Ints  # (n,) a job's place in `active`
    ended: Ints  # jobs that ended since the last look
    failed: Ints  # (shapes,) number of releases when the shape last failed to fit
    arrival_base: Floats  # (users,) base priority of a job submitted now
    sample_at: Floats
    samples: Floats  # (samples, 3): waiting jobs, waiting GPUs, used GPUs, these by weight
    counter: Ints
    load: Floats  # (2,) GPUs by weight
    costs: Floats  # restart seconds, requeue delay seconds


@njit
def _before(s: State, a: int, b: int) -> bool:
    return bool(s.when[a] < s.when[b] or (s.when[a] == s.when[b] and a < b))


@njit
def _sift(s: State, at: int) -> None:
    job = s.heap[at]
    while at > 0:
        parent = (at - 1) // 2
        if not _before(s, job, s.heap[parent]):
            break
        s.heap[at] = s.heap[parent]
        s.where[s.heap[at]] = at
        at = parent
    size = s.counter[HEAP]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _before(s, s.heap[child + 1], s.heap[child]):
            child += 1
        if not _before(s, s.heap[child], job):
            break
        s.heap[at] = s.heap[child]
        s.where[s.heap[at]] = at
        at = child
    s.heap[at] = job
    s.where[job] = at


@njit
def _schedule(s: State, job: int, time: float) -> None:
    """Set the one event that a job has: its end, the end of its delay, or its leaving."""
    s.when[job] = time
    if s.where[job] < 0:
        s.heap[s.counter[HEAP]] = job
        s.where[job] = s.counter[HEAP]
        s.counter[HEAP] += 1
    _sift(s, s.where[job])


@njit
def _pop(s: State) -> int:
    job = s.heap[0]
    s.where[job] = -1
    s.counter[HEAP] -= 1
    if s.counter[HEAP] > 0:
        s.heap[0] = s.heap[s.counter[HEAP]]
        s.where[s.heap[0]] = 0
        _sift(s, 0)
    return int(job)


@njit
def _enqueue(s: State, job: int) -> None:
    """Into the queue at its place: priority, then tie."""
    priority, tie = s.base[job] - s.lever[job], s.tie[job]
    low, high = 0, s.counter[QUEUE]
    while low < high:
        middle = (low + high) // 2
        other = s.queue[middle]
        p = s.base[other] - s.lever[other]
        if p > priority or (p == priority and s.tie[other] < tie):
            low = middle + 1
        else:
            high = middle
    for i in range(s.counter[QUEUE], low, -1):
        s.queue[i] = s.queue[i - 1]
    s.queue[low] = job
    s.counter[QUEUE] += 1
    s.status[job] = WAITING


@njit
def _count_waiting(s: State, job: int, sign: int) -> None:
    if s.weight[job] > 0.0:
        s.counter[WAIT_JOBS] += sign
        s.load[WAIT_GPUS] += sign * s.weight[job]


@njit
def _leave(s: State, job: int) -> None:
    """Out of the active jobs."""
    s.status[job] = DONE
    s.counter[ACTIVE] -= 1
    last = s.active[s.counter[ACTIVE]]
    s.active[s.place[job]] = last
    s.place[last] = s.place[job]
    s.counter[CHANGES] += 1


@njit
def _release(s: State, job: int, now: float) -> None:
    """A run is over: its nodes are free."""
    held = s.held[s.first[job] : s.first[job] + s.nodes_held[job]]
    occupy(
        s.free_gpus,
        s.free_cpus,
        s.free_mem,
        s.total_gpus,
        held,
        s.nodes[job],
        s.node_gpus[job],
        s.node_cpus[job],
        s.node_mem[job],
        1,
    )
    if s.node_shards[job] > 0:
        cut(s.used_shards, s.shards_of_gpu, s.free_gpus, held, -s.node_shards[job])
    s.nodes_held[job] = 0
    s.executed[job] += now - s.run_start[job]
    s.counter[RELEASES] += 1
    s.load[USED_GPUS] -= s.weight[job]


@njit
def _drop_from_queue(s: State, job: int) -> None:
    out = 0
    for i in range(s.counter[QUEUE]):
        if s.queue[i] != job:
            s.queue[out] = s.queue[i]
            out += 1
    s.counter[QUEUE] = out


@njit
def _start(s: State, job: int, now: float) -> bool:
    """Start a waiting job if it fits."""
    member = s.member[s.partition[job]]
    if s.counter[ASIDE] > 0:
        member = member & ~s.aside
    pieces = s.node_shards[job]
    if pieces > 0:
        member = member & could_cut(s.used_shards, s.total_shards, s.shards_of_gpu, s.free_gpus, pieces)
    got = find_nodes(
        s.free_gpus,
        s.free_cpus,
        s.free_mem,
        s.total_gpus,
        member,
        s.nodes[job],
        s.gpus[job],
        s.node_gpus[job],
        s.node_cpus[job],
        s.node_mem[job],
        s.held[s.first[job] :],
    )
    if got == 0:
        # nothing of this shape can fit until something is released
        s.failed[s.shape[job]] = s.counter[RELEASES]
        return False
    s.nodes_held[job] = got
    occupy(
        s.free_gpus,
        s.free_cpus,
        s.free_mem,
        s.total_gpus,
        s.held[s.first[job] : s.first[job] + got],
        s.nodes[job],
        s.node_gpus[job],
        s.node_cpus[job],
        s.node_mem[job],
        -1,
    )
    if pieces > 0:
        cut(s.used_shards, s.shards_of_gpu, s.free_gpus, s.held[s.first[job] : s.first[job] + got], pieces)
    s.status[job] = RUNNING
    s.run_start[job] = now
    s.started[job] = now
    restart = s.costs[0] if s.restarts[job] > 0 else 0.0
    _schedule(s, job, now + restart + s.work[job] - s.kept[job])
    _count_waiting(s, job, -1)
    s.load[USED_GPUS] += s.weight[job]
    return True


@njit
def _set_aside(s: State, job: int) -> None:
    """Keep nodes for a job in front that does not fit yet."""
    able = s.member[s.partition[job]] & (s.total_cpus >= s.node_cpus[job]) & (s.total_mem >= s.node_mem[job])
    if s.node_shards[job] > 0:
        able = able & (s.total_shards >= s.node_shards[job])
    out = s.held[s.first[job] :]
    count = set_aside(s.free_gpus, s.total_gpus, able, s.nodes[job], s.gpus[job], s.node_gpus[job], out)
    s.aside[:] = False
    for v in out[:count]:
        s.aside[v] = True
    s.counter[ASIDE] = count


@njit
def walk(s: State, now: float) -> None:
    """Slurm's main scheduler: start what fits, in priority order."""
    # most of a long queue is known not to fit: told here, since a call hands over the whole state
    queue, shape, failed, work, front = s.queue, s.shape, s.failed, s.work, s.front
    lever = s.lever
    releases = s.counter[RELEASES]
    out = 0
    s.counter[ASIDE] = 0
    for i in range(s.counter[QUEUE]):
        job = queue[i]
        if lever[job] == np.inf:  # held, like all that follow
            queue[out : out + s.counter[QUEUE] - i] = queue[i : s.counter[QUEUE]].copy()
            out += s.counter[QUEUE] - i
            break
        if failed[shape[job]] == releases or np.isnan(work[job]) or not _start(s, job, now):
            queue[out] = job
            out += 1
            if front[job] and s.counter[ASIDE] == 0 and not np.isnan(work[job]):
                _set_aside(s, job)
    s.counter[QUEUE] = out
    s.counter[ASIDE] = 0


@njit
def next_event(s: State) -> float:
    """Time of the next event; inf if none is left."""
    time = np.inf
    if s.counter[ARRIVED] < len(s.eligible):
        time = s.eligible[s.counter[ARRIVED]]
    if s.counter[HEAP] > 0:
        time = min(time, s.when[s.heap[0]])
    return float(time)


@njit
def sample(s: State, until: float) -> None:
    """Note queue and use at every sample time before `until`: what holds after all events of that time."""
    while s.counter[SAMPLED] < len(s.sample_at) and s.sample_at[s.counter[SAMPLED]] < until:
        row = s.samples[s.counter[SAMPLED]]
        row[0], row[1], row[2] = s.counter[WAIT_JOBS], s.load[WAIT_GPUS], s.load[USED_GPUS]
        s.counter[SAMPLED] += 1


@njit
def advance(s: State, until: float) -> float:
    """Carry out all events up to and including `until`; the time of the next one after it, inf if none.

    All events of an instant come before the queue is looked at.
    """
    while True:
        now = next_event(s)
        if not now <= until or now == np.inf:
            return now
        sample(s, now)
        while s.counter[HEAP] > 0 and s.when[s.heap[0]] <= now:
            job = _pop(s)
            if s.status[job] == RUNNING:
                _release(s, job, now)
                s.end[job] = now
                if s.restarts[job] > 0:
                    s.lost[job] += s.costs[0]
                s.ended[s.counter[ENDED]] = job
                s.counter[ENDED] += 1
                _leave(s, job)
            elif s.status[job] == DELAYED:
                _enqueue(s, job)
            else:
                _count_waiting(s, job, -1)
                _drop_from_queue(s, job)
                _leave(s, job)
        while s.counter[ARRIVED] < len(s.eligible) and s.eligible[s.counter[ARRIVED]] <= now:
            job = s.counter[ARRIVED]
            s.counter[ARRIVED] += 1
            if np.isnan(s.work[job]) and s.leaves[job] <= now:
                s.status[job] = DONE
                continue
            s.base[job] = s.arrival_base[s.user[job]]
            s.active[s.counter[ACTIVE]] = job
            s.place[job] = s.counter[ACTIVE]
            s.counter[ACTIVE] += 1
            s.counter[CHANGES] += 1
            _count_waiting(s, job, 1)
            _enqueue(s, job)
            if np.isnan(s.work[job]):
                _schedule(s, job, s.leaves[job])
        walk(s, now)


@njit
def requeue(s: State, job: int, now: float) -> None:
    """End a run; the job waits out the delay, then is eligible again. What was not saved is lost."""
    ran = now - s.run_start[job]
    _release(s, job, now)
    restart = s.costs[0] if s.restarts[job] > 0 else 0.0
    useful = max(ran - restart, 0.0)
    before = s.kept[job]
    saves = s.checkpoint[job]
    if saves > 0:
        s.kept[job] = before + np.floor(useful / saves) * saves
    else:
        s.kept[job] = 0.0
    s.lost[job] += ran - (s.kept[job] - before)
    s.restarts[job] += 1
    s.front[job] = False
    s.submit[job] = now
    s.status[job] = DELAYED
    _count_waiting(s, job, 1)
    _schedule(s, job, now + s.costs[1])
