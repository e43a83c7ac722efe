"""The daemon around the cycle: lock, ledger, reload, pause, audit, stop. tests/live has the real Slurm."""

import fcntl
import os
import signal
import sqlite3
import stat
import threading
import time
from pathlib import Path

import pytest
import structlog
from raw_queue import FACTS, NOW, Scripted, nodes, queue, running, waiting
from test_live_nodes import EIGHT, asked

from tias_slurm.errors import InputError
from tias_slurm.ledger.book import FOUND, SET
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.service import daemon as module
from tias_slurm.service import deeds, schedule, start
from tias_slurm.service.daemon import Daemon
from tias_slurm.service.start import ledger_path
from tias_slurm.service.state_lock import take_lock
from tias_slurm.slurm.live import AdapterError


class Desk:
    """Daemons of one state directory, over scripted adapters."""

    def __init__(self, tmp_path, monkeypatch):
        self.path = tmp_path / "config.toml"
        self.state = tmp_path / "state"
        self.monkeypatch = monkeypatch
        self.open = []
        self.write()

    def write(self, *lines, lever="nice", mode="enforce", extra=""):
        daemon = [f'mode = "{mode}"', f'state_dir = "{self.state}"', "writes_per_second = 1e6", *lines]
        self.path.write_text("\n".join(["[daemon]", *daemon, "[lever]", f'kind = "{lever}"', extra]) + "\n")

    def daemon(self, *queues, **script):
        adapter = Scripted(*queues, **script)
        self.monkeypatch.setattr(module, "choose", lambda *_, **__: (adapter, "as scripted"))
        self.log = structlog.testing.LogCapture()
        made = Daemon(
            str(self.path), {}, structlog.wrap_logger(structlog.PrintLogger(), processors=[self.log])
        )
        self.open.append(made)
        made.open()
        return made

    def said(self, event):
        return [entry for entry in self.log.entries if entry["event"].startswith(event)]

    def close(self):
        for made in self.open:
            made.close()


@pytest.fixture
def desk(tmp_path, monkeypatch):
    made = Desk(tmp_path, monkeypatch)
    yield made
    made.close()


# ---- set-up ----


def test_the_state_directory_is_ours_alone(desk):
    desk.daemon(waiting(1))
    assert stat.S_IMODE(desk.state.stat().st_mode) == 0o750
    assert stat.S_IMODE((desk.state / "lock").stat().st_mode) == 0o640
    assert sorted(f.name for f in desk.state.iterdir() if not f.name.endswith(("-wal", "-shm"))) == [
        "ledger.sqlite",
        "lock",
    ]


def test_a_state_directory_that_cannot_be(desk):
    desk.state.write_text("a file")
    with pytest.raises(InputError, match="state_dir"):
        desk.daemon(waiting(1))


def test_one_daemon_at_a_time(desk):
    first = desk.daemon(waiting(1))
    with pytest.raises(InputError, match=f"process {os.getpid()}"):
        desk.daemon(waiting(1))
    first.close()
    desk.daemon(waiting(1))


def test_a_lock_that_a_dead_process_left(desk):
    desk.state.mkdir()
    (desk.state / "lock").write_text("999999\n")
    held = take_lock(str(desk.state / "lock"))
    assert (desk.state / "lock").read_text() == f"{os.getpid()}\n"
    held.close()


def test_a_lock_with_nothing_in_it(desk):
    desk.state.mkdir()
    other = (desk.state / "lock").open("w")
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="process unknown"):
        take_lock(str(desk.state / "lock"))
    other.close()


def test_ledgers_of_the_modes_are_two(desk):
    daemon = desk.daemon(waiting(1))
    enforce = ledger_path(daemon.config)
    daemon.close()
    desk.write(mode="dry-run")
    daemon = desk.daemon(waiting(2))
    daemon.cycle()
    assert ledger_path(daemon.config) != enforce
    store = SqliteStore(enforce)
    assert len(store.load()[0]) == 0
    store.close()


def test_a_ledger_of_another_lever(desk):
    daemon = desk.daemon(waiting(1))
    daemon.cycle()
    daemon.close()
    desk.write(lever="priority")
    with pytest.raises(InputError, match="run tias-slurm restore"):
        desk.daemon(waiting(1))
    store = SqliteStore(str(desk.state / "ledger.sqlite"))
    store.disown()
    store.close()
    desk.open[-1].close()
    desk.daemon(waiting(1))


def test_in_a_dry_run_the_lever_may_change(desk):
    desk.write(mode="dry-run")
    desk.daemon(waiting(1)).cycle()
    desk.open[-1].close()
    desk.write(mode="dry-run", lever="site_factor")
    desk.daemon(waiting(1), factors={100: 0}).cycle()
    assert desk.said("would write")[0]["field"] == "site_factor"


@pytest.mark.parametrize(
    "site", [{"priority_type": "priority/basic"}, {"site_factor_plugin": "site_factor/example"}]
)
def test_site_factor_where_it_cannot_work(desk, site):
    desk.write(lever="site_factor")
    with pytest.raises(InputError, match='lever "site_factor" needs'):
        desk.daemon(waiting(1), facts=FACTS.__class__(**{**vars(FACTS), **site}))


# ---- the cycle ----


def test_a_cycle(desk):
    daemon = desk.daemon(queue({}, {"priority": 0, "reason": "JobHeldUser"}))
    seen = daemon.cycle()
    assert (seen.result, seen.jobs, seen.waiting, seen.writes, seen.failed) == ("ok", 2, 2, 1, 0)
    assert seen.barred == {"held": 1}
    (line,) = desk.said("write")
    assert (line["job"], line["field"], line["old"]) == ("100", "nice", 0)
    assert line["new"] == daemon.adapter.sent[0][2]
    assert line["reason"]
    assert daemon.cycle().writes == 0


def test_the_audit_record_is_there_before_the_write(desk):
    daemon = desk.daemon(waiting(2))
    stages = []

    def look(job, field, value):
        other = sqlite3.connect(ledger_path(daemon.config))
        audit = other.execute("SELECT action, new, result FROM audit WHERE job_id = ?", (job,)).fetchall()
        kept = other.execute('SELECT "set", "before" FROM job WHERE job_id = ?', (job,)).fetchall()
        other.close()
        stages.append((audit, kept, float(value)))

    daemon.adapter.before_write = look
    daemon.cycle()
    assert len(stages) == 2
    for audit, kept, value in stages:
        assert audit == [("nice", value, None)]
        assert kept == [(value, 0.0)]
    assert [e.result for e in daemon.store.history(100)] == ["ok"]


def test_outcomes_are_kept_with_the_controllers_words(desk):
    daemon = desk.daemon(waiting(3), answers={100: "refused", 101: "gone"})
    seen = daemon.cycle()
    assert (seen.writes, seen.failed, seen.refused) == (1, 2, 1)
    assert [
        (daemon.store.history(j)[0].result, daemon.store.history(j)[0].message) for j in (100, 101, 102)
    ] == [
        ("refused", "said refused"),
        ("gone", "said gone"),
        ("ok", "said ok"),
    ]
    assert [entry["result"] for entry in desk.said("write failed")] == ["refused"]


def test_outcomes_are_kept_when_the_cycle_breaks(desk):
    daemon = desk.daemon(waiting(2))

    def fail(job, field, value):
        if job == 101:
            raise AdapterError("gone away", retry=True)

    daemon.adapter.before_write = fail
    assert daemon.cycle().result == "no answer"
    assert [daemon.store.history(j)[0].result for j in (100, 101)] == ["ok", None]


VICTIM = running(job_id=10, gpus=8, comment="requeue=yes", start=NOW - 5000, submit=NOW - 9000)
URGENT = {"job_id": 20, "gpus": 8, "comment": "deadline=+3h", "reason": "Resources"}
REQUEUE = '[requeue]\nmode = "on"'


def full(desk, *queues, **script):
    """A daemon of a cluster whose only node is full, and where a job asks for all of it."""
    daemon = desk.daemon(*(queues or [queue(VICTIM, URGENT)]), **script)
    daemon.adapter.place = nodes({"gpus_used": 8, "cpus_used": 1})
    daemon.adapter.asked = {20: asked(**EIGHT)}
    return daemon


def test_a_requeue_is_in_the_audit_trail_before_it_is_sent(desk, monkeypatch):
    desk.write(extra=REQUEUE)
    daemon = full(desk)
    stages = []
    requeue = daemon.adapter.requeue

    def look(job):
        stages.append([(e.action, e.new, e.result) for e in daemon.store.history(job)])
        return requeue(job)

    monkeypatch.setattr(daemon.adapter, "requeue", look)
    seen = daemon.cycle()
    assert (seen.requeues, seen.writes, seen.failed) == (1, 1, 0)
    assert stages == [[("requeue", 20.0, None)]]
    assert [e.result for e in daemon.store.history(10)] == ["ok"]
    [line] = desk.said("requeue")
    assert (line["job"], line["beneficiary"], line["run_s"]) == ("10", "20", 5000)
    assert "level 0: urgent" in line["reason"]
    assert daemon.cycle().requeues == 0


def test_a_pause_and_a_dry_run_requeue_nobody(desk):
    desk.write(extra=REQUEUE)
    daemon = full(desk)
    (desk.state / "paused").touch()
    assert daemon.cycle().requeues == 0
    assert daemon.adapter.sent == []
    daemon.close()
    desk.write(extra=REQUEUE, mode="dry-run")
    daemon = full(desk)
    (desk.state / "paused").unlink()
    seen = daemon.cycle()
    assert (seen.requeues, seen.failed, daemon.adapter.sent) == (0, 0, [])
    assert [line["job"] for line in desk.said("would requeue")] == ["10"]
    assert not desk.said("requeue failed")


def test_a_cycle_that_breaks_before_its_requeues_counts_none(desk):
    desk.write(extra=REQUEUE)
    daemon = full(desk)

    def fail(job, field, value):
        raise AdapterError("gone away", retry=True)

    daemon.adapter.before_write = fail
    assert daemon.cycle().result == "no answer"
    assert daemon.controller.ledger.history().requeues.tolist() == [0, 0]


def test_why_nobody_is_requeued_for_a_job_is_said(desk):
    desk.write(extra=REQUEUE)
    daemon = full(desk)
    daemon.adapter.asked = {}
    seen = daemon.cycle()
    assert (seen.requeues, seen.no_requeue_for) == (0, {"its request was not seen": 1})


def test_only_the_priority_lever_can_hold_jobs(desk):
    desk.write(lever="nice", extra="[planner]\nlong_share = 0.5")
    with pytest.raises(InputError, match="long_share"):
        desk.daemon(waiting(1))


def test_the_priority_lever_holds_jobs(desk):
    desk.write(lever="priority", extra="[planner]\nlong_share = 0.5")
    assert desk.daemon(waiting(1)).controller.planner.limits.long_share == 0.5


def test_slurms_own_preemption_needs_its_guards(desk, monkeypatch):
    monkeypatch.setattr(start, "look_at_qos", lambda _: None)
    monkeypatch.setattr(start, "mode_in_file", lambda _: "")
    mode = '[requeue]\nmode = "slurm"'
    desk.write(lever="priority", extra=mode)
    with pytest.raises(InputError, match="PreemptType=preempt/qos"):
        desk.daemon(waiting(1))
    desk.open[-1].close()
    # a dry run says it and goes on
    desk.write(lever="priority", extra=mode, mode="dry-run")
    desk.daemon(waiting(1))
    assert desk.said('requeue mode "slurm" would be refused')


@pytest.mark.parametrize(
    ("queues", "result"),
    [
        ((AdapterError("squeue: no answer", retry=True), waiting(1)), "no answer"),
        ((waiting(1), waiting(1, time=NOW - 9)), "ok"),
    ],
)
def test_a_cycle_without_an_answer(desk, queues, result):
    daemon = desk.daemon(*queues)
    assert daemon.cycle().result == result
    other = daemon.cycle()
    assert other.result == ("ok" if result == "no answer" else "stale")
    assert len(desk.said("cycle")) == 2


def test_a_pause_file_stops_writing(desk):
    daemon = desk.daemon(waiting(3))
    (desk.state / "paused").touch()
    seen = daemon.cycle()
    assert (seen.paused, seen.writes, seen.held_back, daemon.adapter.sent) == (True, 0, 3, [])
    (desk.state / "paused").unlink()
    seen = daemon.cycle()
    assert (seen.paused, seen.writes, seen.held_back) == (False, 3, 0)


def test_the_budget_of_a_cycle(desk):
    desk.write(extra="[planner]\nmax_writes_per_cycle = 2")
    daemon = desk.daemon(waiting(5))
    assert [(c.writes, c.held_back) for c in (daemon.cycle(), daemon.cycle(), daemon.cycle())] == [
        (2, 3),
        (2, 1),
        (1, 0),
    ]


def test_no_rights_is_said_once_and_tried_again_later(desk, monkeypatch):
    daemon = desk.daemon(waiting(3), answers=dict.fromkeys((100, 101, 102), "no rights"))
    assert daemon.cycle().failed == 3
    assert [daemon.cycle().held_back for _ in range(3)] == [3, 3, 3]
    assert len(daemon.adapter.sent) == 1
    assert len(desk.said("no rights")) == 1
    assert desk.said("write failed") == []
    later = time.monotonic() + deeds.NO_RIGHTS_PAUSE_S + 1
    monkeypatch.setattr(deeds.time, "monotonic", lambda: later)
    daemon.adapter.answers = {}
    assert daemon.cycle().writes == 3


def test_what_is_old_is_dropped_once_a_day(desk, monkeypatch):
    daemon = desk.daemon(waiting(1))
    looked, trim = [], daemon.store.trim
    monkeypatch.setattr(daemon.store, "trim", lambda *w, age: looked.append((*w, age)) or trim(*w, age=age))
    daemon.cycle()
    daemon.cycle()
    assert [age for *_, age in looked] == [True, False]
    assert abs(time.time() - 90 * 86400 - looked[0][0].before) < 60


def test_a_daemon_that_comes_back_writes_nothing_twice(desk):
    daemon = desk.daemon(waiting(3))
    daemon.cycle()
    values = dict(daemon.adapter.values)
    daemon.close()
    daemon = desk.daemon(waiting(3))
    daemon.adapter.values = values
    assert daemon.cycle().writes == 0
    assert daemon.controller.ledger.found.tolist() == [0.0, 0.0, 0.0]


def test_claims_that_are_refused_are_said_once(desk):
    daemon = desk.daemon(queue({"comment": "deadline=soon"}, {"comment": "deadline=+3h"}))
    daemon.cycle()
    daemon.cycle()
    (line,) = desk.said("claims refused")
    assert sum(line["reasons"].values()) == 1


# ---- reload ----


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
        self.times = 0

    def reschedule_job(self, name, **_):
        assert name == "cycle"

    def modify_job(self, name, *, next_run_time):
        assert name == "cycle"
        self.times += 1


@pytest.mark.parametrize("reload", [True, False], ids=["a reload", "the lease was taken"])
def test_a_cycle_is_asked_for_until_one_begins(desk, reload):
    daemon = desk.daemon(waiting(1))
    daemon._schedule._scheduler = asked = Asked()
    before = time.monotonic()
    if reload:
        daemon._on_reload()
    else:
        daemon._schedule.wake()
    # who wakes it has other things to do
    assert time.monotonic() - before < schedule.WAKE_S
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
    daemon.adapter.said = FACTS.__class__(**{**vars(FACTS), "priority_weights": {"Age": 500_000}})
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


# ---- the schedule ----


@pytest.fixture
def handlers():
    """Signals as they were before."""
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run_until(daemon, what, then):
    """`run`, with `then` in another thread once `what` holds."""

    def wait():
        deadline = time.monotonic() + 20
        while not what() and time.monotonic() < deadline:
            time.sleep(0.01)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    daemon.run()
    thread.join()


def test_run_until_a_signal(desk, handlers):
    daemon = desk.daemon(waiting(2))
    run_until(daemon, lambda: desk.said("cycle"), lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert [entry["event"] for entry in desk.log.entries][-1] == "stopped"
    assert len(desk.said("cycle")) == 1
    assert len(daemon.adapter.sent) == 2


def test_a_stop_waits_for_the_write_at_work(desk, handlers, monkeypatch):
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


def test_paths_are_not_made_of_what_users_write(desk):
    daemon = desk.daemon(queue({"user": "../../x", "comment": "deadline=../../y\n\x1b[2J"}))
    daemon.cycle()
    assert {f.parent for f in Path(desk.state).rglob("*")} == {desk.state}


def test_a_dry_run_after_an_enforcing_daemon_knows_what_it_set(desk):
    made = desk.daemon(waiting(1, comment="deadline=+3h"))
    made.cycle()
    (job,) = made.store.load()[0].tolist()
    set_value = float(made.store.load()[1][0, SET])
    made.close()
    assert set_value < 0
    desk.write(mode="dry-run")
    dry = desk.daemon(waiting(1, comment="deadline=+3h", nice=int(set_value)))
    dry.cycle()
    assert dry.store.load()[0].tolist() == [job]
    assert dry.store.load()[1][0, FOUND] == 0.0  # the user's own, not ours
    assert desk.said("would write") == []
