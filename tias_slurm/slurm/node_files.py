"""Nodes out of a file: `scontrol show node` as text or JSON, or a TOML file written by hand."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pandas as pd

from tias_slurm.errors import InputError, printable
from tias_slurm.gpu_weights import kinds
from tias_slurm.slurm.hostlist import MAX_HOSTS, expand
from tias_slurm.slurm.node_history import with_history
from tias_slurm.slurm.node_set import MAX_GPUS, NodeSet, left_out_note, make, some

MAX_BYTES: Final = 256_000_000
HOW: Final = "write the output of `scontrol show node` (or with --json), or TOML with [[nodes]] tables"

# Nodes in these states take no jobs. POWERED_DOWN is none of them: such a node is started on demand.
_OUT: Final = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "FUTURE", "INVALID_REG"}
)
_FIELD: Final = re.compile(
    r"(?:^|\s)(NodeName|Gres|CPUTot|CPUEfctv|RealMemory|Partitions|State|CfgTRES)=(\S*)", re.ASCII
)
_KEYS: Final = {
    "name": str, "gpus": int, "cpus": int, "memory_mb": int, "partitions": list, "gpu_type": str,
    "shards": int,
}  # fmt: skip
_GRES_COUNT: Final = re.compile(r"(\d{1,9})([KkMmGg]?)", re.ASCII)
_FACTOR: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def read_nodes(path: str, jobs: pd.DataFrame | None = None) -> NodeSet:
    """Read the nodes of a cluster.

    Nodes that are down or drained are left out (`NodeSet.left_out`) and named in the notes. `jobs`: the table
    of a history, whose `node_list` says which of them ran jobs all the same (see with_history). Raises
    InputError on a file that cannot be read, holds no node, or holds no GPU.
    """
    return nodes_of(_text(path), path, jobs)


def nodes_of(text: str, path: str, jobs: pd.DataFrame | None = None) -> NodeSet:
    """The same of a text. `path`: what to call it."""
    head = text.lstrip("\ufeff \t\r\n")[:1]
    if path.endswith(".toml") or (head != "{" and "[[nodes]]" in text):
        rows, kind = list(_from_toml(text, path)), "TOML"
    elif head == "{":
        rows, kind = list(_from_json(text, path)), "JSON of scontrol show node"
    else:
        rows, kind = list(_from_text(text, path)), "scontrol show node"
    nodes: dict[str, dict[str, Any]] = {}
    twice: list[str] = []
    for row in rows:
        if row["name"] in nodes:
            twice.append(row["name"])
        else:
            nodes[row["name"]] = row
    if twice and kind == "TOML":
        raise _bad(path, f"node {printable(twice[0])} is there twice; give each node one [[nodes]] table")
    notes: list[str] = []
    if twice:
        notes.append(f"{some(twice)} listed more than once, taken once")
    source = f"{kind}: {printable(path, 200)}"
    out = [row for row in nodes.values() if row.get("states", frozenset()) & _OUT]
    if out:
        notes.append(left_out_note([row["name"] for row in out]))
    up = [row for row in nodes.values() if not row.get("states", frozenset()) & _OUT]
    found = replace(_set(up, source, notes), left_out=_set(out, source, []) if out else None)
    if jobs is not None:
        found = with_history(found, jobs)
    if not len(found):
        raise _bad(path, f"no node that is up; {HOW}")
    if not found.total_gpus:
        raise _bad(path, "no node has a GPU; Gres= must name gpu (GresTypes=gpu in slurm.conf)")
    mixed = [name for name in found.names if len(nodes[name]["types"]) > 1]
    if mixed:
        note = f"{some(mixed)} with GPUs of several types: the replay does not tell them apart"
        found = replace(found, notes=(*found.notes, note))
    return found


def _set(rows: list[dict[str, Any]], source: str, notes: list[str]) -> NodeSet:
    return make(
        [row["name"] for row in rows],
        [row["gpus"] for row in rows],
        cpus=[row["cpus"] for row in rows],
        mem_mb=[row["mem"] for row in rows],
        partitions=[frozenset(row["partitions"]) for row in rows],
        gpu_types=[kinds(row["types"]) for row in rows],
        shards=[row["shards"] for row in rows],
        source=source,
        notes=notes,
    )


def gpus_of_gres(gres: str, of: str = "gpu") -> dict[str, int]:
    """GPUs by type ('' untyped) of a Gres string: `gpu:a100:8(S:0-1),shard:16` -> {"a100": 8}; `of`: of
    another GRES, as `shard`."""
    found: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        parts = [p for p in item.strip().split(":") if p != "no_consume"]
        if parts[0] not in {of, f"gres/{of}"}:
            continue
        count = _GRES_COUNT.fullmatch(parts[-1]) if len(parts) > 1 else None
        number = int(count[1]) * _FACTOR[count[2].lower()] if count else 1
        kind = ":".join(parts[1:-1] if count else parts[1:])
        found[kind] = found.get(kind, 0) + number
    return found


def gpus_of_tres(tres: str) -> dict[str, int]:
    """GPUs by type of a TRES string. The untyped total, if there, is all; types are never added to it."""
    typed: dict[str, int] = {}
    total: int | None = None
    for name, number in re.findall(r"(?:^|,)gres/gpu((?::[^=,]+)?)=(\d{1,9})(?=,|$)", tres, re.ASCII):
        if name:
            typed[name[1:]] = int(number)
        else:
            total = int(number)
    if total is None or total == sum(typed.values()):
        return typed or ({"": total} if total is not None else {})
    return {"": total}


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _bad(path, f"cannot be read: {reason}; name a file of nodes") from None
    if len(raw) > MAX_BYTES:
        raise _bad(path, f"larger than {MAX_BYTES // 1_000_000} MB; {HOW}")
    if b"\0" in raw:
        raise _bad(path, f"not text; {HOW}")
    return raw.decode("utf-8", "replace")


def _from_text(text: str, path: str) -> Iterator[dict[str, Any]]:
    blocks = re.split(r"(?m)^(?=[ \t\ufeff]*NodeName=)", text)
    for block in blocks[1:]:
        values: dict[str, str] = {}
        for key, value in _FIELD.findall(block):
            values.setdefault(key, "" if value == "(null)" else value)  # free text (Reason=) comes last
        name = values.get("NodeName", "")
        if not name:
            raise _bad(path, "a NodeName= without a name; " + HOW)
        gpus = gpus_of_gres(values.get("Gres", "")) or gpus_of_tres(values.get("CfgTRES", ""))
        yield {
            "name": name,
            "gpus": _limited(sum(gpus.values()), path, name),
            "types": gpus,
            "shards": sum(gpus_of_gres(values.get("Gres", ""), "shard").values()),
            "cpus": _int(values.get("CPUTot") or values.get("CPUEfctv")),
            "mem": _int(values.get("RealMemory")),
            "partitions": [p for p in values.get("Partitions", "").split(",") if p],
            "states": _states([values.get("State", "")]),
        }


def _from_json(text: str, path: str) -> Iterator[dict[str, Any]]:
    try:
        document = json.loads(text.lstrip("\ufeff \t\r\n"))
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"not valid JSON: {printable(str(error))}; {HOW}") from None
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise _bad(path, "JSON without a list `nodes`; " + HOW)
    for at, node in enumerate(nodes, 1):
        name = node.get("name") or node.get("hostname")
        if not isinstance(name, str):
            raise _bad(path, f"nodes[{at}] has no name; {HOW}")
        gpus = gpus_of_gres(_str(node.get("gres"))) or gpus_of_tres(_str(node.get("tres")))
        partitions = node.get("partitions") or []
        if isinstance(partitions, str):
            partitions = partitions.split(",")
        yield {
            "name": name,
            "gpus": _limited(sum(gpus.values()), path, name),
            "types": gpus,
            "shards": sum(gpus_of_gres(_str(node.get("gres")), "shard").values()),
            "cpus": _int(node.get("cpus")),
            "mem": _int(node.get("real_memory")),
            "partitions": [p for p in partitions if isinstance(p, str) and p],
            "states": _states([*_list(node.get("state")), *_list(node.get("state_flags"))]),
        }


def _from_toml(text: str, path: str) -> Iterator[dict[str, Any]]:
    try:
        document = tomllib.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"not valid TOML: {printable(str(error))}; write [[nodes]] tables") from None
    tables = document.get("nodes")
    other = sorted(set(document) - {"nodes"})
    if other or not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        what = f"unknown key {printable(other[0])}" if other else "no [[nodes]] table"
        raise _bad(path, f"{what}; write [[nodes]] tables with name, gpus, cpus, memory_mb, partitions")
    total = 0
    for at, table in enumerate(tables, 1):
        where = f"[[nodes]] number {at}"
        for key, value in table.items():
            if key not in _KEYS:
                close = difflib.get_close_matches(key, list(_KEYS), n=1, cutoff=0.3)
                near = close[0] if close else "name"
                raise _bad(path, f"{where}: unknown key {printable(key)}; the nearest known one is {near}")
            _check(key, value, path, where)
        for needed in ("name", "gpus"):
            if needed not in table:
                raise _bad(path, f"{where}: {needed} is missing; write it")
        try:
            names = expand(table["name"])
        except ValueError as error:
            raise _bad(path, f"{where}: name {printable(table['name'])!r}: {error}") from None
        total += len(names)
        if total > MAX_HOSTS:
            raise _bad(path, f"more than {MAX_HOSTS} nodes; check the ranges of the names")
        for name in names:
            yield {
                "name": name,
                "gpus": table["gpus"],
                "types": {table.get("gpu_type", ""): table["gpus"]} if table["gpus"] else {},
                "shards": table.get("shards", 0),
                "cpus": table.get("cpus", 0),
                "mem": table.get("memory_mb", 0),
                "partitions": table.get("partitions", []),
            }


def _check(key: str, value: Any, path: str, where: str) -> None:
    kind = _KEYS[key]
    if kind is int:
        most = MAX_GPUS if key in ("gpus", "shards") else 10**12
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise _bad(path, f"{where}: {key} must be a whole number from 0 to {most}")
    elif not isinstance(value, kind) or (
        isinstance(value, list) and not all(isinstance(v, str) and v for v in value)
    ):
        form = 'a list of names, as in ["gpu"]' if kind is list else "text in quotes"
        raise _bad(path, f"{where}: {key} must be {form}")


def _int(value: Any) -> int:
    """A whole number in any of Slurm's forms; 0 where it is not known."""
    if isinstance(value, dict):  # {"set": true, "infinite": false, "number": 16}
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else 0
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}", value, re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value if 0 < value < 10**15 else 0


def _str(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, str)]


def _states(words: list[str]) -> frozenset[str]:
    """IDLE+DRAIN, DOWN*, ["IDLE", "DRAIN"]: the single words, upper case, without marks."""
    return frozenset(w.rstrip("*~#!%$@^-").upper() for word in words for w in word.split("+"))


def _limited(gpus: int, path: str, name: str) -> int:
    if gpus > MAX_GPUS:
        raise _bad(path, f"node {printable(name)} has {gpus} GPUs; check its Gres=")
    return gpus


def _bad(path: str, what: str) -> InputError:
    return InputError(f"{printable(path, 200)}: {what}")
