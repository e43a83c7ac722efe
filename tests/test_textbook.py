"""The fast textbook policies agree, number for number, with the plain reference."""

import csv
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_simulators import simulate

from tias_slurm.replay.textbook import POLICIES, run_textbook

JOBS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 9), st.integers(0, 6)),  # submit, work, GPUs
    max_size=14,
)


def columns(jobs):
    return [list(column) for column in zip(*jobs, strict=True)] if jobs else ([], [], [])


def agree(policy, submit, work, gpus, capacity):
    start, end, preempted = run_textbook(
        policy,
        np.array(submit, dtype=np.float64),
        np.array(work, dtype=np.float64),
        np.array(gpus, dtype=np.int64),
        capacity,
    )
    want = simulate(policy, submit, work, gpus, capacity)
    assert [None if np.isnan(x) else x for x in start] == want[0]
    assert [None if np.isnan(x) else x for x in end] == want[1]
    assert list(preempted) == want[2]


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=150)
@given(jobs=JOBS, capacity=st.integers(0, 6))
def test_agrees_with_the_reference(policy, jobs, capacity):
    agree(policy, *columns(jobs), capacity)


@pytest.mark.parametrize("policy", POLICIES)
def test_agrees_at_epoch_seconds_under_load(policy):
    rng = np.random.default_rng(5)
    n = 250
    submit = (1_790_000_000 + rng.integers(0, 40_000, n)).tolist()
    work = rng.integers(0, 5_000, n).tolist()
    gpus = rng.choice([1, 1, 2, 4, 8, 16, 40], n).tolist()
    agree(policy, submit, work, gpus, 24)


@pytest.mark.parametrize("policy", POLICIES)
def test_agrees_on_a_real_trace(policy, shared_data):
    with (shared_data / "traces/elasticflow/cluster02.csv").open() as file:
        rows = [
            (int(r["submission_time"]), int(r["duration"]), int(r["num_gpu"])) for r in csv.DictReader(file)
        ]
    agree(policy, *columns(rows[:350]), 24)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_numba_the_same(policy):
    rng = np.random.default_rng(6)
    submit, work = rng.integers(0, 900, 60).astype(float), rng.integers(0, 99, 60).astype(float)
    gpus = rng.integers(1, 9, 60)
    here = [x.tolist() for x in run_textbook(policy, submit, work, gpus, 8)]
    code = (
        "import numpy as np\n"
        "from tias_slurm import jit\n"
        "from tias_slurm.replay.textbook import run_textbook\n"
        "assert not jit.HAVE_NUMBA\n"
        f"a = np.array({submit.tolist()}), np.array({work.tolist()}), np.array({gpus.tolist()})\n"
        f"print([x.tolist() for x in run_textbook({policy!r}, *a, 8)])"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={"TIAS_SLURM_NO_NUMBA": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == str(here)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_never_fits_never_starts_and_blocks_nobody(policy):
    submit, work = np.array([0.0, 1.0]), np.array([5.0, 5.0])
    start, end, _ = run_textbook(policy, submit, work, np.array([9, 8]), 8)
    assert np.isnan(start[0])
    assert np.isnan(end[0])
    assert (start[1], end[1]) == (1.0, 6.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_fractions_of_seconds_end(policy):
    rng = np.random.default_rng(7)
    submit, work = rng.random(300) * 1e3, rng.random(300) * 30
    gpus = rng.integers(1, 5, 300)
    start, end, _ = run_textbook(policy, submit, work, gpus, 6)
    assert np.all(start >= submit)
    assert np.all(end - start >= work - 1e-9)
    assert np.max(end) >= np.sum(work * gpus) / 6


@pytest.mark.parametrize(
    ("policy", "submit", "work", "gpus"),
    [
        ("sjf", [0.0], [1.0], [1]),
        ("srtf", [0.0, 1.0], [1.0], [1]),
        ("srtf", [np.nan], [1.0], [1]),
        ("srtf", [0.0], [np.inf], [1]),
        ("fifo-fit", [0.0], [-1.0], [1]),
        ("fifo-fit", [0.0], [1.0], [-1]),
    ],
)
def test_nonsense_is_an_error(policy, submit, work, gpus):
    with pytest.raises(ValueError, match=r"policy|length|finite|negative"):
        run_textbook(policy, np.array(submit), np.array(work), np.array(gpus), 4)
