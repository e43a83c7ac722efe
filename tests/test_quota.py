"""The quota of GPU time under deadlines: token buckets by account."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import HOUR, job_table, occupancy, prepared, snapshot, workload

from tias_slurm.assemble import quota_settings
from tias_slurm.config import Config
from tias_slurm.jobs import PENDING, RUNNING
from tias_slurm.ledger import quota
from tias_slurm.ledger.book import COUNTS, Ledger
from tias_slurm.ledger.quota import Buckets, Settings, covered
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.policy.tias import Tias, preset
from tias_slurm.replay import simulate
from tias_slurm.slurm.nodes import uniform

CAPACITY = 100.0
RESERVE_S = Settings(1.0, 1.0).reserve_s
NOBODY = (np.empty(0, dtype=int), np.empty(0), np.empty(0), np.empty(0, dtype=bool))


def look(buckets, now, names=("a", "b"), jobs=NOBODY):
    return buckets.look(now, names, CAPACITY, *jobs)


def runs(gpus, ran=1e9, account=0):
    return np.array([account]), np.array([float(gpus)]), np.array([ran]), np.array([True])


class TestRates:
    def rates(self, names, **shares):
        return Buckets(Settings(0.7, 10.0, shares)).rates(names, CAPACITY)

    def test_without_shares_all_are_equal(self):
        assert self.rates(["a", "b"]) == pytest.approx({"a": 35.0, "b": 35.0})

    def test_named_shares_and_what_is_left(self):
        assert self.rates(["a", "b", "c"], a=0.5) == pytest.approx({"a": 35.0, "b": 17.5, "c": 17.5})

    def test_nobody_has_less_than_half_the_equal_share(self):
        got = self.rates(["a", "b"], a=1.0)
        assert got == pytest.approx({"a": 70.0, "b": 0.7 * 100 / 4})

    def test_an_account_of_the_settings_counts_though_it_has_no_jobs(self):
        assert self.rates(["b"], a=0.5)["b"] == pytest.approx(35.0)


def test_a_bucket_is_full_at_first_and_full_ones_are_not_kept():
    buckets = Buckets(Settings(0.7, 10.0))
    assert look(buckets, 0.0).tolist() == pytest.approx([350.0, 350.0])
    assert buckets.used == {}


def test_what_runs_is_charged_and_the_bucket_fills_again():
    buckets = Buckets(Settings(0.7, 100.0))
    look(buckets, 0.0)
    left = look(buckets, 60.0, jobs=runs(50))  # 3,000 GPU-s
    assert left.tolist() == pytest.approx([3500 - 3000, 3500])
    assert look(buckets, 70.0)[0] == pytest.approx(500 + 350)
    assert look(buckets, 1e6)[0] == pytest.approx(3500)
    assert buckets.used == {}


def test_a_run_is_charged_for_no_longer_than_it_has_lasted():
    buckets = Buckets(Settings(0.7, 100.0))
    look(buckets, 0.0)
    assert look(buckets, 3600.0, jobs=runs(50, ran=10.0))[0] == pytest.approx(3500 - 500)


@given(st.lists(st.tuples(st.floats(1, 5000), st.floats(0, 200), st.integers(0, 2)), min_size=1, max_size=40))
def test_gpu_time_under_deadlines_is_bounded(course):
    """What was charged is never more than the burst, what came in, and the debt that shows."""
    buckets, names, now, charged = Buckets(Settings(0.5, 500.0)), ["a", "b", "c"], 0.0, np.zeros(3)
    look(buckets, now, names)
    for passed, gpus, account in course:
        now += passed
        left = look(buckets, now, names, runs(gpus, account=account))
        charged[account] += gpus * passed
        rate = 0.5 * CAPACITY / 3
        assert (left <= rate * 500.0 + 1e-6).all()
        assert (charged <= rate * 500.0 + rate * now - left + 1e-6 * now).all()
        assert len(buckets.used) <= 3


def test_it_comes_back_from_a_text_and_nonsense_does_not():
    buckets = Buckets(Settings(0.7, 100.0))
    look(buckets, 0.0)
    look(buckets, 60.0, jobs=runs(50))
    other = Buckets(Settings(0.7, 100.0))
    other.loads(buckets.dumps())
    assert (other.used, other.at) == (buckets.used, buckets.at)
    for text in ("", "x", "[]", "{}", '{"at": 1, "used": 3}', '{"at": 1, "used": {"a": "b"}}'):
        other.loads(text)
        assert other.used == buckets.used


class TestCovered:
    def test_until_the_bucket_is_set_apart(self):
        left = np.array([2.5 * RESERVE_S, -1.0])
        account = np.array([0, 1, 0, 0, 0])
        got = covered(left, account, np.ones(5), np.array([4, 0, 1, 2, 3]), RESERVE_S)
        # 4 and 0 and 2 in that order; the last GPU-second counts for one more
        assert got.tolist() == [True, False, True, False, True]

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8)), max_size=30), st.permutations(range(30)))
    def test_as_one_would_walk(self, jobs, order):
        left = np.array([-5.0, 0.0, 3.0, 20.0]) * RESERVE_S
        account = np.array([a for a, _ in jobs], dtype=int)
        gpus = np.array([float(g) for _, g in jobs])
        order = np.array([r for r in order if r < len(jobs)], dtype=int)
        rest, want = left.copy(), np.zeros(len(jobs), dtype=bool)
        for row in order.tolist():
            want[row] = rest[account[row]] > 0
            rest[account[row]] -= gpus[row] * RESERVE_S
        assert covered(left, account, gpus, order, RESERVE_S).tolist() == want.tolist()


# ---- in the ledger ----

ROOM = occupancy([(100, 640, 1000)], [(1, 1, 0, 0)] * 3, {})


def shown(now, **columns):
    return snapshot(now, job_table(3, **{"job_id": [1, 2, 3], "deadline": 1e6, **columns}), room=ROOM)


def over(ledger):
    """Empty the bucket of the account."""
    ledger.buckets.used["lab"] = 1e12


def test_without_a_quota_every_claim_counts():
    ledger = Ledger()
    assert np.isfinite(ledger.remember(shown(0.0)).deadline).all()
    ledger._table[:, COUNTS] = 0.0  # a quota that was taken away
    assert np.isfinite(ledger.remember(shown(60.0)).deadline).all()


def test_who_waits_over_the_quota_has_no_deadline_and_who_runs_keeps_it():
    ledger = Ledger(quota=Settings(0.7, 10 * HOUR))
    state = np.array([RUNNING, PENDING, PENDING])
    run = np.array([60.0, 0.0, 0.0])
    assert np.isfinite(ledger.remember(shown(0.0, state=state, run_time=run)).deadline).all()
    over(ledger)
    known = ledger.remember(shown(60.0, state=state, run_time=run + 60 * (state == RUNNING)))
    assert np.isfinite(known.deadline).tolist() == [True, False, False]
    # started over the quota: it stays an ordinary job for this run, and is not charged
    known = ledger.remember(shown(120.0, state=RUNNING, run_time=[180.0, 30.0, 30.0]))
    assert np.isfinite(known.deadline).tolist() == [True, False, False]
    used = ledger.buckets.used["lab"]
    ledger.remember(shown(180.0, state=RUNNING, run_time=[240.0, 90.0, 90.0]))
    rate = 0.7 * 100
    assert ledger.buckets.used["lab"] - used == pytest.approx(60.0 - rate * 60.0, rel=1e-3)
    # room again: those that wait count, those that run stay as they were
    ledger.buckets.used.clear()
    known = ledger.remember(shown(240.0, state=[RUNNING, RUNNING, PENDING], run_time=[300.0, 150.0, 0.0]))
    assert np.isfinite(known.deadline).tolist() == [True, False, True]


def test_the_last_gpu_second_does_not_let_everybody_in():
    ledger = Ledger(quota=Settings(0.7, 3 * HOUR / 70 / 2))  # a bucket of one and a half GPU-hours
    known = ledger.remember(shown(0.0))
    assert np.isfinite(known.deadline).tolist() == [True, True, False]


def test_a_lost_claim_that_waits_sets_nothing_apart():
    ledger = Ledger(quota=Settings(1.0, HOUR))
    for now, at in ((0.0, [0.0, 0.0, 0.0]), (HOUR, [0.0, 0.0, HOUR])):
        due = [60.0, 60.0, 1e6] if now else [60.0, 60.0, np.nan]
        known = ledger.remember(shown(now, deadline=due, submit=at, gpus=[100, 100, 8]))
        ledger.note(Tias(preset("jct-first")).rank(now, known, ledger.learner.survival()))
    known = ledger.remember(shown(HOUR + 60.0, deadline=due, submit=at, gpus=[100, 100, 8]))
    assert known.deadline[2] == 1e6


def test_buckets_survive_a_restart(tmp_path):
    store = SqliteStore(str(tmp_path / "ledger.sqlite"))
    ledger = Ledger(store, quota=Settings(0.001, 10 * HOUR))
    ledger.remember(shown(0.0, state=RUNNING, run_time=60.0))
    ledger.remember(shown(60.0, state=RUNNING, run_time=120.0))
    assert ledger.buckets.used["lab"] > 50.0
    again = Ledger(store, quota=Settings(0.001, 10 * HOUR))
    assert again.buckets.used == ledger.buckets.used
    assert again.buckets.at == 60.0
    store.close()


def test_what_starts_beside_a_restart_is_charged(tmp_path):
    path = str(tmp_path / "ledger")
    for now, runs_for in ((0.0, None), (60.0, 50.0)):
        store = SqliteStore(path)
        ledger = Ledger(store, quota=Settings(0.7, HOUR))
        state = PENDING if runs_for is None else RUNNING
        ledger.remember(shown(now, state=state, run_time=runs_for or 0.0))
        store.close()
    assert ledger.buckets.used == {"lab": 3 * 50.0}


def test_in_a_trace_the_user_stands_for_the_account_and_a_quota_stops_a_cheat():
    """A user who puts a deadline on all that he does has no more under it than his bucket gives."""
    rows = [
        {"submit": 300.0 * i, "work": 4 * HOUR, "gpus": 4, "user": "cheat", "deadline": 300.0 * i + 6 * HOUR}
        for i in range(60)
    ]
    rows += [{"submit": 300.0 * i, "work": 2 * HOUR, "gpus": 4, "user": f"u{i % 3}"} for i in range(60)]
    rows.sort(key=lambda r: r["submit"])

    def counted(**deadlines):
        config = Config.model_validate({"deadlines": deadlines})
        run, wanted = prepared(workload(rows), uniform(32, 8), "tias@on", config)
        cluster, controller = run.prepare(wanted)
        under = 0.0
        rank = controller.policy.rank

        def watch(now, known, survival):
            nonlocal under
            ranking = rank(now, known, survival)
            live = known.running & np.isfinite(known.deadline) & ~ranking.fallen
            under += 60.0 * known.gpus[live].sum()
            return ranking

        controller.policy.rank = watch
        simulate.run(cluster, controller, 60.0)
        assert np.isfinite(cluster.state.end).all()
        return under, controller.ledger.buckets, cluster.now

    free, buckets, _ = counted()
    assert buckets is None
    held, buckets, end = counted(quota_rate=0.5, quota_burst_s=1800.0)
    # the bucket fills at half of the cluster at the most, when nobody else is there
    most = 0.5 * 32 * (1800.0 + end) + buckets.used.get("cheat", 0.0)
    assert held <= most
    assert held < 0.2 * free
    assert set(buckets.used) <= {"cheat"}


def test_the_settings():
    assert quota_settings(Config()) is None
    config = Config.model_validate({"deadlines": {"quota_rate": 0.7, "quota_shares": {"lab": 0.5}}})
    assert quota_settings(config) == Settings(0.7, 259_200.0, {"lab": 0.5})


def test_what_is_left_is_told_of_what_was_kept():
    """Also of accounts whose bucket is full, and in debt; of what cannot be read nothing."""
    buckets = quota.Buckets(quota.Settings(1.0, 100.0, {"a": 0.5, "b": 0.5}))
    account, gpus, ran = np.array([0]), np.array([8.0]), np.array([1000.0])
    buckets.look(0.0, ("a", "b"), 16.0, account, gpus, ran, np.array([True]))
    left = buckets.look(500.0, ("a", "b"), 16.0, account, gpus, ran, np.array([True]))
    assert quota.left(buckets.dumps()) == {"a": (left[0], 800.0), "b": (left[1], 800.0)}
    assert left[0] < 0.0 < left[1]
    for text in ("", "{}", "[]", "x", '{"sizes": 3}', '{"at": 1, "used": {}}'):
        assert quota.left(text) == {}
