"""The lease: exactly one acts, also when clocks differ, files fail and daemons freeze."""

import json
import os
import random
import struct
import subprocess
import sys
import threading
import time

import pytest
import structlog
from raw_queue import Scripted, waiting

from tias_slurm import status
from tias_slurm.config import ConfigError, load_config
from tias_slurm.errors import InputError
from tias_slurm.ledger.book import FOUND, SET
from tias_slurm.ledger.store import LedgerError, SqliteStore, known_to
from tias_slurm.observe.systemd import Pulse
from tias_slurm.service import daemon as daemon_module
from tias_slurm.service.daemon import Daemon
from tias_slurm.service.keeper import Guarded, Keeper
from tias_slurm.service.leadership import Knowledge, Lease, LeaseFile, Timing, peek, timing
from tias_slurm.service.start import alone
from tias_slurm.slurm.in_charge import Controllers, decide, heartbeat, parse_ping
from tias_slurm.slurm.live import WriteResult

TIMING = Timing(hold_s=10.0, lasts_s=15.0)
NEW = Knowledge("a", 0)


class Clock:
    """A host's clock, which starts anywhere."""

    def __init__(self, at=0.0):
        self.at = at

    def __call__(self):
        return self.at


@pytest.fixture
def lease(tmp_path, monkeypatch):
    """Makes the lease as another daemon sees it, on a clock of its own."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no power fails here
    made = []

    def make(enforce=True, at=None, host=None, timing=TIMING):
        clock = Clock(random.Random(len(made)).uniform(0, 1e6) if at is None else at)
        one = LeaseFile(str(tmp_path / "lease"), timing, enforce=enforce, now=clock)
        one.host = host or f"ctl{len(made) + 1}"
        one.me = f"{one.host}:{one.me}"
        one.clock = clock
        made.append(one)
        return one

    return make


def pass_time(seconds, *leases):
    for one in leases:
        one.clock.at += seconds


# ---- the lease


def test_the_first_takes_it_and_the_second_waits(lease, tmp_path):
    a, b = lease(), lease()
    assert a.take(NEW)
    assert a.held
    assert not b.take(NEW)
    assert not b.held
    written = json.loads((tmp_path / "lease").read_text())
    assert (written["host"], written["term"], written["beat"]) == ("ctl1", 1, 0)
    assert abs(written["expires"] - time.time() - 15) < 5


def test_a_renewed_lease_is_never_free(lease):
    a, b = lease(), lease()
    a.take(NEW)
    for n in range(20):
        pass_time(9, a, b)
        assert a.renew()
        assert not b.take(NEW), n
    assert peek(a.path).beat == 20


def test_the_holder_stops_before_another_may_take_it(lease):
    a, b = lease(), lease()
    a.take(NEW)
    assert not b.take(NEW)  # sees it for the first time: its wait begins
    free_at = held_until = None
    for tenth in range(200):
        if held_until is None and not a.held:
            held_until = tenth / 10
        if free_at is None and b.take(NEW):
            free_at = tenth / 10
        pass_time(0.1, a, b)
    assert held_until == pytest.approx(10.0, abs=0.11)
    assert free_at == pytest.approx(15.0, abs=0.11)


def test_a_wall_clock_that_is_wrong_changes_nothing(lease, monkeypatch):
    a, b = lease(), lease()
    a.take(NEW)
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert not b.take(NEW)
    pass_time(14, a, b)
    assert not b.take(NEW)


def test_a_deposed_holder_notices(lease):
    a, b = lease(), lease()
    a.take(NEW)
    b.look()
    pass_time(16, a, b)
    assert b.take(NEW)
    assert not a.held
    assert not a.renew()
    assert not a.held
    a.give_back()  # of somebody else: left alone
    assert peek(a.path).holder == b.me
    assert (a.term, b.term) == (0, 2)


def test_given_back_it_is_taken_at_once(lease):
    a, b = lease(), lease()
    a.take(NEW)
    b.look()
    a.give_back()
    assert not a.held
    assert b.take(NEW)
    assert b.term == 2


def test_others_wait_as_long_as_the_holder_said(lease):
    """Also if their own settings are shorter."""
    a, b = lease(timing=Timing(40.0, 60.0)), lease(timing=Timing(4.0, 6.0))
    a.take(NEW)
    b.look()
    pass_time(59, b)
    assert not b.take(NEW)
    pass_time(2, b)
    assert b.take(NEW)


def test_terms_never_go_back_where_the_file_was_lost(lease, tmp_path):
    a, b = lease(), lease()
    a.take(Knowledge("a", 3, 7))
    assert a.term == 8
    (tmp_path / "lease").unlink()
    assert not a.renew()
    assert b.take(Knowledge("a", 3, 8))
    assert b.term == 9


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", '{"version": 2}', '{"version": 1}', "\xff\xfe", "[" * 9000]
    + [json.dumps({"version": 1, **vars(Lease()), name: value}) for name, value in
       [("term", "x"), ("term", True), ("holder", 4), ("lasts_s", "9"), ("sent", 1.5)]],
)  # fmt: skip
def test_a_file_that_is_no_lease(lease, tmp_path, text):
    (tmp_path / "lease").write_text(text, encoding="latin-1")
    one = lease()
    with pytest.raises(InputError, match="not a lease"):
        one.take(NEW)
    assert not one.held
    assert peek(one.path) is None


def test_a_directory_that_is_not_there(tmp_path):
    one = LeaseFile(str(tmp_path / "gone" / "lease"), TIMING, enforce=True)
    with pytest.raises(InputError, match="lease_path must lie in a directory"):
        one.take(NEW)


def test_a_renewal_that_fails_leaves_what_was_held(lease, tmp_path, monkeypatch):
    one = lease()
    one.take(NEW)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    pass_time(4, one)
    with pytest.raises(InputError, match="No space left"):
        one.renew()
    assert one.held
    pass_time(7, one)
    assert not one.held
    assert [f.name for f in tmp_path.iterdir() if f.name.endswith(".tmp")] == []


def test_many_at_once_and_one_has_it(tmp_path):
    """Twelve processes at one moment."""
    code = (
        "import sys, time\n"
        "from tias_slurm.service.leadership import *\n"
        "one = LeaseFile(sys.argv[1], Timing(60.0, 90.0), enforce=True)\n"
        "time.sleep(max(0.0, float(sys.argv[2]) - time.time()))\n"
        "print(one.take(Knowledge('a', 0)), one.held)\n"
    )
    start = str(time.time() + 3)
    argv = [sys.executable, "-c", code, str(tmp_path / "lease"), start]
    all_of_them = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(12)]
    said = sorted(p.communicate(timeout=60)[0].strip() for p in all_of_them)
    assert said == ["False False"] * 11 + ["True True"]


@pytest.mark.parametrize("seed", range(20))
def test_at_no_time_do_two_hold_it(lease, seed):
    """Random renewals, freezes, lost files' worth of mischief: never two at once, and terms rise."""
    luck = random.Random(seed)
    ones = [lease() for _ in range(3)]
    frozen = dict.fromkeys(range(3), 0.0)
    terms = []
    for _ in range(300):
        step = luck.uniform(0.05, 2.0)
        pass_time(step, *ones)
        for n, one in enumerate(ones):
            frozen[n] -= step
            if frozen[n] > 0:
                continue
            if luck.random() < 0.03:
                frozen[n] = luck.uniform(1, 40)
            elif one.term:
                if luck.random() < 0.05:
                    one.give_back()
                elif not one.renew():
                    one.term = 0
            elif one.take(NEW):
                terms.append(one.term)
        assert sum(one.held for one in ones) <= 1
    assert terms == sorted(set(terms))
    assert len(terms) > 3


# ---- knowledge


def test_a_ledger_that_lacks_what_was_written(lease):
    a = lease()
    a.take(Knowledge("a", 0))
    a.renew(Knowledge("a", 5))
    a.give_back()
    for known in (None, Knowledge("b", 9), Knowledge("a", 4)):
        with pytest.raises(InputError, match=r"the ledger here is .* that ctl1 kept"):
            lease().take(known)
    assert lease().take(Knowledge("a", 5))


def test_a_dry_run_may_follow_anybody_and_hides_nothing(lease):
    a, dry = lease(), lease(enforce=False)
    a.take(Knowledge("a", 0))
    a.renew(Knowledge("a", 5))
    a.give_back()
    assert dry.take(None)
    dry.renew(Knowledge("d", 99))
    dry.give_back()
    assert (peek(a.path).ledger, peek(a.path).sent) == ("a", 5)
    with pytest.raises(InputError, match="not the one"):
        lease().take(Knowledge("b", 7))


def test_the_ledger_counts_bursts_and_keeps_one_name(tmp_path):
    store = SqliteStore(str(tmp_path / "l"))
    assert store.knowledge() == Knowledge("", 0, 0)
    first = store.begin_burst()
    assert store.begin_burst() == Knowledge(first.ledger, 2, 0)
    store.close()
    assert known_to(str(tmp_path / "l")) == Knowledge(first.ledger, 2, 0)
    assert known_to(str(tmp_path / "none")) is None
    assert not (tmp_path / "none").exists()


def test_a_deposed_leader_can_keep_nothing_more(tmp_path):
    old, new = (SqliteStore(str(tmp_path / "l"), shared=True) for _ in range(2))
    old.lead(1)
    old.put("x", "1")
    new.lead(2)
    for change in (lambda: old.put("x", "2"), old.begin_burst, lambda: old.lead(1), lambda: old.record([])):
        with pytest.raises(LedgerError, match="another tias-slurm leads"):
            change()
    assert new.get("x") == "1"
    new.put("x", "3")
    old.close()
    new.close()


def test_a_shared_ledger_has_no_write_ahead_log(tmp_path):
    path = tmp_path / "l"

    def format_version():
        return path.read_bytes()[18:20]

    SqliteStore(str(path), shared=False).close()
    assert format_version() == b"\x02\x02"
    SqliteStore(str(path), shared=True).close()
    assert format_version() == b"\x01\x01"
    SqliteStore(str(path)).close()  # who only looks leaves it so
    assert format_version() == b"\x01\x01"


# ---- timing


def test_timing_leaves_room_for_three_intervals():
    for interval, limit in ((60.0, 30.0), (30.0, 10.0), (5.0, 2.0)):
        t = timing(interval, limit)
        assert t.lasts_s - t.hold_s >= 2 * limit
        # seen late, waited for, seen late again
        assert t.lasts_s + 2 * t.poll_s < 2.5 * interval


def test_settings_that_leave_no_room(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[cycle]\ninterval_s = 30\n[daemon]\nlease_path = "/x/lease"\n')
    with pytest.raises(ConfigError, match=r"rpc_timeout_s of at most half of cycle.interval_s, here 15"):
        load_config(str(path))


# ---- which controller is in charge


PING = "Slurmctld(primary) at ctl1 is {}\nSlurmctld(backup) at ctl2.site is {}\n"


@pytest.mark.parametrize(
    ("up", "beating", "first", "second"),
    [
        (("UP", "UP"), None, True, False),
        (("DOWN", "UP"), None, False, True),
        (("DOWN", "DOWN"), None, None, None),
        (("UP", "UP"), 1, False, True),
        (("UP", "UP"), 0, True, False),
        (("UP", "UP"), 7, True, False),
    ],
)
def test_in_charge(up, beating, first, second):
    seen = parse_ping(PING.format(*up))
    assert seen.hosts == ["ctl1", "ctl2.site"]
    assert decide("ctl1", seen, beating) is first
    assert decide("ctl2", seen, beating) is second
    assert decide("login", seen, beating) is None


def test_no_answer_tells_nothing():
    assert decide("ctl1", Controllers([], []), None) is None


def test_the_heartbeat(tmp_path):
    now = 1_800_000_000
    assert heartbeat(str(tmp_path), now) is None
    (tmp_path / "heartbeat").write_bytes(struct.pack(">QQ", now - 20, 1))
    assert heartbeat(str(tmp_path), now) == 1
    assert heartbeat(str(tmp_path), now + 60) is None
    (tmp_path / "heartbeat").write_bytes(b"x")
    assert heartbeat(str(tmp_path), now) is None


# ---- the keeper


class Log:
    def __init__(self):
        self.lines = []

    def __getattr__(self, level):
        return lambda event, **fields: self.lines.append((event, fields))


def keeper(one, charge=True, known=NEW, pulse=None):
    made = Keeper(one, lambda: made.charge, lambda: known, pulse or Pulse(1e9), threading.Lock(), Log())
    made.charge = charge
    return made


def test_the_lease_follows_the_controller_in_charge(lease):
    a, b = keeper(lease()), keeper(lease(), charge=False)
    a.look()
    b.look()
    assert (a.leads, b.leads) == (True, False)
    assert b.why == "the controller of this host is not in charge"
    a.charge, b.charge = False, True
    b.look()
    assert b.why == "ctl1 leads"
    a.look()
    b.look()
    assert (a.leads, b.leads) == (False, True)
    assert [event for event, _ in a._log.lines] == ["leads", "leads no more"]


def test_who_cannot_tell_goes_by_the_lease_alone(lease):
    a, b = keeper(lease(), charge=None), keeper(lease(), charge=None)
    for _ in range(3):
        a.look()
        b.look()
    assert (a.leads, b.leads) == (True, False)


def test_it_is_not_given_back_under_a_cycle(lease):
    a, b = keeper(lease()), keeper(lease())
    a.look()
    a.charge = False
    with a._busy:
        a.look()
        b.look()
        assert (a.leads, b.leads) == (False, False)
    a.look()
    b.look()
    assert b.leads


def test_a_stuck_cycle_leads_no_more(lease):
    a = keeper(lease(), pulse=Pulse(0.0))
    a.look()
    a.look()
    assert not a.leads
    assert a.why == "the cycle is stuck"


def test_a_leader_without_knowledge_stands_by_and_says_why_once(lease):
    first = lease()
    first.take(Knowledge("a", 0))
    first.renew(Knowledge("a", 5))
    first.give_back()
    b = keeper(lease(), known=Knowledge("b", 9))
    for _ in range(3):
        b.look()
    assert not b.leads
    assert "state_dir on a file system that both see" in b.why
    assert [event for event, _ in b._log.lines] == ["lease"]


def test_nothing_is_sent_that_the_lease_does_not_know(lease, monkeypatch):
    a = keeper(lease())
    a.look()
    assert a.about_to_send(Knowledge("a", 1))
    assert peek(a.lease.path).sent == 1
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only")))
    assert not a.about_to_send(Knowledge("a", 2))
    monkeypatch.undo()
    pass_time(11, a.lease)
    assert not a.about_to_send(Knowledge("a", 2))


def test_a_stop_gives_it_back_and_takes_it_no_more(lease):
    a, b = keeper(lease()), keeper(lease())
    a.look()
    a.stop()
    a.look()
    assert not a.leads
    b.look()
    assert b.leads


def test_without_leave_nothing_passes():
    inner = Scripted(waiting(1))
    leave = [""]
    outer = Guarded(inner, lambda: "", lambda: leave[0])
    assert outer.write(100, "nice", -5).result == "ok"
    leave[0] = "no longer"
    for refused in (
        outer.write(100, "nice", -6),
        outer.requeue(100),
        outer.signal(100, "TERM"),
        outer.unpin(100),
    ):
        assert refused == WriteResult("retry", "no longer")
    assert inner.sent == [(100, "nice", -5)]
    assert len(outer.jobs()) == 1


# ---- daemons


class Pair:
    """Daemons on two hosts, over one scripted Slurm."""

    def __init__(self, tmp_path, monkeypatch):
        self.path, self.monkeypatch = tmp_path, monkeypatch
        self.slurm = Scripted(waiting(3, nice=7))
        self.in_charge = "ctl1"
        self.log = structlog.testing.LogCapture()
        self.open = []
        monkeypatch.setattr(daemon_module, "choose", lambda *_, **__: (self.slurm, "as scripted"))

    def daemon(self, host, state="state", mode="enforce", *lines):
        config = self.path / f"{host}.toml"
        config.write_text(
            f'[cycle]\ninterval_s = 10\n[daemon]\nmode = "{mode}"\nstate_dir = "{self.path / state}"\n'
            f'lease_path = "{self.path / "lease"}"\nrpc_timeout_s = 2\nwrites_per_second = 1e6\n'
            + "\n".join(lines)
        )
        for name in ("leadership", "start"):
            self.monkeypatch.setattr(f"tias_slurm.service.{name}.this_host", lambda: host)
        self.monkeypatch.setattr(
            "tias_slurm.service.start.InCharge",
            lambda host, *_: lambda: None if not self.in_charge else host == self.in_charge,
        )
        logger = structlog.wrap_logger(structlog.PrintLogger(), processors=[self.log])
        made = Daemon(str(config), {}, logger)
        self.open.append(made)
        made.open()
        return made

    def close(self):
        for one in self.open:
            one.close()


@pytest.fixture
def pair(tmp_path, monkeypatch):
    made = Pair(tmp_path, monkeypatch)
    yield made
    made.close()


def turn(*daemons):
    """A look of each keeper and a cycle of each daemon."""
    results = []
    for one in daemons:
        one._keeper.look()
        results.append(one.cycle().result)
    return results


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
