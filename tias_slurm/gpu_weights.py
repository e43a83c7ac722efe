"""What the GPUs of a job or a node count for, in GPUs: in service, urgency, shares of the cluster, GPU-hours.

One rule for the live queue, the accounting and the replay. Of which types GPUs are is one text everywhere: ""
(untyped or not known), the one type, or of several how many of each, as in `a100=4,1g.5gb=8`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints

SHARD = "shard"  # the name of its weight


def kinds(by_type: Mapping[str, float], total: float | None = None) -> str:
    """The text for GPUs of these types ("": untyped), of which there are `total`; None: as many as these."""
    typed = {kind: int(count) for kind, count in sorted(by_type.items()) if kind and count > 0}
    every = sum(by_type.values()) if total is None else total
    if len(typed) == 1 and sum(typed.values()) >= every:
        return next(iter(typed))
    return ",".join(f"{kind}={count}" for kind, count in typed.items())


def times(kind: str, factor: int) -> str:
    """The text for so many times these GPUs, as on each of several nodes."""
    if "=" not in kind or factor == 1:
        return kind
    return ",".join(f"{name}={count * factor}" for name, count in by_type(0, kind).items() if name)


def weigh(gpus: Ints, types: Sequence[str], weights: Mapping[str, float]) -> Floats:
    """GPUs times the weights of their types. Shapes (n,), length n -> (n,).

    A type is named as Slurm names it, a MIG slice by its profile. A type without a weight counts 1, and so do
    GPUs whose type is not known.
    """
    counts = gpus.astype(np.float64)
    if not weights:
        return counts
    each = {pair: _weigh(*pair, weights) for pair in set(zip(gpus.tolist(), types, strict=True))}
    return np.array([each[pair] for pair in zip(gpus.tolist(), types, strict=True)], dtype=np.float64)


def sharded(gpus: Ints, shards: Ints | None, weights: Mapping[str, float]) -> Bools:
    """Which jobs have shards of GPUs alone (None: none has) and count as jobs with GPUs. Shapes (n,)."""
    if shards is None or SHARD not in weights:
        return np.zeros(len(gpus), dtype=np.bool_)
    return np.asarray((gpus == 0) & (shards > 0), dtype=np.bool_)


def of_jobs(gpus: Ints, types: Sequence[str], shards: Ints | None, weights: Mapping[str, float]) -> Floats:
    """What all GPUs of each job count for; of a job with shards alone the shards, where they have a weight.

    0: the job stands outside. Shapes (n,), length n -> (n,).
    """
    whole = weigh(gpus, types, weights)
    if shards is None or SHARD not in weights:
        return whole
    return np.where(sharded(gpus, shards, weights), shards * weights[SHARD], whole)


def shards_of_gpu(weights: Mapping[str, float]) -> int:
    """Into how many shards a GPU is cut where no node says so: as many as weigh one GPU; 0: no weight."""
    return max(1, round(1.0 / weights[SHARD])) if SHARD in weights else 0


def spoken(gpus: int, shards: int, weight: float) -> str:
    """GPUs for people: `8 GPUs`, `8 GPUs = 24 by weight`, `4 shards = 1 GPU`."""
    if not gpus and shards:
        whole = f"{shards} shard{'s' * (shards != 1)}"
        return f"{whole} = {weight:g} GPU{'s' * (weight != 1)}" if weight else whole
    whole = f"{gpus} GPU{'s' * (gpus != 1)}"
    return whole if math.isclose(weight, gpus) else f"{whole} = {weight:g} by weight"


def by_type(gpus: int, kind: str) -> dict[str, int]:
    """How many of these GPUs are of each type ("": not known), by their text."""
    if "=" not in kind:
        return {kind: gpus}
    found = {name: int(count) for name, _, count in (part.rpartition("=") for part in kind.split(","))}
    return {**found, "": max(0, gpus - sum(found.values()))}


def _weigh(gpus: int, kind: str, weights: Mapping[str, float]) -> float:
    return float(sum(count * weights.get(name, 1.0) for name, count in by_type(gpus, kind).items()))
