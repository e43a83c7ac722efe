"""GPUs, CPUs, memory and nodes of records, from whichever columns of an export tell them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tias_slurm.jobs import Bools, Floats
from tias_slurm.slurm.records import Bad, Reader, same_text, texts
from tias_slurm.slurm.values import Tres, as_ints, numbers

_NOTHING = Tres()


def sizes(reader: Reader, column: Mapping[str, Sequence[str]], n: int, bad: Bad) -> dict[str, Any]:
    """The columns gpus, gpu_type, cpus, nodes, mem_mb and allocated of Records, shape (n,).

    Each is taken from AllocTRES, where that does not say from ReqTRES, then from the columns of one amount (GPUs from
    AllocGRES and ReqGRES). What no column tells is 0.
    """
    gpus, cpus, mem, nodes = (np.full(n, math.nan) for _ in range(4))
    kind = same_text(n)
    for x in ("alloctres", "reqtres"):
        if x not in column:
            continue
        said, row = _distinct(column[x])
        parsed = [reader.tres[t] for t in said]
        if None in parsed:
            unread = np.array([t is None for t in parsed])[row]
            bad.where(unread, f"{'AllocTRES' if x == 'alloctres' else 'ReqTRES'}: cannot be read", column[x])
        tres = [t or _NOTHING for t in parsed]
        found = np.array([t.gpus for t in tres])[row]
        need = np.isnan(gpus) & ~np.isnan(found)
        gpus[need] = found[need]
        kind[need] = texts([t.gpu_type for t in tres])[row][need]
        for out, amounts in (
            (cpus, [t.cpus for t in tres]),
            (mem, [t.mem_mb for t in tres]),
            (nodes, [t.nodes for t in tres]),
        ):
            need = np.isnan(out)
            out[need] = np.array(amounts)[row][need]
    for out, names in (
        (nodes, ("allocnodes", "nnodes", "reqnodes")),
        (cpus, ("alloccpus", "ncpus", "reqcpus")),
    ):
        for x in names:
            if x in column and (need := np.isnan(out) | (out == 0)).any():
                count, unread = numbers(column[x], reader.counts)
                bad.where(unread & need, f"{x}: not a count", column[x])
                out[need] = np.where(np.isnan(count[need]), out[need], count[need])
    _gpus_of_gres(reader, column, gpus, kind, nodes, bad)
    reader.said_gpu = reader.said_gpu or bool(np.nansum(gpus) > 0)
    if "reqmem" in column and (need := np.isnan(mem) | (mem == 0)).any():
        _memory(reader, column["reqmem"], need, mem, nodes, cpus, bad)
    allocated = np.ones(n, bool)
    if "alloctres" in column:
        allocated = np.array([t != "" for t in column["alloctres"]], bool)
    return {
        "gpus": as_ints(gpus),
        "gpu_type": kind,
        "cpus": as_ints(cpus),
        "nodes": as_ints(nodes),
        "mem_mb": np.nan_to_num(mem, nan=0.0),
        "allocated": allocated,
    }


def _distinct(column: Sequence[str]) -> tuple[list[str], Any]:
    """The different texts of a column, and for each row which it has."""
    index: dict[str, int] = {}
    row = np.array([index.setdefault(t, len(index)) for t in column], np.int64)
    return list(index), row


def _gpus_of_gres(
    reader: Reader,
    column: Mapping[str, Sequence[str]],
    gpus: Floats,
    kind: Any,
    nodes: Floats,
    bad: Bad,
) -> None:
    for x in ("allocgres", "reqgres"):
        if x not in column or not (need := np.isnan(gpus)).any():
            continue
        said, row = _distinct(column[x])
        parsed = [reader.gres[t] for t in said]
        unread = np.array([g is None for g in parsed])[row] & need
        bad.where(unread, f"{'AllocGRES' if x == 'allocgres' else 'ReqGRES'}: cannot be read", column[x])
        gres = [g or (math.nan, "", True) for g in parsed]
        count = np.array([g[0] for g in gres])[row]
        per_node = np.array([g[2] for g in gres])[row]
        count = np.where(per_node, count * np.fmax(1.0, np.nan_to_num(nodes)), count)
        take = need & ~np.isnan(count)
        gpus[take] = count[take]
        kind[take] = texts([g[1] for g in gres])[row][take]


def _memory(
    reader: Reader, column: Sequence[str], need: Bools, mem: Floats, nodes: Floats, cpus: Floats, bad: Bad
) -> None:
    """ReqMem: for the job, or with a suffix for each node or CPU."""
    said, row = _distinct(column)
    parsed = [reader.memory[t] for t in said]
    unread = np.array([m is None for m in parsed])[row] & need
    bad.where(unread, "ReqMem: not an amount of memory", column)
    amount = np.array([m[0] if m else math.nan for m in parsed])[row]
    per = np.array([m[1] if m else "" for m in parsed])[row]
    factor = np.where(
        per == "n",
        np.fmax(1, np.nan_to_num(nodes)),
        np.where(per == "c", np.fmax(1, np.nan_to_num(cpus)), 1.0),
    )
    mem[need] = np.where(np.isnan(amount), mem, amount * factor)[need]
