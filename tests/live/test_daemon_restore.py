"""restore returns every job of a real queue to what it was, live and after a crash."""

from __future__ import annotations

import re
import signal

import pytest
from daemon_bed import CALM, URGENT, Site, lever_value, nice, priority, update
from live_bed import run, shown, wait_for

LEVERS = ("nice", "site_factor", "priority")
# times, notes of the scheduler on its last look, and the priority that age and fair share move: see `sprio`
_MOVING = {
    "AccrueTime", "EligibleTime", "EndTime", "LastSchedEval", "Priority", "Reason", "RunTime",
    "SchedNodeList", "Scheduler", "StartTime",
}  # fmt: skip
_FACTORS = ("%S", "%N", "%Q", "%P", "%J", "%T", "%B")


def as_shown(jobs: list[int]) -> dict[str, dict[str, str]]:
    """What scontrol shows of these jobs and their tasks, without what moves by itself."""
    records: dict[str, dict[str, str]] = {}
    for job in jobs:
        for line in run("scontrol", "-o", "show", "job", str(job)).splitlines():
            fields = dict(re.findall(r"(?:^|\s)([A-Za-z/:]+)=(\S*)", line))
            held = fields.get("Priority") == "0"
            kept = {key: value for key, value in fields.items() if key not in _MOVING}
            records[fields["JobId"] + fields.get("ArrayTaskId", "")] = kept | {"held": str(held)}
    return records


def by_sprio(jobs: list[int]) -> dict[str, list[str]]:
    """What sprio shows of these jobs: factors that do not move, the rest of the priority, whether pinned."""
    rows: dict[str, list[str]] = {}
    text = run("sprio", "-h", "-o", "%i|%r|" + "|".join(_FACTORS) + "|%Y|%A|%F|%y")
    for line in text.splitlines():
        job, part, *factors, total, age, share, normal = [word.strip() for word in line.split("|")]
        if int(job) in jobs:
            rest = int(total) - int(age) - int(share)
            rows[f"{job} {part}"] = [*factors, str(rest), str(float(normal) >= 1)]
    return rows


def queue_of_all_kinds(site: Site) -> list[int]:
    """A queue with a job of every kind that the daemon may meet."""
    blocker = site.block()
    jobs = [
        site.submit(f"--comment={URGENT}"),
        site.submit(f"--comment={CALM}", "--nice=100"),
        site.submit("--nice=0", user="bob"),
        site.submit("--array=0-4", "--nice=11"),
        site.submit("--array=1,3,7-9%2", f"--comment={URGENT}"),
        site.submit("--hold"),
        site.submit("--partition=gpu,debug", "--comment=café | x"),
        site.submit("--qos=high"),
        site.submit("--begin=now+1hour"),
        site.submit(f"--dependency=afterany:{blocker}"),
        site.submit("--gpus=1", ":", "--gpus=1"),
    ]
    update(jobs[1], "SiteFactor=17")
    pinned = site.submit()
    update(pinned, "Priority=4321")
    return [blocker, *jobs, pinned]


@pytest.mark.parametrize(
    "kind", ["nice", "site_factor", pytest.param("priority", marks=(pytest.mark.core, pytest.mark.smoke))]
)
def test_restore_returns_every_job_to_what_it_was(site: Site, kind: str) -> None:
    site.lever(kind)
    jobs = queue_of_all_kinds(site)
    wait_for(lambda: str(jobs[-1]) in run("sprio", "-h", "-o", "%i").split())
    before = as_shown(jobs), by_sprio(jobs)
    assert site.once().json["writes"] >= 7
    between = as_shown(jobs), by_sprio(jobs)
    assert between[1] != before[1]
    done = site.tias("restore", "--json").json
    assert set(done["outcomes"]) == {"restored"}
    assert (as_shown(jobs), by_sprio(jobs)) == before
    # once more there is nothing to do
    assert site.tias("restore").out.strip() == "nothing to restore"
    # nor does the next cycle take what it finds now for anything but the users' own
    assert site.once().json["writes"] == done["outcomes"]["restored"]
    assert (as_shown(jobs), by_sprio(jobs)) == between


@pytest.mark.parametrize(
    "kind", [pytest.param("nice", marks=(pytest.mark.core, pytest.mark.smoke)), "site_factor", "priority"]
)
def test_kill_between_two_writes_leaves_no_value_unknown(site: Site, kind: str) -> None:
    site.lever(kind)
    site.settings(daemon={"writes_per_second": 0.2})
    site.block()
    jobs = [site.submit("--nice=5", f"--comment={URGENT}") for _ in range(4)]
    wait_for(lambda: priority(jobs[-1]) > 0)
    before = as_shown(jobs), by_sprio(jobs)
    daemon = site.start()
    wait_for(
        lambda: by_sprio(jobs[:1]) != {k: v for k, v in before[1].items() if k.startswith(f"{jobs[0]} ")}
    )
    assert daemon.end(signal.SIGKILL) == -signal.SIGKILL
    if kind != "nice":
        assert lever_value(kind, jobs[0]) == site.known(jobs[0], "set")
    for job in jobs:
        # what was sent is known, and so is what stood there before
        assert lever_value(kind, job) == site.known(job, "set") or by_sprio([job]) == {
            key: value for key, value in before[1].items() if key.startswith(f"{job} ")
        }
    assert by_sprio(jobs[-1:]) == {k: v for k, v in before[1].items() if k.startswith(f"{jobs[-1]} ")}
    # a restart carries on where it was
    site.settings(daemon={"writes_per_second": 50.0})
    seen = site.once().json
    assert (seen["result"], seen["overridden"], seen["failed"]) == ("ok", 0, 0)
    for job in jobs:
        assert lever_value(kind, job) == site.known(job, "set")
    assert len({lever_value(kind, job) for job in jobs}) == 1
    assert site.tias("restore", "--json").json["outcomes"] == {"restored": 4}
    assert (as_shown(jobs), by_sprio(jobs)) == before


@pytest.mark.parametrize("kind", LEVERS)
def test_restore_after_a_kill_without_a_restart(site: Site, kind: str) -> None:
    site.lever(kind)
    site.settings(daemon={"writes_per_second": 0.2})
    site.block()
    jobs = [site.submit("--nice=5") for _ in range(3)]
    wait_for(lambda: priority(jobs[-1]) > 0)
    before = as_shown(jobs), by_sprio(jobs)
    daemon = site.start()
    wait_for(
        lambda: by_sprio(jobs[:1]) != {k: v for k, v in before[1].items() if k.startswith(f"{jobs[0]} ")}
    )
    daemon.end(signal.SIGKILL)
    done = site.tias("restore", "--json").json
    assert set(done["outcomes"]) <= {"restored"}
    assert (as_shown(jobs), by_sprio(jobs)) == before


@pytest.mark.parametrize("kind", LEVERS)
def test_restore_of_a_job_that_runs_by_now(site: Site, kind: str) -> None:
    site.lever(kind)
    blocker = site.block()
    job = site.submit("--nice=9")
    before = priority(job)
    site.once()
    assert priority(job) > before + 1000
    run("scancel", str(blocker))
    wait_for(lambda: shown(job, "JobState") == "RUNNING")
    assert site.tias("restore", "--json").json["outcomes"] == {"restored": 1}
    assert nice(job) == 9
    assert priority(job) < before + 1000


def test_what_could_not_be_put_back_is_said(site: Site) -> None:
    site.block()
    job = site.submit(f"--comment={URGENT}")
    site.once()
    set_to = nice(job)
    run("chmod", "-R", "a+rwX", str(site.home))
    done = site.tias("restore", user="carol", status=1)
    assert f"job {job}: no rights" in done.out
    assert nice(job) == set_to
    assert site.tias("restore", "--json").json["outcomes"] == {"restored": 1}
    assert nice(job) == 0
