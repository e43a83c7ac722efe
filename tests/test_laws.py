"""The checks of the laws find offences, and the textbook policies commit none."""

import numpy as np
import pytest
from laws import (
    Stay,
    check_capacity,
    check_none_lost,
    check_not_before,
    check_one_at_a_time,
    check_pool,
    check_work,
)

from tias_slurm.replay.textbook import run_textbook

NODES = {"a": {"gpus": 8, "cpus": 64}}


def stay(job, start, end, gpus, node="a"):
    return Stay(job, start, end, {node: {"gpus": gpus}})


def test_capacity_holds_when_one_begins_where_another_ends():
    check_capacity([stay(1, 0, 5, 8), stay(2, 5, 9, 8), stay(3, 5, 5, 8)], NODES)


@pytest.mark.parametrize(
    "stays",
    [
        [stay(1, 0, 5, 8), stay(2, 4, 9, 1)],
        [stay(1, 0, 5, 9)],
        [stay(1, 0, 5, 1, node="b")],
        [stay(1, 5, 0, 1)],
        [Stay(1, 0, 5, {"a": {"tapes": 1}})],
    ],
)
def test_capacity_broken_is_found(stays):
    with pytest.raises(AssertionError):
        check_capacity(stays, NODES)


def test_two_runs_at_once_are_found():
    check_one_at_a_time([stay(1, 0, 5, 1), stay(1, 5, 6, 1), stay(2, 3, 4, 1)])
    with pytest.raises(AssertionError, match="runs twice"):
        check_one_at_a_time([stay(1, 0, 5, 1), stay(1, 4, 6, 1)])


def test_an_early_start_is_found():
    check_not_before([stay(1, 3, 5, 1)], {1: 3})
    with pytest.raises(AssertionError, match="eligible"):
        check_not_before([stay(1, 3, 5, 1)], {1: 4})


def test_work_that_does_not_add_up_is_found():
    gpus = np.array([2, 4])
    check_work([100.0, 30.0], [70.0, 50.0], [60.0, 0.0], gpus, [True, False])
    for executed, lost in (
        ([99.0, 30.0], [60.0, 0.0]),
        ([100.0, 60.0], [60.0, 0.0]),
        ([69.5, 0.0], [-1.0, 0.0]),
    ):
        with pytest.raises(AssertionError):
            check_work(executed, [70.0, 50.0], lost, gpus, [True, False])


def test_a_lost_job_is_found():
    nan = np.nan
    check_none_lost([0.0, nan, nan], [1.0, nan, nan], [True, False, True], [False, False, True])
    for start, end in ([0.0], [nan]), ([2.0], [1.0]):
        with pytest.raises(AssertionError):
            check_none_lost(start, end, [True], [False])
    with pytest.raises(AssertionError, match="cannot fit"):
        check_none_lost([0.0], [1.0], [False], [False])


@pytest.mark.parametrize("policy", ["fifo-strict", "fifo-fit"])
def test_textbook_queues_keep_the_laws(policy):
    rng = np.random.default_rng(8)
    submit, work = rng.integers(0, 5000, 400).astype(float), rng.integers(0, 300, 400).astype(float)
    gpus = rng.choice([1, 2, 4, 8, 32], 400)
    start, end, _ = run_textbook(policy, submit, work, gpus, 16)
    check_pool(start, end, gpus, 16)
    check_none_lost(start, end, gpus <= 16, np.zeros(400, dtype=bool))
    ran = gpus <= 16
    assert np.array_equal(end[ran] - start[ran], work[ran])
