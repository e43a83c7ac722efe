"""What is put back, what is left alone and why. tests/live does the same on a real Slurm."""

import numpy as np
import pytest
from raw_queue import NOW, Scripted, queue, running, waiting
from worlds import job_table, plan, snapshot

from tias_slurm.ledger.book import Ledger
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.restore import restore, summary
from tias_slurm.slurm.live import AdapterError

NOBODY = np.empty(0, dtype=np.int64)
OURS = -300.0


@pytest.fixture
def store(tmp_path):
    made = SqliteStore(str(tmp_path / "ledger.sqlite"))
    made.put("lever", "nice")
    yield made
    made.close()


def wrote(store, *, found, nice=None, ours=OURS, jobs=None):
    """A ledger in which jobs 100, 101, ... had `found`, and we set `ours`."""
    n = len(found)
    ids = jobs or list(range(100, 100 + n))
    book = Ledger(store)
    shown = snapshot(
        NOW - 60,
        job_table(n, job_id=ids, submit=NOW - 600, lever=found, nice=found if nice is None else nice),
    )
    book.remember(shown)
    book.intend(shown, plan(np.arange(n), np.full(n, ours)))


def put_back(store, adapter, field="nice"):
    """Outcome by job, and what was sent."""
    return {r.job_id: r.outcome for r in restore(adapter, store, field)}, adapter.sent


def ours(store):
    """Jobs that the ledger still has as changed by us."""
    ids, table, _ = store.load()
    return ids[np.isfinite(table[:, 9])].tolist()


def test_users_get_their_values_back(store):
    wrote(store, found=[50.0, 0.0])
    done, sent = put_back(store, Scripted(waiting(2, nice=-300)))
    assert done == {100: "restored", 101: "restored"}
    assert sent == [(100, "nice", 50), (101, "nice", 0)]
    assert ours(store) == []
    assert store.get("lever") is None  # another lever may come now
    assert [(e.action, e.old, e.new, e.result) for e in store.history(100)] == [
        ("restore", -300, 50, "restored")
    ]


def test_running_jobs_too(store):
    wrote(store, found=[50.0])
    assert put_back(store, Scripted(queue(running(nice=-300))))[1] == [(100, "nice", 50)]


def test_twice_does_nothing_more(store):
    wrote(store, found=[50.0])
    adapter = Scripted(waiting(1, nice=-300))
    assert put_back(store, adapter)[0] == {100: "restored"}
    assert put_back(store, adapter) == ({}, [(100, "nice", 50)])


@pytest.mark.parametrize(
    ("job", "outcome"),
    [
        ({"nice": 777}, "changed by somebody else: left alone"),
        ({"submit": NOW - 10, "nice": -300}, "another job has the id: left alone"),
    ],
)
def test_left_alone(store, job, outcome):
    wrote(store, found=[50.0])
    assert put_back(store, Scripted(queue(job))) == ({100: outcome}, [])
    assert store.get("lever") is None  # no other try could do more


def test_a_write_that_was_intended_and_never_sent(store):
    wrote(store, found=[50.0])
    assert put_back(store, Scripted(waiting(1, nice=50))) == ({}, [])
    assert ours(store) == []


def test_a_value_from_between_two_writes_of_ours(store):
    """The second was intended when the daemon died: the first still stands."""
    book = Ledger(store)
    for lever, new in ((50.0, -300.0), (-300.0, -500.0)):
        shown = snapshot(NOW - 60, job_table(1, job_id=[100], submit=NOW - 600, lever=lever, nice=lever))
        book.remember(shown)
        book.intend(shown, plan([0], [new]))
    assert put_back(store, Scripted(waiting(1, nice=-300))) == ({100: "restored"}, [(100, "nice", 50)])


def test_a_job_that_was_requeued_meanwhile(store):
    wrote(store, found=[50.0])
    done, _ = put_back(store, Scripted(queue({"submit": NOW - 10, "restarts": 1, "nice": -300})))
    assert done == {100: "restored"}


def test_tasks_split_off_since(store):
    wrote(store, found=[50.0])
    array = queue(
        {"array_id": 100, "array_task": "2-9", "nice": -300},
        {"array_id": 100, "array_task": "1", "nice": -300},
        {"array_id": 7, "array_task": "1", "nice": -300},
    )
    done, sent = put_back(store, Scripted(array))
    assert done == {100: "restored", 101: "restored"}
    assert sent == [(100, "nice", 50), (101, "nice", 50)]


def test_jobs_that_ended_or_were_never_ours_are_not_touched(store):
    wrote(store, found=[50.0])
    shown = queue({"state": "COMPLETED", "nice": -300}, {"nice": -300})
    assert put_back(store, Scripted(shown)) == ({}, [])


@pytest.mark.parametrize("answer", ["refused", "retry", "no rights"])
def test_what_fails_can_be_tried_again(store, answer):
    wrote(store, found=[50.0, 20.0])
    results = restore(Scripted(waiting(2, nice=-300), answers={100: answer}), store, "nice")
    assert {r.job_id: (r.outcome, r.done) for r in results} == {100: (answer, False), 101: ("restored", True)}
    assert ours(store) == [100]
    assert store.get("lever") == "nice"  # its values are still out there
    assert put_back(store, Scripted(waiting(2, nice=-300)))[1] == [(100, "nice", 50)]
    assert store.get("lever") is None
    assert summary(results) == {answer: 1, "restored": 1}


def test_a_job_that_ends_meanwhile(store):
    wrote(store, found=[50.0])
    assert put_back(store, Scripted(waiting(1, nice=-300), answers={100: "gone"}))[0] == {100: "gone"}
    assert ours(store) == []


def test_an_empty_queue_frees_nothing(store):
    """A controller that has just begun may not show its jobs yet."""
    wrote(store, found=[50.0])
    assert put_back(store, Scripted(waiting(0))) == ({}, [])
    assert ours(store) == [100]
    assert store.get("lever") == "nice"


def test_no_answer(store):
    wrote(store, found=[50.0])
    with pytest.raises(AdapterError):
        restore(Scripted(AdapterError("no", retry=True)), store, "nice")
    assert ours(store) == [100]


def test_an_explicit_priority(store):
    wrote(store, found=[0.0, 0.0], nice=[70.0, 0.0], ours=1e9)
    adapter = Scripted(waiting(2, priority=10**9))
    adapter.values = {(job, "priority"): 10**9 for job in (100, 101)}
    done, sent = put_back(store, adapter, "priority")
    assert done == {100: "restored", 101: "restored"}
    assert sent == [(100, "unpin", 0), (100, "nice", 70), (101, "unpin", 0)]


def test_an_explicit_priority_that_somebody_else_changed(store):
    wrote(store, found=[0.0], nice=[70.0], ours=1e9)
    adapter = Scripted(waiting(1, priority=4242))
    adapter.values = {(100, "priority"): 4242}
    assert put_back(store, adapter, "priority") == ({100: "changed by somebody else: left alone"}, [])


def test_a_held_job_is_not_released(store):
    wrote(store, found=[0.0], nice=[70.0], ours=1e9)
    done, sent = put_back(store, Scripted(waiting(1, priority=0, reason="JobHeldUser")), "priority")
    assert done == {100: "restored"}
    assert sent == [(100, "nice", 70)]


def test_a_site_factor_that_is_not_shown_now(store):
    wrote(store, found=[0.0, 7.0], ours=500.0)
    begin = queue({"reason": "BeginTime"}, {})
    done, sent = put_back(store, Scripted(begin, factors={101: 500}), "site_factor")
    assert done == {100: "restored", 101: "restored"}
    assert sent == [(100, "site_factor", 0), (101, "site_factor", 7)]
