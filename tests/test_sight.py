"""From a dry run to enforcement: what was seen comes along, what would have been done does not.

The hardest inputs: a deadline that passes while nobody enforces; a claim made, moved and withdrawn in the dry
run of a job that was written before; a number that comes again; a job that was requeued in between; a dry
run's ledger that is older than the real one, of another version, or spoiled; there and back again; a user
who changes their nice meanwhile.
"""

import dataclasses
import signal
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import daemon_desk
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_queue import NOW, queue, waiting
from worlds import job_table, snapshot

from tias_slurm.jobs import PENDING, RUNNING
from tias_slurm.ledger import tally
from tias_slurm.ledger.book import Ledger
from tias_slurm.ledger.quota import Settings
from tias_slurm.ledger.sight import DEEDS, SEEN, looked_at
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.ledger.table import BEFORE, CLAIM, COLUMNS, FOUND, NICE, REQUEUES, SET
from tias_slurm.levers import NiceLever
from tias_slurm.planner import Limits, Planner
from tias_slurm.policy.tias import Tias, preset

desk = daemon_desk.desk
POLICY = Tias(preset("slots"))
LEVER = NiceLever(POLICY.levels, 32, 1000)
JOBS = 4


class World:
    """A queue, and daemons that look at it, one after another."""

    def __init__(self, top):
        self.now, self.jobs = NOW, {}
        self.paths = {mode: f"{top}/{mode}.sqlite" for mode in ("dry-run", "enforce")}
        self.stores, self.would_be = {}, {}

    def daemon(self, mode):
        """Another one begins: what it knows is what is on disk."""
        for store in self.stores.values():
            store.close()
        if mode == "dry-run" and Path(self.paths["enforce"]).exists():
            with closing(SqliteStore(self.paths["enforce"])) as real:
                real.copy_to(self.paths["dry-run"])
        self.stores = {m: SqliteStore(p) for m, p in self.paths.items() if m == mode or Path(p).exists()}
        if mode == "enforce" and looked_at(self.paths["dry-run"]) > looked_at(self.paths["enforce"]):
            self.stores[mode].see_as(self.paths["dry-run"])
        self.would_be = {}
        return self.ledger(mode)

    def ledger(self, mode):
        self.mode = mode
        return Ledger(self.stores[mode], quota=Settings(0.2, 90_000.0))

    def change(self, number, what, by):
        """Something happens to a job; what makes no sense is nothing."""
        job = self.jobs.get(number)
        if what == "submit" and job is None:
            self.jobs[number] = {"state": PENDING, "submit": self.now, "deadline": np.nan, "restarts": 0,
                                 "run_time": 0.0, "lever": 0.0, "account": number % 2}  # fmt: skip
        elif job is None:
            pass
        elif what == "claim":
            job["deadline"] = self.now + by * 400.0
        elif what == "withdraw":
            job["deadline"] = np.nan
        elif what == "start":
            job["state"] = RUNNING
        elif what == "requeue" and job["state"] == RUNNING:
            job |= {"state": PENDING, "restarts": job["restarts"] + 1, "submit": self.now, "run_time": 0.0}
        elif what == "end":
            del self.jobs[number]
            self.would_be.pop(number, None)

    def shown(self, would_be):
        """As a cluster in this mode shows it."""
        ids = sorted(self.jobs)
        rows = [self.jobs[i] for i in ids]
        columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}
        if would_be:
            columns["lever"] = [would_be.get(i, job["lever"]) for i, job in zip(ids, rows, strict=True)]
        table = job_table(len(ids), job_id=np.array(ids, dtype=int), gpus=4, since=0.0, **columns)
        made = snapshot(self.now, table)
        return dataclasses.replace(made, accounts=("lab", "other"))

    def look(self, ledger, *, keep=True):
        """One cycle: what the policy may look at, the ranking, and the values that jobs come to have."""
        dry = self.mode == "dry-run"
        shown = self.shown(self.would_be if dry else {})
        known = ledger.remember(shown)
        ranking = POLICY.rank(self.now, known, ledger.learner.survival())
        ledger.note(ranking)
        barred = ledger.overridden(shown) | ledger.refused
        plan = Planner(LEVER, Limits()).plan(shown, ledger.history(), ranking, barred)
        ledger.intend(shown, plan)
        values = shown.jobs.lever.copy()
        values[plan.write] = plan.new
        if keep:
            for job, value in zip(shown.jobs.job_id.tolist(), values.tolist(), strict=True):
                if dry:
                    self.would_be[job] = value
                else:
                    self.jobs[job]["lever"] = value
            tally.note(self.stores[self.mode], self.now, "ok", paused=False, claims={}, jobs={})
        return known, ranking, values

    def pass_(self, seconds):
        self.now += seconds
        for job in self.jobs.values():
            job["run_time"] += seconds if job["state"] == RUNNING else 0.0

    def close(self):
        for store in self.stores.values():
            store.close()


HAPPENS = ["submit", "claim", "claim", "withdraw", "start", "requeue", "end"]
EVENTS = st.tuples(st.integers(1, JOBS), st.sampled_from(HAPPENS), st.integers(-1, 20))
LOOKS = st.lists(st.tuples(st.sampled_from([30.0, 600.0, 5000.0]), st.lists(EVENTS, max_size=5)), max_size=5)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["enforce", "dry-run"]), LOOKS), max_size=4), LOOKS)
def test_after_the_switch_all_stand_where_the_dry_run_would_have_put_them(before, dry):
    with tempfile.TemporaryDirectory() as top:
        world = World(top)
        try:
            for mode, looks in [*before, ("dry-run", dry)]:
                ledger = world.daemon(mode)
                for seconds, events in looks:
                    world.pass_(seconds)
                    for event in events:
                        world.change(*event)
                    world.look(ledger)
            set_ = dict(zip(*_column(world.stores.get("enforce"), SET), strict=True))
            world.pass_(500.0)
            # somebody enforces, and the dry run goes on beside it, as if nothing were
            other = World(top)
            other.now, other.jobs = world.now, world.jobs
            ledger = other.daemon("enforce")
            ids, table, _ = other.stores["enforce"].load()
            for job, value in zip(ids.tolist(), table[:, SET].tolist(), strict=True):
                assert value == set_.get(job, np.nan) or (value != value and set_.get(job, np.nan) != value)
            known_2, ranking_2, values_2 = other.look(ledger, keep=False)
            known, ranking, values = world.look(world.ledger("dry-run"), keep=False)
            for field in dataclasses.fields(known):
                np.testing.assert_array_equal(
                    getattr(known, field.name), getattr(known_2, field.name), field.name
                )
            for name in ("level", "urgency", "slot", "front", "fallen"):
                np.testing.assert_array_equal(getattr(ranking, name), getattr(ranking_2, name), name)
            waits = ~known.running
            np.testing.assert_array_equal(values[waits], values_2[waits])
            # what was found is the users' own
            assert (ledger.found == 0.0).all()
            other.close()
        finally:
            world.close()


def _column(store, column):
    if store is None:
        return [], []
    ids, table, _ = store.load()
    return ids.tolist(), table[:, column].tolist()


def test_every_column_is_either_seen_or_done():
    assert sorted(SEEN + DEEDS) == sorted(COLUMNS)
    assert set(DEEDS) < set(COLUMNS)


# ---- the daemon: by a reload, by a restart


OVERDUE = {"job_id": 100, "comment": "deadline=+1m", "submit": NOW, "eligible": NOW}
OTHER = {"job_id": 101, "comment": "deadline=+3h", "submit": NOW, "eligible": NOW}


def at(seconds, *jobs):
    return queue(*(jobs or (OVERDUE, OTHER)), time=NOW + seconds)


def show(daemon, queue_):
    """Slurm shows this from now on."""
    daemon.adapter.queues.clear()
    daemon.adapter.queues.append(queue_)


def go(desk, how, daemon, shown, mode="enforce", **more):
    """The daemon goes over to another mode; its first cycle there."""
    desk.write(mode=mode, **more)
    if how == "reload":
        show(daemon, shown)
        daemon._on_reload(signal.SIGHUP, None)
    else:
        daemon.close()
        daemon = desk.daemon(shown)
    return daemon, daemon.cycle()


def values(daemon):
    return {job: value for job, _, value in daemon.adapter.sent}


@pytest.mark.parametrize("how", ["reload", "restart"])
def test_a_deadline_that_passes_in_the_dry_run(desk, how):
    desk.write(mode="dry-run")
    daemon = desk.daemon(at(1))
    daemon.cycle()
    show(daemon, at(200))
    daemon.cycle()
    would = {e["job"]: e["new"] for e in desk.said("would write")}
    daemon, seen = go(desk, how, daemon, at(230))
    assert seen.writes == 2
    assert values(daemon) == {int(job): value for job, value in would.items()}
    assert not daemon.controller.ledger.unaccepted.any()
    assert daemon.store.load()[1][0, CLAIM] == NOW + 60
    assert [e["jobs"] for e in desk.said("goes on from what the dry run saw")] == [2]
    # once, and then the real one is newer
    daemon, seen = go(
        desk,
        "restart",
        daemon,
        at(260, *({**j, "nice": values(daemon)[j["job_id"]]} for j in (OVERDUE, OTHER))),
    )
    assert (seen.writes, desk.said("goes on from")) == (0, [])


@pytest.mark.parametrize("how", ["reload", "restart"])
def test_a_claim_made_in_the_dry_run_of_a_job_that_was_written_before(desk, how):
    plain = {**OVERDUE, "comment": ""}
    daemon = desk.daemon(at(1, plain))
    daemon.cycle()
    ((_, _, set_),) = daemon.adapter.sent
    ours = {**OVERDUE, "nice": set_, "comment": "deadline=+10m"}
    daemon, _ = go(desk, how, daemon, at(60, ours), mode="dry-run")
    daemon.adapter.sent.clear()
    daemon, seen = go(desk, how, daemon, at(1000, ours))
    row = daemon.store.load()[1][0]
    assert (row[CLAIM], row[FOUND], row[BEFORE]) == (NOW + 600, 0.0, set_)
    assert (seen.overridden, seen.writes) == (0, 1)
    assert values(daemon)[100] > set_  # overdue: behind those without a deadline


def test_a_user_changes_their_nice_meanwhile(desk):
    """What is put back one day is theirs of now, also where the lever wipes it."""
    desk.write(mode="dry-run", lever="priority")
    daemon = desk.daemon(at(1, {**OTHER, "nice": 10}))
    daemon.cycle()
    daemon, _ = go(desk, "restart", daemon, at(60, {**OTHER, "nice": 70}), lever="priority")
    assert daemon.store.load()[1][0, [FOUND, NICE]].tolist() == [0.0, 70.0]


def test_would_be_requeues_are_none(desk):
    desk.write(mode="dry-run", extra=daemon_desk.REQUEUE)
    daemon = daemon_desk.full(desk)
    daemon.cycle()
    dry = daemon.store.get("requeues")
    daemon, _ = go(desk, "restart", daemon, at(60, {**daemon_desk.VICTIM}))
    assert dry != daemon.store.get("requeues")
    assert (daemon.store.load()[1][:, REQUEUES] == 0).all()


def test_a_dry_run_of_long_ago_tells_nothing(desk):
    desk.write(mode="dry-run")
    daemon = desk.daemon(at(1))
    daemon.cycle()
    withdrawn = {**OTHER, "comment": ""}
    daemon, _ = go(desk, "restart", daemon, at(60, OVERDUE, withdrawn))
    daemon.close()
    daemon = desk.daemon(at(120, OVERDUE, withdrawn))
    assert desk.said("goes on from") == []
    assert np.isnan(daemon.store.load()[1][1, CLAIM])


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_number_that_comes_again(desk, restarts):
    daemon = desk.daemon(at(1))
    daemon.cycle()
    again = {**OTHER, "submit": NOW + 50, "comment": "deadline=+5m"}
    daemon, _ = go(desk, "restart", daemon, at(60, again), mode="dry-run")
    if restarts:  # and is requeued
        again |= {"submit": NOW + 90, "restarts": restarts}
        show(daemon, at(120, again))
        daemon.cycle()
    claim = daemon.store.load()[1][0, CLAIM]
    daemon.close()
    desk.write(mode="enforce")
    daemon = desk.daemon(at(600, again))
    row = daemon.store.load()[1][0]
    assert row[CLAIM] == claim > NOW
    assert np.isnan(row[SET])
    assert np.isnan(row[BEFORE])


def spoil(path):
    for more in ("-wal", "-shm"):
        Path(f"{path}{more}").unlink(missing_ok=True)
    Path(path).write_bytes(b"SQLite format 3\0" + b"x" * 5000)


def age(path):
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=4")


@pytest.mark.parametrize(("harm", "told"), [(spoil, 0), (age, 1), (lambda p: Path(p).unlink(), 0)])
def test_a_dry_run_s_ledger_that_cannot_be_used_keeps_nobody_from_starting(desk, harm, told):
    desk.write(mode="dry-run")
    daemon = desk.daemon(at(1))
    daemon.cycle()
    daemon.close()
    harm(str(desk.state / "ledger-dry-run.sqlite"))
    desk.write(mode="enforce")
    daemon = desk.daemon(at(30))
    assert daemon.cycle().writes == 2
    assert len(desk.said("what the dry run saw is not known")) == told


def test_a_ledger_of_an_older_version_kept_the_hour_alone():
    with tempfile.TemporaryDirectory() as top, closing(SqliteStore(f"{top}/a")) as store:
        assert looked_at(store.path) == looked_at(f"{top}/none") == float("-inf")
        store.put("hour:5", '{"cycles": {"no answer": 3}}')
        assert looked_at(store.path) == float("-inf")
        store.put("hour:4", '{"cycles": {"ok": 3}}')
        assert looked_at(store.path) == 4 * 3600.0
        tally.note(store, 5 * 3600.0 + 7, "ok", paused=False, claims={}, jobs={})
        tally.note(store, 5 * 3600.0 + 9, "stale", paused=False, claims={}, jobs={})
        assert looked_at(store.path) == 5 * 3600.0 + 7


def test_a_reload_that_is_refused_leaves_the_dry_run_as_it_was(desk, monkeypatch):
    desk.write(mode="dry-run")
    daemon = desk.daemon(waiting(2, comment="deadline=+3h"))
    daemon.cycle()
    monkeypatch.setattr(SqliteStore, "see_as", lambda *_: 1 / 0)  # a fault of ours
    daemon, seen = go(desk, "reload", daemon, waiting(2, comment="deadline=+3h"))
    assert (daemon.config.daemon.mode, seen.result) == ("dry-run", "ok")
    assert daemon.adapter.sent == []
