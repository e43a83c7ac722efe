"""Requeue mode "slurm": may Slurm's own preemption be left to the daemon's priorities? Pure.

Slurm cancels a victim that it cannot requeue, so everything here is an error and keeps the daemon from
starting. Sources: preempt.html, slurm.conf(5), sacctmgr(1); what is printed was seen on 22.05 to 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tias_slurm.config import Config
from tias_slurm.slurm.command_parse import duration
from tias_slurm.slurm.live import SiteFacts

# from this release on PreemptMode knows PRIORITY
_PRIORITY_SINCE = (25, 5)
# scontrol prints WITHIN and PRIORITY together as UNKNOWN, and hides the mode behind it
_HIDDEN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Qos:
    """A QOS as sacctmgr shows it."""

    name: str
    preempt: str  # those that it preempts, a comma list
    mode: str  # cluster, requeue, cancel, ...
    exempt_s: float  # 0: the cluster's


def parse_qos(text: str) -> tuple[Qos, ...]:
    """Out of `sacctmgr -nP show qos format=name,preempt,preemptmode,preemptexempttime`."""
    rows = [line.split("|") for line in text.splitlines()]
    return tuple(Qos(r[0], r[1], r[2].lower(), duration(r[3])) for r in rows if len(r) == 4)


def mode_of(conf: str) -> str:
    """The PreemptMode of the text of a slurm.conf, upper case; "" if it does not say."""
    found = re.findall(r"(?mi)^\s*PreemptMode\s*=\s*(\S+)", conf)
    return str(found[-1]).upper() if found else ""


def compares_priorities(facts: SiteFacts) -> bool:
    """Whether Slurm may choose whom to preempt by the priorities of jobs, as far as it tells."""
    kind = facts.preempt_type.lower()
    words = set(re.split(r"[,\s]+", facts.preempt_mode.upper()))
    return kind not in ("", "(null)", "preempt/none") and bool(words & {"WITHIN", "PRIORITY", _HIDDEN})


def problems(
    config: Config, facts: SiteFacts, qos: Sequence[Qos] | None, mode_in_file: str
) -> Iterator[tuple[str, str]]:
    """What is wrong and what to do about it. `qos`: None: sacctmgr does not tell. `mode_in_file`: PreemptMode
    of slurm.conf, "" if that cannot be read here."""
    if config.lever.kind != "priority":
        yield f'lever "{config.lever.kind}"', 'set [lever] kind = "priority"'
    if facts.priority_type != "priority/multifactor":
        yield f"PriorityType={facts.priority_type}", "PriorityType=priority/multifactor"
    if facts.preempt_type != "preempt/qos":
        yield f"PreemptType={facts.preempt_type or 'preempt/none'}", "PreemptType=preempt/qos in slurm.conf"
    shown = facts.preempt_mode.upper()
    words = set(re.split(r"[,\s]+", mode_in_file if _HIDDEN in shown else shown))
    release = tuple(int(n) for n in re.findall(r"\d{1,4}", facts.version)[:2])
    wanted = "REQUEUE,WITHIN" + (",PRIORITY" if release >= _PRIORITY_SINCE else "")
    if _HIDDEN in shown and not mode_in_file:
        yield (
            f"PreemptMode={shown} does not tell what becomes of victims, and slurm.conf cannot be read here",
            "run where slurm.conf can be read",
        )
    elif not {"REQUEUE", "WITHIN"} <= words:
        yield f"PreemptMode={mode_in_file or shown}", f"PreemptMode={wanted} in slurm.conf"
    least = max(config.requeue.min_run_s, 2 * config.cycle.interval_s)
    why = f"min_run_s = {config.requeue.min_run_s:g}, interval_s = {config.cycle.interval_s:g}"
    if facts.preempt_exempt_time_s < least:
        yield (
            f"PreemptExemptTime is {facts.preempt_exempt_time_s:g} s ({why})",
            f"PreemptExemptTime of {least:g} s or more in slurm.conf",
        )
    if qos is None:
        yield "sacctmgr does not show the QOS", "a slurmdbd that answers; preempt/qos needs it"
        return
    for q in qos:
        if q.preempt and "PRIORITY" not in words:
            yield (
                f"QOS {q.name} preempts {q.preempt} whatever the priorities of jobs",
                "PRIORITY in PreemptMode (25.05 and later)"
                if release >= _PRIORITY_SINCE
                else f"sacctmgr modify qos {q.name} set preempt=",
            )
        if q.mode not in ("cluster", "requeue", ""):
            yield (
                f"QOS {q.name} has PreemptMode={q.mode}",
                f"sacctmgr modify qos {q.name} set preemptmode=requeue",
            )
        if 0 < q.exempt_s < least:
            yield (
                f"QOS {q.name} has PreemptExemptTime of {q.exempt_s:g} s ({why})",
                f"sacctmgr modify qos {q.name} set preemptexempttime=-1",
            )
