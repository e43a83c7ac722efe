"""A reload that changes the lease by which a daemon leads, alone or with the directory of a pair.

The hardest inputs: a pair, the one that stands by first; a leader that loses its lease in the midst; a new
lease that another holds, of the same ledger or of another one; a lease that goes away while another daemon
waits for it; there and back again; a shared directory that only one of the two has left; any order of it.
"""

import json
import os
import tempfile
from pathlib import Path

import moving_desk
import pytest
import two_daemons
from hypothesis import given, settings
from hypothesis import strategies as st
from moving_desk import locked, names
from reloading import rewrite
from two_daemons import Pair, turn

from tias_slurm.errors import InputError
from tias_slurm.ledger.book import FOUND
from tias_slurm.ledger.store import LedgerError
from tias_slurm.service import relocate, start
from tias_slurm.service.keeper import Keeper
from tias_slurm.service.leadership import peek
from tias_slurm.service.state_lock import take

desk, place = moving_desk.desk, moving_desk.place
pair = two_daemons.pair


@pytest.fixture
def two(pair):
    class Two:
        refused = staticmethod(
            lambda: [e["message"] for e in pair.log.entries if e["event"].startswith("reload refused")]
        )
        lease, other = pair.path / "lease", pair.path / "second"

        def on(self, daemon, old, new):
            host = Path(daemon._path).stem
            for name in ("leadership", "start"):
                pair.monkeypatch.setattr(f"tias_slurm.service.{name}.this_host", lambda: host)
            rewrite(daemon, old, new)
            return daemon.cycle().result

        def path(self, daemon, old="lease", new="second"):
            return self.on(daemon, f'"{pair.path / old}"', f'"{pair.path / new}"')

    made = Two()
    made.pair = pair
    pair.in_charge = ""
    made.a, made.b = pair.daemon("ctl1"), pair.daemon("ctl2")
    assert turn(made.a, made.b) == ["ok", "standby"]
    return made


def test_the_leader_goes_first(two):
    a, b = two.a, two.b
    assert two.path(a) == "ok"
    assert (peek(two.other).host, peek(two.other).sent) == ("ctl1", 1)
    assert (peek(two.lease).holder, peek(two.lease).moved) == ("", str(two.other))
    # the other one does not take what was left, not even when the leader is dead, and says what to do
    for two.pair.in_charge in ("ctl1", "ctl2", ""):
        assert turn(b) == ["standby"]
        assert f'lease_path = "{two.other}"' in b._keeper.why
    assert two.path(b) == "standby"
    assert turn(a, b) == ["ok", "standby"]
    assert b._keeper.why == "ctl1 leads"
    a.close()
    assert turn(b) == ["ok"]
    assert len(two.pair.slurm.sent) == 3
    assert b.store.load()[1][:, FOUND].tolist() == [7.0] * 3
    assert two.refused() == []
    # and back again
    assert two.path(b, "second", "lease") == "ok"
    assert (peek(two.lease).host, peek(two.other).moved) == ("ctl2", str(two.lease))


def test_who_stands_by_does_not_go_first(two):
    assert two.path(two.b) == "standby"
    assert ["ctl1 leads by the old one" in said for said in two.refused()] == [True]
    assert not two.other.exists()
    assert two.b._keeper.lease.path == str(two.lease)
    assert turn(two.a, two.b) == ["ok", "standby"]


def test_a_leader_that_loses_its_lease_in_the_midst(two):
    seek = relocate._lease

    def slow(*args):
        made = seek(*args)
        two.a._keeper.lease.give_back()
        two.b._keeper.look()
        return made

    two.pair.monkeypatch.setattr(relocate, "_lease", slow)
    assert two.path(two.a) == "standby"
    assert ["ctl2 leads by the old one" in said for said in two.refused()] == [True]
    assert peek(two.other) is None or peek(two.other).holder == ""
    two.pair.monkeypatch.setattr(relocate, "_lease", seek)
    assert turn(two.b) == ["ok"]
    assert len(two.pair.slurm.sent) == 3


def test_another_holds_the_new_lease(two):
    """One that shares the ledger was started on the new settings instead of reloaded."""
    two.b.close()
    config = two.pair.path / "ctl2.toml"
    two.pair.daemon("ctl2").close()
    config.write_text(config.read_text().replace(str(two.lease), str(two.other)))
    for name in ("leadership", "start"):
        two.pair.monkeypatch.setattr(f"tias_slurm.service.{name}.this_host", lambda: "ctl2")
    b = type(two.a)(str(config), {}, two.a._log)
    two.pair.open.append(b)
    b.open()
    assert turn(b) == ["ok"]
    # until it is reloaded the first one keeps nothing more, and so sends nothing
    with pytest.raises(LedgerError, match="another tias-slurm leads by now"):
        two.a.cycle()
    assert two.path(two.a) == "standby"
    assert two.refused() == []
    assert turn(b, two.a) == ["ok", "standby"]
    assert peek(two.lease).moved == str(two.other)


def test_another_of_another_ledger_holds_it(two):
    stranger = two.pair.daemon("ctl3", state="elsewhere")
    two.on(stranger, "no such words", "")
    stranger.close()
    config = Path(stranger._path)
    config.write_text(config.read_text().replace(str(two.lease), str(two.other)))
    stranger = type(two.a)(str(config), {}, two.a._log)
    two.pair.open.append(stranger)
    stranger.open()
    assert turn(stranger) == ["ok"]
    assert two.path(two.a) == "ok"
    assert ["may not know what this daemon wrote" in said for said in two.refused()] == [True]
    assert peek(two.other).host == "ctl3"
    assert peek(two.lease).moved == ""


def test_alone_from_now_on(two):
    a, b = two.a, two.b
    assert two.on(b, f'"{two.lease}"', '""') == "standby"
    assert "only the one that leads" in two.refused()[-1]
    # the other one shares the directory, and would not know
    assert two.on(a, f'"{two.lease}"', '""') == "ok"
    assert "the daemon of another host uses this directory too" in two.refused()[-1]
    assert a._keeper.leads
    b.close()
    assert two.on(a, "no such words", "") == "ok"
    assert (a._keeper, peek(two.lease).moved) == (None, "-")
    assert a.store._rows("PRAGMA journal_mode") == [("wal",)]
    assert names(two.pair.path / "state") >= ["ledger.sqlite", "lock"]
    assert (locked(a.config.daemon.state_dir), locked(a.config.daemon.state_dir, "ctl1")) == (True, False)
    assert len(two.pair.slurm.sent) == 3
    # one that comes without the directory hears of it by the lease
    c = two.pair.daemon("ctl3", state="elsewhere")
    assert turn(c) == ["standby"]
    assert "ctl1 went on without this lease" in c._keeper.why
    # and back again
    assert two.on(a, '""', f'"{two.lease}"') == "ok"
    assert (peek(two.lease).host, a._keeper.leads, a._term) == ("ctl1", True, a._keeper.lease.term)
    assert a.store._rows("PRAGMA journal_mode") == [("delete",)]
    assert turn(a, c) == ["ok", "standby"]
    assert c._keeper.why == "ctl1 leads"


def test_a_lease_and_a_shared_directory_for_one_that_was_alone(place, monkeypatch):
    monkeypatch.setattr(start, "InCharge", lambda *_: lambda: None)
    lease = place.old.parent / "lease"
    assert place.go(place.new, f'lease_path = "{lease}"').result == "ok"
    assert place.refused() == []
    daemon = place.daemon
    assert peek(lease).sent == 1
    host = daemon._keeper.lease.host
    assert (locked(place.new, host), locked(place.new)) == (True, False)
    with pytest.raises(InputError, match="holds the lock"):
        take(str(place.new))
    assert daemon.cycle().result == "ok"
    assert len(daemon.adapter.sent) == 3
    assert json.loads((place.new / f"status.{host}.json").read_text())["leadership"]["leads"]


def test_one_that_was_alone_stands_by_where_its_controller_does(place, monkeypatch):
    monkeypatch.setattr(start, "InCharge", lambda *_: lambda: False)
    lease = place.old.parent / "lease"
    assert place.go(place.old, f'lease_path = "{lease}"').result == "standby"
    # who comes with another ledger is told
    assert (peek(lease).sent, peek(lease).holder) == (1, "")
    monkeypatch.setattr(start, "InCharge", lambda *_: lambda: None)


def test_the_directory_of_a_pair(two):
    a, b = two.a, two.b
    old, new = str(two.pair.path / "state"), str(two.pair.path / "new")
    assert two.on(b, f'"{old}"', f'"{new}"') == "standby"
    assert ["ctl1 uses" in said and "leads first" in said for said in two.refused()] == [True]
    assert not os.path.exists(new)
    assert two.on(a, f'"{old}"', f'"{new}"') == "ok"
    assert len(two.refused()) == 1
    # the other one cannot lead by what is of the past
    a._keeper.lease.give_back()
    assert turn(b) == ["standby"]
    assert "went to" in b._keeper.why
    assert turn(a) == ["ok"]
    assert two.on(b, "no such words", "") == "standby"
    assert len(two.refused()) == 1
    a.close()
    assert turn(b) == ["ok"]
    assert (b.store.path, len(two.pair.slurm.sent)) == (f"{new}/ledger.sqlite", 3)
    assert b.store.load()[1][:, FOUND].tolist() == [7.0] * 3


# ---- any order of it


STEP = st.one_of(
    st.tuples(st.just("reload"), st.sampled_from("ab"), st.sampled_from("xyz"), st.sampled_from("123-")),
    st.tuples(st.just("reload"), st.sampled_from("ab"), st.just("x"), st.sampled_from("12")),
    st.tuples(st.just("charge"), st.sampled_from(["ctl1", "ctl2", ""])),
    st.tuples(st.just("turn"), st.sampled_from(["ab", "ba", "a", "b"])),
)


@settings(max_examples=20)
@given(st.lists(STEP, min_size=3, max_size=14))
def test_never_two_that_lead_and_never_a_value_lost(steps):
    """Whoever is reloaded in whatever order, leads by whatever: one writes at most, and knows all."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(Keeper, "start", lambda _: None)  # no look but ours
        bed = Pair(Path(directory), patch)
        daemons = {"a": bed.daemon("ctl1"), "b": bed.daemon("ctl2")}
        text = Path(daemons["a"]._path).read_text()

        def leaders():
            return [n for n, d in daemons.items() if d._keeper is None or d._keeper.leads]

        def reload(name, state, lease):
            daemon = daemons[name]
            host = Path(daemon._path).stem
            for module in ("leadership", "start"):
                patch.setattr(f"tias_slurm.service.{module}.this_host", lambda: host)
            new = text.replace(str(bed.path / "state"), str(bed.path / (state if state != "x" else "state")))
            path = "" if lease == "-" else str(bed.path / (lease if lease != "1" else "lease"))
            Path(daemon._path).write_text(new.replace(str(bed.path / "lease"), path))
            daemon._on_reload()
            daemon.cycle()

        try:
            turn(daemons["a"], daemons["b"])
            bed.in_charge = ""  # who leads is left to the lease alone
            for kind, *more in steps:
                if kind == "reload":
                    reload(*more)
                elif kind == "charge":
                    [bed.in_charge] = more
                else:
                    for name in more[0]:
                        if daemons[name]._keeper is not None:
                            daemons[name]._keeper.look()
                        daemons[name].cycle()
                assert len(leaders()) <= 1, (kind, more)
                assert len(bed.slurm.sent) == 3
            # however it stands: one is reloaded after the other until both are at one place, and one leads
            bed.in_charge = ""
            order = leaders() + [n for n in "ab" if n not in leaders()]
            state, lease = daemons[order[0]].config.daemon.state_dir, "lease"
            state = Path(state).name.replace("state", "x")
            for _ in range(2):
                for name in order:
                    reload(name, state, "1")
                    daemons[name]._keeper.look()
                    daemons[name].cycle()
            assert len(leaders()) == 1, lease
            assert {d.config.daemon.lease_path for d in daemons.values()} == {str(bed.path / "lease")}
            [name] = leaders()
            daemons[name].cycle()
            assert daemons[name].store.load()[1][:, FOUND].tolist() == [7.0] * 3
            assert not [e for e in bed.log.entries if e.get("overridden")]
            assert not [e for e in bed.log.entries if "internal error" in str(e.get("message"))]
        finally:
            bed.close()
