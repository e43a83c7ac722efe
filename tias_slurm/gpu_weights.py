"""What GPUs of different types count for in service and urgency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tias_slurm.jobs import Bools, Floats, Ints

SHARD = "shard"  # the name of its weight


def weigh(gpus: Ints, types: Sequence[str], weights: Mapping[str, float]) -> Floats:
    """GPUs times the weight of their type. Shapes (n,), length n -> (n,).

    A type is named as Slurm names it, a MIG slice by its profile. A type without a weight counts 1, and so do
    GPUs whose type is not known or of which there are several; a comma list of types counts their mean.
    """
    counts = gpus.astype(np.float64)
    if not weights:
        return counts
    each = {t: _weight(t, weights) for t in set(types)}
    return counts * np.array([each[t] for t in types], dtype=np.float64)


def sharded(gpus: Ints, shards: Ints | None, weights: Mapping[str, float]) -> Bools:
    """Which jobs have shards of GPUs alone (None: none has) and count as jobs with GPUs. Shapes (n,)."""
    if shards is None or SHARD not in weights:
        return np.zeros(len(gpus), dtype=np.bool_)
    return np.asarray((gpus == 0) & (shards > 0), dtype=np.bool_)


def _weight(kind: str, weights: Mapping[str, float]) -> float:
    return float(np.mean([weights.get(name, 1.0) for name in kind.split(",")]))
