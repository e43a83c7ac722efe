"""GPUs, CPUs, memory and nodes of records, from whichever columns of an export tell them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tias_slurm.gpu_weights import times
from tias_slurm.jobs import Bools, Floats
from tias_slurm.slurm.cells import Cells
from tias_slurm.slurm.fields import spelled
from tias_slurm.slurm.records import Bad, Reader, same_text, texts
from tias_slurm.slurm.values import Memo, Tres, as_ints

_NOTHING = Tres()


def sizes(reader: Reader, cells: Cells, bad: Bad) -> dict[str, Any]:
    """The columns gpus, gpu_type, shards, cpus, nodes, mem_mb and allocated of Records, shape (n,).

    Each is taken from AllocTRES, where that does not say from ReqTRES, then from the columns of one amount
    (GPUs from AllocGRES and ReqGRES). What no column tells is 0.
    """
    n, column = len(cells), cells.spans
    gpus, shards, cpus, mem, nodes = (np.full(n, math.nan) for _ in range(5))
    kind = same_text(n)
    for x in ("alloctres", "reqtres"):
        if x not in column:
            continue
        said, row = cells.distinct(x)
        parsed = [reader.tres[t] for t in said]
        if None in parsed:
            unread = np.array([t is None for t in parsed])[row]
            bad.where(unread, f"{spelled(x)}: cannot be read", x)
        tres = [t or _NOTHING for t in parsed]
        found = np.array([t.gpus for t in tres])[row]
        need = np.isnan(gpus) & ~np.isnan(found)
        gpus[need] = found[need]
        kind[need] = texts([t.gpu_type for t in tres])[row][need]
        for out, amounts in (
            (shards, [t.shards for t in tres]),
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
                count, unread = cells.numbers(x, reader.counts)
                bad.where(unread & need, f"{spelled(x)}: not a count", x)
                out[need] = np.where(np.isnan(count[need]), out[need], count[need])
    _of_gres(reader, cells, reader.gres, gpus, kind, nodes, bad)
    _of_gres(reader, cells, reader.gres_shards, shards, same_text(n), nodes, bad)
    reader.said_gpu = reader.said_gpu or bool(np.nansum(gpus) > 0 or np.nansum(shards) > 0)
    if "reqmem" in column and (need := np.isnan(mem) | (mem == 0)).any():
        _memory(reader, cells, need, mem, nodes, cpus, bad)
    allocated = np.ones(n, bool)
    if "alloctres" in column:
        allocated = cells.widths("alloctres") > 0
    return {
        "gpus": as_ints(gpus),
        "gpu_type": kind,
        "shards": as_ints(shards),
        "cpus": as_ints(cpus),
        "nodes": as_ints(nodes),
        "mem_mb": np.nan_to_num(mem, nan=0.0),
        "allocated": allocated,
    }


def _of_gres(
    reader: Reader,
    cells: Cells,
    parse: Memo[tuple[float, str, bool]],
    amount: Floats,
    kind: Any,
    nodes: Floats,
    bad: Bad,
) -> None:
    """Fill in GPUs or shards, and their types, where no TRES counts them; in place."""
    for x in ("allocgres", "reqgres"):
        if x not in cells.spans or not (need := np.isnan(amount)).any():
            continue
        said, row = cells.distinct(x)
        parsed = [parse[t] for t in said]
        unread = np.array([g is None for g in parsed])[row] & need
        bad.where(unread, f"{spelled(x)}: cannot be read", x)
        gres = [g or (math.nan, "", True) for g in parsed]
        count = np.array([g[0] for g in gres])[row]
        per_node = np.array([g[2] for g in gres])[row]
        often = np.where(per_node, np.fmax(1.0, np.nan_to_num(nodes)), 1.0)
        count = count * often
        take = need & ~np.isnan(count)
        amount[take] = count[take]
        each = zip(row[take].tolist(), often[take].tolist(), strict=True)
        kind[take] = texts([times(gres[i][1], int(k)) for i, k in each])


def _memory(
    reader: Reader, cells: Cells, need: Bools, mem: Floats, nodes: Floats, cpus: Floats, bad: Bad
) -> None:
    """ReqMem: for the job, or with a suffix for each node or CPU."""
    said, row = cells.distinct("reqmem")
    parsed = [reader.memory[t] for t in said]
    unread = np.array([m is None for m in parsed])[row] & need
    bad.where(unread, "ReqMem: not an amount of memory", "reqmem")
    amount = np.array([m[0] if m else math.nan for m in parsed])[row]
    per = np.array([m[1] if m else "" for m in parsed])[row]
    factor = np.where(
        per == "n",
        np.fmax(1, np.nan_to_num(nodes)),
        np.where(per == "c", np.fmax(1, np.nan_to_num(cpus)), 1.0),
    )
    mem[need] = np.where(np.isnan(amount), mem, amount * factor)[need]
