"""Laws that every schedule must keep, whoever made it: checks to call from tests.

A run is one stay of a job on its nodes. Checks raise AssertionError with the first offence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Stay:
    """A job holds `takes` of each resource on each node from start until end (seconds)."""

    job: object
    start: float
    end: float
    takes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # node -> resource -> amount


def check_capacity(stays: Iterable[Stay], nodes: Mapping[str, Mapping[str, int]]) -> None:
    """No resource of any node is given out twice. What ends at an instant is free at it."""
    changes: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for stay in stays:
        assert stay.end >= stay.start, f"job {stay.job} ends before it starts"
        for node, amounts in stay.takes.items():
            assert node in nodes, f"job {stay.job} runs on {node}, which is no node"
            for resource, amount in amounts.items():
                assert amount >= 0
                if stay.end > stay.start:
                    changes[node, resource] += [(stay.start, amount), (stay.end, -amount)]
    for (node, resource), events in changes.items():
        used = 0
        for time, amount in sorted(events):  # at equal times what is given back comes first
            used += amount
            assert used <= nodes[node].get(resource, 0), f"{used} {resource} in use on {node} at {time}"
        assert used == 0


def check_one_at_a_time(stays: Iterable[Stay]) -> None:
    """A job is nowhere twice at the same time."""
    until: dict[object, float] = {}
    for stay in sorted(stays, key=lambda s: (s.start, s.end)):
        assert stay.start >= until.get(stay.job, stay.start), f"job {stay.job} runs twice at {stay.start}"
        until[stay.job] = stay.end


def check_not_before(stays: Iterable[Stay], eligible: Mapping[object, float]) -> None:
    """Nothing runs before it may."""
    for stay in stays:
        assert stay.start >= eligible[stay.job], f"job {stay.job} starts before it is eligible"


def check_work(executed, work, lost_gpu_s, gpus, finished, tolerance: float = 1e-6) -> None:
    """GPU-seconds held are GPU-seconds asked plus GPU-seconds lost. Arrays of shape (n,), finished a mask.

    executed and work in seconds; a job that has not finished has held at most that.
    """
    held = np.asarray(executed, dtype=float) * gpus
    owed = np.asarray(work, dtype=float) * gpus + lost_gpu_s
    done = np.asarray(finished, dtype=bool)
    scale = tolerance * np.maximum(1.0, owed)
    off = np.flatnonzero(np.where(done, np.abs(held - owed) > scale, held - owed > scale))
    assert not len(off), f"row {off[0]}: {held[off[0]]} GPU-s held, {owed[off[0]]} asked and lost"
    assert np.all(np.asarray(lost_gpu_s) >= 0), "less than nothing was lost"


def check_none_lost(start, end, fits, left_waiting) -> None:
    """Each job that fits ends, unless it left the queue by itself; one that never fits never starts."""
    start, end = np.asarray(start, dtype=float), np.asarray(end, dtype=float)
    fits, left_waiting = np.asarray(fits, dtype=bool), np.asarray(left_waiting, dtype=bool)
    lost = np.flatnonzero(fits & ~left_waiting & np.isnan(end))
    assert not len(lost), f"row {lost[0]} never ended"
    assert np.all(np.isnan(start[~fits])), "a job that cannot fit has started"
    both = ~np.isnan(start) & ~np.isnan(end)
    assert np.all(end[both] >= start[both]), "an end before its start"


def check_pool(start, end, gpus, capacity: int) -> None:
    """Never more GPUs in use than a pool has. Arrays of shape (n,) of uninterrupted runs; NaN: never ran."""
    ran = ~np.isnan(np.asarray(start, dtype=float))
    columns = (np.asarray(x)[ran].tolist() for x in (start, end, gpus))
    stays = [Stay(i, s, e, {"pool": {"gpus": g}}) for i, (s, e, g) in enumerate(zip(*columns, strict=True))]
    check_capacity(stays, {"pool": {"gpus": capacity}})
