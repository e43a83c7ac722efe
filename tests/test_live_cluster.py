"""The port to a live controller, where it shows or says what it should not. An adapter with a script
stands in for faults only; what a real Slurm does is tested in tests/live."""

from zoneinfo import ZoneInfo

import numpy as np
import pytest
from raw_queue import NOW, Scripted, config, queue, running, waiting

from tias_slurm import assemble
from tias_slurm.controller import Controller
from tias_slurm.jobs import Snapshot
from tias_slurm.ledger.book import Ledger
from tias_slurm.planner import Plan, Planner
from tias_slurm.slurm.live import AdapterError
from tias_slurm.slurm.live_cluster import LiveCluster, StaleSnapshotError, job_names

NOBODY = np.empty(0, dtype=np.int64)


class World:
    """A daemon's cycle over a scripted adapter."""

    def __init__(self, *queues, field="nice", enforce=True, settings=None, ledger=None, **script):
        self.adapter = Scripted(*queues, **script)
        self.settings = settings or config(lever={"kind": field})
        self.ledger = ledger or Ledger()
        self.told = []
        self.cluster = LiveCluster(
            self.adapter,
            self.settings,
            ZoneInfo("UTC"),
            enforce=enforce,
            field=field,
            first_submit=self.ledger.first_submit,
            standing=self.ledger.standing,
            told=lambda number, result: self.told.append((number, result.result)),
        )
        policy = assemble.tias(self.settings)
        planner = Planner(
            assemble.lever(self.settings, policy.levels, 1000), assemble.limits(self.settings, requeue=False)
        )
        self.plans = []
        self.controller = Controller(self.cluster, self.ledger, policy, planner, self._record)

    def _record(self, snapshot: Snapshot, ranking: object, plan: Plan) -> None:
        self.plans.append(plan)

    def cycle(self, times=1):
        """The jobs that each cycle wrote to."""
        written = []
        for _ in range(times):
            before = len(self.adapter.sent)
            self.controller.cycle()
            written.append(sorted(job for job, *_ in self.adapter.sent[before:]))
        return written[0] if times == 1 else written


# ---- queues that cannot be the truth ----


def test_an_empty_queue_after_a_full_one_is_believed_the_second_time():
    world = World(waiting(30), waiting(0, time=NOW + 60))
    world.cycle()
    known = world.ledger.found
    with pytest.raises(StaleSnapshotError, match="fell from 30 to 0"):
        world.cycle()
    assert len(world.ledger.found) == len(known) == 30  # nothing was forgotten
    world.cycle()
    assert len(world.ledger.found) == 0


def test_a_queue_that_is_there_again_lost_nothing():
    world = World(waiting(30, nice=5), waiting(3, nice=5, time=NOW + 60), waiting(30, nice=5, time=NOW + 120))
    first = world.cycle()
    assert first
    with pytest.raises(StaleSnapshotError):
        world.cycle()
    assert world.cycle() == []  # all values are in place, none is taken for the users' own
    assert set(world.ledger.found.tolist()) == {5.0}


@pytest.mark.parametrize(("before", "after"), [(30, 15), (19, 0), (0, 30)])
def test_queues_that_may_shrink_so(before, after):
    world = World(waiting(before), waiting(after, time=NOW + 60))
    world.cycle(2)
    assert len(world.ledger.found) == after


ENDED = {"state": "COMPLETED", "end": NOW - 200}


def jobs(active, ended=0, first=100):
    """So many jobs that wait or run in turn, and after them so many that have ended."""
    rows = [running() if i % 2 else {} for i in range(active)] + [ENDED] * ended
    return queue(*[{"job_id": first + i, **row} for i, row in enumerate(rows)])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (jobs(28, 30), jobs(28)),  # ended jobs leave by their age
        (jobs(5, 300), jobs(2)),
        (jobs(40), jobs(0, 40)),  # all ended, or were cancelled
        (jobs(40), jobs(4, 16)),  # some of them long enough ago to be shown no more
        (jobs(30), jobs(30, first=900)),  # others came
        (jobs(19, 100), jobs(0)),
    ],
)
def test_jobs_that_end_make_no_queue_stale(before, after):
    world = World(before, after)
    world.cycle(2)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (jobs(40), jobs(0), "from 40 to 0 "),
        (jobs(40), jobs(19), "from 40 to 19 "),
        (jobs(40), jobs(4, 15), "from 40 to 19 "),  # too few of those that are gone are shown as ended
        (jobs(20, 500), jobs(0, 0), "from 20 to 0 "),
        # what had ended before, and is shown still, says nothing of those that waited or ran
        (jobs(40, 500), queue(*[{"job_id": 140 + i, **ENDED} for i in range(500)]), "from 40 to 0 "),
    ],
)
def test_jobs_that_are_gone_at_once_do(before, after, said):
    world = World(before, after)
    world.cycle()
    with pytest.raises(StaleSnapshotError, match=said):
        world.cycle()
    world.cycle()  # the second time it is believed


def test_a_clock_that_goes_back_stops_one_cycle():
    world = World(waiting(2), waiting(2, time=NOW - 3600), waiting(2, time=NOW - 3540))
    world.cycle()
    with pytest.raises(StaleSnapshotError, match="clock went back"):
        world.cycle()
    world.cycle()


def test_no_answer_is_passed_on():
    world = World(AdapterError("squeue: no answer within 60 s", retry=True), waiting(2))
    with pytest.raises(AdapterError, match="no answer"):
        world.cycle()
    assert world.cycle() == [100, 101]


# ---- claims ----


def counted(world, monkeypatch):
    """How often a comment is really read."""
    seen = []
    read = world.cluster.claims._read
    monkeypatch.setattr(
        world.cluster.claims, "_read", lambda raw, i, first: seen.append(i) or read(raw, i, first)
    )
    return seen


def test_claims_are_read_once(monkeypatch):
    shown = queue({"comment": "deadline=+3h"}, {"comment": "hello"}, {"comment": "requeue=yes checkpoint=5m"})
    world = World(shown)
    seen = counted(world, monkeypatch)
    world.cycle(3)
    assert seen == [0, 2]
    assert world.cluster.observed.snapshot.jobs.deadline[0] == NOW - 600 + 3 * 3600
    assert world.cluster.observed.snapshot.jobs.checkpoint.tolist() == [0.0, 0.0, 300.0]


@pytest.mark.parametrize(
    ("change", "deadline"),
    [
        ({"comment": "deadline=+4h"}, NOW - 600 + 4 * 3600),
        ({"comment": ""}, np.nan),
        ({"comment": "deadline=yesterday-ish"}, np.nan),
        ({"account": "other"}, np.nan),
        ({"submit": NOW - 60, "restarts": 1}, NOW - 600 + 3 * 3600),  # a requeue: the first submit counts
        ({"submit": NOW - 60}, NOW - 60 + 3 * 3600),  # another job with the id
    ],
)
def test_claims_are_read_again_when_something_changes(change, deadline):
    job = {"comment": "deadline=+3h"}
    settings = config(deadlines={"accounts": ["lab"]})
    world = World(queue(job), *[queue({**job, **change}, time=NOW + 60)] * 2, settings=settings)
    world.cycle()
    assert world.cluster.observed.snapshot.jobs.deadline[0] == NOW - 600 + 3 * 3600
    world.cycle(2)  # what the ledger learns in one cycle the next one knows
    np.testing.assert_equal(world.cluster.observed.snapshot.jobs.deadline[0], deadline)


def test_what_is_refused_is_known_by_job():
    world = World(queue({"comment": "deadline=nonsense,requeue=maybe"}, {"comment": "deadline=+3h"}))
    world.cycle(3)
    assert [len(codes) for codes in world.cluster.claims.refused().values()] == [2]
    assert list(world.cluster.claims.refused()) == [100]


def test_claims_of_jobs_that_left_are_not_kept():
    world = World(queue({"comment": "deadline=+3h"}, {}), queue({"job_id": 101}, time=NOW + 60))
    world.cycle(2)
    assert world.cluster.claims._known == {}


# ---- the dry run ----


def test_a_dry_run_plans_each_write_once():
    world = World(waiting(3), enforce=False)
    world.cycle(3)
    assert world.adapter.sent == []
    assert [len(plan.write) for plan in world.plans] == [3]
    assert world.told == [(0, "ok"), (1, "ok"), (2, "ok")]


def test_a_dry_run_plans_again_when_a_job_moves():
    shown = waiting(3)
    moved = queue({"comment": "deadline=+30m"}, {}, {}, time=NOW + 60)
    world = World(shown, moved, moved, enforce=False)
    world.cycle(3)
    assert [plan.write.tolist() for plan in world.plans] == [[0, 1, 2], [0]]
    assert world.plans[1].old.tolist() == [world.plans[0].new[0]]


def test_in_a_dry_run_too_a_persons_value_is_a_persons():
    world = World(waiting(2), *[queue({"nice": 777}, {}, time=NOW + 60)] * 2, enforce=False)
    world.cycle(3)
    assert [len(plan.write) for plan in world.plans] == [2]
    assert world.ledger.overridden(world.cluster.observed.snapshot).tolist() == [True, False]


def test_what_would_be_is_forgotten_with_the_job():
    world = World(waiting(2), queue({"job_id": 101}, time=NOW + 60), enforce=False)
    world.cycle(2)
    assert list(world.cluster._would_be) == [101]


# ---- what becomes of writes ----


def test_in_steady_state_nothing_is_written():
    world = World(waiting(5))
    assert world.cycle(3) == [[100, 101, 102, 103, 104], [], []]


def test_refused_is_remembered():
    world = World(waiting(2), answers={100: "refused"})
    assert world.cycle(3) == [[100, 101], [], []]
    assert world.ledger.refused.tolist() == [True, False]


def test_a_job_that_is_held_since_we_looked_is_tried_again():
    world = World(waiting(1), answers={100: "refused"})
    world.adapter.words = "Job is in held state, pending scheduler release"
    assert world.cycle(2) == [[100], [100]]
    assert not world.ledger.refused.any()


def test_refused_is_tried_again_after_a_requeue():
    again = queue({"submit": NOW + 30, "restarts": 1}, {}, time=NOW + 60)
    world = World(waiting(2), again, answers={100: "refused"})
    assert world.cycle(2) == [[100, 101], [100]]


@pytest.mark.parametrize("answer", ["retry", "gone"])
def test_later_is_tried_each_cycle(answer):
    world = World(waiting(2), answers={100: answer})
    assert world.cycle(5) == [[100, 101]] + [[100]] * 4
    world.adapter.answers = {}
    assert world.cycle(2) == [[100], []]
    assert not world.ledger.refused.any()


def test_without_rights_nothing_more_is_sent():
    world = World(waiting(3), answers={100: "no rights", 101: "no rights", 102: "no rights"})
    assert world.cycle(2) == [[100], []]
    assert world.cluster.no_rights == "said no rights"
    assert [result for _, result in world.told] == ["no rights"] * 6
    world.cluster.no_rights, world.adapter.answers = "", {}
    assert world.cycle() == [100, 101, 102]


def test_what_is_accepted_without_effect_is_given_up():
    world = World(waiting(2), obeys=False)
    assert world.cycle(4) == [[100, 101], [100, 101], [], []]
    assert world.ledger.refused.tolist() == [True, True]


def test_a_value_that_came_in_place_may_be_sent_again():
    """A release wipes the nice that we set; each time it is set anew, however often."""
    world = World(*[waiting(1, time=NOW + 10 * i) for i in range(20)])
    for _ in range(5):
        assert world.cycle(2) == [[100], []]
        world.adapter.values.clear()
    assert not world.ledger.refused.any()


def test_a_stop_between_two_writes():
    world = World(waiting(4))

    def stop(job, field, value):
        world.cluster.stop = job == 101

    world.adapter.before_write = stop
    assert world.cycle() == [100, 101]
    assert world.told == [(0, "ok"), (1, "ok"), (2, "retry"), (3, "retry")]
    # nothing of what was intended and not sent is taken for a person's or the user's own
    world.cluster.stop = False
    world.adapter.before_write = lambda *_: None
    assert world.cycle() == [102, 103]
    assert set(world.ledger.found.tolist()) == {0.0}


def test_a_controller_that_goes_away_between_two_writes():
    world = World(waiting(3))

    def fail(job, field, value):
        if job == 101:
            raise AdapterError("scontrol: cannot be started", retry=False)

    world.adapter.before_write = fail
    with pytest.raises(AdapterError):
        world.cycle()
    assert [job for job, *_ in world.adapter.sent] == [100]
    world.adapter.before_write = lambda *_: None
    assert world.cycle() == [101, 102]


def test_writes_keep_their_pace(monkeypatch):
    slept = []
    monkeypatch.setattr("tias_slurm.slurm.live_cluster.time.sleep", slept.append)
    world = World(waiting(4), settings=config(daemon={"writes_per_second": 2.0}))
    world.cycle()
    assert len(slept) == 4
    assert all(0.4 < s <= 0.5 for s in slept)


# ---- site factors, which are shown of some jobs only ----


def test_site_factors_that_are_not_shown():
    begin = queue({"reason": "BeginTime"}, {}, time=NOW + 60)
    world = World(
        waiting(2), begin, begin, waiting(2, time=NOW + 180), field="site_factor", factors={100: 7, 101: 0}
    )
    assert world.cycle() == [100, 101]
    written = world.adapter.values.pop((100, "site_factor"))
    del world.adapter.factors[100]
    assert world.cycle(2) == [[], []]  # not shown now: believed to stand as it was set, and not written
    assert dict(world.cluster.observed.barred) == {"value not shown now": 1}
    assert not world.ledger.overridden(world.cluster.observed.snapshot).any()
    world.adapter.values[100, "site_factor"] = written
    assert world.cycle() == []
    assert world.ledger.found.tolist() == [7.0, 0.0]


# ---- jobs that ended ----


def test_who_ended_is_news_once(monkeypatch):
    over = {
        "state": "COMPLETED",
        "start": NOW - 500,
        "end": NOW - 10,
        "comment": "deadline=+3h",
        "reason": "None",
    }
    alive = queue(running(comment="deadline=+3h"), {})
    shown = queue(over, {}, time=NOW + 60)
    world = World(alive, shown, shown)
    learned = []
    monkeypatch.setattr(world.ledger.learner, "learn", lambda _, ran, __: learned.append(ran.tolist()))
    world.cycle(3)
    assert learned == [[490.0]]


def test_who_ended_is_news_once_over_a_restart(monkeypatch):
    over = {
        "state": "COMPLETED",
        "start": NOW - 500,
        "end": NOW - 10,
        "comment": "deadline=+3h",
        "reason": "None",
    }
    shown = queue(over, {**over, "job_id": 99}, {"job_id": 102}, time=NOW + 60)
    ledger = Ledger()
    World(queue(running(comment="deadline=+3h"), {"job_id": 102}), ledger=ledger).cycle()
    learned = []
    monkeypatch.setattr(ledger.learner, "learn", lambda _, ran, __: learned.append(ran.tolist()))
    # 100 ended while the daemon was away; 99 was over before, so it was learned from then
    World(shown, ledger=ledger).cycle()
    World(shown, ledger=ledger).cycle()
    assert learned == [[490.0]]


def test_names():
    raw = queue({}, {"array_id": 90, "array_task": "3"}, {"array_id": 102, "array_task": "5-9"})
    assert job_names(raw, [2, 0, 1]) == ["102_5-9", "100", "90_3"]
