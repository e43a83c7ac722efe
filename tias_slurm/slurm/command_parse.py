"""What `scontrol show config`, `scontrol show node` and sprio(1) print, and the words of refusals. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from tias_slurm.gpu_weights import kinds
from tias_slurm.levers import NICE_MAX
from tias_slurm.slurm.live import RawNodes, Result, SiteFacts
from tias_slurm.slurm.node_files import gpus_of_gres, gpus_of_tres
from tias_slurm.slurm.values import parse_duration

# scontrol prints PriorityWeightFairShare, slurm.conf(5) calls it PriorityWeightFairshare
_WEIGHTS: Final = {n: n for n in ("Age", "Assoc", "JobSize", "Partition", "QOS")} | {"Fairshare": "FairShare"}
_PRIORITY_TOP: Final = 2**32 - 1  # what multifactor cuts its sum at
_NODE_FIELD: Final = re.compile(
    r"(?:^|\s)(NodeName|ActiveFeatures|Gres|GresUsed|CPUAlloc|CPUTot|CPUEfctv|RealMemory|AllocMem|MemSpecLimit|State"
    r"|ThreadsPerCore|Partitions|CfgTRES|AllocTRES)"
    r"=(\S*)",
    re.ASCII,
)


def parse_config(text: str) -> tuple[SiteFacts, float]:
    """The facts, and the controller's clock (epoch s, NaN where it is not said). ValueError: not a config."""
    said: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition(" = ")
        if equals:
            said.setdefault(key.strip(), "" if value.strip() == "(null)" else value.strip())
    if "SLURM_VERSION" not in said:
        raise ValueError("no SLURM_VERSION in the output of scontrol show config")
    stamp = re.match(r"Configuration data as of (\d{9,11})\s", text, re.ASCII)
    weights = {
        name: _leading_int(said.get(f"PriorityWeight{printed}", "")) for name, printed in _WEIGHTS.items()
    }
    weights["TRES"] = sum(
        math.ceil(float(n))
        for n in re.findall(r"=(\d{1,12}(?:\.\d{1,9})?)", said.get("PriorityWeightTRES", ""))
    )
    facts = SiteFacts(
        version=said["SLURM_VERSION"],
        cluster=said.get("ClusterName", ""),
        priority_type=said.get("PriorityType", ""),
        priority_flags=said.get("PriorityFlags", ""),
        priority_weights=weights,
        site_factor_plugin=said.get("PrioritySiteFactorPlugin", ""),
        scheduler_parameters=said.get("SchedulerParameters", ""),
        slurmctld_parameters=said.get("SlurmctldParameters", ""),
        preempt_type=said.get("PreemptType", ""),
        preempt_mode=said.get("PreemptMode", ""),
        private_data=said.get("PrivateData", ""),
        accounting_store_flags=said.get("AccountingStoreFlags", ""),
        slurm_user=said.get("SlurmUser", "").partition("(")[0],
        state_save_location=said.get("StateSaveLocation", ""),
        min_job_age_s=_leading_int(said.get("MinJobAge", "")),
        message_timeout_s=_leading_int(said.get("MessageTimeout", "")),
        preempt_exempt_time_s=duration(said.get("PreemptExemptTime", "")),
        tracked_tres=said.get("AccountingStorageTRES", ""),
    )
    return facts, float(stamp[1]) if stamp else math.nan


def duration(text: str) -> float:
    """Seconds of `1-02:03:04`; 0 where there is none."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def parse_nodes(text: str) -> RawNodes:
    """The nodes out of `scontrol -d -o show node`. Records without a name are left out."""
    rows: dict[str, dict[str, str]] = {}
    for record in re.split(r"(?m)^(?=NodeName=)", text)[1:]:
        values: dict[str, str] = {}
        for key, value in _NODE_FIELD.findall(record):
            values.setdefault(key, "" if value == "(null)" else value)  # free text (Reason=) comes last
        if values.get("NodeName"):
            rows.setdefault(values["NodeName"], values)
    kept = list(rows.values())

    def ints(*keys: str) -> list[int]:
        return [next((_leading_int(v[k]) for k in keys if v.get(k)), 0) for v in kept]

    return RawNodes(
        name=list(rows),
        state=[_state(v.get("State", "")) for v in kept],
        gpus=np.array([_gpus(v.get("Gres", ""), v.get("CfgTRES", "")) for v in kept], dtype=np.int64),
        gpus_used=np.array(
            [_gpus(v.get("GresUsed", ""), v.get("AllocTRES", "")) for v in kept], dtype=np.int64
        ),
        cpus=np.array(ints("CPUEfctv", "CPUTot"), dtype=np.int64),
        cpus_used=np.array(ints("CPUAlloc"), dtype=np.int64),
        mem_mb=np.array(ints("RealMemory"), dtype=np.float64) - np.array(ints("MemSpecLimit")),
        mem_used_mb=np.array(ints("AllocMem"), dtype=np.float64),
        partitions=[_listed(v.get("Partitions", "")) for v in kept],
        gpu_types=[kinds(_by_type(v.get("Gres", ""), v.get("CfgTRES", ""))) for v in kept],
        other_gres=[pieces_of(item.split(":")[0] for item in v.get("Gres", "").split(",")) for v in kept],
        features=[_listed(v.get("ActiveFeatures", "")) for v in kept],
        threads=np.array(ints("ThreadsPerCore"), dtype=np.int64),
    )


def pieces_of(gres: Iterable[str]) -> str:
    """Those names of GRES that stand for pieces of GPUs, as a comma list."""
    return ",".join(sorted({name for name in gres if name in ("shard", "mps")}))


def _listed(text: str) -> frozenset[str]:
    return frozenset(part for part in text.split(",") if part)


def _by_type(gres: str, tres: str) -> dict[str, int]:
    return gpus_of_gres(gres) or gpus_of_tres(tres)


def _gpus(gres: str, tres: str) -> int:
    return sum(_by_type(gres, tres).values())


def _state(text: str) -> str:
    """`IDLE+DRAIN`, `DOWN*+DRAIN` -> words joined by +. The mark * says that the node does not respond."""
    words = [w.rstrip("~#!%$@^-") for w in text.upper().split("+")]
    marked = any(w.endswith("*") for w in words)
    words = [w.rstrip("*~#!%$@^-") for w in words]
    if marked and "NOT_RESPONDING" not in words:
        words.append("NOT_RESPONDING")
    return "+".join(w for w in words if w)


def parse_site_factors(text: str) -> dict[int, int]:
    """Job id -> site factor, out of `sprio -h -o "%i|%S"`. Lines of another form are left out.

    A job in several partitions has one line for each, with the same factor.
    """
    found = re.findall(r"(?m)^\s*(\d{1,11})\|\s*(-?\d{1,11})\s*$", text, re.ASCII)
    return {int(job): int(factor) for job, factor in found}


def parse_pinned(text: str) -> dict[int, bool]:
    """Job id -> has an explicit priority, out of `sprio -h -o "%i|%Y|%y|%N"`. Other lines are left out.

    sprio(1) shows a computed priority "normalized" as its share of 2^32 - 1, an explicit one as it is. In
    22.05 it does not for a job in several partitions, whose nice is then one that no job can have.
    """
    found = re.findall(
        r"(?m)^\s*(\d{1,11})\|\s*(\d{1,11})\|\s*(\d{1,11})\.\d*\|\s*(-?\d{1,11})\s*$", text, re.ASCII
    )
    return {
        int(job): (int(share) >= 1 and int(priority) < _PRIORITY_TOP) or int(nice) < -NICE_MAX
        for job, priority, share, nice in found
    }


def _leading_int(text: str) -> int:
    """The whole number that a text begins with (`300 sec`), else 0."""
    match = re.match(r"\d{1,12}", text, re.ASCII)
    return int(match[0]) if match else 0


# ---- refusals, in the words of slurm_strerror(3); seen on 22.05, 24.11 and 26.05 but for those marked ----

_RETRY: Final = (
    "unable to contact slurm controller",
    "unexpected message received",  # what `scontrol update` says when it cannot reach the controller
    "socket timed out",
    "connection refused",  # not seen
    "connection timed out",  # not seen
    "standby mode",  # not seen, as the rest of these
    "temporarily unable to accept",
    "zero bytes were transmitted or received",
    "receive failure",
    "send failure",
    "shutdown failure",
    "communication connection failure",
    "resource temporarily unavailable",
    "transport endpoint is not connected",
)
_NO_RIGHTS: Final = (
    "access/permission denied",
    "invalid user id",  # of a job of somebody else's
    "user id is missing",  # not seen
    "authentication",  # not seen
)
_GONE: Final = (
    "invalid job id specified",
    "already finished",
    "already completing or completed",  # not seen
    "no longer pending execution",  # not seen
    "not running",  # not seen
)


def classify(message: str) -> Result:
    """What became of a write that failed, by what scontrol said.

    Words that we do not know are a refusal of this job: job_submit.lua may say anything.
    """
    low = message.lower()
    table: tuple[tuple[Result, tuple[str, ...]], ...] = (
        ("retry", _RETRY),
        ("no rights", _NO_RIGHTS),
        ("gone", _GONE),
    )
    return next((result for result, words in table if any(w in low for w in words)), "refused")


_TASKS_SAID: Final = re.compile(r"^\d+_\[?([\d,-]+)\]?: (.*)$", re.MULTILINE | re.ASCII)


def all_failed(said: str, tasks: str) -> bool:
    """Whether an update of several tasks (`0-3,5`) that scontrol calls failed did so for each of them.

    It also fails when only some do, those that ended since the queue was read; it says so line by line:
    `12_[1]: Job has already finished`.
    """
    told = [(listed, why) for listed, why in _TASKS_SAID.findall(said)]
    failed = sum(_count(listed) for listed, why in told if why.strip() != "No error")
    return not told or failed >= _count(tasks)


def _count(tasks: str) -> int:
    total = 0
    for low, high, step in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", tasks, re.ASCII):
        total += (int(high or low) - int(low)) // max(1, int(step or 1)) + 1
    return total


def may_pass(message: str) -> bool:
    """Whether a query that failed may work later: not without rights, nor what it cannot do."""
    low = message.lower()
    return not any(
        x in low for x in ("permission denied", "access denied", "supported priority plugin", "option")
    )
