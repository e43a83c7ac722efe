"""Who is told what: once a job and reason, nobody out of scope, nothing that is not true any more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import job_table

from tias_slurm.deadlines import Refusal
from tias_slurm.jobs import PENDING, RUNNING
from tias_slurm.notify import words as notice_words
from tias_slurm.notify.due import (
    IMPOSSIBLE,
    REASONS,
    REFUSED,
    REQUEUE,
    Kept,
    Standing,
    by_result,
    due,
    left_this_hour,
    requeued,
)
from tias_slurm.notify.words import MOST_CHARS, Message

NAN = math.nan


def standing(*jobs):
    """Jobs as dicts of what differs from a waiting job of nobody's interest; ids count up from 1."""
    usual = {
        "job_id": 0, "array_id": 0, "state": PENDING, "first": 0.0, "claim": NAN, "ours": True,
        "refused": False, "impossible": False, "requeued": False, "reachable": False,
    }  # fmt: skip
    rows = [{**usual, "job_id": i + 1, **job} for i, job in enumerate(jobs)]

    def column(name, kind):
        return np.array([row[name] for row in rows], dtype=kind)

    ids = column("job_id", np.int64)
    table = job_table(
        len(rows), job_id=ids, array_id=column("array_id", np.int64), state=column("state", np.int64)
    )
    bools = [column(n, np.bool_) for n in ("ours", "refused", "impossible", "requeued", "reachable")]
    return Standing(table, column("first", float), column("claim", float), *bools)


class Book:
    """A ledger of messages, and all that ever was sent."""

    def __init__(self):
        self.kept = {}
        self.sent = []

    def step(self, now, world, room=100):
        step = due(world, list(self.kept.values()), room)
        for key in step.forget:
            del self.kept[key]
        for key in step.drop:
            self.kept[key] = self.kept[key]._replace(result="dropped")
        for n in step.wait:
            assert n.key not in self.kept
            self.kept[n.key] = Kept(n.key, now, n.about, NAN)
        for n in step.send:
            old = self.kept.get(n.key)
            assert old is None or old.waits
            self.kept[n.key] = Kept(n.key, now if old is None else old.time, n.about, now, "sent")
            self.sent.append((n.key, n.row))
        return step


def test_a_message_waits_until_the_job_runs_and_is_sent_once():
    book = Book()
    for now in (10.0, 20.0):
        assert book.step(now, standing({"refused": True})).send == []
    assert [k.waits for k in book.kept.values()] == [True]
    runs = standing({"refused": True, "state": RUNNING, "reachable": True})
    for now in (30.0, 40.0):
        book.step(now, runs)
    assert book.sent == [((1, REFUSED), 0)]
    # also after a requeue
    book.step(50.0, standing({"refused": True}))
    book.step(60.0, runs)
    assert len(book.sent) == 1


def test_a_job_that_ends_before_it_ran_is_told_nothing():
    book = Book()
    book.step(10.0, standing({"refused": True, "impossible": True, "requeued": True}))
    assert set(book.kept) == {(1, r) for r in REASONS}
    step = book.step(20.0, standing({"job_id": 2}))
    assert sorted(step.drop) == sorted((1, r) for r in REASONS)
    assert book.step(30.0, standing({"job_id": 2})).drop == []
    assert book.sent == []


def test_what_is_not_true_any_more_is_not_said():
    book = Book()
    book.step(10.0, standing({"refused": True, "impossible": True, "claim": 99.0}))
    # the comment was mended, the deadline moved
    step = book.step(20.0, standing({"claim": 999.0}))
    assert sorted(step.forget) == [(1, IMPOSSIBLE), (1, REFUSED)]
    # and comes up again: nobody was told of the first time
    book.step(30.0, standing({"refused": True, "reachable": True, "state": RUNNING}))
    assert book.sent == [((1, REFUSED), 0)]


def test_an_impossible_claim_is_told_of_once_the_job_runs_unless_it_was_moved():
    waits = {"impossible": True, "claim": 99.0}
    runs = {"claim": 99.0, "state": RUNNING, "reachable": True}
    book = Book()
    book.step(10.0, standing(waits))
    book.step(20.0, standing(runs))
    assert book.sent == [((1, IMPOSSIBLE), 0)]
    book = Book()
    book.step(10.0, standing(waits))
    book.step(20.0, standing({**runs, "claim": 500.0}))
    book.step(30.0, standing(runs))
    assert book.sent == []


def test_an_array_is_told_once_what_its_comment_says_and_each_task_of_its_requeue():
    tasks = [
        {"job_id": i, "array_id": 7, "refused": True, "requeued": True, "reachable": i != 8}
        for i in (8, 9, 10)
    ]
    book = Book()
    book.step(10.0, standing(*tasks))
    book.step(20.0, standing(*tasks))
    assert sorted(book.sent) == [((7, REFUSED), 1), ((9, REQUEUE), 1), ((10, REQUEUE), 2)]
    # the array itself is not gone as long as one of its tasks is here
    assert book.step(30.0, standing(tasks[0])).drop == []


def test_nobody_out_of_scope():
    book = Book()
    world = {"refused": True, "impossible": True, "requeued": True, "reachable": True}
    book.step(10.0, standing({**world, "ours": False}))
    assert (book.sent, book.kept) == ([], {})
    # what waits goes on waiting when its job is taken out of our hands
    book.step(20.0, standing({"refused": True}))
    step = book.step(30.0, standing({"refused": True, "reachable": True, "ours": False}))
    assert (step.send, step.forget, step.drop) == ([], [], [])
    book.step(40.0, standing({"refused": True, "reachable": True}))
    assert book.sent == [((1, REFUSED), 0)]


def test_an_id_that_is_used_again_is_another_job():
    book = Book()
    book.step(10.0, standing({"refused": True, "reachable": True}))
    book.step(5000.0, standing({"refused": True, "reachable": True, "first": 4000.0}))
    assert book.sent == [((1, REFUSED), 0)] * 2
    # the same job, requeued: its first submit stays
    book.step(6000.0, standing({"refused": True, "reachable": True, "first": 4000.0}))
    assert len(book.sent) == 2


def test_what_there_is_no_room_for_waits_its_turn():
    book = Book()
    world = standing(*[{"refused": True, "reachable": True}] * 5)
    assert book.step(10.0, world, room=2).held_back == 3
    assert book.step(20.0, world, room=0).held_back == 3
    assert book.step(30.0, world, room=9).held_back == 0
    assert sorted(key[0] for key, _ in book.sent) == [1, 2, 3, 4, 5]


def test_the_hour():
    kept = [Kept((i, REFUSED), 0.0, NAN, at) for i, at in enumerate([100.0, 3000.0, NAN])]
    assert left_this_hour(kept, 3600.0, 5) == 3
    assert left_this_hour(kept, 3701.0, 5) == 4
    assert left_this_hour(kept, 3600.0, 1) == 0
    assert by_result(kept, 2000.0, math.inf) == {"not known": 1, "waits": 1}


def test_a_requeue_that_was_only_meant_is_none():
    assert requeued(
        np.array([1.0, 1.0, 0.0, 2.0]),
        np.array([100.7, 100.7, NAN, 50.0]),
        np.array([100.0, 40.0, 900.0, 70.0]),
    ).tolist() == [True, False, False, True]


looks = st.lists(
    st.lists(
        st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "state": st.sampled_from([PENDING, RUNNING]),
                    "claim": st.sampled_from([NAN, 50.0, 60.0]),
                    "ours": st.booleans(),
                    "refused": st.booleans(),
                    "impossible": st.booleans(),
                    "requeued": st.booleans(),
                    "reachable": st.booleans(),
                    "array_id": st.sampled_from([0, 3]),
                }
            ),
        ),
        min_size=4,
        max_size=4,
    ),
    max_size=12,
)


@settings(max_examples=300)
@given(looks, st.integers(0, 3), st.booleans())
def test_never_twice_whatever_happens(course, room, crash):
    """Also when the daemon is killed in between: what is kept decides, and it is kept before it is sent."""
    book = Book()
    for number, look in enumerate(course):
        jobs = [{**job, "job_id": i + 3} for i, job in enumerate(look) if job is not None]
        if not jobs:
            continue
        world = standing(*jobs)
        sent_before = len(book.sent)
        step = book.step(float(number), world, room)
        assert len(step.send) <= room
        for key, row in book.sent[sent_before:]:
            assert world.ours[row]
            assert world.reachable[row]
            assert key[0] in (int(world.jobs.job_id[row]), int(world.jobs.array_id[row]))
        if crash:
            # a restart knows only what is kept; a result that it missed is not known
            book.kept = {k: v._replace(result="") if v.result == "sent" else v for k, v in book.kept.items()}
    keys = [key for key, _ in book.sent]
    assert len(keys) == len(set(keys))


# ---- words

REFUSAL = Refusal(
    "no unit", "write deadline=+36h after the submit, or deadline=@1796148000 for epoch seconds"
)


@pytest.mark.parametrize(
    "message",
    [
        notice_words.refused("4711", "deadline", [REFUSAL], ""),
        notice_words.refused("4711", "due", [Refusal("x", "y", "checkpoint")], "changed too often"),
        notice_words.impossible("4711", "deadline", passed=False, behind=True),
        notice_words.impossible("4711", "deadline", passed=True, behind=False),
        notice_words.requeue("4711_3", by_slurm=False),
        notice_words.requeue("4711_3", by_slurm=True),
    ],
)
def test_words_name_the_job_and_are_one_line(message):
    assert message.line.startswith("tias-slurm: job 4711")
    assert "\n" not in message.line
    assert len(message.line) <= MOST_CHARS
    assert message.subject.startswith("Slurm Job_id=4711")
    assert all(line and not line.startswith(("~", "-", ".")) for line in message.body.splitlines())


def test_words_are_those_of_the_refusal():
    line = notice_words.refused("4711", "due", [REFUSAL], "").line
    assert f"due= in its comment is not taken: {REFUSAL.code}; {REFUSAL.text}." in line
    assert "runs as one without a deadline" in line


def test_text_of_a_user_cannot_forge_lines_or_be_endless():
    nasty = Refusal("x", "a\nBcc: all@example.org\x1b[2J" + "y" * 100_000)
    message = notice_words.refused("4711\n\x1b", "deadline", [nasty], "")
    assert "\x1b" not in message.line + message.body + message.subject
    assert "\n" not in message.line + message.subject
    assert len(message.line) <= MOST_CHARS
    assert len(message.body) <= 4 * (MOST_CHARS + 1)
    assert "\nBcc" not in message.body


def test_a_message_of_no_lines_is_nothing():
    assert Message("s", ()).body == ""
