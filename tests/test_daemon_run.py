"""How a daemon runs: reload, schedule, stop. tests/live has the real Slurm."""

import os
import signal
import sqlite3
import threading
import time
from dataclasses import replace

import daemon_desk
import pytest
from daemon_desk import run_until
from raw_queue import FACTS, waiting

from tias_slurm.ledger.store import SqliteStore
from tias_slurm.service import schedule
from tias_slurm.service.start import ledger_path

desk = daemon_desk.desk
handlers = daemon_desk.handlers


def test_a_good_file_is_taken(desk):
    daemon = desk.daemon(waiting(5))
    desk.write(extra="[planner]\nmax_writes_per_cycle = 2")
    daemon._on_reload()
    assert daemon.cycle().writes == 2
    assert desk.said("reloaded")
    assert daemon.cycle().writes == 2


def test_a_reload_keeps_what_is_known(desk):
    daemon = desk.daemon(waiting(3, nice=5))
    daemon.cycle()
    daemon._on_reload()
    assert daemon.cycle().writes == 0
    assert daemon.controller.ledger.found.tolist() == [5.0, 5.0, 5.0]


class Asked:
    """A scheduler at work on a cycle: what is asked of it has to be asked again."""

    running = True

    def __init__(self):
        self.times, self.free = 0, threading.Event()

    def reschedule_job(self, name, **_):
        assert name == "cycle"

    def modify_job(self, name, *, next_run_time):
        assert name == "cycle"
        assert self.free.wait(60)
        self.times += 1


@pytest.mark.parametrize("reload", [True, False], ids=["a reload", "the lease was taken"])
def test_a_cycle_is_asked_for_until_one_begins(desk, reload):
    daemon = desk.daemon(waiting(1))
    daemon._schedule._scheduler = asked = Asked()
    if reload:
        daemon._on_reload()
    else:
        daemon._schedule.wake()
    assert asked.times == 0  # who wakes it does not wait for the scheduler
    asked.free.set()
    before = time.monotonic()
    while asked.times < 2:
        assert time.monotonic() - before < 20
        time.sleep(0.01)
    daemon.cycle()
    seen = asked.times
    time.sleep(3 * schedule.WAKE_S)
    assert asked.times <= seen + 1


def test_a_reload_asks_the_site_again(desk):
    daemon = desk.daemon(waiting(1))
    daemon.cycle()
    daemon.adapter.said = replace(FACTS, priority_weights={"Age": 500_000})
    daemon._on_reload()
    assert daemon.cycle().writes == 1
    first, second = (value for _, _, value in daemon.adapter.sent)
    assert second < 100 * first < 0


@pytest.mark.parametrize("text", ["not toml [", "[daemon]\nmode = 7\n", "[nonsense]\n"])
def test_a_bad_file_leaves_all_as_it_was(desk, text):
    daemon = desk.daemon(waiting(2))
    before = daemon.config
    desk.path.write_text(text)
    daemon._on_reload()
    assert daemon.cycle().writes == 2
    assert daemon.config is before
    assert len(desk.said("reload refused")) == 1
    daemon.cycle()
    assert len(desk.said("reload refused")) == 1  # asked for once, answered once


def test_run_until_a_signal(desk, handlers):
    daemon = desk.daemon(waiting(2))
    run_until(daemon, lambda: desk.said("cycle"), lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert [entry["event"] for entry in desk.log.entries][-1] == "stopped"
    assert len(desk.said("cycle")) == 1
    assert len(daemon.adapter.sent) == 2


def test_a_stop_waits_for_the_write_at_work(desk, handlers):
    """And nothing more is sent after it; what became of it is kept before the ledger is closed."""
    desk.write("jitter_s = 0.0", extra="[cycle]\ninterval_s = 5.0")
    daemon = desk.daemon(waiting(0), waiting(3))
    at_work = threading.Event()

    def slow(job, field, value):
        at_work.set()
        time.sleep(0.5)

    daemon.adapter.before_write = slow
    run_until(daemon, at_work.is_set, lambda: os.kill(os.getpid(), signal.SIGTERM))
    daemon.close()
    store = SqliteStore(ledger_path(daemon.config))
    assert [store.history(j)[0].result for j in (100, 101, 102)] == ["ok", "retry", "retry"]
    store.close()
    assert [job for job, *_ in daemon.adapter.sent] == [100]


def test_a_fault_of_ours_does_not_end_it(desk, handlers, monkeypatch):
    daemon = desk.daemon(waiting(2))
    monkeypatch.setattr(daemon, "cycle", lambda: 1 / 0)
    run_until(daemon, lambda: desk.said("cycle failed"), lambda: os.kill(os.getpid(), signal.SIGINT))
    assert desk.said("stopped")


def test_a_ledger_that_cannot_be_kept_stops_all_writing(desk, handlers):
    daemon = desk.daemon(waiting(2))
    other = sqlite3.connect(ledger_path(daemon.config), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    daemon.store._db.execute("PRAGMA busy_timeout=10")
    run_until(daemon, lambda: desk.said("ledger"), lambda: os.kill(os.getpid(), signal.SIGTERM))
    other.execute("ROLLBACK")
    other.close()
    assert "locked" in desk.said("ledger")[0]["message"]
    assert desk.said("cycle") == []
    assert daemon.adapter.sent == []
