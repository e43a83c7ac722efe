"""Privileges that only a share of the cluster may hold at a time: long slots, and the front. Pure."""

from __future__ import annotations

from tias_slurm.jobs import Bools, Floats, Ints


def grant(order: Ints, gpus: Floats, holds: Bools, room: float, *, strict: bool) -> Bools:
    """Who holds a privilege after a walk over the rows in `order`. Shapes (m,), (n,), (n,) -> (n,).

    A job gets it if the GPUs of all holders and its own are at most `room`, or if nobody holds it. One that
    may not have it is passed over; with `strict` it ends the walk, so that nobody is overtaken.
    """
    holds = holds.copy()
    used, some = float(gpus[holds].sum()), bool(holds.any())
    if not len(order):
        return holds
    if used + float(gpus[order].min()) > room and some:
        return holds
    for row in order.tolist():
        if some and used + gpus[row] > room:
            if strict:
                break
            continue
        holds[row] = some = True
        used += float(gpus[row])
    return holds
