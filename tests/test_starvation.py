"""The bound on waiting, under lasting overload too: a share is kept, and nothing feeds back."""

import numpy as np
import pytest
from worlds import DAY, HOUR, job_table, prepared, rank_input, ranking, snapshot, workload

from tias_slurm.config import Config
from tias_slurm.jobs import PENDING, RUNNING
from tias_slurm.ledger.book import Ledger
from tias_slurm.policy.learning import Learner
from tias_slurm.policy.tias import PRESETS, Tias, preset
from tias_slurm.replay import simulate
from tias_slurm.slurm.nodes import uniform

START = 1_700_000_100.0
NODES = 4
GPUS = 8 * NODES
STARVING_S = 12 * HOUR
SHARE = 0.25
INTERVAL_S = 300.0
SPAN = 3 * DAY


def overload(seed, load=1.3):
    """Arrivals of 1.3 times what the cluster gives, for three days: small jobs, wide ones, three that take it
    all, and deadlines of which many cannot be met."""
    rng = np.random.default_rng(seed)
    rows, asked = [], 0.0
    while asked < load * GPUS * SPAN:
        gpus = int(rng.choice([1, 2, 4, 8, 16], p=[0.4, 0.2, 0.2, 0.15, 0.05]))
        work = float(np.clip(rng.lognormal(8.6, 0.9), 300.0, 8 * HOUR))
        at = START + float(rng.uniform(0.0, SPAN))
        due = at + work * float(rng.uniform(1.05, 3.0)) if rng.random() < 0.5 else np.nan
        rows.append(
            {"submit": at, "work": work, "gpus": gpus, "deadline": due, "user": f"u{rng.integers(9)}"}
        )
        asked += gpus * work
    for day in range(3):
        rows.append(
            {
                "submit": START + 5 * HOUR + day * DAY,
                "work": 3 * HOUR,
                "gpus": GPUS,
                "deadline": START + 9 * HOUR + day * DAY if day == 1 else np.nan,
                "user": "wide",
            }
        )
    return sorted(rows, key=lambda r: r["submit"])


class Watched:
    """A run, and what was seen of it cycle by cycle."""

    def __init__(self, rows, name, starving_s, name_of_policy="tias@on"):
        policy = {"preset": name, "starving_s": starving_s, "starving_share": SHARE}
        config = Config.model_validate({"policy": policy, "cycle": {"interval_s": INTERVAL_S}})
        run, wanted = prepared(workload(rows), uniform(GPUS, 8), name_of_policy, config)
        self.cluster, controller = run.prepare(wanted)
        n = len(rows)
        self.waited, self.starved = np.zeros(n), np.full(n, np.inf)
        self.most_in_front, self.alone = 0.0, True
        rank = controller.policy.rank

        def watch(now, known, survival):
            made = rank(now, known, survival)
            waits = ~known.running & known.able
            ids = known.job_id
            self.waited[ids] = np.fmax(self.waited[ids], np.where(waits, now - known.since, 0.0))
            first = waits & (now - known.since >= STARVING_S)
            self.starved[ids] = np.fmin(self.starved[ids], np.where(first, known.since, np.inf))
            used = known.gpus[made.front].sum()
            if used > SHARE * GPUS:
                self.alone &= made.front.sum() == 1
            else:
                self.most_in_front = max(self.most_in_front, used)
            return made

        controller.policy.rank = watch
        simulate.run(self.cluster, controller, INTERVAL_S)
        s = self.cluster.state
        self.gpus, self.work, self.ended = s.gpus, s.work, s.end
        self.requeues = int(s.restarts.sum())
        self.executed = s.executed


def bound(run):
    """The bound of docs/policy.md for each job that starved, from what has starved before it.

    Jobs of at most half the share go side by side, so that at least half of it is used; the others one by
    one, each after its nodes have fallen free: no run is longer than the longest.
    """
    longest = run.executed.max() + INTERVAL_S
    room = SHARE * GPUS
    wide = run.gpus > room / 2
    order = np.argsort(run.starved, kind="stable")
    order = order[np.isfinite(run.starved[order])]
    packed = np.cumsum(np.where(wide, 0.0, run.gpus * run.executed)[order]) / (room / 2)
    serial = np.cumsum(np.where(wide, run.executed + longest, 0.0)[order])
    most = np.full(len(run.gpus), STARVING_S + INTERVAL_S)
    most[order] += packed + serial + longest
    return most


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_job_starts_in_time_under_lasting_overload(name):
    rows = overload(seed=3)
    run, twin = Watched(rows, name, STARVING_S), Watched(rows, name, 0.0)
    assert np.isfinite(run.ended).all()
    assert (run.waited <= bound(run)).all()
    # those that take the whole cluster are the hardest: else they wait for the end of the overload
    whole = run.gpus == GPUS
    assert run.waited[whole].max() < twin.waited[whole].max()
    assert np.isfinite(run.starved).sum() > 20
    # the share is kept, but for one job that is wider than it
    assert run.alone
    assert 0 < run.most_in_front <= SHARE * GPUS
    # and it does not feed back: nobody in front preempts, nobody is preempted more for it
    assert run.requeues <= 1.05 * twin.requeues


def test_also_without_requeues():
    run = Watched(overload(seed=4), "jct-first", STARVING_S, "tias@off")
    assert run.requeues == 0
    assert (run.waited <= bound(run)).all()


# ---- the rule itself ----

NOW = START
PRIOR = Learner().survival()


def front(gpus, waited, *, held=False, running=False, able=True, **overrides):
    jobs = rank_input(gpus=gpus, first_submit=NOW - np.asarray(waited) * HOUR, running=running)
    n = len(jobs)
    columns = {k: np.broadcast_to(v, n).copy() for k, v in (("front", held), ("able", able))}
    jobs = type(jobs)(**{**{k: getattr(jobs, k) for k in jobs.__dataclass_fields__}, **columns})
    settings = {"starving_s": 10 * HOUR, "starving_share": 0.01, **overrides}  # 10 of 1,000 GPUs
    return Tias(preset("jct-first", **settings)).rank(NOW, jobs, PRIOR).front.tolist()


def test_from_the_very_second_on():
    assert front([1, 1], [9.999, 10.0]) == [False, True]
    assert front([1, 1], [9.999, 99.0], starving_s=0.0) == [False, False]


def test_the_longest_wait_first_and_nobody_is_overtaken():
    assert front([6, 6, 1], [30, 20, 25]) == [True, False, True]
    assert front([6, 6, 1], [30, 25, 20]) == [True, False, False]


def test_one_that_is_wider_than_the_share_goes_alone():
    assert front([500, 1], [30, 20]) == [True, False]
    assert front([500, 1], [20, 30]) == [False, True]


def test_one_without_gpus_has_no_place_in_front():
    assert front([0.0, 2 * GPUS], [STARVING_S + 1, STARVING_S]) == [False, True]


def test_who_started_from_the_front_counts_until_it_ends():
    assert front([6, 6], [30, 20], held=[True, False], running=[True, False]) == [True, False]
    assert front([6, 6], [30, 20], held=[False, False], running=[True, False]) == [False, True]


def test_who_could_not_start_is_in_nobodys_way():
    assert front([10, 10], [30, 20], able=[False, True]) == [False, True]
    # and gives up the place that it had
    assert front([10, 10], [30, 20], able=[False, True], held=[True, False]) == [False, True]


def test_only_what_it_waited_while_able_counts():
    ledger = Ledger()

    def since(now, **columns):
        return ledger.remember(snapshot(now, job_table(1, job_id=[7], **columns))).since[0]

    assert since(1000.0) == 0.0
    assert since(2000.0, can_start=False) == 0.0  # from now on
    assert since(5000.0, can_start=False) == 3000.0
    assert since(6000.0) == 4000.0
    assert since(9000.0) == 4000.0
    # held from the beginning: nothing was waited
    assert Ledger().remember(snapshot(900.0, job_table(1, can_start=False))).since[0] == 900.0
    # a requeue begins a new spell
    assert since(9500.0, submit=9400.0, since=9400.0, restarts=1) == 9400.0


def test_the_rest_of_an_array_queues_anew():
    """A place in front, or a slot, was for one task: it goes to the first that is split off."""
    ledger = Ledger()
    ledger.remember(snapshot(0.0, job_table(1, job_id=[7], array_id=7)))
    ledger.note(ranking([9], front=True))
    state = np.array([PENDING, RUNNING, RUNNING])
    known = ledger.remember(snapshot(60.0, job_table(3, job_id=[7, 8, 9], array_id=7, state=state)))
    assert known.front.tolist() == [False, True, False]
    assert known.since.tolist() == [0.0, 0.0, 0.0]


def test_a_task_split_off_has_not_waited_while_its_array_was_blocked():
    ledger, id_, now = Ledger(), [10], 30 * DAY
    for at in (0.0, now):
        array = job_table(1, job_id=id_, array_id=id_, can_start=False)
        ledger.remember(snapshot(at, array))
    for at, waited in ((now + 60.0, 0.0), (now + DAY + 60.0, DAY)):
        tasks = job_table(2, job_id=[10, 11], array_id=10, can_start=[False, True])
        known = ledger.remember(snapshot(at, tasks))
        assert (at - known.since).tolist() == [0.0, waited]
