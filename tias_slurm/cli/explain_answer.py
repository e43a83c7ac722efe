"""The first line of `explain`: why the job waits."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

# what a job waits for that no place in the queue gives, in words; Slurm's word for it follows
_WAITS_FOR = {
    "Cleaning": "its last run is not cleaned up yet",
    "NodeDown": "a node that it had or asked for is down",
    "Prolog": "its prolog runs",
}
# what requeue mode "slurm" does with running jobs that nobody may have requeued
_SHIELDED = (
    "All that the daemon does is to put it above all jobs that wait, so that Slurm does not stop it for one "
    "of them"
)


def answer(job: dict[str, Any], zone: ZoneInfo) -> str:
    """Why the job waits, in one line. `job`: what explain.describe made, but for this."""
    from tias_slurm.cli.explain import NO_CURE, NOT_ELIGIBLE
    from tias_slurm.gpu_weights import spoken
    from tias_slurm.levers import HOLD_REASON
    from tias_slurm.notify.words import HARDLY_MET
    from tias_slurm.slurm.observer import nodes_in_doubt

    name, lever, reason = job["job"], job["lever"], job["slurm_reason"]
    if job["out_of_scope"]:
        return _out_of_scope(job)
    stands = f"level {job['level']} ({job['class']})"
    if job["front"]["at_front"]:
        stands = "at the front"
    if not job["ledger"]["known"]:
        stands = f"as far as Slurm alone tells {stands}"
    if job["state"] != "PENDING" and not job["weight"]:
        return f"{name} runs and asks for no GPUs. {_SHIELDED}"
    if job["state"] != "PENDING":
        ignored = "; ignored, by order of an administrator" * (job["requeue"]["spared"] == "ignored")
        return f"{name} runs, {stands}{ignored}"
    place, because = job["place"], lever["because"]
    if because == "held":
        return f"{name} waits because it is {_held(job)}"
    if lever["now"] == "held" and because == HOLD_REASON:
        return (
            f"{name} waits because it is {HOLD_REASON}; it is let go as soon as there is room in it; {stands}"
        )
    if job["het_leader"]:
        return (
            f"{name} starts together with all of het job {job['het_leader']}, whose place is that of its "
            f"first component: tias-slurm explain {job['het_leader']}"
        )
    if reason == "BeginTime":
        return f"{name} {_begins(job, zone)}; {stands}"
    if lever["state"] == "left alone" and because not in (NO_CURE, NOT_ELIGIBLE):
        why = "ignored, by order of an administrator" if because == "ignored" else because
        stands = f"the daemon leaves it alone ({why}), without that {stands}"
    if because in (NO_CURE, NOT_ELIGIBLE):
        return f"{name} waits for what no better place can give: Slurm says {reason}; {stands}"
    if reason in _WAITS_FOR:
        return f"{name} waits since {_WAITS_FOR[reason]}: Slurm says {reason}; {stands}"
    if nodes_in_doubt(reason) and not job["can_start"]:
        return (
            f"{name} waits for nodes that are down, drained, reserved or kept for others: Slurm says {reason}"
            f"; {stands}"
        )
    if not place["startable"]:
        if reason in ("None", ""):
            return f"{name} is first in line; Slurm has not looked at it yet; {stands}"
        return f"{name} is first in line and waits for free nodes: Slurm says {reason}; {stands}"
    n, gpus = place["startable"], spoken(place["gpus"], 0, place["weight"])
    before = f"{n} job{'s' * (n > 1)} ({gpus}) stand{'s' * (n == 1)} before it in its partitions"
    hopeless = f", as {HARDLY_MET}" if job["class"] == "hopeless" else ""
    return f"{name} waits its turn: {before}; {stands}{hopeless}"


def _out_of_scope(job: dict[str, Any]) -> str:
    """Of a job that no cycle looks after."""
    from tias_slurm.slurm.observer import STARTABLE, nodes_in_doubt

    name, rules = job["job"], "; ".join(job["out_of_scope"])
    if job["state"] != "PENDING":
        if job["requeue"]["mode"] == "slurm":
            return f"{name} runs, out of scope: {rules}. {_SHIELDED}"
        return f"{name} runs, and the daemon leaves it alone: {rules}"
    left = f"The daemon leaves {name} alone: {rules}"
    if job["lever"]["because"] == "held":
        return f"{left}. It waits because it is {_held(job)}"
    reason = job["slurm_reason"] or "None"
    if reason not in STARTABLE and not nodes_in_doubt(reason):
        return f"{left}. It waits for what no better place can give: Slurm says {reason}"
    return f"{left}. Slurm alone orders it{_order(job)}; Slurm says {reason}"


def _order(job: dict[str, Any]) -> str:
    """By what, and how many come before it."""
    order = job["slurm_order"]
    if order["ahead"] is None:
        return ""
    n = order["ahead"]
    jobs = f"{n or 'no other'} waiting job{'s' * (n > 1)}"
    come = "come" if n > 1 else "comes"
    return f", by priority {order['priority']}: {jobs} that may use its partitions {come} before it"


def _held(job: dict[str, Any]) -> str:
    """Who may end it, and how."""
    release, reason = f"scontrol release {job['job']}", job["slurm_reason"]
    who = {
        "JobHeldUser": f", and its owner may release it ({release})",
        "JobHeldAdmin": f" by an administrator, who alone may release it ({release})",
    }
    said = who.get(reason) or f": Slurm says {reason}"
    return f"held{said}; nothing else counts before that"


def _begins(job: dict[str, Any], zone: ZoneInfo) -> str:
    from tias_slurm.cli.words import moment

    at = job["begins"]
    when = "" if at is None else f" at {moment(at, zone)}"
    if job["restarts"]:
        return f"was requeued, and may start again{when or ' soon'}: until then it waits for no place"
    if at is None:
        return "waits for its begin time"
    return f"waits for its begin time, {moment(at, zone)}: until then it waits for no place"
