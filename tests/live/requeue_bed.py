"""What the tests of requeues have in common: settings, jobs that may be requeued, what has become of them."""

from __future__ import annotations

from typing import Any

from daemon_bed import URGENT, Done, Site
from live_bed import run, shown, wait_for

YES = "--comment=requeue=yes"


def requeues_on(site: Site, **more: object) -> None:
    """Settings with requeues, of jobs that have run for a second."""
    site.settings(requeue={"mode": "on", "min_run_s": 1, **more})


def on(
    site: Site, node: str, *words: str, gpus: int = 8, script: str = "sleep 900", user: str = "alice"
) -> int:
    """A job on one node, that runs by the time this returns."""
    job = waiting(site, *words, "-w", node, gpus=gpus, script=script, user=user)
    wait_for(lambda: shown(job, "JobState") == "RUNNING")
    return job


def waiting(site: Site, *words: str, gpus: int = 8, script: str = "sleep 900", user: str = "alice") -> int:
    """A job that is submitted, whatever becomes of it."""
    argv = ["sbatch", "--parsable", "-o", "/dev/null", "--wrap", script, f"--gpus={gpus}", *words]
    job = int(run(*argv, user=user).strip().split(";")[0])
    site.jobs.append(job)
    return job


def urgent(site: Site, *words: str, gpus: int = 8, user: str = "bob") -> int:
    """A waiting job with a deadline that is near; it waits for nodes by the time this returns."""
    job = waiting(site, f"--comment={URGENT}", *words, gpus=gpus, user=user)
    reasons: list[str] = []

    def waits() -> bool:
        reasons.append(reason_of(job))
        return reasons[-1] in ("Resources", "Priority")

    try:
        wait_for(waits, 60)
    except AssertionError:
        raise AssertionError(f"job {job} {state(job)}: {sorted(set(reasons))}") from None
    return job


def reason_of(job: int) -> str:
    """Why a job waits, a code."""
    return run("squeue", "-h", "-j", str(job), "-O", "Reason:.64").strip()


def old_enough(*jobs: int | str, seconds: int = 2) -> None:
    """Wait until the jobs have run for so long."""

    def ran(job: int | str) -> int:
        hours, minutes, rest = shown(job, "RunTime").split(":")
        return int(hours) * 3600 + int(minutes) * 60 + int(rest)

    wait_for(lambda: all(ran(job) >= seconds for job in jobs))


def restarts(job: int | str) -> int:
    """How often a job was requeued."""
    return int(shown(job, "Restarts"))


def state(job: int | str) -> str:
    """State of a job."""
    return shown(job, "JobState")


def asked(done: Done, event: str = "requeue") -> list[dict[str, Any]]:
    """The lines of the log for requeues."""
    return [line for line in done.log if line["event"] == event]


def fill(site: Site, nodes: int = 4) -> None:
    """Jobs without consent on all nodes but the first, so that only those that a test makes are left."""
    for number in range(2, nodes + 1):
        on(site, f"n{number}", "--exclusive", user="root")
