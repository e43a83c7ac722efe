"""Four policies as textbooks define them, on one pool of GPUs that are only counted.

`fifo-strict` (the head of the line blocks), `fifo-fit` (what does not fit is skipped), `srtf` and `srsf`
(preemptive: shortest remaining time first, shortest remaining time x GPUs first). Decisions fall at every
submit and end, without cost or delay. All events of an instant are taken before the queue is looked at; a
job without work that starts there also ends there, and the queue is looked at again. Ties go by submit,
then by input order.

Under srtf and srsf all unfinished jobs, running or not, are put in order at each instant and take GPUs in
that order if they still fit; a running job has no other advantage. Between two instants this choice stays
valid: a running job only moves up, and a waiting one that did not fit before cannot fit behind more jobs.

Times are taken relative to the first submit, so whole seconds are exact.
"""

from __future__ import annotations

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.replay.compiled import njit

POLICIES = ("fifo-strict", "fifo-fit", "srtf", "srsf")


def run_textbook(
    policy: str, submit: Floats, work: Floats, gpus: Ints, capacity: int
) -> tuple[Floats, Floats, Ints]:
    """Schedule of one of POLICIES; shapes (n,) in input order: first start, end, preemptions.

    submit, work: seconds; gpus and capacity: GPUs. A job with more GPUs than the capacity never starts: both
    its times are NaN, and it blocks nobody. A job is preempted each time that it loses its GPUs, even if it
    gets them back in the same instant. Raises ValueError for an unknown policy, arrays of different
    lengths, a time that is not finite, negative work or negative GPUs.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown textbook policy {policy!r}: one of {', '.join(POLICIES)}")
    submit = np.asarray(submit, dtype=np.float64)
    work = np.asarray(work, dtype=np.float64)
    gpus = np.asarray(gpus, dtype=np.int64)
    if not len(submit) == len(work) == len(gpus):
        raise ValueError("submit, work and gpus differ in length")
    if not (np.isfinite(submit).all() and np.isfinite(work).all()):
        raise ValueError("submit and work must be finite")
    if (work < 0).any() or (gpus < 0).any():
        raise ValueError("work and gpus must not be negative")

    first = np.full(len(submit), np.nan)
    end = np.full(len(submit), np.nan)
    preempted = np.zeros(len(submit), dtype=np.int64)
    # from here on rows are in queue order, so that a smaller row number wins a tie
    order = np.argsort(submit, kind="stable")
    order = order[gpus[order] <= capacity]
    if len(order) == 0:
        return first, end, preempted
    origin = submit[order[0]]
    s, w, g = submit[order] - origin, work[order], gpus[order]
    if policy == "fifo-strict":
        start = _fifo_strict(s, w, g, capacity)
        first[order], end[order] = origin + start, origin + (start + w)
    elif policy == "fifo-fit":
        start = _fifo_fit(s, w, g, capacity, *_by_size(g))
        first[order], end[order] = origin + start, origin + (start + w)
    else:
        weight = g.astype(np.float64) if policy == "srsf" else np.ones(len(g))
        a, b, c = _shortest_first(s, w, g, weight, capacity, *_by_size(g))
        first[order], end[order], preempted[order] = origin + a, origin + b, c
    return first, end, preempted


def _by_size(gpus: Ints) -> tuple[Ints, Ints, Ints]:
    """The distinct sizes (k,) ascending, the size index of each row (n,), where each size begins (k + 1,)."""
    sizes, index, counts = np.unique(gpus, return_inverse=True, return_counts=True)
    begin = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(counts, out=begin[1:])
    return sizes, index.astype(np.int64), begin


# A binary heap of row numbers in heap[lo : lo + n], least (key, row) on top.


@njit
def _push(heap: Ints, lo: int, n: int, row: int, key: Floats) -> None:
    child = n
    while child > 0:
        parent = (child - 1) // 2
        other = heap[lo + parent]
        if key[other] < key[row] or (key[other] == key[row] and other < row):
            break
        heap[lo + child] = other
        child = parent
    heap[lo + child] = row


@njit
def _drop_top(heap: Ints, lo: int, n: int, key: Floats) -> None:
    """Remove the top of a heap of n rows."""
    row = heap[lo + n - 1]
    parent = 0
    while 2 * parent + 1 < n - 1:
        child = 2 * parent + 1
        a = heap[lo + child]
        if child + 1 < n - 1:
            b = heap[lo + child + 1]
            if key[b] < key[a] or (key[b] == key[a] and b < a):
                child, a = child + 1, b
        if key[row] < key[a] or (key[row] == key[a] and row < a):
            break
        heap[lo + parent] = a
        parent = child
    heap[lo + parent] = row


@njit
def _fifo_strict(submit: Floats, work: Floats, gpus: Ints, capacity: int) -> Floats:
    """Starts follow the queue's order, so each job waits for the job before it and then for GPUs."""
    n = len(submit)
    start, end = np.zeros(n), np.zeros(n)
    heap = np.zeros(n, dtype=np.int64)
    running, free, now = 0, capacity, 0.0
    for row in range(n):
        now = max(now, submit[row])
        while running > 0 and (end[heap[0]] <= now or free < gpus[row]):
            now = max(now, end[heap[0]])
            free += gpus[heap[0]]
            _drop_top(heap, 0, running, end)
            running -= 1
        start[row], end[row] = now, now + work[row]
        free -= gpus[row]
        _push(heap, 0, running, row, end)
        running += 1
    return start


@njit
def _fifo_fit(
    submit: Floats, work: Floats, gpus: Ints, capacity: int, sizes: Ints, size_of: Ints, begin: Ints
) -> Floats:
    """One first-in first-out line for each size; of the lines whose size fits, the oldest head starts."""
    n, k = len(submit), len(sizes)
    start, end = np.zeros(n), np.zeros(n)
    heap = np.zeros(n, dtype=np.int64)
    line = np.zeros(n, dtype=np.int64)
    head, tail = begin[:-1].copy(), begin[:-1].copy()
    running, free, arrived, started = 0, capacity, 0, 0
    while started < n:
        now = np.inf
        if arrived < n:
            now = submit[arrived]
        if running > 0:
            now = min(now, end[heap[0]])
        while running > 0 and end[heap[0]] <= now:
            free += gpus[heap[0]]
            _drop_top(heap, 0, running, end)
            running -= 1
        while arrived < n and submit[arrived] <= now:
            size = size_of[arrived]
            line[tail[size]] = arrived
            tail[size] += 1
            arrived += 1
        while True:
            best = n
            for i in range(k):
                if sizes[i] > free:
                    break
                if head[i] < tail[i]:
                    best = min(best, line[head[i]])
            if best == n:
                break
            head[size_of[best]] += 1
            start[best], end[best] = now, now + work[best]
            free -= gpus[best]
            _push(heap, 0, running, best, end)
            running += 1
            started += 1
    return start


@njit
def _sort_running(running: Ints, n: int, key: Floats) -> None:
    """Insertion sort by (key, row): the order hardly changes from one instant to the next."""
    for i in range(1, n):
        row = running[i]
        j = i
        while j > 0:
            other = running[j - 1]
            if key[other] < key[row] or (key[other] == key[row] and other < row):
                break
            running[j] = other
            j -= 1
        running[j] = row


@njit
def _shortest_first(
    submit: Floats,
    work: Floats,
    gpus: Ints,
    weight: Floats,
    capacity: int,
    sizes: Ints,
    size_of: Ints,
    begin: Ints,
) -> tuple[Floats, Floats, Ints]:
    """Least remaining time x weight first: running jobs merged with a heap of waiting jobs a size."""
    n, k = len(submit), len(sizes)
    first, end = np.full(n, np.nan), np.full(n, np.nan)
    preempted = np.zeros(n, dtype=np.int64)
    left = work.copy()
    key = work * weight
    heaps = np.zeros(n, dtype=np.int64)
    waiting = np.zeros(k, dtype=np.int64)
    running, chosen = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    evicted: Bools = np.zeros(n, dtype=np.bool_)
    on, arrived, ended, now = 0, 0, 0, 0.0
    while ended < n:
        step = np.inf
        for i in range(on):
            step = min(step, left[running[i]])
        then = now + step
        if arrived < n and submit[arrived] <= then:
            then = submit[arrived]
            step = then - now
        now = then
        kept = 0
        for i in range(on):
            row = running[i]
            left[row] -= step
            if left[row] <= 0.0:
                end[row] = now
                ended += 1
            else:
                key[row] = left[row] * weight[row]
                running[kept] = row
                kept += 1
        on = kept
        while arrived < n and submit[arrived] <= now:
            size = size_of[arrived]
            _push(heaps, begin[size], waiting[size], arrived, key)
            waiting[size] += 1
            arrived += 1

        _sort_running(running, on, key)
        free, taken, i = capacity, 0, 0
        while True:
            while i < on and gpus[running[i]] > free:
                evicted[i] = True
                i += 1
            best = running[i] if i < on else -1
            from_line = -1
            for size in range(k):
                if sizes[size] > free:
                    break
                if waiting[size] > 0:
                    row = heaps[begin[size]]
                    if best < 0 or key[row] < key[best] or (key[row] == key[best] and row < best):
                        best, from_line = row, size
            if best < 0:
                break
            if from_line >= 0:
                _drop_top(heaps, begin[from_line], waiting[from_line], key)
                waiting[from_line] -= 1
                if np.isnan(first[best]):
                    first[best] = now
            else:
                i += 1
            free -= gpus[best]
            chosen[taken] = best
            taken += 1
        for j in range(on):
            if evicted[j]:
                evicted[j] = False
                row = running[j]
                preempted[row] += 1
                _push(heaps, begin[size_of[row]], waiting[size_of[row]], row, key)
                waiting[size_of[row]] += 1
        for j in range(taken):
            running[j] = chosen[j]
        on = taken
    return first, end, preempted
