"""Who keeps the lease: the controller in charge, and what a keeper does in a look."""

import os
import struct
import threading

import leases
import pytest
from leases import NEW, Log, pass_time
from raw_queue import Scripted, waiting

from tias_slurm.observe.systemd import Pulse
from tias_slurm.service.keeper import Guarded, Keeper
from tias_slurm.service.leadership import Knowledge, peek
from tias_slurm.slurm.in_charge import Controllers, decide, heartbeat, parse_ping
from tias_slurm.slurm.live import WriteResult

lease = leases.lease


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
