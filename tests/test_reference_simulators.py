"""The reference simulators against schedules worked out on paper."""

import pytest
from reference_simulators import simulate

# 4 GPUs.        A: 3 GPUs, 4 s, at 0   B: 2 GPUs, 2 s, at 1   C: 1 GPU, 5 s, at 2   D: 4 GPUs, 1 s, at 3
#
# fifo-strict    A 0-4. B needs 2 and 1 is free: it blocks C and D. At 4 B and C start (2 + 1), D needs all
#                four: B ends 6, C ends 9, D 9-10.
# fifo-fit       A 0-4. B skipped. At 2 C takes the free GPU: 2-7. At 4 three are free: B 4-6. D when C
#                ends: 7-8.
# srtf           at 1: A has 3 left, B 2: B first, A (3 GPUs) no longer fits beside it: preempted. B 1-3.
#                at 2: B 1 left, A 3, C 5: B, A does not fit (2 free), C does: C from 2.
#                at 3: B ends. D (1 left) takes all four: C preempted. D 3-4.
#                at 4: A 3 left, C 4 left: A 4-7 and C 4-8, together 4 GPUs.
# srsf           at 1: A 3 x 3 = 9, B 2 x 2 = 4: B 1-3, A preempted. at 2: B 2, C 5, A 9: B and C.
#                at 3: B ends. C 4 x 1 = 4, D 1 x 4 = 4: tie, C has the earlier submit: C keeps its GPU. D
#                needs 4: skipped. A 9: 3 GPUs are free: A 3-6. at 6: C 1 left (1), D 4: C, ends 7. D 7-8.
PAPER = {
    "fifo-strict": ([0, 4, 4, 9], [4, 6, 9, 10], [0, 0, 0, 0]),
    "fifo-fit": ([0, 4, 2, 7], [4, 6, 7, 8], [0, 0, 0, 0]),
    "srtf": ([0, 1, 2, 3], [7, 3, 8, 4], [1, 0, 1, 0]),
    "srsf": ([0, 1, 2, 7], [6, 3, 7, 8], [1, 0, 0, 0]),
}


@pytest.mark.parametrize("policy", PAPER)
def test_four_jobs_on_four_gpus(policy):
    assert simulate(policy, [0, 1, 2, 3], [4, 2, 5, 1], [3, 2, 1, 4], 4) == PAPER[policy]


# 2 GPUs, everything at 0, row order Z1 (2 GPUs, 0 s), Z2 (2 GPUs, 0 s), L (1 GPU, 3 s).
# fifo-strict    Z1 starts and ends at 0, then Z2, then L: 0-3.
# fifo-fit       the same: while Z1 holds both GPUs nothing fits.
# srtf           Z1 and Z2 have nothing left and go before L.
@pytest.mark.parametrize("policy", ["fifo-strict", "fifo-fit", "srtf", "srsf"])
def test_jobs_without_work_end_in_the_instant_in_which_they_start(policy):
    assert simulate(policy, [0, 0, 0], [0, 0, 3], [2, 2, 1], 2) == ([0, 0, 0], [0, 0, 3], [0, 0, 0])


# 1 GPU. A: 4 s at 0. B: 2 s at 2, when A has 2 left: a tie, and A's submit is earlier, so A goes on until
# 4. B 4-6.
@pytest.mark.parametrize("policy", ["srtf", "srsf"])
def test_a_tie_does_not_preempt_the_earlier_submit(policy):
    assert simulate(policy, [0, 2], [4, 2], [1, 1], 1) == ([0, 4], [4, 6], [0, 0])


# 1 GPU. A ends at 3, in the instant in which B (5 s) and C (1 s) come: one look at the queue for all three
# events. srtf: C 3-4, B 4-9. fifo: input order, B 3-8, C 8-9.
def test_events_of_an_instant_come_before_the_queue():
    jobs = [0, 3, 3], [3, 5, 1], [1, 1, 1]
    assert simulate("srtf", *jobs, 1) == ([0, 4, 3], [3, 9, 4], [0, 0, 0])
    assert simulate("fifo-fit", *jobs, 1) == ([0, 3, 8], [3, 8, 9], [0, 0, 0])


def test_a_job_larger_than_the_pool_is_left_out():
    assert simulate("fifo-strict", [0, 1], [5, 5], [9, 8], 8) == ([None, 1], [None, 6], [0, 0])
