"""What squeue(1) and scontrol(1) print of requests, shares and reservations. Pure.

scontrol prints names and comments of jobs as users wrote them, line breaks and all: what it says of a job
counts only if it agrees with itself.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from tias_slurm.slurm.hostlist import expand
from tias_slurm.slurm.live import Partition, RawRequests, Reservation, Share
from tias_slurm.slurm.node_files import gpus_of_gres
from tias_slurm.slurm.requests import REQUEST_FIELDS

_BETWEEN: Final = "\x1f"
_GROUP: Final = re.compile(r" Nodes=(\S+) CPU_IDs=([\d,-]+) Mem=(\d{1,12}) GRES=(\S*)", re.ASCII)
_RESERVED: Final = re.compile(r" StartTime=(\S+) EndTime=(\S+) .*? Nodes=(\S+)", re.ASCII)


def parse_requests(
    raw: bytes, token: str, fields: Sequence[str], excluded: Mapping[int, str] | None = None
) -> RawRequests:
    """What squeue printed of waiting jobs: `fields` asked for, ends as by command_queue.format_option.

    A field that was not asked for is "N/A". `excluded`: ExcNodes by job id, from elsewhere; a job that lacks
    there has "?".
    """
    found: RawRequests = {}
    for record in raw.decode("utf-8", "replace").split(f"\x1e{token}\n"):
        values = dict(zip(fields, record.split(_BETWEEN, len(fields) - 1), strict=False))
        job = values.get("JobID", "")
        if len(values) != len(fields) or not (job.isascii() and job.isdigit() and len(job) < 12):
            continue
        if excluded is not None:
            values["ExcNodes"] = excluded.get(int(job), "?")
        found[int(job)] = tuple(values.get(name, "N/A").strip() for name in REQUEST_FIELDS[1:])
    return found


def parse_excluded(text: str) -> dict[int, str]:
    """Excluded nodes by job id, out of `squeue -o "%A|%x"`."""
    return {int(job): nodes for job, nodes in re.findall(r"(?m)^(\d{1,11})\|(\S*)\s*$", text, re.ASCII)}


def parse_shares(text: str) -> dict[int, Share]:
    """What jobs on several nodes hold on each, out of `scontrol -d -o show job`.

    A job is left out that is there twice, or whose parts do not make up the whole.
    """
    seen: Counter[int] = Counter()
    found: dict[int, Share] = {}
    for line in text.split("\n"):
        match = re.match(r"JobId=(\d{1,11}) ", line, re.ASCII)
        if match is None:
            continue
        job = int(match[1])
        seen[job] += 1
        share = _share(line)
        if share is not None:
            found[job] = share
    return {job: share for job, share in found.items() if seen[job] == 1}


def _share(line: str) -> Share | None:
    nodes = re.findall(r" NodeList=(\S+)", line)
    cpus = re.findall(r" NumCPUs=(\d{1,9}) ", line, re.ASCII)
    groups = _GROUP.findall(line)
    if len(nodes) != 1 or len(cpus) != 1 or not groups:
        return None
    held: list[tuple[int, int, float]] = []
    names: list[str] = []
    try:
        for hosts, ids, mem, gres in groups:
            on = expand(hosts)
            names += on
            gpus = sum(gpus_of_gres(gres).values()) if gres != "(null)" else 0
            held += [(gpus, _ids(ids), float(mem))] * len(on)
        if sorted(names) != sorted(expand(nodes[0])) or len(names) < 2:
            return None
    except ValueError:
        return None
    if sum(c for _, c, _ in held) != int(cpus[0]):
        return None
    return Share(
        nodes[0],
        sum(g for g, _, _ in held),
        min(g for g, _, _ in held),
        min(c for _, c, _ in held),
        min(m for _, _, m in held),
    )


def _ids(text: str) -> int:
    """How many ids `0-3,8` lists. ValueError: none."""
    total = 0
    for item in text.split(","):
        low, dash, high = item.partition("-")
        total += int(high) - int(low) + 1 if dash else int(item) * 0 + 1
    return total


def parse_reservations(text: str) -> list[Reservation]:
    """Reservations with nodes, out of `scontrol -o show reservation`."""
    found = []
    for line in text.split("\n"):
        match = _RESERVED.search(line)
        if line.startswith("ReservationName=") and match is not None and match[3] != "(null)":
            found.append(Reservation(_time(match[1], 0.0), _time(match[2], math.inf), match[3]))
    return found


def parse_partitions(text: str) -> dict[str, Partition]:
    """The partitions, out of `scontrol -o show partition`."""
    found = {}
    for line in text.split("\n"):
        said = dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
        if name := said.get("PartitionName"):
            tier = said.get("PriorityTier", "")
            known = tier.isascii() and tier.isdigit() and len(tier) < 10
            # the former since 25.05
            whole = said.get("Exclusive") == "NODE" or said.get("OverSubscribe") == "EXCLUSIVE"
            found[name] = Partition(int(tier) if known else 1, whole)
    return found


def _time(text: str, otherwise: float) -> float:
    """Epoch s of SLURM_TIME_FORMAT=%s, or of the usual form in UTC, as these commands are run."""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return otherwise
