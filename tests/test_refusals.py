"""What is not taken of comments counts once for each comment, whatever starts and reloads there are."""

import pytest
from daemon_desk import desk  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st
from raw_queue import NOW, queue, running
from reloading import hup

from tias_slurm.ledger import refusals, tally
from tias_slurm.ledger.refusals import NAME, Refusals, Refused
from tias_slurm.ledger.store import SqliteStore

BAD, WORSE = {"comment": "deadline=soon"}, {"comment": "deadline=soon,requeue=maybe"}
ENDED = {"state": "COMPLETED", "end": NOW - 60}


class Site:
    """Daemons of one directory, and what they said and left."""

    def __init__(self, site):
        self.site, self.metrics = site, []

    def start(self, *queues, mode="enforce"):
        for made in self.site.open:
            made.close()
        self.site.open.clear()
        self.site.write(mode=mode)
        daemon = self.site.daemon(*queues)
        real = daemon.show.refused_claims
        daemon.show.refused_claims = lambda reasons: (
            self.metrics.append(sum(reasons.values())) or real(reasons)
        )
        return daemon

    def said(self):
        """Refusals in the log of the last daemon."""
        return sum(sum(line["reasons"].values()) for line in self.site.said("claims refused"))

    def reported(self, mode="enforce"):
        """What the hours in a ledger say was not taken, in all."""
        name = "ledger.sqlite" if mode == "enforce" else "ledger-dry-run.sqlite"
        store = SqliteStore(str(self.site.state / name))
        try:
            return sum(tally.read(store, NOW - 86_400, NOW + 86_400).claims.values())
        finally:
            store.close()


@pytest.fixture
def site(desk):  # noqa: F811
    return Site(desk)


def test_three_starts_count_once(site):
    shown = queue(BAD, BAD, WORSE, {"comment": "deadline=+1s"}, {"comment": "deadline=+9h"})
    for n in range(3):
        site.start(shown).cycle()
        assert site.said() == (5 if n == 0 else 0)
        assert len(site.site.said("claim not taken")) == (n == 0)  # it had passed when first seen
    assert site.reported() == 5
    assert sum(site.metrics) == 5


def test_a_reload_to_enforce_counts_in_that_ledger_and_says_nothing_again(site):
    daemon = site.start(queue(BAD, WORSE), mode="dry-run")
    daemon.cycle()
    site.site.write(mode="enforce")
    hup(daemon)
    daemon.cycle()
    assert (site.said(), sum(site.metrics)) == (3, 3)
    assert (site.reported(), site.reported("dry-run")) == (3, 3)
    # and back: that ledger knows them
    site.site.write(mode="dry-run")
    hup(daemon)
    assert (site.said(), site.reported("dry-run")) == (3, 3)


def test_jobs_that_have_ended_do_not_count(site):
    site.start(queue(BAD, {**BAD, **ENDED}, {**BAD, **running()})).cycle()
    assert (site.said(), site.reported()) == (2, 2)


def test_between_two_runs_it_is_the_same_comment(site):
    shown = [queue(row) for row in ({**BAD, **running()}, {**BAD, **ENDED}, {**BAD, "restarts": 1})]
    daemon = site.start(*shown)
    for _ in shown:
        daemon.cycle()
    assert (site.said(), site.reported()) == (1, 1)


def test_an_array_has_one_comment(site):
    one = queue({**BAD, "array_id": 100, "array_task": "0-9"})
    more = queue(
        {**BAD, "array_id": 100, "array_task": "[3-9]"},
        *[{**BAD, **running(), "array_id": 100, "array_task": str(i)} for i in range(3)],
    )
    daemon = site.start(one, more)
    daemon.cycle()
    daemon.cycle()
    assert site.reported() == 1


def test_another_comment_counts(site):
    daemon = site.start(queue(BAD), queue({"comment": "deadline=later"}), queue(BAD))
    for _ in range(3):
        daemon.cycle()
    assert (site.said(), site.reported()) == (2, 2)


def test_other_settings_refuse_more_of_the_same_comment(site):
    daemon = site.start(queue({"comment": "deadline=+3h,requeue=maybe"}))
    daemon.cycle()
    site.site.write(extra='[deadlines]\naccounts = ["others"]')
    hup(daemon)
    assert (site.said(), site.reported()) == (2, 2)


def test_a_job_that_is_gone_is_forgotten(site):
    daemon = site.start(queue(BAD, {}), queue({"job_id": 101}))
    daemon.cycle()
    assert "100" in refusals.counted(daemon.store).known
    daemon.cycle()
    assert refusals.counted(daemon.store).known == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"x": {}}', '{"1": 2}', '{"1": {"a": 3}}', "[" * 9999]
)
def test_a_note_that_is_none_counts_nothing(text):
    kept = Refusals()
    kept.loads(text)
    assert kept.known == {}


class Shelf(dict):
    """Values in memory, and how often they are written."""

    puts = 0

    def put(self, name, value):
        self[name], self.puts = value, self.puts + 1


LOOKS = st.lists(
    st.lists(
        st.builds(
            Refused,
            st.integers(1, 4),
            st.integers(1, 3),
            st.sampled_from(["a", "b\udcff"]),
            st.sampled_from([("x",), ("x", "y"), ("y",)]),
        ),
        max_size=4,
    ),
    max_size=6,
)


@given(LOOKS)
def test_each_comment_and_reason_counts_once(looks):
    shelf, total = Shelf(), 0
    for look in looks:
        before = shelf.puts, dict(shelf)
        total += sum(refusals.count(shelf, look, frozenset(range(9))).values())
        assert refusals.count(shelf, look, frozenset(range(9))) == {}  # an earlier start has counted it
        assert shelf.puts - before[0] == (dict(shelf) != before[1])
    assert total == len({(r.root, r.comment, code) for look in looks for r in look for code in r.codes})
    assert NAME not in shelf or "\udcff" not in shelf[NAME]
