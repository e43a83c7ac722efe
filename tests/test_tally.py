"""The count of cycles that the ledger keeps by the hour."""

import pytest
from command_desk import Desk
from hypothesis import given
from hypothesis import strategies as st
from raw_queue import NOW, queue, waiting

from tias_slurm.ledger import tally
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.ledger.trim import Bounds
from tias_slurm.service.start import ledger_path
from tias_slurm.slurm.live import AdapterError

HOUR = tally.HOUR_S


class Shelf(dict):
    """Values in memory."""

    def put(self, name, value):
        self[name] = value


@pytest.fixture
def desk(tmp_path, monkeypatch, cli):
    made = Desk(tmp_path, monkeypatch, cli)
    yield made
    made.close()


@given(
    st.lists(
        st.tuples(
            st.floats(0, 50 * HOUR), st.sampled_from(["ok", "stale", "no answer"]), st.booleans(),
            st.dictionaries(st.sampled_from(["a", "b"]), st.integers(1, 5)), st.integers(0, 9),
        )
    ),
    st.integers(0, 50), st.integers(0, 50),
)  # fmt: skip
def test_what_is_noted_is_read(cycles, first, more):
    shelf = Shelf()
    for now, result, paused, claims, over in cycles:
        tally.note(shelf, now, result, paused=paused, claims=claims, jobs={"overridden": over})
    since, until = first * HOUR, (first + more) * HOUR
    inside = [c for c in cycles if since <= c[0] < until]
    told = tally.read(shelf, since, until)
    assert sum(told.cycles.values()) == len(inside)
    assert told.cycles["stale"] == sum(c[1] == "stale" for c in inside)
    assert told.paused == sum(c[2] for c in inside)
    assert told.claims["a"] == sum(c[3].get("a", 0) for c in inside)
    assert told.most["overridden"] == max((c[4] for c in inside), default=0)
    assert told.hours == sorted({int(c[0] // HOUR) for c in inside})


@pytest.mark.parametrize("text", ["[]", "{}", "null"])
def test_a_value_of_another_form_counts_nothing(text):
    told = tally.read(Shelf({"hour:0": text}), 0, 10)
    assert (dict(told.cycles), told.hours) == ({}, [0])


def test_hours_go_with_the_ledgers_age(tmp_path):
    store = SqliteStore(str(tmp_path / "l"))
    for hour in (1, 9, 10, 100):
        tally.note(store, hour * HOUR, "ok", paused=False, claims={}, jobs={})
    store.put("hourly", "5")
    store.trim(Bounds(10 * HOUR, 1e12, 1e6), 10.0)
    assert tally.read(store, 0, 101 * HOUR).hours == [10, 100]
    assert store.get("hourly") == "5"
    store.close()


def test_the_daemon_counts_its_cycles(desk):
    desk.show(
        queue({"comment": "deadline=soon"}, {}),
        queue({"comment": "deadline=soon"}, {}),
        AdapterError("squeue: no answer", retry=True),
        waiting(2),
    )
    daemon = desk.daemon()
    daemon.cycle()
    desk.run("ignore", "101")
    desk.run("pause")
    for _ in range(3):
        daemon.cycle()
    store = SqliteStore(ledger_path(daemon.config))
    told = tally.read(store, NOW - HOUR, NOW + HOUR)
    # a cycle without an answer has only this machine's clock to go by
    elsewhere = [n for (n,) in store._rows("SELECT name FROM setting WHERE name LIKE 'hour:%'")]
    store.close()
    assert told.cycles == {"ok": 3}
    assert told.paused == 2
    assert sum(told.claims.values()) == 1
    assert told.most["ignored"] == 1
    assert len(elsewhere) == 2
