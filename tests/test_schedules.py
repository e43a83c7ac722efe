"""Six jobs on two nodes of 4 GPUs; the schedule of each policy is worked out on paper in the comments.

        submit  work  GPUs  deadline
    A        0  3000     4
    B        0  6000     4
    C       30  1200     4
    D       40   600     8      5100      two whole nodes
    E       50   500     1    360050      a window of 100 hours
    F     3100   300     4      4100

Cycles at 0, 60, 120, ...; a run is left alone for 600 s; a requeued job may start 120 s later, pays 60 s and
has lost what it did since its last checkpoint, which it makes every 600 s of work. In all schedules A starts
on node 0 and B on node 1 at 0, and then nothing fits: C, D and E wait.

A requeue of a run of r seconds loses r minus what was saved: 600 x floor((r - 60 if restarted) / 600).
"""

import numpy as np
import pytest
from worlds import prepared, replay, workload

from tias_slurm.replay import simulate
from tias_slurm.slurm.node_set import make

NODES = make(["n0", "n1"], [4, 4], source="a test")
HEAVY, LIGHT = "x", "y"  # users
JOBS = [
    {"submit": 0, "work": 3000, "gpus": 4, "user": HEAVY},
    {"submit": 0, "work": 6000, "gpus": 4, "user": HEAVY},
    {"submit": 30, "work": 1200, "gpus": 4, "user": HEAVY},
    {"submit": 40, "work": 600, "gpus": 8, "user": LIGHT, "deadline": 5100},
    {"submit": 50, "work": 500, "gpus": 1, "user": LIGHT, "deadline": 360_050},
    {"submit": 3100, "work": 300, "gpus": 4, "user": HEAVY, "deadline": 4100},
]
GPUS = np.array([j["gpus"] for j in JOBS])

# job -> (start of its last run, end[, requeues, seconds lost])
SCHEDULES = {
    # 3000 A ends: C. 4200 C ends: D needs both nodes, E starts, F needs 4 and 3 are left.
    # 4700 E ends: F. 6000 B ends: D.
    "fifo": {
        "A": (0, 3000), "B": (0, 6000), "C": (3000, 4200), "D": (6000, 6600), "E": (4200, 4700),
        "F": (4700, 5000),
    },
    # All use is the heavy user's, fair share 1000 x 2^(-2 x 1) = 250 against 1000: D and E before C and F.
    # 3000 A ends: D no, E yes, C no (3 GPUs left). 3500 E ends: C, older than F. 4700: F. 6000: D.
    "multifactor": {
        "A": (0, 3000), "B": (0, 6000), "C": (3500, 4700), "D": (6000, 6600), "E": (3000, 3500),
        "F": (4700, 5000),
    },
    # Order F, D, E, others. 3000: D no, E yes. 3500: F yes, D no. 3800: C. 6000: D.
    "edf": {
        "A": (0, 3000), "B": (0, 6000), "C": (3800, 5000), "D": (6000, 6600), "E": (3000, 3500),
        "F": (3500, 3800),
    },
    # 600: A and B have run 600 s and are requeued for D; all of it is saved.
    # 1200 D ends: E on n0; A on n1, until 1200 + 60 + 2400 = 3660. 1700 E ends: B on n0, until 1700 + 5460.
    # 3120: F is seen. A has run 1920 s, 120 since a checkpoint as the daemon reckons; B 1420, 220: A is
    #   requeued. Of 1860 s of work 1800 are saved: 120 lost, 600 left.
    # 3420 F ends: A before C, until 3420 + 660 = 4080.
    "deadline-qos": {
        "A": (3420, 4080, 2, 120 + 60), "B": (1700, 7160, 1, 60), "C": (4080, 5280), "D": (600, 1200),
        "E": (1200, 1700), "F": (3120, 3420),
    },
    # 18,000 GPU-s, reached by B after 4500 s, are the end of the first queue. As fifo: 3000 C, 4200 E.
    # 4500: B is in the second queue. D cannot have n0, where E runs; F can have n1: B is requeued,
    #   4200 of 4500 s saved. 4700 E ends: D no, B on n0. 4800 F ends.
    # 5340: B has run 640 s, 580 of work, none saved: requeued for D, which has n1 already.
    # 5940 D ends: B, until 5940 + 60 + 1800.
    "las": {
        "A": (0, 3000), "B": (5940, 7800, 2, 300 + 640 + 60), "C": (3000, 4200), "D": (5340, 5940),
        "E": (4200, 4700), "F": (4500, 4800),
    },
    # D climbs: u = (t - 40) / (5100 - t) >= 0.1, 1 from 2570, 10 from 4640 on: levels 5, 3, 1.
    # 3000: C (level 0). 4100: F is overdue, at the bottom. 4200: D no, E. 4500: B falls to level 2.
    # 4680: D at level 1 may have n1 of B, not n0 (E has run 480 s). 4700 E ends: D no, F. 5000 F ends.
    # 5040, a minute before its deadline: D takes n1 from B, which has saved 4800 of 5040 s.
    # 5640 D ends: B, until 5640 + 60 + 1200.
    "aemon": {
        "A": (0, 3000), "B": (5640, 6900, 1, 240 + 60), "C": (3000, 4200), "D": (5040, 5640),
        "E": (4200, 4700), "F": (4700, 5000),
    },
    # D is urgent: r = l / (1.28 x 5060) = 0.78. E is calm: r = 7200 / (1.28 x 360,000) = 0.016, queue of
    # 0.25 x 360,000 GPU-s = 2, level 6. Without preemption D waits for both nodes:
    # 3000 C (level 1 before E). 4100 F is overdue. 4200: E. 4700: F (level 11; so is D, which does not fit).
    # 6000: D.
    "tias@off": {
        "A": (0, 3000), "B": (0, 6000), "C": (3000, 4200), "D": (6000, 6600), "E": (4200, 4700),
        "F": (4700, 5000),
    },
    # 600: A and B are requeued for D, nothing lost.
    # 1200 D ends: A, B (level 1, first submit 0) before C and E: A until 3660 on n0, B until 6660.
    # 3120: F is urgent (980 / 1280); A and B would lose the same, n0 is first: A, 1800 of 1860 s saved.
    # 3420 F ends: A until 4080. 4080: C. 5280: E.
    "tias@on": {
        "A": (3420, 4080, 2, 120 + 60), "B": (1200, 6660, 1, 60), "C": (4080, 5280), "D": (600, 1200),
        "E": (5280, 5780), "F": (3120, 3420),
    },
    # Levels are powers of two of the time left: at 600 A 2^11, B 2^12, C 2^10, D 2^9, E 2^8.
    # 600: E takes n0 from A (n1 would cost the same); D cannot have n0 then; C takes n1 from B.
    # 1100 E ends: D no, A on n0. 1800 C ends: D no, B on n1.
    # 2400: B has run 600 s: D takes both. A had 1240 s of work, 1200 saved, 100 of 1300 lost;
    #   B 540 s of work, none saved, 600 lost. 3000 D ends: A (1200 left) on n0, B on n1.
    # 3600: F (300 s) takes n0 from A, which has run 600 s, 540 of work: all lost.
    # 3720: A, eligible again, takes n1 from B: 660 s of work, 600 saved, 120 lost. A until 3720 + 1260.
    # 3900 F ends: B (4800 left) on n0.
    "oracle-srtf": {
        "A": (3720, 4980, 3, 100 + 600 + 60), "B": (3900, 8760, 3, 600 + 120 + 60), "C": (600, 1800),
        "D": (2400, 3000), "E": (600, 1100), "F": (3600, 3900),
    },
    # 600: as oracle-srtf: E from A, C from B. D is due once its laxity 4500 - t is under 3600 + 0.05 x 600,
    #   from 870 on. 900: E has run for 300 s only. 1100 E ends: D no, A.
    # 1740: A has run 640 s, 580 of work, none saved; C 1140 s, 600 saved, 540 lost: both for D.
    # 2340 D ends: C (600 left) on n0 until 3000, A (2400) on n1. 3000: B on n0 until 3000 + 5460.
    # 3120: F is due. A has run 780 s, 720 of work, 600 saved, 180 lost. 3420: A until 3420 + 60 + 1800.
    "oracle-laxity": {
        "A": (3420, 5280, 3, 640 + 180 + 60), "B": (3000, 8460, 1, 60), "C": (2340, 3000, 1, 540 + 60),
        "D": (1740, 2340), "E": (600, 1100), "F": (3120, 3420),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_schedule_on_paper(name):
    want = {job: (*times, 0, 0)[:4] if len(times) == 2 else times for job, times in SCHEDULES[name].items()}
    o = replay(JOBS, NODES, name).outcome
    lost = (o.lost_gpu_s / GPUS).tolist()
    got = zip(o.start.tolist(), o.end.tolist(), o.requeues.tolist(), lost, strict=True)
    assert dict(zip("ABCDEF", got, strict=True)) == want
    assert o.executed.tolist() == [j["work"] + x for j, x in zip(JOBS, lost, strict=True)]


def test_without_consent_nobody_is_requeued():
    o = replay(JOBS, NODES, "tias@on", consent=0.0).outcome
    assert o.requeues.sum() == 0
    assert o.end.tolist() == [times[1] for times in SCHEDULES["tias@off"].values()]


def test_all_consent_for_a_policy_at_all():
    o = replay(JOBS, NODES, "tias@all", consent=0.0).outcome
    assert o.end.tolist() == [times[1] for times in SCHEDULES["tias@on"].values()]


def test_a_job_that_never_saves_itself_starts_over():
    # 600: requeued for the deadline job, which ends at 1200; then all 2000 s again
    jobs = [
        {"submit": 0, "work": 2000, "gpus": 4, "checkpoint": 0},
        {"submit": 40, "work": 600, "gpus": 4, "deadline": 5100},
    ]
    o = replay(jobs, make(["n0"], [4], source="a test"), "tias").outcome
    assert o.end.tolist() == [1200 + 60 + 2000, 1200]
    assert o.lost_gpu_s.tolist() == [4 * (600 + 60), 0]


def test_the_deadline_jobs_place_is_known_at_its_submit():
    """Between two cycles a new job without a deadline must not pass a waiting one with a deadline."""
    jobs = [
        {"submit": 0, "work": 130, "gpus": 4},
        {"submit": 5, "work": 100, "gpus": 4, "deadline": 9000},
        {"submit": 125, "work": 100, "gpus": 4},  # 120 is a cycle, 130 the end of the first job
    ]
    one = make(["n0"], [4], source="a test")
    assert replay(jobs, one, "edf").outcome.start.tolist() == [0, 130, 230]


def test_tias_has_to_see_a_job_first():
    # the same with TIAS: a new job has the users' own nice, the last place, until the next cycle
    jobs = [
        {"submit": 0, "work": 130, "gpus": 4},
        {"submit": 5, "work": 100, "gpus": 4},
        {"submit": 125, "work": 100, "gpus": 4, "deadline": 900},
    ]
    one = make(["n0"], [4], source="a test")
    assert replay(jobs, one, "tias").outcome.start.tolist() == [0, 130, 230]
    jobs[2]["submit"] = 119
    assert replay(jobs, one, "tias").outcome.start.tolist() == [0, 230, 130]


def test_cancelled_while_waiting():
    # the second leaves at 500 and neither runs nor blocks; the third starts when the first ends
    jobs = [
        {"submit": 0, "work": 1000, "gpus": 4},
        {"submit": 10, "gpus": 4, "work": 0, "left": 500},
        {"submit": 20, "work": 10, "gpus": 4},
        {"submit": 30, "gpus": 4, "work": 0, "left": 5000},
        {"submit": 4000, "work": 10, "gpus": 4},
    ]
    one = make(["n0"], [4], source="a test")
    for name in ("fifo", "multifactor", "edf", "las", "tias", "oracle-srtf@off", "oracle-laxity@off"):
        o = replay(jobs, one, name).outcome
        assert o.start.tolist()[::2] == [0, 1000, 4000], name
        assert np.isnan([*o.start[1::2], *o.end[1::2]]).all(), name


def test_it_leaves_the_queue_on_time():
    jobs = [
        {"submit": 0, "work": 1000, "gpus": 4},
        {"submit": 10, "gpus": 4, "work": 0, "left": 500},
        {"submit": 20, "gpus": 4, "work": 0, "eligible": 800, "left": 700},  # before it could even wait
    ]
    run, wanted = prepared(workload(jobs), make(["n0"], [4], source="a test"), "fifo")
    cluster, _ = run.prepare(wanted)
    waiting = {}
    for time in (0, 10, 499, 500, 900):
        cluster.advance(float(time))
        waiting[time] = int((cluster.observe().jobs.state == 0).sum())
    assert waiting == {0: 0, 10: 1, 499: 1, 500: 0, 900: 0}


def test_a_job_that_never_fits_blocks_nobody():
    jobs = [
        {"submit": 0, "work": 100, "gpus": 9},
        {"submit": 1, "work": 100, "gpus": 3, "nodes": 3, "deadline": 900},
        {"submit": 2, "work": 100, "gpus": 8},
    ]
    for name in ("fifo", "multifactor", "edf", "deadline-qos", "las", "aemon", "tias", "oracle-srtf"):
        o = replay(jobs, NODES, name).outcome
        assert o.fits.tolist() == [False, False, True]
        assert o.start.tolist()[2] == 2
        assert np.isnan(o.start[:2]).all()
        assert replay(jobs, NODES, name).metrics["unfinished"] == 2


def test_nothing_runs_before_it_is_eligible():
    jobs = [{"submit": 0, "work": 100, "gpus": 8, "eligible": 777}, {"submit": 100, "work": 50, "gpus": 8}]
    for name in ("fifo", "multifactor", "tias", "las"):
        assert replay(jobs, NODES, name).outcome.start.tolist() == [777, 100]


def test_jobs_without_work_end_at_their_start():
    jobs = [{"submit": 0, "work": 0, "gpus": 8} for _ in range(3)] + [{"submit": 0, "work": 7, "gpus": 8}]
    for name in ("fifo", "multifactor", "tias", "las"):
        o = replay(jobs, NODES, name).outcome
        assert o.start.tolist() == [0, 0, 0, 0]
        assert o.end.tolist() == [0, 0, 0, 7]


def test_only_jobs_that_completed_are_learned_from():
    jobs = [
        {"submit": 0, "work": 100, "gpus": 1, "deadline": 1000, "state": state}
        for state in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "RUNNING", "COMPLETED")
    ] + [{"submit": 500, "work": 10, "gpus": 4, "nodes": 1}] * 3
    run, wanted = prepared(workload(jobs), NODES, "tias:balanced")
    cluster, controller = run.prepare(wanted)
    simulate.run(cluster, controller, 60.0)
    assert controller.ledger.learner.counts.sum() == 2


def test_samples_show_what_holds_after_the_events_of_their_time():
    # samples every 60 s from the first submit on
    o = replay([{"submit": 0, "work": 120, "gpus": 8}, {"submit": 60, "work": 60, "gpus": 8}], NODES, "fifo")
    s = o.series
    assert s.time.tolist() == [0, 60, 120, 180]
    assert s.used_gpus.tolist() == [8, 8, 8, 0]
    assert s.waiting_jobs.tolist() == [0, 1, 0, 0]
    assert s.waiting_gpus.tolist() == [0, 8, 0, 0]
