"""Shares: who holds a long slot, and what holds for any walk over those who would like one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tias_jobs import NOW, PRIOR, TEN, claim, rank
from worlds import DAY, HOUR, rank_input

from tias_slurm.ledger.book import Ledger
from tias_slurm.policy.shares import grant
from tias_slurm.policy.tias import Tias, preset

# with a slot, without
LEVELS = {
    "no deadline, 8 GPUs, new": (1, 1),
    "12 h x 1, new": (0, 0),
    "24 h x 1, new": (2, 4),
    "24 h x 1, waited 20 h": (2, 4),
    "24 h x 1, waited 21 h": (11, 11),
    "72 h x 8, new": (2, 8),
    "72 h x 8, running for 60 h": (2, 10),
    "7 d x 32, new": (2, 10),
    "72 h x 8, running for 70 h": (2, 10),
    "past its deadline": (11, 11),
}


@pytest.mark.parametrize("name", TEN)
def test_the_ten_jobs(name):
    job = TEN[name][0]
    levels = rank("slots", job).level[0], rank("slots", job, slot_share=0.0).level[0]
    assert levels == LEVELS[name]


# ---- the walk ----

people = st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 8.0, 40.0]), st.booleans()), max_size=15)


@given(people, st.floats(0, 60), st.booleans(), st.randoms(use_true_random=False))
def test_grant(jobs, room, strict, random):
    gpus = np.array([g for g, _ in jobs])
    holds = np.array([h for _, h in jobs], dtype=bool)
    order = np.flatnonzero(~holds)
    random.shuffle(order)
    before = holds.copy()
    got = grant(order, gpus, holds, room, strict=strict)
    assert np.array_equal(holds, before)
    # holders keep it, whatever the share has become
    assert got[holds].all()
    # the share is kept: but for who held before, and for one that nobody held beside
    new = got & ~holds
    if new.any():
        assert gpus[got].sum() <= room or (got.sum() == 1 and not holds.any())
    # nobody has it for whom there is no room; who comes first is not passed over for nothing
    if len(order) and not holds.any():
        assert got[order[0]]
    if strict:
        had = got[order].tolist()
        assert had == sorted(had, reverse=True)
    else:
        # whoever was passed over would not have fitted beside those before it
        used, some = gpus[holds].sum(), holds.any()
        for row in order.tolist():
            assert got[row] == (not some or used + gpus[row] <= room)
            if got[row]:
                used, some = used + gpus[row], True


@given(people, st.floats(0, 60), st.booleans())
def test_granting_again_changes_nothing(jobs, room, strict):
    gpus = np.array([g for g, _ in jobs])
    holds = np.array([h for _, h in jobs], dtype=bool)
    once = grant(np.flatnonzero(~holds), gpus, holds, room, strict=strict)
    assert np.array_equal(grant(np.flatnonzero(~once), gpus, once, room, strict=strict), once)


# ---- who gets one ----


def slots(*jobs, held=None, able=True, late=False, **overrides):
    columns = {key: np.array([j[key] for j in jobs]) for key in jobs[0]}
    table = rank_input(**columns)
    n = len(table)
    flags = {"slot": False if held is None else held, "able": able, "late": late}
    flags = {k: np.broadcast_to(v, n).copy() for k, v in flags.items()}
    table = type(table)(**{**{k: getattr(table, k) for k in table.__dataclass_fields__}, **flags})
    # 20 GPUs of 1,000
    policy = Tias(preset("slots", slot_share=0.02, **overrides))
    return policy.rank(NOW, table, PRIOR)


def test_the_smallest_windows_times_gpus_first():
    r = slots(claim(3 * DAY, 16), claim(DAY, 8), claim(2 * DAY, 8))
    assert r.slot.tolist() == [False, True, True]
    assert r.level.tolist() == [10, 2, 2]


def test_holders_keep_theirs():
    r = slots(claim(3 * DAY, 16), claim(DAY, 8), held=[True, False])
    assert r.slot.tolist() == [True, False]


def test_one_that_does_not_fit_is_passed_over():
    # g D: 16 x 1 d, then 8 x 3 d, then 4 x 7 d
    r = slots(claim(DAY, 16), claim(3 * DAY, 8), claim(7 * DAY, 4))
    assert r.slot.tolist() == [True, False, True]


def test_short_windows_need_none():
    assert slots(claim(11.9 * HOUR, 1), claim(12 * HOUR, 1)).slot.tolist() == [False, True]


@pytest.mark.parametrize(
    ("job", "flags"),
    [
        (claim(DAY, 8, waited=25 * HOUR), {}),  # overdue
        (claim(DAY, 8, waited=23.9 * HOUR), {}),  # hopeless
        (claim(DAY, 8), {"able": False}),  # could not start: it would hoard
        (claim(DAY, 8, ran=HOUR, running=True), {"late": True}),  # came during the run
    ],
)
def test_who_loses_a_slot(job, flags):
    assert slots(job, held=[True], **flags).slot.tolist() == [False]


def test_without_a_share_there_are_none():
    assert not rank("balanced", claim(3 * DAY, 8)).slot.any()


def test_the_ledger_keeps_them():
    from worlds import job_table, snapshot

    ledger = Ledger()
    jobs = job_table(2, job_id=[3, 4], gpus=[8, 16], deadline=3 * DAY)
    known = ledger.remember(snapshot(0.0, jobs))
    policy = Tias(preset("slots", slot_share=1.0))
    ledger.note(policy.rank(0.0, known, PRIOR))
    assert ledger.remember(snapshot(60.0, jobs)).slot.tolist() == [True, False]  # 8 GPUs in all


def test_one_without_gpus_is_no_holder():
    """Else none that is wider than the share could be the only one."""
    jobs = replace(rank_input(gpus=[0, 8], deadline=NOW + 3 * DAY, first_submit=NOW), capacity=8.0)
    jobs.running[0] = True
    assert Tias(preset("slots")).rank(NOW, jobs, PRIOR).slot.tolist() == [False, True]
