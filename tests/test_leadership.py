"""Two daemons, of whom exactly one acts."""

import json

import pytest
import two_daemons
from leases import Log
from two_daemons import turn

from tias_slurm import status
from tias_slurm.errors import InputError
from tias_slurm.ledger.book import FOUND, SET
from tias_slurm.ledger.store import LedgerError, SqliteStore
from tias_slurm.service.leadership import peek
from tias_slurm.service.start import alone

pair = two_daemons.pair


def test_one_acts_and_the_other_stands_by(pair):
    a, b = pair.daemon("ctl1"), pair.daemon("ctl2")
    assert turn(a, b) == ["ok", "standby"]
    assert len(pair.slurm.sent) == 3
    assert turn(b, a, b) == ["standby", "ok", "standby"]
    assert len(pair.slurm.sent) == 3
    left = status.left(str(pair.path / "state"), "ctl2")
    assert left["leadership"] == {
        "host": "ctl2", "leads": False, "leader": "ctl1", "term": 1,
        "why": "the controller of this host is not in charge",
    }  # fmt: skip
    assert status.left(str(pair.path / "state"), "ctl1")["leadership"]["leads"]
    assert b.show.not_ready().startswith("stands by")
    assert a.show.not_ready() == ""


def test_the_new_leader_knows_what_the_old_one_wrote(pair):
    a, b = pair.daemon("ctl1"), pair.daemon("ctl2")
    turn(a, b)
    pair.in_charge = "ctl2"
    # the first look of a lets go; b takes over, and nothing is written twice
    assert turn(a, b) == ["standby", "ok"]
    assert len(pair.slurm.sent) == 3
    table = b.store.load()[1]
    assert table[:, FOUND].tolist() == [7.0, 7.0, 7.0]
    assert (table[:, SET] < 0).all()
    # and back again
    pair.in_charge = "ctl1"
    assert turn(b, a) == ["standby", "ok"]
    assert len(pair.slurm.sent) == 3


def test_a_leader_that_froze_writes_nothing_when_it_thaws(pair):
    a, b = pair.daemon("ctl1"), pair.daemon("ctl2")
    pair.in_charge = ""

    def freeze(job, field, value):
        if job == 101 and not b._term:
            # a is stopped in the midst of its writes; b finds the lease silent, and takes over
            b._keeper.look()
            a._keeper.lease._now = lambda: 1e12
            b._keeper.lease._now = lambda: 1e12
            b._keeper.look()
            assert b.cycle().result == "ok"

    pair.slurm.before_write = freeze
    with pytest.raises(LedgerError, match="another tias-slurm leads"):
        turn(a)
    # 100 by a; 101 was under way, and b wrote it and what was left; a sent nothing after that
    assert [job for job, *_ in pair.slurm.sent] == [100, 101, 102, 101]
    assert len({(job, value) for job, _, value in pair.slurm.sent}) == 3
    assert turn(a, b) == ["standby", "ok"]
    assert len(pair.slurm.sent) == 4


def test_a_ledger_of_ones_own_is_no_knowledge(pair):
    """Two local state directories: who does not know what was written does not act, and takes nothing for the
    users' own."""
    a, b = pair.daemon("ctl1", "state1"), pair.daemon("ctl2", "state2")
    turn(a, b)
    a.close()
    pair.in_charge = "ctl2"
    assert turn(b, b) == ["standby", "standby"]
    assert "the ledger here is not the one that ctl1 kept" in b._keeper.why
    assert len(pair.slurm.sent) == 3
    # the ledger is copied over, as the message says
    source = SqliteStore(str(pair.path / "state1" / "ledger.sqlite"))
    source.copy_to(str(pair.path / "state2" / "ledger.sqlite"))
    source.close()
    assert turn(b) == ["ok"]
    assert b.store.load()[1][:, FOUND].tolist() == [7.0, 7.0, 7.0]
    assert len(pair.slurm.sent) == 3


def test_a_leader_that_cannot_begin_leaves_it_to_the_other(pair):
    a, b = pair.daemon("ctl1"), pair.daemon("ctl2")
    store = SqliteStore(str(pair.path / "state" / "ledger.sqlite"))
    store.put("lever", "priority")
    store.close()
    pair.in_charge = ""
    a._keeper.look()
    with pytest.raises(InputError, match="holds values of the lever"):
        a.cycle()
    assert not a._keeper.leads
    a._keeper.look()
    assert not a._keeper.leads
    b._keeper.look()
    assert b._keeper.leads


def test_two_on_one_host_are_one_too_many(pair):
    pair.daemon("ctl1")
    with pytest.raises(InputError, match="holds the lock"):
        pair.daemon("ctl1")


def test_a_command_that_writes_needs_the_lease(pair):
    a = pair.daemon("ctl1")
    turn(a)
    a._keeper.start()  # renews
    b = pair.daemon("ctl2")
    pair.in_charge = ""
    with pytest.raises(InputError, match="ctl1 leads; this command needs the lease"):
        b.lead()
    b.close()
    log = Log()
    with pytest.raises(InputError, match="ctl1 leads"), alone(b.config, log):
        raise AssertionError
    a.close()
    with alone(b.config, log):
        assert peek(str(pair.path / "lease")).host == "ctl2"
    assert peek(str(pair.path / "lease")).holder == ""


def test_status_of_both(pair, cli, monkeypatch):
    a, b = pair.daemon("ctl1"), pair.daemon("ctl2")
    turn(a, b)

    def shown(host, *words, code=0):
        monkeypatch.setattr("tias_slurm.service.leadership.this_host", lambda: host)
        done = cli("status", "--config", pair.path / f"{host}.toml", *words)
        assert done.code == code, done
        return done.out

    first, second = (json.loads(shown(host, "--json")) for host in ("ctl1", "ctl2"))
    assert (first["daemon"]["stands_by"], second["daemon"]["stands_by"]) == (False, True)
    assert first["queue"] == second["queue"]
    assert "leads" in shown("ctl1")
    text = " ".join(shown("ctl2").split())
    assert "stands by: the controller of this host is not in charge" in text
    assert "leads ctl1, term 1" in text
    # one whose process is gone
    b.close()
    assert "not running" in shown("ctl2", code=1)


def test_a_reload_on_a_standby(pair):
    a, b = pair.daemon("ctl1"), pair.daemon("ctl2")
    turn(a, b)
    b._on_reload()
    assert turn(b) == ["standby"]
    assert [entry["event"] for entry in pair.log.entries].count("reloaded") == 1
