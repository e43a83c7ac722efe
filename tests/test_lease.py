"""The lease: one holds it, also when clocks differ, files fail and holders freeze; and what it knows."""

import json
import os
import random
import subprocess
import sys
import time

import leases
import pytest
from leases import NEW, TIMING, pass_time

from tias_slurm.config import ConfigError, load_config
from tias_slurm.errors import InputError
from tias_slurm.ledger.store import LedgerError, SqliteStore, known_to
from tias_slurm.service.leadership import Knowledge, Lease, LeaseFile, Timing, peek, timing

lease = leases.lease


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
