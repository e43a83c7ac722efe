"""The account of one job: what its place is made of, and what would change it and when.

Pure. No formula of the policy stands here: it is asked again, about a job that has waited or run for longer,
has no claim, or may not hold what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tias_slurm.jobs import PENDING, Bools, Floats, Ints, RankInput, Snapshot, unsaved
from tias_slurm.levers import Lever
from tias_slurm.policy.base import Ranking
from tias_slurm.policy.tias import CLASSES, Tias, TiasSettings
from tias_slurm.status import queues

# how far ahead we look, s
HORIZON_S = 60 * 86_400.0
# a state that lasts for less than this share of the time until then may be overlooked
FINENESS = 0.02
# changes that are told of one course of things
MOST_CHANGES = 5


@dataclass(frozen=True)
class Case:
    """What a look at the cluster gave. Rows are those of the snapshot."""

    snapshot: Snapshot
    known: RankInput
    ranking: Ranking
    survival: Floats  # see Learner.survival
    policy: Tias
    lever: Lever
    found: Floats  # (n,) the users' own lever values
    planned: Floats  # (n,) lever values once the next cycle has written


@dataclass(frozen=True)
class State:
    """Where a job stands."""

    level: int
    kind: str  # one of CLASSES
    queue: int | None  # None: hopeless or overdue
    front: bool
    slot: bool


@dataclass(frozen=True)
class Change:
    """A state that comes by itself, if nothing else changes."""

    after_s: float  # from now
    course: str  # "waits": if it waits until then; "runs": after so long a run from now on
    state: State
    text: str


@dataclass(frozen=True)
class Place:
    """Who stands before a waiting job in the partitions that it may use."""

    jobs: int
    startable: int  # of these, that wait for nothing but nodes and their turn
    gpus: int  # what those ask for
    weight: float  # the same by weight, shards among it
    startable_planned: int  # the same once the next cycle has written


def state_of(policy: Tias, ranking: Ranking, row: int) -> State:
    """The state of one job in a ranking."""
    queue = int(queues(policy, ranking)[row])
    kind = CLASSES[int(policy.classes(ranking)[row])]
    level, front, slot = int(ranking.level[row]), bool(ranking.front[row]), bool(ranking.slot[row])
    return State(level, kind, queue if queue >= 0 else None, front, slot)


class Asked:
    """The policy, asked about one job in other circumstances than its own, all other jobs as they are."""

    def __init__(self, case: Case, row: int) -> None:
        self.case = case
        # others count only through the shares that they hold
        r = case.ranking
        rows = np.flatnonzero(r.slot | r.front)
        rows = np.concatenate(([row], rows[rows != row]))
        self.jobs = _take(case.known, rows, slot=r.slot[rows], front=r.front[rows])

    def state(self, policy: Tias | None = None, **changes: Any) -> State:
        """The state with columns of the job replaced, or by another policy."""
        policy = policy or self.case.policy
        columns = {}
        for name, value in changes.items():
            columns[name] = getattr(self.jobs, name).copy()
            columns[name][0] = value
        jobs = replace(self.jobs, **columns)
        return state_of(policy, policy.rank(self.case.snapshot.now, jobs, self.case.survival), 0)

    def later(self, after_s: float, *, runs: bool) -> State:
        """The state after the job has waited, or run, for so long."""
        j = self.jobs
        served = after_s if runs else 0.0
        # for one job alone, time that passes is a beginning that lies further back
        return self.state(
            first_submit=j.first_submit[0] - after_s,
            deadline=j.deadline[0] - after_s,
            since=j.since[0] - after_s,
            running=runs,
            executed=j.executed[0] + served,
            attained=j.attained[0] + served * j.gpus[0],
        )

    def other(self, **constants: Any) -> State:
        """The state under other constants of the policy."""
        return self.state(Tias(replace(self.case.policy.settings, **constants)))


def changes(asked: Asked, *, runs: bool, cycle_s: float = 0.0) -> list[Change]:
    """What comes by itself, the next first: at most MOST_CHANGES, none beyond HORIZON_S.

    A state that lasts for less than `cycle_s`, from one cycle to the next, is left out: no cycle may see it.
    """
    found: list[Change] = []
    before, was = 0.0, asked.later(0.0, runs=runs)
    stays = [was]  # the state before each of those found, and the last one
    for at in _moments():
        now = asked.later(at, runs=runs)
        # one step may see several changes; what lasts is the last of them
        while was != now:
            when = _first(asked, before, at, was, runs=runs)
            state = asked.later(when, runs=runs)
            while found and when - found[-1].after_s < cycle_s:
                found.pop()
                stays.pop()
            if len(found) == MOST_CHANGES:
                return found
            if state != stays[-1]:
                course = "runs" if runs else "waits"
                found.append(Change(when, course, state, _say(stays[-1], state)))
                stays.append(state)
            if state.kind == "overdue":
                return found
            before, was = when, state
        before = at
        # the last of them is known to last only now
        if len(found) == MOST_CHANGES and at - found[-1].after_s >= cycle_s:
            return found
    return found


def _moments() -> Iterator[float]:
    at = 60.0
    while at < HORIZON_S:
        yield at
        at *= 1.0 + FINENESS
    yield HORIZON_S


def _first(asked: Asked, early: float, late: float, was: State, *, runs: bool) -> float:
    """When the state is first another one, to the second."""
    while late - early > 1.0:
        middle = (early + late) / 2.0
        if asked.later(middle, runs=runs) == was:
            early = middle
        else:
            late = middle
    return late


def _say(was: State, now: State) -> str:
    """What becomes of a job, in a few words."""
    if now.front and not was.front:
        return "goes to the front"
    if now.kind != was.kind:
        return f"becomes {now.kind}, level {now.level}"
    if now.slot != was.slot:
        return f"{'gets' if now.slot else 'loses'} a long slot, level {now.level}"
    if now.queue is not None and was.queue is not None and now.queue > was.queue:
        return f"falls to queue {now.queue}, level {now.level}"
    if now.level < was.level:
        return f"is brought up to level {now.level}"
    return f"comes to level {now.level}" if now.level != was.level else f"is in queue {now.queue}"


def place(case: Case, row: int, peers: Bools, able: Bools) -> Place:
    """Who stands before a waiting job.

    Shapes (n,): `peers`, jobs that may use one of its partitions; `able`, that wait for nothing but nodes and
    their turn.
    """
    s = case.snapshot
    waits = np.asarray((s.jobs.state == PENDING) & peers, dtype=np.bool_)
    now = _before(case, row, s.jobs.lever) & waits
    then = _before(case, row, case.planned) & waits
    return Place(
        int(now.sum()),
        int((now & able).sum()),
        int(s.jobs.gpus[now & able].sum()),
        round(float(s.jobs.weight[now & able].sum()), 6),
        int((then & able).sum()),
    )


def _before(case: Case, row: int, values: Floats) -> Bools:
    s = case.snapshot
    priority = case.lever.priority(s.order, values)
    return np.asarray(
        (priority > priority[row]) | ((priority == priority[row]) & (s.tie < s.tie[row])), dtype=np.bool_
    )


def line_for_slot(case: Case, row: int) -> float | None:
    """How large the share of the cluster for long slots would have to be for the job to get one, other jobs
    as they are, to a thousandth; None: it holds one, or is not one that could."""
    settings = case.policy.settings
    rows = np.flatnonzero(np.isfinite(case.known.deadline))
    if settings.slot_share <= 0.0 or case.ranking.slot[row] or row not in rows:
        return None
    jobs = _take(case.known, rows, slot=case.ranking.slot[rows], front=case.ranking.front[rows])
    at = int(np.searchsorted(rows, row))

    def gets(share: float) -> bool:
        policy = Tias(replace(settings, slot_share=share))
        return bool(policy.rank(case.snapshot.now, jobs, case.survival).slot[at])

    low, high = settings.slot_share, 64.0
    if not gets(high):
        return None
    while high - low > 0.001:
        middle = (low + high) / 2.0
        low, high = (low, middle) if gets(middle) else (middle, high)
    return high


def account(case: Case, row: int, claim: float | None = None, cycle_s: float = 0.0) -> dict[str, Any]:
    """The policy's side of the account, ready for JSON: times in epoch s, durations in s, service in GPU-s.

    `claim`: a deadline that the job has and that does not count now; `cycle_s`: from one cycle to the next.
    """
    s, k, r, settings = case.snapshot, case.known, case.ranking, case.policy.settings
    asked = Asked(case, row)
    state = state_of(case.policy, r, row)
    waits = bool(s.jobs.state[row] == PENDING)
    ahead = None if state.queue is None else next(iter(settings.thresholds_gpu_s[state.queue :]), None)
    courses = [False, True] if waits else [True]
    what_if: dict[str, State] = {}
    if np.isfinite(k.deadline[row]):
        what_if["without its deadline"] = asked.state(deadline=np.nan)
        what_if["without the caps for lost time"] = asked.other(caps=())
        what_if["without a long slot"] = asked.other(slot_share=0.0)
        what_if["without what it was served"] = asked.other(keep_served=0.0)
    if claim is not None:
        what_if["if its deadline counted"] = asked.state(deadline=claim)
    if k.claim_lost[row]:
        what_if["without the deadline that it gave up"] = asked.state(claim_lost=False)
    if waits:
        what_if["once it runs"] = asked.state(running=True)
    elif s.jobs.requeueable[row]:
        lost = float(unsaved(s.jobs.run_time, s.jobs.checkpoint)[row])
        # who never saves himself loses what earlier runs have done as well
        saved = max(float(k.executed[row]) - lost, 0.0) if s.jobs.checkpoint[row] > 0.0 else 0.0
        what_if["if it were requeued now"] = asked.state(
            running=False, since=s.now, late=False, executed=saved
        )
    return {
        "level": state.level,
        "class": state.kind,
        "reason": case.policy.reason(r, row),
        "queue": state.queue,
        "attained_gpu_s": float(k.attained[row]),
        "next_threshold_gpu_s": ahead,
        "urgency": None if r.site_order[row] else float(r.urgency[row]),
        "first_submit": float(k.first_submit[row]),
        "executed_s": float(k.executed[row]),
        "claim": _claim(case, row, settings),
        "slot": {
            "held": state.slot,
            "share": settings.slot_share,
            "share_needed": line_for_slot(case, row),
        },
        "front": {
            "at_front": state.front,
            "waited_s": max(0.0, float(s.now - k.since[row])) if waits else None,
            "starving_s": settings.starving_s or None,
        },
        "what_if": {
            name: {"level": v.level, "class": v.kind}
            for name, v in what_if.items()
            if (v.level, v.kind) != (state.level, state.kind)
        },
        "changes": [
            {"after_s": round(c.after_s), "if_it": c.course, "level": c.state.level, "text": c.text}
            for runs in courses
            for c in changes(asked, runs=runs, cycle_s=cycle_s)
        ],
    }


def _claim(case: Case, row: int, settings: TiasSettings) -> dict[str, Any] | None:
    """The terms of a claim that counts; None: there is none."""
    k, t = case.known, case.ranking.terms
    due = float(k.deadline[row])
    if not np.isfinite(due):
        return None
    at = int(np.searchsorted(t["rows"], row))
    overdue = bool(t["overdue"][at])

    def term(name: str) -> float | None:
        return None if overdue else float(t[name][at])

    return {
        "deadline": due,
        "window_s": due - float(k.first_submit[row]),
        "left_s": float(t["l"][at]),
        "lost_s": float(t["w"][at]),
        "served": term("x"),
        "kept_from": settings.keep_served or None,
        "chance": term("M0"),
        "hopeless_below": settings.hopeless_chance,
        "risk": term("r"),
        "urgent_from": settings.urgent_risk,
        "warming_from": settings.warming_ratio * settings.urgent_risk,
        "accumulated_loss": term("c"),
        "caps": [{"from": bound, "level": level} for bound, level in settings.caps],
    }


def _take(jobs: RankInput, rows: Ints, **columns: Any) -> RankInput:
    """The given rows, with columns replaced."""
    kept = {f.name: getattr(jobs, f.name) for f in fields(jobs)}
    taken = {name: v if np.ndim(v) == 0 else v[rows] for name, v in kept.items()}
    return RankInput(**{**taken, **columns})
