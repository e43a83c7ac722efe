"""Requeue mode "slurm" where writes fail: nobody is raised past a running job that is not protected."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_queue import NOW, queue, running
from test_slurm_preempts import OLD, YES, Slurms

from tias_slurm.levers import PRIORITY_BASE
from tias_slurm.preemption.by_slurm import SHIELD
from tias_slurm.slurm.live import WriteResult

LOW = PRIORITY_BASE + 5
FIXED = running(**{**OLD, "comment": "", "requeue": False}, job_id=1)  # Slurm would cancel it
CONSENTS = running(**OLD, job_id=1)
NEAR = {"job_id": 20, "comment": "deadline=+3h"}


class Faulty(Slurms):
    """Writes of single jobs fail, also in silence ("no effect")."""

    def __init__(self, *jobs):
        super().__init__(queue(*jobs))
        self.fails = {}
        write, unpin = self.adapter.write, self.adapter.unpin

        def one(job, send):
            answer = self.fails.get(job, "ok")
            if answer == "ok":
                return send()
            return WriteResult("ok" if answer == "no effect" else answer, "as the test wants")

        self.adapter.write = lambda job, field, value: one(job, lambda: write(job, field, value))
        self.adapter.unpin = lambda job: one(job, lambda: unpin(job))

    def stand(self):
        """Values by job: 0 for a job without an explicit priority."""
        ids = self.adapter.queues[0].job_id.tolist()
        return {job: self.adapter.values.get((job, "priority"), 0) for job in ids}

    def set(self, job, value):
        """What a person does."""
        self.adapter.values[job, "priority"] = value

    def wrong(self):
        """Pairs of a waiting and a running job that it may not have requeued, and stands above."""
        snapshot, _, ranking, _, _ = self.controller.seen
        may = self.controller.planner.preemptible(snapshot, snapshot.jobs.restarts.astype(float), ranking)
        stand, ids, level = self.stand(), snapshot.jobs.job_id.tolist(), ranking.level
        waits, runs = np.flatnonzero(snapshot.jobs.state == 0), np.flatnonzero(snapshot.jobs.state == 1)
        return {
            (ids[w], ids[r])
            for w in waits.tolist()
            for r in runs.tolist()
            if not (may[r] and level[w] < level[r]) and stand[ids[w]] > stand[ids[r]]
        }


@pytest.mark.parametrize("job", [FIXED, CONSENTS], ids=["fixed", "consents"])
@pytest.mark.parametrize("answer", ["refused", "retry", "no effect", "no rights"])
def test_a_write_that_is_never_done_holds_everybody_back_for_ever(job, answer):
    same = {"job_id": 20, "gpus": 8, "submit": NOW - 9000, "comment": "deadline=+300h"}
    world = Faulty(job if job is FIXED else {**job, "comment": f"{YES} deadline=+300h"}, NEAR | same)
    world.fails = {1: answer}
    for _ in range(6):
        world.controller.cycle()
        assert world.stand() == {1: 0, 20: 0}
    assert answer == "no rights" or world.controller.seen.plan.kept_low == 1


def test_one_that_may_be_requeued_for_it_is_no_obstacle():
    world = Faulty({**CONSENTS, "comment": YES}, NEAR)
    world.fails = {1: "refused"}
    world.cycle(3)
    assert world.stand()[20] > world.stand()[1] == 0


def test_a_value_that_a_person_has_lowered():
    world = Faulty(FIXED, NEAR, {"job_id": 21})
    world.cycle()
    assert world.stand()[1] == SHIELD
    world.set(1, LOW)
    for _ in range(3):
        world.controller.cycle()
        # theirs stays, and nobody stands above it
        assert world.stand() == {1: LOW, 20: LOW, 21: LOW}
    # without an explicit priority: Slurm's own order for all of them, until it may be written
    del world.adapter.values[1, "priority"]
    world.fails = {1: "refused"}
    world.cycle(2)
    assert world.stand() == {1: 0, 20: 0, 21: 0}
    world = Faulty(FIXED, NEAR)
    world.cycle()
    world.set(1, LOW)
    world.cycle()
    world.set(1, SHIELD)
    world.cycle()
    assert LOW < world.stand()[20] < SHIELD


def test_a_running_job_is_not_lowered_past_one_that_could_not_be():
    """Its level has become worse, and so has that of who waits; the latter cannot be written."""
    jobs = [{**CONSENTS, "comment": f"{YES} deadline=+300h", "gpus": 1}, {"job_id": 20, "gpus": 1}]
    world = Faulty(*jobs)
    world.set(1, SHIELD)
    world.set(20, PRIORITY_BASE + 300)
    for answer in ("retry", "refused", "no effect"):
        world.fails = {20: answer}
        world.cycle(2)
        assert world.wrong() == set(), answer


RUNS = st.fixed_dictionaries({
    "comment": st.sampled_from(["", YES, *(f"{YES} deadline=+{h}h" for h in (2, 20, 100))]),
    "gpus": st.sampled_from([0, 1, 8]),
    "start": st.sampled_from([NOW - 10, NOW - 5000, NOW - 80_000]),
    "requeue": st.booleans(),
})  # fmt: skip
WAITS = st.fixed_dictionaries({
    "comment": st.sampled_from(["", "deadline=+3h", "deadline=+20h", "deadline=+100h"]),
    "gpus": st.sampled_from([1, 4, 8]),
    "submit": st.sampled_from([NOW - 600, NOW - 9000]),
})  # fmt: skip
ANSWERS = st.sampled_from(["ok", "ok", "refused", "retry", "no effect", "gone"])
JOBS = st.tuples(st.lists(RUNS, min_size=1, max_size=4), st.lists(WAITS, min_size=1, max_size=4))


def made(jobs):
    runs, waits = jobs
    one = [running(**{**OLD, "submit": NOW - 90_000, **job}, job_id=1 + i) for i, job in enumerate(runs)]
    return Faulty(*one, *({"job_id": 20 + i, **job} for i, job in enumerate(waits)))


@given(JOBS, st.lists(st.dictionaries(st.integers(1, 24), ANSWERS), min_size=1, max_size=5))
@settings(max_examples=150)
def test_whatever_fails_nobody_stands_above_one_that_may_not_be_its_victim(jobs, cycles):
    world = made(jobs)
    for fails in cycles:
        # only Slurm can say that a job is gone, and then it is
        world.fails = {job: answer for job, answer in fails.items() if answer != "gone" or job >= 20}
        world.controller.cycle()
        assert world.wrong() == set()


@given(
    JOBS,
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(1, 24), ANSWERS),
            st.dictionaries(st.integers(1, 4), st.sampled_from([LOW, PRIORITY_BASE + 200, SHIELD])),
        ),
        min_size=1,
        max_size=5,
    ),
)
@settings(max_examples=150)
def test_persons_who_move_running_jobs_as_well(jobs, cycles):
    world, stuck = made(jobs), set()
    world.controller.cycle()
    for fails, moved in cycles:
        world.fails = {job: answer for job, answer in fails.items() if answer != "gone" or job >= 20}
        for job, value in moved.items():
            world.set(job, value)
        before = world.stand()
        world.controller.cycle()
        after = world.stand()
        # nobody is raised past one, and who stood above one is lowered as far as Slurm lets us
        bad = world.wrong()
        assert {w for w, _ in bad if after[w] > before[w]} == set()
        # one that was refused, or did nothing, is not tried again and again
        stuck |= {job for job, answer in world.fails.items() if answer != "ok"}
        assert {(w, r) for w, r in bad if w not in stuck and world.fails.get(r, "ok") == "ok"} == set()
