"""What sacct tells of runs that the daemon did not see, and what the ledger makes of it."""

import os
import stat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_queue import NOW, claims, config, queue, running

from tias_slurm.ledger.book import Ledger
from tias_slurm.slurm import backfill
from tias_slurm.slurm.backfill import Backfill, past_runs, read_records
from tias_slurm.slurm.observer import observe

T = NOW - 100_000
HEADER = "JobID|JobIDRaw|Cluster|User|State|Submit|Start|End|ElapsedRaw|Suspended|AllocTRES|ReqTRES"


def record(
    submit, start=None, end=None, *, state="REQUEUED", job="100", raw=None, user="ann", gpus=2, ran=None
):
    """A line of sacct; times are seconds after T."""
    at = ["Unknown" if t is None else str(int(T + t)) for t in (submit, start, end)]
    elapsed = ran if ran is not None else 0 if start is None or end is None else end - start
    tres = f"billing=1,cpu=1{f',gres/gpu={gpus}' if gpus else ''},node=1"
    fields = [
        job,
        raw or job,
        "c",
        user,
        state,
        *at,
        str(int(elapsed)),
        "00:00:00",
        "" if start is None else tres,
        tres,
    ]
    return "|".join(fields)


def text(*lines):
    return ("\n".join([HEADER, *lines]) + "\n").encode()


def past(*lines, submit, checkpoint=0.0, **job):
    """Past of one job that was last submitted then: (first submit, attained, kept, runs)."""
    raw = queue({"submit": T + submit, "gpus": 4, **job})
    made = past_runs(
        read_records(text(*lines)), raw, np.array([0]), np.array([checkpoint]), raw.gpus * 1.0, {}
    )
    first = float(made.first_submit[0])
    return (
        None if np.isnan(first) else first - T,
        float(made.attained[0]),
        float(made.kept[0]),
        int(made.runs[0]),
    )


WAITS = record(500, state="PENDING")


def test_one_earlier_run():
    assert past(record(0, 100, 400), WAITS, submit=500) == (0, 600.0, 0.0, 1)


def test_several_runs_and_what_they_saved():
    lines = [record(0, 100, 400), record(400, 450, 1000, state="PREEMPTED"), record(1000, 1100, 1250), ""]
    lines[-1] = record(1250, 1300, None, state="RUNNING", ran=50)
    assert past(*lines, submit=1250, checkpoint=200.0) == (0, 2 * (300 + 550 + 150.0), 200 + 400.0, 3)


def test_before_slurmdbd_knows_of_the_current_run():
    assert past(record(0, 100, 400), submit=401) == (0, 600.0, 0.0, 1)


def test_a_run_that_is_told_twice_counts_once():
    assert past(record(0, 100, 400), record(0, 100, 400), WAITS, submit=500)[1:] == (600.0, 0.0, 1)


@pytest.mark.parametrize(
    "other",
    [
        record(0, 100, 400, user="bob"),
        record(-90_000, -89_900, -89_600),  # a day and more between them
        record(-9000, -8900, -8600, state="COMPLETED"),  # too long after the end for a requeue by hand
        record(0, 100, 400, job="7_1", raw="100"),  # the id was a task's
    ],
)
def test_other_jobs_that_had_the_id(other):
    assert past(other, WAITS, submit=500) == (None, 0.0, 0.0, 0)


def test_a_chain_ends_at_another_job():
    lines = [record(-9000, -8900, -8600, state="COMPLETED"), record(0, 100, 400), WAITS]
    assert past(*lines, submit=500) == (0, 600.0, 0.0, 1)


def test_a_job_that_was_requeued_after_its_end():
    assert past(record(0, 100, 400, state="COMPLETED"), WAITS, submit=500) == (0, 600.0, 0.0, 1)


def test_records_that_name_no_gpu():
    assert past(record(0, 100, 400, gpus=0), WAITS, submit=500)[1] == 1200.0


def test_tasks_are_found_by_their_own_number():
    lines = [record(0, 100, 400, job="90_3", raw="100"), record(0, 100, 300, job="90_4", raw="101")]
    assert past(*lines, record(500, state="PENDING", job="90_3", raw="100"), submit=500)[:2] == (0, 600.0)


@pytest.mark.parametrize(
    "lines", [(), ("garbage",), (record(0, 400, 100),), ("100|100|c|ann|NOSUCHSTATE" + "|" * 7,)]
)
def test_nothing_that_can_be_used(lines):
    assert past(*lines, submit=500) == (None, 0.0, 0.0, 0)


RUNS = st.lists(
    st.tuples(st.integers(0, 500), st.integers(1, 5000), st.integers(0, 3)), min_size=1, max_size=5
)


@settings(max_examples=40)
@given(RUNS, st.sampled_from((0.0, 60.0, 700.0)), st.randoms(use_true_random=False))
def test_any_runs(made, checkpoint, shuffle):
    at, lines, service, kept = 0, [], 0.0, 0.0
    for wait, ran, gpus in made:
        lines.append(record(at, at + wait, at + wait + ran, gpus=gpus))
        service += ran * (gpus or 4)
        kept += ran // checkpoint * checkpoint if checkpoint else 0.0
        at += wait + ran
    lines.append(record(at, state="PENDING"))
    shuffle.shuffle(lines)
    assert past(*lines, submit=at, checkpoint=checkpoint) == (0, service, kept, len(made))


# ---- into the ledger ----


class Desk:
    """A ledger, a queue, and a sacct of our own that prints a file and notes how it was called."""

    def __init__(self, tmp_path, *jobs, now=NOW):
        self.dir = tmp_path
        self.ledger = Ledger()
        self.filler = Backfill(20.0, str(tmp_path))
        self.say(b"")
        self.look(*jobs, now=now)

    def say(self, out, status=0, err=""):
        (self.dir / "out").write_bytes(out)
        script = self.dir / "sacct"
        script.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$*" >> {self.dir}/calls\n'
            f'cat {self.dir}/out\necho "{err}" >&2\nexit {status}\n'
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def look(self, *jobs, now=NOW):
        self.raw = queue(*jobs, time=now)
        self.seen = observe(self.raw, claims(len(self.raw)), config())
        self.known = self.ledger.remember(self.seen.snapshot)

    def fill(self):
        made = self.filler.fill(self.ledger, self.raw, self.seen, {})
        self.known = self.ledger.view(self.seen.snapshot)
        return made

    @property
    def calls(self):
        path = self.dir / "calls"
        return path.read_text().splitlines() if path.exists() else []


REQUEUED = {"restarts": 1, "submit": T + 500, "gpus": 2}


def test_a_job_that_was_requeued_before_we_came(tmp_path):
    desk = Desk(tmp_path, REQUEUED, {})
    desk.say(text(record(0, 100, 400), WAITS))
    assert desk.known.first_submit[0] == T + 500
    made = desk.fill()
    assert (made.asked, made.learned, made.problem) == (1, 1, "")
    assert desk.known.first_submit[0] == T
    assert desk.known.attained.tolist() == [600.0, 0.0]
    assert desk.known.executed.tolist() == [0.0, 0.0]  # it never saves itself
    (call,) = desk.calls
    assert "--jobs=100 " in call
    desk.fill()
    assert len(desk.calls) == 1  # once is enough


def test_nobody_to_ask_for(tmp_path):
    desk = Desk(tmp_path, {}, running())
    assert desk.fill().asked == 0
    assert desk.calls == []


def test_what_we_saw_ourselves_is_not_asked_for(tmp_path):
    desk = Desk(tmp_path, running(gpus=2, start=NOW - 300))
    desk.look({"restarts": 1, "submit": NOW + 10, "gpus": 2}, now=NOW + 60)
    assert desk.fill().asked == 0
    assert desk.known.attained.tolist() == [600.0]


def test_after_a_gap_the_run_counts_to_its_end(tmp_path):
    desk = Desk(tmp_path, running(gpus=2, start=T + 100, submit=T), now=T + 110)
    desk.look({"restarts": 1, "submit": T + 5000, "gpus": 2}, now=T + 5100)
    assert desk.known.attained.tolist() == [20.0]  # what we saw of it
    desk.say(text(record(0, 100, 5000), record(5000, state="PENDING")))
    assert desk.fill().learned == 1
    assert desk.known.attained.tolist() == [9800.0]
    assert desk.known.first_submit.tolist() == [T]


def test_two_restarts_between_two_looks(tmp_path):
    desk = Desk(tmp_path, running(gpus=2, start=T + 100, submit=T), now=T + 110)
    desk.look({"restarts": 2, "submit": T + 200, "gpus": 2}, now=T + 210)
    desk.say(text(record(0, 100, 150), record(150, 160, 200), record(200, state="PENDING")))
    assert desk.fill().learned == 1
    assert desk.known.attained.tolist() == [180.0]


def test_what_we_know_better_stays(tmp_path):
    """Accounting that was purged knows less than the ledger."""
    desk = Desk(tmp_path, running(gpus=2, start=T + 100, submit=T), now=T + 1100)
    desk.look({"restarts": 1, "submit": T + 5000, "gpus": 2}, now=T + 5100)
    desk.say(text(record(4000, 4900, 5000), record(5000, state="PENDING")))
    desk.fill()
    assert desk.known.attained.tolist() == [2000.0]
    assert desk.known.first_submit.tolist() == [T]


def test_slurmdbd_learns_of_it_a_moment_later(tmp_path):
    desk = Desk(tmp_path, {**REQUEUED, "restarts": 2})
    desk.say(text(record(0, 100, 400)))
    assert (desk.fill().learned, desk.fill().learned) == (0, 0)
    desk.say(text(record(0, 100, 400), record(400, 450, 500), WAITS))
    assert desk.fill().learned == 1
    assert desk.known.attained.tolist() == [700.0]


def test_what_is_never_complete_is_taken_the_third_time(tmp_path):
    desk = Desk(tmp_path, {**REQUEUED, "restarts": 9})
    desk.say(text(record(0, 100, 400), WAITS))
    assert [desk.fill().learned for _ in range(5)] == [0, 0, 1, 0, 0]
    assert len(desk.calls) == 3
    assert desk.known.attained.tolist() == [600.0]


def test_many_jobs_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(backfill, "MOST_JOBS", 2)
    desk = Desk(tmp_path, *[REQUEUED] * 5)
    lines = [record(0, 100, 400, job=str(j)) for j in range(100, 105)]
    desk.say(text(*lines))
    assert [desk.fill().learned for _ in range(4)] == [2, 2, 1, 0]
    assert [call.split("--jobs=")[1].split()[0] for call in desk.calls] == ["100,101", "102,103", "104"]
    assert set(desk.known.attained.tolist()) == {600.0}


def test_names_of_tasks(tmp_path):
    task = {**REQUEUED, "array_id": 90, "array_task": "3"}
    rest = {**REQUEUED, "job_id": 90, "array_id": 90, "array_task": "5-9"}
    desk = Desk(tmp_path, task, rest)
    desk.fill()
    assert "--jobs=90,90_3 " in desk.calls[0]


@pytest.mark.parametrize(
    ("out", "status", "err"),
    [
        (b"", 1, "sacct: error: Slurm accounting storage is disabled"),
        (b"no header at all\n", 0, ""),
        (b"\xff\x00" * 100, 0, ""),
    ],
)
def test_without_accounting(tmp_path, monkeypatch, out, status, err):
    desk = Desk(tmp_path, REQUEUED)
    desk.say(out, status, err)
    first, second = desk.fill(), desk.fill()
    assert (first.asked, first.learned, bool(first.problem)) == (1, 0, True)
    assert len(first.problem.splitlines()) == 1
    assert (second.asked, second.problem) == (0, "")  # it is left alone for a while
    assert len(desk.calls) == 1
    assert desk.ledger.unseen.tolist() == [True]
    desk.say(text(record(0, 100, 400), WAITS))
    monkeypatch.setattr(backfill, "REST_S", 0.0)
    desk.filler._rests_until = 0.0
    assert desk.fill().learned == 1


def test_no_sacct_here(tmp_path):
    desk = Desk(tmp_path, REQUEUED)
    os.unlink(tmp_path / "sacct")
    assert "sacct: not found" in desk.fill().problem


def test_a_sacct_that_hangs(tmp_path):
    desk = Desk(tmp_path, REQUEUED)
    (tmp_path / "sacct").write_text("#!/bin/sh\nsleep 60\n")
    desk.filler.timeout_s = 0.2
    assert "no answer within 0.2 s" in desk.fill().problem
