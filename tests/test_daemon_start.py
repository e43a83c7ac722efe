"""What a daemon needs to start: its directory, lock and ledgers, and settings that can work here."""

import fcntl
import os
import stat
from dataclasses import replace

import daemon_desk
import pytest
from raw_queue import FACTS, config, waiting

from tias_slurm.errors import InputError
from tias_slurm.ledger.store import SqliteStore
from tias_slurm.service import start
from tias_slurm.service.start import ledger_path
from tias_slurm.service.state_lock import take_lock

desk = daemon_desk.desk


def test_the_state_directory_is_ours_alone(desk):
    desk.daemon(waiting(1))
    assert stat.S_IMODE(desk.state.stat().st_mode) == 0o750
    assert stat.S_IMODE((desk.state / "lock").stat().st_mode) == 0o640
    assert sorted(f.name for f in desk.state.iterdir() if not f.name.endswith(("-wal", "-shm"))) == [
        "in-use.json",
        "ledger.sqlite",
        "lock",
    ]


def test_a_state_directory_that_cannot_be(desk):
    desk.state.write_text("a file")
    with pytest.raises(InputError, match="state_dir"):
        desk.daemon(waiting(1))


def test_one_daemon_at_a_time(desk):
    first = desk.daemon(waiting(1))
    with pytest.raises(InputError, match=f"process {os.getpid()}"):
        desk.daemon(waiting(1))
    first.close()
    desk.daemon(waiting(1))


def test_a_lock_that_a_dead_process_left(desk):
    desk.state.mkdir()
    (desk.state / "lock").write_text("999999\n")
    held = take_lock(str(desk.state / "lock"))
    assert (desk.state / "lock").read_text() == f"{os.getpid()}\n"
    held.close()


def test_a_lock_with_nothing_in_it(desk):
    desk.state.mkdir()
    other = (desk.state / "lock").open("w")
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="process unknown"):
        take_lock(str(desk.state / "lock"))
    other.close()


def test_a_lock_that_is_a_link_leads_nobody_to_write_over_another_file(desk):
    precious = desk.state.parent / "precious"
    precious.write_text("all of it")
    desk.state.mkdir(exist_ok=True)
    (desk.state / "lock").symlink_to(precious)
    with pytest.raises(InputError, match="a link, where a file should be; remove it"):
        take_lock(str(desk.state / "lock"))
    assert precious.read_text() == "all of it"


def test_ledgers_of_the_modes_are_two(desk):
    daemon = desk.daemon(waiting(1))
    enforce = ledger_path(daemon.config)
    daemon.close()
    desk.write(mode="dry-run")
    daemon = desk.daemon(waiting(2))
    daemon.cycle()
    assert ledger_path(daemon.config) != enforce
    store = SqliteStore(enforce)
    assert len(store.load()[0]) == 0
    store.close()


def test_a_ledger_of_another_lever(desk):
    daemon = desk.daemon(waiting(1))
    daemon.cycle()
    daemon.close()
    desk.write(lever="priority")
    with pytest.raises(InputError, match="run tias-slurm restore"):
        desk.daemon(waiting(1))
    store = SqliteStore(str(desk.state / "ledger.sqlite"))
    store.disown()
    store.close()
    desk.open[-1].close()
    desk.daemon(waiting(1))


def test_in_a_dry_run_the_lever_may_change(desk):
    desk.write(mode="dry-run")
    desk.daemon(waiting(1)).cycle()
    desk.open[-1].close()
    desk.write(mode="dry-run", lever="site_factor")
    desk.daemon(waiting(1), factors={100: 0}).cycle()
    assert desk.said("would write")[0]["field"] == "site_factor"


@pytest.mark.parametrize(
    "site", [{"priority_type": "priority/basic"}, {"site_factor_plugin": "site_factor/example"}]
)
def test_site_factor_where_it_cannot_work(desk, site):
    desk.write(lever="site_factor")
    with pytest.raises(InputError, match='lever "site_factor" needs'):
        desk.daemon(waiting(1), facts=replace(FACTS, **site))


@pytest.mark.parametrize("plugin", ["", "(null)", "none"])
def test_site_factor_where_check_config_says_that_it_works(desk, plugin):
    desk.write(lever="site_factor")
    daemon = desk.daemon(waiting(1), factors={100: 0}, facts=replace(FACTS, site_factor_plugin=plugin))
    assert daemon.cycle().result == "ok"


def test_only_the_priority_lever_can_hold_jobs(desk):
    desk.write(lever="nice", extra="[planner]\nlong_share = 0.5")
    with pytest.raises(InputError, match="long_share"):
        desk.daemon(waiting(1))


def test_the_priority_lever_holds_jobs(desk):
    desk.write(lever="priority", extra="[planner]\nlong_share = 0.5")
    assert desk.daemon(waiting(1)).controller.planner.limits.long_share == 0.5


def test_slurms_own_preemption_needs_its_guards(desk, monkeypatch):
    monkeypatch.setattr(start, "look_at_qos", lambda _: None)
    monkeypatch.setattr(start, "mode_in_file", lambda _: "")
    mode = '[requeue]\nmode = "slurm"'
    desk.write(lever="priority", extra=mode)
    with pytest.raises(InputError, match="PreemptType=preempt/qos"):
        desk.daemon(waiting(1))
    desk.open[-1].close()
    # a dry run says it and goes on
    desk.write(lever="priority", extra=mode, mode="dry-run")
    desk.daemon(waiting(1))
    assert desk.said('requeue mode "slurm" would be refused')


@pytest.mark.parametrize(
    ("uid", "mode", "slurm_user", "told"),
    [
        (0, "enforce", "slurm", True),
        (0, "enforce", "root", False),
        (0, "dry-run", "slurm", False),
        (1000, "enforce", "slurm", False),
    ],
)
def test_root_is_told_that_it_is_not_needed(monkeypatch, uid, mode, slurm_user, told):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    said = start.root_needless(config(daemon={"mode": mode}), replace(FACTS, slurm_user=slurm_user))
    assert bool(said) == told
    assert ("AdminLevel=Operator" in said) == told


def test_the_log_says_that_this_is_root(desk, monkeypatch):
    monkeypatch.setattr(start, "root_needless", lambda *_: "this is root")
    desk.daemon(waiting(1))
    assert desk.said("runs as root") == [
        {"event": "runs as root", "message": "this is root", "log_level": "warning"}
    ]
