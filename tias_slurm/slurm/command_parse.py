"""What `scontrol show config`, `scontrol show node` and sprio(1) print, and the words of refusals. Pure."""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np

from tias_slurm.slurm.live import RawNodes, Result, SiteFacts
from tias_slurm.slurm.node_files import gpus_of_gres, gpus_of_tres

_WEIGHTS: Final = ("Age", "Assoc", "Fairshare", "JobSize", "Partition", "QOS")
_NODE_FIELD: Final = re.compile(
    r"(?:^|\s)(NodeName|Gres|GresUsed|CPUAlloc|CPUTot|CPUEfctv|RealMemory|AllocMem|State|Partitions|CfgTRES|AllocTRES)"
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
    weights = {name: _leading_int(said.get(f"PriorityWeight{name}", "")) for name in _WEIGHTS}
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
    )
    return facts, float(stamp[1]) if stamp else math.nan


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
        mem_mb=np.array(ints("RealMemory"), dtype=np.float64),
        mem_used_mb=np.array(ints("AllocMem"), dtype=np.float64),
        partitions=[frozenset(p for p in v.get("Partitions", "").split(",") if p) for v in kept],
    )


def _gpus(gres: str, tres: str) -> int:
    return sum((gpus_of_gres(gres) or gpus_of_tres(tres)).values())


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


def _leading_int(text: str) -> int:
    """The whole number that a text begins with (`300 sec`), else 0."""
    match = re.match(r"\d{1,12}", text, re.ASCII)
    return int(match[0]) if match else 0


# ---- refusals: the controller's words, from slurm_errno.c of the releases that we support ----

_WORDS: Final[tuple[tuple[Result, tuple[str, ...]], ...]] = (
    (
        "retry",
        (
            "Unable to contact slurm controller",
            "Socket timed out",
            "Connection refused",
            "Connection timed out",
            "slurm backend controller in standby mode",
            "in standby mode",
            "Slurm temporarily unable to accept",
            "Zero Bytes were transmitted or received",
            "Message receive failure",
            "Communication connection failure",
            "Header lengths are longer than data received",
            "Insane message length",
            "Unspecified error",
            "Resource temporarily unavailable",
            "Transport endpoint is not connected",
            "try again later",
        ),
    ),
    (
        "no rights",
        (
            "Access/permission denied",
            "Access denied",
            "Invalid user id",
            "User id is missing",
            "Invalid authentication credential",
            "Protocol authentication error",
            "Invalid account or account/partition combination specified",
        ),
    ),
    (
        "gone",
        (
            "Invalid job id specified",
            "Invalid Job id",
            "Job/step already completing or completed",
            "Job has already finished",
            "Job is no longer pending execution",
            "Job not running",
            "Job is not running",
            "Requested job is not running",
        ),
    ),
)


def classify(message: str) -> Result:
    """What became of a write that scontrol says failed. Words that we do not know are a refusal: of this job,
    by job_submit.lua for example."""
    low = message.lower()
    for result, phrases in _WORDS:
        if any(phrase.lower() in low for phrase in phrases):
            return result
    return "refused"


def unreachable(message: str) -> bool:
    """Whether a query that failed may work later: everything but a broken configuration or missing rights."""
    low = message.lower()
    return not any(
        phrase in low
        for phrase in ("configuration source", "fatal:", "access/permission denied", "access denied")
    )
