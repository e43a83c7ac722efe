"""The measures of a schedule, worked out by hand."""

import numpy as np
import pytest
from worlds import replay, workload

from tias_slurm.replay.metrics import fidelity, measure, recorded_outcome, sample_times, series_of
from tias_slurm.replay.results import Outcome
from tias_slurm.slurm.node_set import make

NAN = np.nan
HOUR = 3600.0


def outcome(start, end, executed=None, lost=0.0, requeues=0):
    start, end = np.array(start, dtype=float), np.array(end, dtype=float)
    n = len(start)
    return Outcome(
        start=start,
        end=end,
        executed=np.nan_to_num(end - start) if executed is None else np.array(executed, dtype=float),
        lost_gpu_s=np.broadcast_to(np.asarray(lost, dtype=float), n),
        requeues=np.broadcast_to(np.asarray(requeues, dtype=np.int64), n),
        fits=np.ones(n, dtype=bool),
    )


JOBS = [
    {"submit": 0, "work": 100, "gpus": 2},
    {"submit": 50, "work": 300, "gpus": 1},
    {"submit": 0, "work": 200, "gpus": 4, "deadline": 250},
    {"submit": 100, "work": 400, "gpus": 1, "deadline": 600},
    {"submit": 100, "work": 50, "gpus": 8, "deadline": 300},
]
DONE = outcome(
    start=[0, 150, 50, 200, 290],
    end=[100, 450, 250, 600, 340],
)


def test_by_hand():
    m = measure(workload(JOBS).jobs, DONE, 8, writes=17)
    assert m == {
        "deadline_jobs": 3,
        "missed": 1,  # the last; at its deadline to the second is no miss
        "deadline_miss_rate": pytest.approx(1 / 3),
        "deadline_miss_rate_gpu_weighted": pytest.approx(50 * 8 / (200 * 4 + 400 + 50 * 8)),
        "deadline_jct_mean_s": pytest.approx((250 + 500 + 240) / 3),
        "non_deadline_jobs": 2,
        "jct_mean_s": pytest.approx((100 + 400) / 2),
        "jct_median_s": pytest.approx(250),
        "jct_p95_s": pytest.approx(100 + 0.95 * 300),
        "wait_mean_s": pytest.approx((0 + 100) / 2),
        # 200 + 300 + 800 + 400 + 400 GPU-s of 8 GPUs from the first submit 0 to the last end 600
        "gpu_utilisation": pytest.approx(2100 / 4800),
        "gpu_hours": pytest.approx(2100 / 3600),
        "requeues": 0,
        "gpu_hours_lost": 0.0,
        "writes": 17,
        "unfinished": 0,
    }
    assert all(type(m[k]) is int for k in ("deadline_jobs", "missed", "non_deadline_jobs", "requeues"))
    assert all(isinstance(m[k], float) for k in ("deadline_miss_rate", "jct_mean_s", "gpu_utilisation"))


def test_a_miss_is_an_end_after_the_deadline_whatever_the_state():
    jobs = [
        {**j, "state": s}
        for j, s in zip(JOBS, ["FAILED", "TIMEOUT", "CANCELLED", "OUT_OF_MEMORY", "FAILED"], strict=True)
    ]
    assert measure(workload(jobs).jobs, DONE, 8, 0) == measure(workload(JOBS).jobs, DONE, 8, 0)


def test_jobs_cancelled_while_waiting_are_in_no_measure():
    more = [
        *JOBS,
        {"submit": -9999, "gpus": 8, "work": 0, "left": 99_999},
        {"submit": 0, "gpus": 8, "work": 0, "left": 500, "deadline": 400},
    ]
    done = outcome([*DONE.start, NAN, NAN], [*DONE.end, NAN, NAN])
    assert measure(workload(more).jobs, done, 8, 17) == measure(workload(JOBS).jobs, DONE, 8, 17)


def test_jobs_without_gpus_are_in_no_measure():
    # nor do they stretch the time that utilisation is over
    more = [*JOBS, {"submit": -9999, "gpus": 0, "work": 99_999, "cpus": 4, "deadline": 5}]
    done = outcome([*DONE.start, -9999], [*DONE.end, 90_000], lost=[0] * 5 + [77.0], requeues=[0] * 5 + [3])
    assert measure(workload(more).jobs, done, 8, 17) == measure(workload(JOBS).jobs, DONE, 8, 17)


def test_jobs_that_never_fit_are_unfinished_and_nothing_else():
    more = [*JOBS, {"submit": -50, "gpus": 99, "work": 10, "deadline": 5}]
    m = measure(workload(more).jobs, outcome([*DONE.start, NAN], [*DONE.end, NAN]), 8, 17)
    assert m == measure(workload(JOBS).jobs, DONE, 8, 17) | {"unfinished": 1}


def test_requeues_and_loss():
    o = outcome(
        DONE.start,
        DONE.end,
        executed=[100, 360, 200, 400, 50],
        lost=[0, 60, 0, 3600 * 5, 0],
        requeues=[0, 1, 0, 2, 0],
    )
    m = measure(workload(JOBS).jobs, o, 8, 0)
    assert m["requeues"] == 3
    assert m["gpu_hours_lost"] == pytest.approx(5 + 1 / 60)
    assert m["wait_mean_s"] == pytest.approx((0 + 400 - 360) / 2)  # wait = JCT - executed
    assert m["deadline_miss_rate_gpu_weighted"] == pytest.approx(400 / 1600)  # by work asked, not redone


NOTHING = (
    "deadline_miss_rate",
    "deadline_miss_rate_gpu_weighted",
    "deadline_jct_mean_s",
    "jct_mean_s",
    "jct_median_s",
    "jct_p95_s",
    "wait_mean_s",
    "gpu_utilisation",
)


def test_over_nothing_rates_are_null():
    jobs = workload([{"submit": 0, "gpus": 9, "work": 1}]).jobs
    m = measure(jobs, outcome([NAN], [NAN]), 8, 0)
    assert [k for k, v in m.items() if v is None] == list(NOTHING)
    assert m["unfinished"] == 1
    assert m["gpu_hours_lost"] == 0.0


def test_only_one_kind_of_jobs():
    plain = measure(workload(JOBS[:2]).jobs, outcome([0, 150], [100, 450]), 8, 0)
    assert [k for k, v in plain.items() if v is None] == list(NOTHING[:3])
    claims = measure(workload(JOBS[2:]).jobs, outcome([50, 200, 290], [250, 600, 340]), 8, 0)
    assert [k for k, v in claims.items() if v is None] == list(NOTHING[3:7])


def test_no_work_at_all_has_no_utilisation_and_no_weights():
    jobs = workload([{"submit": 5, "gpus": 8, "work": 0, "deadline": 4}]).jobs
    m = measure(jobs, outcome([5], [5]), 8, 0)
    assert m["deadline_miss_rate"] == 1.0
    assert m["deadline_miss_rate_gpu_weighted"] is None
    assert m["gpu_utilisation"] is None


HISTORY = [
    {"submit": 0, "work": 100, "gpus": 2, "start": 10, "end": 110},
    # three runs; 250 s in the earlier ones
    {
        "submit": 0,
        "work": 100,
        "gpus": 4,
        "start": 500,
        "end": 600,
        "runs": 3,
        "lost_work": 250,
        "deadline": 599,
    },
    # still runs at the end of the export, 700 s so far
    {"submit": 100, "work": 700, "gpus": 1, "start": 300, "state": "RUNNING", "deadline": 900},
    {"submit": 0, "gpus": 4, "work": 0, "left": 50},
]  # fmt: skip


def test_what_was_recorded():
    jobs = workload(HISTORY, trace=False).jobs
    o = recorded_outcome(jobs)
    assert o.start.tolist()[:3] == [10, 500, 300]
    assert o.end.tolist()[:3] == [110, 600, 1000]
    assert np.isnan([o.start[3], o.end[3]]).all()
    assert o.executed.tolist() == [100, 350, 700, 0]
    assert o.lost_gpu_s.tolist() == [0, 1000, 0, 0]
    assert o.requeues.tolist() == [0, 2, 0, 0]
    assert o.fits.all()
    m = measure(jobs, o, 8, 0)
    assert (m["deadline_jobs"], m["missed"], m["unfinished"]) == (2, 2, 0)
    assert m["requeues"] == 2
    assert m["gpu_hours_lost"] == pytest.approx(1000 / 3600)
    assert m["gpu_utilisation"] == pytest.approx((200 + 1400 + 700) / (8 * 1000))
    assert m["wait_mean_s"] == pytest.approx(10)


def test_the_recorded_loss_is_not_the_replays():
    m = replay(HISTORY, make(["n"], [8], source="a test"), "fifo", trace=False).metrics
    assert (m["requeues"], m["gpu_hours_lost"]) == (0, 0.0)
    assert m["deadline_jobs"] + m["non_deadline_jobs"] == 3


def test_queue_and_use_over_time():
    jobs = workload(HISTORY, trace=False).jobs
    s = series_of(jobs, recorded_outcome(jobs), np.array([0.0, 10, 109, 110, 300, 500, 599, 600, 1000, 2000]))
    assert s.time.tolist() == [0, 10, 109, 110, 300, 500, 599, 600, 1000]
    assert s.waiting_jobs.tolist() == [2, 1, 2, 2, 1, 0, 0, 0, 0]
    assert s.waiting_gpus.tolist() == [6, 4, 5, 5, 4, 0, 0, 0, 0]
    assert s.used_gpus.tolist() == [0, 2, 2, 0, 1, 5, 5, 1, 0]


def test_series_of_nothing():
    jobs = workload(HISTORY[3:], trace=False).jobs
    s = series_of(jobs, recorded_outcome(jobs), np.array([0.0, 1.0]))
    assert len(s.time) == len(s.waiting_jobs) == len(s.waiting_gpus) == len(s.used_gpus) == 0


def test_replay_and_record_are_sampled_alike():
    """The same schedule, once as the engine samples it and once from its starts and ends."""
    rng = np.random.default_rng(3)
    jobs = [
        {"submit": int(t), "work": 60 * int(rng.integers(0, 200)), "gpus": int(rng.choice([1, 2, 8, 16]))}
        for t in 60 * np.sort(rng.integers(0, 500, 120))
    ]
    result = replay(jobs, make(["a", "b"], [8, 8], source="a test"), "fifo")
    table = workload(jobs).jobs
    again = series_of(table, result.outcome, sample_times(table))
    assert result.series.time.tolist() == again.time.tolist()
    assert result.series.waiting_jobs.tolist() == again.waiting_jobs.tolist()
    assert result.series.waiting_gpus.tolist() == again.waiting_gpus.tolist()
    assert result.series.used_gpus.tolist() == again.used_gpus.tolist()
    assert result.series.used_gpus.max() == 16


def test_sample_times():
    assert sample_times(workload(JOBS[:1]).jobs).tolist()[:3] == [0, 60, 120]  # never closer than a minute
    far = workload([{"submit": s, "work": 1, "gpus": 1} for s in (1000, 501_000)]).jobs
    times = sample_times(far)
    assert times[:2].tolist() == [1000, 2000]
    assert len(times) == 1000
    assert len(sample_times(far.iloc[:0])) == 0


class TestFidelity:
    def jobs(self, starts, **columns):
        rows = [{"submit": 0, "work": 10, "gpus": 1, "start": s, "end": s + 10, **columns} for s in starts]
        return workload(rows, trace=False).jobs

    def test_equal_and_reversed(self):
        jobs = self.jobs([10, 20, 40])
        same = fidelity(jobs, outcome([10, 20, 40], [20, 30, 50]))
        assert same == {"start_tau": 1.0, "start_error_median_s": 0.0, "jobs": 3}
        turned = fidelity(jobs, outcome([40, 20, 10], [50, 30, 20]))
        assert turned == {"start_tau": -1.0, "start_error_median_s": 30.0, "jobs": 3}

    def test_only_jobs_that_ran_once_on_gpus_in_both(self):
        jobs = workload(
            [
                *({"submit": 0, "work": 10, "gpus": 1, "start": s, "end": s + 10} for s in (10, 20)),
                {"submit": 0, "work": 10, "gpus": 1, "start": 5, "end": 15, "runs": 2},
                {"submit": 0, "work": 10, "gpus": 0, "start": 5, "end": 15},
                {"submit": 0, "work": 10, "gpus": 99, "start": 5, "end": 15},
                {"submit": 0, "work": 0, "gpus": 1, "left": 15},
            ],
            trace=False,
        ).jobs
        f = fidelity(jobs, outcome([11, 24, 900, 900, NAN, NAN], [21, 34, 910, 910, NAN, NAN]))
        assert f == {"start_tau": 1.0, "start_error_median_s": 2.5, "jobs": 2}

    def test_too_few_or_all_alike(self):
        assert fidelity(self.jobs([10]), outcome([10], [20])) == {
            "start_tau": None,
            "start_error_median_s": None,
            "jobs": 1,
        }
        alike = fidelity(self.jobs([10, 10]), outcome([12, 12], [20, 20]))
        assert alike == {"start_tau": None, "start_error_median_s": 2.0, "jobs": 2}
