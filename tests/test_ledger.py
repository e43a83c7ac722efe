"""What is remembered between snapshots: first submits, service over all runs, own requeues, experience."""

import numpy as np
import pytest
from worlds import job_table, plan, snapshot

from tias_slurm.jobs import PENDING, RUNNING, Ended
from tias_slurm.ledger.book import Ledger
from tias_slurm.planner import Applied
from tias_slurm.policy.learning import BINS

NOBODY = np.empty(0, dtype=int)


def ended(*jobs):
    """Jobs as (id, submit, deadline, run time, completed)."""
    ids, submit, deadline, run_time, completed = zip(*jobs, strict=True)
    return Ended(
        np.array(ids),
        np.array(submit, dtype=float),
        np.array(deadline, dtype=float),
        np.array(run_time, dtype=float),
        np.array(completed, dtype=bool),
        np.zeros(len(ids), dtype=int),
    )


def one(**columns):
    return job_table(1, **{"job_id": [7], "gpus": 4, **columns})


def test_a_new_job():
    ledger = Ledger()
    known = ledger.remember(snapshot(100.0, one(submit=40.0, deadline=900.0, lever=50.0)))
    assert known.first_submit.tolist() == [40.0]
    assert known.deadline.tolist() == [900.0]
    assert known.executed.tolist() == known.attained.tolist() == [0.0]
    assert known.gpus.tolist() == [4.0]
    assert known.running.tolist() == known.claim_lost.tolist() == [False]
    assert ledger.found.tolist() == [50.0]
    assert ledger.history().requeues.tolist() == [0]


def test_service_grows_with_the_run():
    ledger = Ledger()
    known = ledger.remember(snapshot(1000.0, one(state=RUNNING, run_time=300.0)))
    assert (known.executed[0], known.attained[0]) == (300.0, 1200.0)
    known = ledger.remember(snapshot(1060.0, one(state=RUNNING, run_time=360.0)))
    assert (known.executed[0], known.attained[0]) == (360.0, 1440.0)


def requeued(ledger, *, ran=1500.0, checkpoint=600.0, now=2000.0, **columns):
    """Seen running for `ran`, then waiting again with a new submit time."""
    ledger.remember(
        snapshot(now, one(state=RUNNING, submit=100.0, run_time=ran, checkpoint=checkpoint, **columns))
    )
    return ledger.remember(snapshot(now + 60, one(submit=now, restarts=1, checkpoint=checkpoint, **columns)))


@pytest.mark.parametrize(
    ("ran", "checkpoint", "useful"),
    [(1500.0, 600.0, 1200.0), (1200.0, 600.0, 1200.0), (599.0, 600.0, 0.0), (1500.0, 0.0, 0.0)],
)
def test_a_requeue_loses_what_was_not_saved(ran, checkpoint, useful):
    known = requeued(Ledger(), ran=ran, checkpoint=checkpoint)
    assert known.executed.tolist() == [useful]
    assert known.attained.tolist() == [ran * 4]  # service received stays received


def test_the_first_submit_stays_the_first():
    known = requeued(Ledger())
    assert known.first_submit.tolist() == [100.0]


def test_runs_add_up():
    ledger = Ledger()
    requeued(ledger)  # 1200 of 1500 s saved
    columns = {"submit": 2000.0, "restarts": 1, "state": RUNNING}
    known = ledger.remember(snapshot(3000.0, one(run_time=700.0, **columns)))
    assert (known.executed[0], known.attained[0]) == (1900.0, 2200.0 * 4)
    known = ledger.remember(snapshot(3060.0, one(restarts=2, submit=3000.0)))
    assert (known.executed[0], known.attained[0]) == (1800.0, 2200.0 * 4)


def test_a_job_that_never_saves_itself_starts_from_nothing():
    ledger = Ledger()
    requeued(ledger, checkpoint=0.0)
    known = ledger.remember(
        snapshot(3000.0, one(submit=2000.0, restarts=1, state=RUNNING, run_time=50.0, checkpoint=0.0))
    )
    assert (known.executed[0], known.attained[0]) == (50.0, 1550.0 * 4)


def test_executed_lies_between_nothing_and_the_age():
    ledger = Ledger()
    # the controller's clock and its run times may disagree
    known = ledger.remember(snapshot(100.0, one(state=RUNNING, submit=50.0, run_time=70.0)))
    assert known.executed.tolist() == [50.0]
    known = Ledger().remember(snapshot(40.0, one(state=RUNNING, submit=50.0, run_time=70.0)))
    assert known.executed.tolist() == [0.0]


def test_the_value_found_is_the_users_not_ours():
    ledger = Ledger()
    ledger.remember(snapshot(0.0, one(lever=20.0)))
    before = snapshot(30.0, one(lever=50.0))
    ledger.remember(before)  # until we write, the value is the user's, whatever it becomes
    ledger.intend(before, plan([0], [-300.0]))
    ledger.remember(snapshot(60.0, one(lever=-300.0)))
    assert ledger.found.tolist() == [50.0]


def test_a_value_that_nobody_of_us_set_is_a_persons():
    ledger = Ledger()
    before = snapshot(30.0, one(lever=50.0))
    ledger.remember(before)
    ledger.intend(before, plan([0], [-300.0]))
    for lever, persons in ((50.0, False), (-300.0, False), (-299.0, True), (0.0, True)):
        after = snapshot(60.0, one(lever=lever))
        ledger.remember(after)
        assert ledger.overridden(after).tolist() == [persons]


def test_tasks_split_off_an_array_keep_what_is_known_of_it():
    ledger = Ledger()
    before = snapshot(30.0, one(job_id=7, submit=10.0, lever=5.0, array_id=7))
    ledger.remember(before)
    ledger.intend(before, plan([0], [-300.0]))
    tasks = job_table(
        3, job_id=[7, 8, 9], submit=[10.0, 10.0, 10.0], lever=[-300.0, -300.0, -20.0], array_id=7
    )
    after = snapshot(90.0, tasks)
    ledger.remember(after)
    assert ledger.found.tolist() == [5.0, 5.0, -20.0]
    assert ledger.overridden(after).tolist() == [False, False, False]  # the last: never ours
    later = snapshot(150.0, job_table(1, job_id=[8], submit=10.0, lever=4.0, array_id=7))
    ledger.remember(later)
    assert ledger.overridden(later).tolist() == [True]


def test_an_id_used_again_is_another_job():
    ledger = Ledger()
    ledger.remember(snapshot(1000.0, one(submit=100.0, state=RUNNING, run_time=500.0)))
    known = ledger.remember(snapshot(9000.0, one(submit=8000.0)))
    assert known.first_submit.tolist() == [8000.0]
    assert known.attained.tolist() == [0.0]


def test_what_slurm_refused_is_not_tried_until_the_next_run():
    ledger = Ledger()
    ledger.remember(snapshot(100.0, one(submit=50.0)))
    ledger.applied(Applied(np.array([0]), NOBODY), 100.0)
    ledger.remember(snapshot(160.0, one(submit=50.0)))
    assert ledger.refused.tolist() == [True]
    ledger.remember(snapshot(900.0, one(submit=800.0, restarts=1)))
    assert ledger.refused.tolist() == [False]


def test_own_requeues_are_counted_by_job():
    ledger = Ledger()
    two = job_table(2, job_id=[3, 9], state=RUNNING)
    now = snapshot(0.0, two)
    ledger.remember(now)
    ledger.intend(now, plan(victims=[1]))
    now = snapshot(60.0, job_table(3, job_id=[3, 5, 9]))
    ledger.remember(now)
    ledger.intend(now, plan(victims=[2]))
    assert ledger.history().requeues.tolist() == [0, 0, 2]


def test_jobs_leave_and_enter():
    ledger = Ledger()
    first = job_table(3, job_id=[2, 4, 6], submit=[10.0, 20.0, 30.0], lever=[1.0, 2.0, 3.0], gpus=[1, 2, 4])
    ledger.remember(snapshot(100.0, first))
    running = job_table(
        3, job_id=[2, 4, 6], state=RUNNING, run_time=[700.0] * 3, submit=[10.0, 20.0, 30.0], gpus=[1, 2, 4]
    )
    ledger.remember(snapshot(1000.0, running))
    # 4 has left, 1 and 5 are new, 6 was requeued at the same time
    later = job_table(
        4,
        job_id=[1, 2, 5, 6],
        state=[PENDING, RUNNING, PENDING, PENDING],
        submit=[1010.0, 10.0, 1020.0, 1000.0],
        lever=[7.0, 1.0, 8.0, 3.0],
        run_time=[0.0, 760.0, 0.0, 0.0],
        restarts=[0, 0, 0, 1],
        gpus=[1, 1, 1, 4],
    )
    known = ledger.remember(snapshot(1060.0, later))
    assert known.job_id.tolist() == [1, 2, 5, 6]
    assert known.first_submit.tolist() == [1010.0, 10.0, 1020.0, 30.0]
    assert known.executed.tolist() == [0.0, 760.0, 0.0, 600.0]
    assert known.attained.tolist() == [0.0, 760.0, 0.0, 2800.0]
    assert ledger.found.tolist() == [7.0, 1.0, 8.0, 3.0]


def test_a_queue_that_empties_and_fills_again():
    ledger = Ledger()
    requeued(ledger)
    assert len(ledger.remember(snapshot(3000.0, job_table(0)))) == 0
    known = ledger.remember(snapshot(4000.0, one(submit=3900.0, restarts=1)))
    assert known.first_submit.tolist() == [3900.0]  # forgotten: the id may be another job
    assert known.attained.tolist() == [0.0]
    assert ledger.history().requeues.tolist() == [0]


def test_restarts_before_the_first_look_are_no_loss_of_ours():
    known = Ledger().remember(snapshot(1000.0, one(restarts=3, state=RUNNING, run_time=100.0)))
    assert known.executed.tolist() == [100.0]


class TestLearning:
    def learned(self, *jobs, before=None):
        ledger = Ledger()
        if before is not None:
            ledger.remember(before)
        ledger.remember(snapshot(9e4, job_table(0), ended=ended(*jobs)))
        return ledger.learner.counts

    def test_from_completed_deadline_jobs_only(self):
        counts = self.learned(
            (1, 0.0, 3600.0, 1800.0, True),
            (2, 0.0, 3600.0, 1800.0, False),
            (3, 0.0, np.nan, 1800.0, True),
        )
        assert counts.sum() == 1
        assert counts[0, 25] == 1  # half of the window

    def test_a_late_job_counts_too(self):
        assert self.learned((1, 0.0, 3600.0, 7200.0, True))[0, BINS - 1] == 1

    def test_the_window_is_from_the_first_submit_and_all_runs_count(self):
        ledger = Ledger()
        requeued(ledger, deadline=10_100.0)  # first submit 100; 1200 s saved
        done = ended((7, 2000.0, 100.0 + 10_000.0, 3800.0, True))
        ledger.remember(snapshot(9000.0, job_table(0), ended=done))
        assert ledger.learner.counts[1, 25] == 1  # 5,000 s of 10,000 s

    def test_a_job_never_seen_before_its_end(self):
        assert self.learned((9, 50.0, 3650.0, 900.0, True), before=snapshot(0.0, one()))[0, 12] == 1

    def test_a_window_of_nothing_teaches_nothing(self):
        assert self.learned((1, 100.0, 100.0, 50.0, True), (2, 100.0, 50.0, 50.0, True)).sum() == 0
