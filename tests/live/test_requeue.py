"""Requeues on a real Slurm: the right victim, what is remembered of it, and what happens in between."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adapters import ADAPTERS
from daemon_bed import URGENT, Site, nice
from live_bed import configured, run, shown, wait_for
from requeue_bed import (
    YES,
    asked,
    fill,
    old_enough,
    on,
    reason_of,
    requeues_on,
    restarts,
    state,
    urgent,
    waiting,
)

from tias_slurm.config import load_config
from tias_slurm.service.live_cycle import LiveCycle


@pytest.mark.core
def test_an_urgent_job_takes_the_nodes_of_the_right_victim(site: Site) -> None:
    requeues_on(site)
    fill(site)
    small = on(site, "n1", YES, gpus=2)
    large = on(site, "n1", YES, gpus=6)
    job = urgent(site, gpus=4)
    old_enough(small, large)
    done = site.once()
    # only the larger one makes room, and the smaller one would be in vain
    assert [line["job"] for line in asked(done)] == [str(large)]
    assert done.json["requeues"] == 1
    wait_for(lambda: state(job) == "RUNNING")
    assert shown(job, "NodeList") == "n1"
    assert (restarts(large), restarts(small), state(small)) == (1, 0, "RUNNING")
    # the next cycle says so, and requeues nobody
    done = site.once()
    assert done.json["requeues"] == 0
    sent = site.query("SELECT new, result FROM audit WHERE job_id = ? AND action = 'requeue'", large)
    assert sent == [(float(job), "ok")]


def test_the_daemon_starts_an_urgent_job_within_two_cycles(site: Site) -> None:
    requeues_on(site)
    victim = on(site, "n1", YES)
    old_enough(victim)
    daemon = site.start()
    daemon.cycles(1)
    job = urgent(site, "-w", "n1")
    daemon.cycles(2)
    assert (state(job), restarts(victim)) == ("RUNNING", 1)
    daemon.cycles(1)
    [line] = daemon.said("job that others were requeued for started")
    assert line["job"] == job
    assert daemon.end() == 0


def test_what_it_has_cost_is_in_the_ledger(site: Site) -> None:
    requeues_on(site)
    plain = on(site, "n1", YES, gpus=4)
    saves = on(site, "n1", f"{YES} checkpoint=1s", gpus=4)
    urgent(site, "-w", "n1", gpus=8)
    old_enough(plain, saves, seconds=5)
    assert site.once().json["requeues"] == 2
    wait_for(lambda: restarts(plain) == restarts(saves) == 1)
    wait_for(lambda: state(plain) == state(saves) == "PENDING")
    site.once()
    assert (site.known(plain, "requeues"), site.known(saves, "requeues")) == (1, 1)
    # all of the run, and less than a second of it
    assert site.known(plain, "redone") >= 5
    assert site.known(saves, "redone") < 1
    assert site.known(plain, "kept") == 0 < 5 <= site.known(saves, "kept")
    assert site.known(plain, "attained") >= 20


@pytest.mark.parametrize("conf", [(), ("RequeueExit=1-255", "RequeueExitHold=15,143")])
def test_a_requeued_job_is_not_held_and_its_value_is_ours(site: Site, conf: tuple[str, ...]) -> None:
    requeues_on(site)
    with configured(*conf):
        victim = on(site, "n1", YES, "--nice=7")
        job = urgent(site, "-w", "n1")
        old_enough(victim)
        assert site.once().json["requeues"] == 1
        wait_for(lambda: state(victim) == "PENDING" and state(job) == "RUNNING")
        assert int(shown(victim, "Priority")) > 0
        wait_for(lambda: reason_of(victim) == "BeginTime")
        seen = site.once().json
        assert (seen["failed"], seen["overridden"], seen["barred"]) == (0, 0, {})
        assert nice(victim) == site.known(victim, "set")
        assert site.known(victim, "found") == 7
        site.tias("restore")
        assert nice(victim) == 7


def test_a_gang_takes_several_victims_spread_over_nodes(site: Site) -> None:
    requeues_on(site)
    for name in ("n3", "n4"):
        on(site, name, "--exclusive", user="root")
    # eight GPUs on one node and four on the other
    wide = waiting(site, YES, "-N", "2", gpus=12)
    wait_for(lambda: state(wide) == "RUNNING")
    other = waiting(site, YES, gpus=4)
    wait_for(lambda: state(other) == "RUNNING")
    job = urgent(site, "-N", "2", gpus=8)
    old_enough(wide, other)
    done = site.once()
    assert [line["job"] for line in asked(done)] == [str(wide)]
    wait_for(lambda: state(job) == "RUNNING")
    assert (restarts(wide), restarts(other)) == (1, 0)


class Between:
    """An adapter, and what happens between a decision and the requeue."""

    def __init__(self, inner: Any, happens: Callable[[int], None]) -> None:
        self._inner, self._happens = inner, happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def requeue(self, job_id: int) -> Any:
        self._happens(job_id)
        return self._inner.requeue(job_id)


def one_cycle(site: Site, adapter: Any) -> LiveCycle:
    """A cycle in this process, with an adapter of the test's."""
    made = LiveCycle(load_config(str(site.config)), adapter, adapter.facts(), None, enforce=True)
    made.controller.cycle()
    return made


@pytest.mark.parametrize("ends", ["COMPLETED", "CANCELLED"])
def test_a_job_that_ends_at_the_last_moment_is_not_run_again(site: Site, ends: str) -> None:
    requeues_on(site)
    go = site.home / "go"
    victim = on(site, "n1", YES, script=f"while [ ! -e {go} ]; do sleep 0.1; done")
    job = urgent(site, "-w", "n1")
    old_enough(victim)

    def end(job_id: int) -> None:
        assert job_id == victim
        if ends == "COMPLETED":
            go.touch()
        else:
            run("scancel", str(victim))
        wait_for(lambda: state(victim) == ends)

    adapter = ADAPTERS[site.backend](30.0)
    try:
        made = one_cycle(site, Between(adapter, end))
    finally:
        adapter.close()
    assert len(made.controller.seen.plan.victims) == 1 if made.controller.seen else False
    assert (state(victim), restarts(victim)) == (ends, 0)
    at = int(made.ledger.history().requeues.sum())
    assert at == 0  # nothing counts that was not done
    wait_for(lambda: state(job) == "RUNNING")


def test_a_change_of_mind_at_the_last_moment(site: Site) -> None:
    requeues_on(site)
    first = on(site, "n1", YES, gpus=4)
    second = on(site, "n1", YES, gpus=4)
    job = urgent(site, "-w", "n1", gpus=8)
    old_enough(first, second)

    class Changes(Between):
        looks = 0

        def jobs(self) -> Any:
            self.looks += 1
            if self.looks == 2:
                run("scontrol", "update", f"JobId={second}", "Comment=requeue=no", user="alice")
            return self._inner.jobs()

    adapter = ADAPTERS[site.backend](30.0)
    try:
        made = one_cycle(site, Changes(adapter, lambda _: pytest.fail("half of a group was requeued")))
    finally:
        adapter.close()
    assert made.controller.seen is not None
    assert len(made.controller.seen.plan.victims) == 2
    assert [(state(j), restarts(j)) for j in (first, second)] == [("RUNNING", 0)] * 2
    assert (state(job), int(made.ledger.history().requeues.sum())) == ("PENDING", 0)


KILLED = """
import os, signal, structlog
from tias_slurm.service import daemon
real = daemon.choose
def choose(*words, **more):
    adapter, why = real(*words, **more)
    adapter.requeue = lambda job: os.kill(os.getpid(), signal.SIGKILL)
    return adapter, why
daemon.choose = choose
made = daemon.Daemon({config!r}, {{"daemon.mode": "enforce"}}, structlog.get_logger())
made.open()
made.cycle()
"""


@pytest.mark.core
def test_killed_between_intention_and_requeue(site: Site) -> None:
    requeues_on(site, cooldown_s=0)
    victim = on(site, "n1", YES)
    job = urgent(site, "-w", "n1")
    old_enough(victim)
    code = KILLED.format(config=str(site.config))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (state(victim), restarts(victim)) == ("RUNNING", 0)
    pending = "SELECT result FROM audit WHERE job_id = ? AND action = 'requeue' ORDER BY id"
    assert site.query(pending, victim) == [(None,)]
    # the next one decides anew, on what it sees
    wait_for(lambda: reason_of(job) in ("Resources", "Priority"))
    done = site.once()
    assert done.json["requeues"] == 1, (done.out, done.err)
    wait_for(lambda: state(job) == "RUNNING")
    assert restarts(victim) == 1
    assert site.query(pending, victim) == [(None,), ("ok",)]


def test_one_task_of_an_array_starts_and_the_next_one_has_its_own_turn(site: Site) -> None:
    requeues_on(site, cooldown_s=0)
    victims = [on(site, "n1", YES, gpus=4) for _ in range(2)]
    array = waiting(site, f"--comment={URGENT}", "--array=0-1", "-w", "n1", gpus=4, user="bob")
    wait_for(lambda: reason_of(array) in ("Resources", "Priority"))
    old_enough(*victims)
    assert site.once().json["requeues"] == 1
    wait_for(lambda: "R" in run("squeue", "-h", "-r", "-j", str(array), "-o", "%t").split())
    assert sorted(restarts(v) for v in victims) == [0, 1]
    assert site.once().json["requeues"] == 1
    wait_for(lambda: run("squeue", "-h", "-r", "-j", str(array), "-o", "%t").split() == ["R", "R"])


def test_the_budget_of_an_hour(site: Site) -> None:
    requeues_on(site, max_per_hour=1)
    victims = [on(site, name, YES) for name in ("n1", "n2")]
    jobs = [urgent(site, "-w", name) for name in ("n1", "n2")]
    old_enough(*victims)
    assert site.once().json["requeues"] == 1
    wait_for(lambda: sorted(map(state, jobs)) == ["PENDING", "RUNNING"])
    assert site.once().json["requeues"] == 0
    assert sorted(restarts(v) for v in victims) == [0, 1]


def test_a_signal_reaches_the_batch_script_alone(site: Site) -> None:
    told, step = site.home / "told", site.home / "step"
    script = (
        f"trap 'touch {told}' USR1; srun --overlap bash -c \"trap 'touch {step}' USR1; sleep 900\" & "
        "while true; do sleep 0.2; done"
    )
    job = on(site, "n1", script=script)
    old_enough(job, seconds=3)
    adapter = ADAPTERS[site.backend](30.0)
    try:
        assert adapter.signal(job, "USR1").result == "ok"
        wait_for(told.exists)
        assert not step.exists()
        assert state(job) == "RUNNING"
        run("scancel", str(job))
        wait_for(lambda: state(job) == "CANCELLED")
        assert adapter.signal(job, "USR1").result == "gone"
        assert adapter.signal(99_999_999, "USR1").result == "gone"
    finally:
        adapter.close()


@pytest.mark.parametrize(
    ("settings", "comment"),
    [
        pytest.param({"grace_s": 4, "signal": "USR1"}, YES, id="the site"),
        pytest.param({}, f"{YES} requeue_signal=USR1@4s", id="the owner"),
    ],
)
def test_a_warning_and_its_grace(site: Site, settings: dict[str, object], comment: str) -> None:
    requeues_on(site, **settings)
    told: Path = site.home / "told"
    victim = on(site, "n1", comment, script=f"trap 'touch {told}' USR1; while true; do sleep 0.2; done")
    job = urgent(site, "-w", "n1")
    old_enough(victim)
    done = site.once()
    assert [line["job"] for line in asked(done, "warn")] == [str(victim)]
    assert (asked(done), done.json["requeues"]) == ([], 0)
    wait_for(told.exists)
    assert state(victim) == "RUNNING"
    # the choice stands, and is carried out when the time has passed
    told.unlink()
    wait_for(lambda: bool(asked(site.once())), 30)
    wait_for(lambda: state(job) == "RUNNING")
    assert restarts(victim) == 1
    assert not told.exists()
