"""Commands while the settings file is broken: they go by what the daemon has in use, or refuse."""

import json
import os
import signal
from pathlib import Path

import command_desk
import pytest
import structlog
import test_no_access
from command_desk import EVIL
from raw_queue import Scripted, queue, waiting
from test_no_access import COMMANDS, NOBODY

from tias_slurm import hands, in_use
from tias_slurm.cli import live
from tias_slurm.config import load_config
from tias_slurm.errors import InputError

desk = command_desk.desk
site = test_no_access.site

UNKNOWN_KEY = '[scope]\nonly_partition = ["gpu"]\n'
NO_TOML = "[scope\nonly_partitions = [\n"


@pytest.fixture
def working(desk):
    """A daemon that has set values, whose own settings are none of the defaults."""
    desk.write(lever={"kind": "nice", "urgency_steps": 7}, cycle={"interval_s": 77.0})
    desk.show(waiting(2, comment="deadline=+3h"))
    desk.at_work = desk.daemon()
    desk.at_work.cycle()
    return desk


def break_(desk, text):
    """What somebody makes of the settings file: more lines, or `text` in place of {old}."""
    old = desk.path.read_text()
    desk.path.write_text(text.replace("{old}", old) if "{old}" in text else old + text)


def warned(done):
    """The one line that tells of it."""
    (line,) = done.err.splitlines()
    assert line.startswith("tias-slurm: warning: "), line
    assert not set(line) & {"\x1b", "\x07"}
    return line


BROKEN = [UNKNOWN_KEY, NO_TOML, NO_TOML + "{old}", "{old}" + "\x00\n", "[cycle]\ninterval_s = 9\n",
          "[lever]\nkind = 'nise'\n" + NO_TOML, f"[scope]\nonly_users = {EVIL!r}\n"]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
def test_the_kill_switch_and_the_diagnosis_work(working, text):
    desk = working
    break_(desk, text)
    assert desk.run("show-config", code=2).err
    assert desk.run("check-config", code=2).err
    line = warned(desk.run("pause", "--reason", "what a day"))
    assert "the daemon runs with" in line
    assert str(desk.state) in line
    assert desk.at_work.cycle().paused
    assert warned(desk.run("resume"))
    assert not desk.at_work.cycle().paused
    assert warned(desk.run("ignore", "101"))
    assert desk.at_work.cycle().barred == {"ignored": 1}
    assert desk.json("unignore", "101")["was_ignored"]
    daemon = desk.json("status")["daemon"]
    assert (daemon["running"], daemon["well"], daemon["interval_s"]) == (True, True, 77.0)
    assert warned(desk.run("history", "100"))
    assert [a["result"] for a in desk.json("history", "100")["actions"]] == ["ok"]
    assert desk.json("explain", "100")["job_id"] == 100


def test_explain_goes_by_the_settings_in_use(working):
    desk = working
    explained = desk.json("explain", "100")
    break_(desk, UNKNOWN_KEY)
    again = desk.json("explain", "100")
    assert explained["lever"] == again["lever"]
    assert explained["answer"] == again["answer"]


def test_restore_puts_back_by_what_was_in_use(working, monkeypatch):
    desk = working
    set_ = {job: value for job, _, value in desk.adapter.sent}
    assert len(set_) == 2
    shown = Scripted(queue(*({"job_id": job, "nice": value} for job, value in set_.items())))
    monkeypatch.setattr(live, "adapter_of", lambda _: shown)
    desk.path.write_text(desk.path.read_text().replace('"nice"', '"priority"') + UNKNOWN_KEY)
    assert "holds the lock" in desk.run("restore", code=2).err
    desk.at_work.close()
    line = warned(desk.run("restore"))
    assert "the daemon, which does not run now, ran with last" in line
    assert shown.sent == [(100, "nice", 0), (101, "nice", 0)]


def test_a_daemon_that_was_told_to_reload_it(working):
    desk = working
    break_(desk, UNKNOWN_KEY)
    desk.at_work._on_reload(signal.SIGHUP, None)
    desk.at_work.cycle()
    document = desk.json("status")
    assert "only_partition" in document["daemon"]["reload"]["problem"]
    desk.run("pause")
    assert desk.at_work.cycle().paused


def test_one_that_changes_its_place_takes_them_along(working):
    desk, old = working, working.state
    desk.state = old.parent / "other"
    desk.write(lever={"kind": "nice", "urgency_steps": 7})
    desk.at_work._on_reload(signal.SIGHUP, None)
    desk.at_work.cycle()
    assert not Path(in_use.path(str(old))).exists()
    break_(desk, UNKNOWN_KEY)
    assert str(desk.state) in warned(desk.run("pause"))
    assert hands.paused(str(desk.state))
    assert not hands.paused(str(old))


# -- what must be refused


def refused(desk, *words):
    """The command changes nothing and says what to do."""
    before = sorted(os.listdir(desk.state)) if desk.state.exists() else None
    for command in (("pause",), ("resume",), ("ignore", "101"), ("restore",), ("status",), ("history", "1")):
        done = desk.run(*command, *words, code=2)
        assert done.out == ""
    assert before == (sorted(os.listdir(desk.state)) if desk.state.exists() else None)
    return done.err


def test_another_place_that_no_daemon_has_used(working):
    """The settings name it, but the daemon goes on in the old one: a pause there would pause nobody."""
    desk = working
    new = desk.state.parent / "new"
    new.mkdir()
    desk.path.write_text(desk.path.read_text().replace(str(desk.state), str(new)) + UNKNOWN_KEY)
    said = refused(desk)
    assert "only_partition" in said
    assert "touch STATE_DIR/paused" in said
    assert os.listdir(new) == []


def test_but_under_systemd_it_is_known_where_the_daemon_works(desk, tmp_path, monkeypatch):
    runtime = tmp_path / "run"
    runtime.mkdir()
    monkeypatch.setattr(in_use, "RUNTIME", str(runtime))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(runtime))
    desk.show(waiting(1))
    daemon = desk.daemon()
    desk.path.unlink()
    assert "cannot be read" in warned(desk.run("pause"))
    assert daemon.cycle().paused


def test_what_it_worked_with_last_comes_before_what_lies_where_it_was_once(desk, tmp_path, monkeypatch):
    runtime, once = tmp_path / "run", tmp_path / "once"
    runtime.mkdir()
    once.mkdir(0o750)
    monkeypatch.setattr(in_use, "RUNTIME", str(runtime))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(runtime))
    desk.show(waiting(1))
    text = desk.path.read_text()
    desk.path.write_text(text.replace(str(desk.state), str(once)))
    desk.daemon().close()
    desk.path.write_text(text)
    desk.daemon().close()
    # the file, of all places, names the old one
    desk.path.write_text(f'state_dir = "{once}"{UNKNOWN_KEY}')
    assert in_use.settings(str(desk.path))[0].daemon.state_dir == str(desk.state)


@pytest.mark.parametrize("spoiled", [b"\xff\xfe", b"\x00", b"", b"a" * 9000])
def test_a_pointer_that_was_spoiled(working, tmp_path, monkeypatch, spoiled):
    monkeypatch.setattr(in_use, "RUNTIME", str(tmp_path))
    (tmp_path / "state_dir").write_bytes(spoiled)
    break_(working, UNKNOWN_KEY)
    assert "the daemon runs with" in warned(working.run("pause"))


@pytest.mark.parametrize("at_work", [False, True])
@pytest.mark.parametrize("name", ["config.toml", "other.toml"])
def test_what_lies_in_the_usual_place_from_before_is_forgotten(desk, monkeypatch, name, at_work):
    """Else a later `pause` or `restore` would mean the daemon, or the ledger, of those days."""
    usual = desk.state.parent / "usual"
    monkeypatch.setattr(in_use, "_usual", lambda: str(usual))
    desk.show(waiting(1))
    text, now = desk.path.read_text(), desk.path
    desk.path = now.with_name(name)
    desk.path.write_text(text.replace(str(desk.state), str(usual)))
    before = desk.daemon()
    if not at_work:
        before.close()
    desk.path = now
    desk.path.write_text(text)
    desk.daemon()
    # neither of a daemon that works nor of other settings
    assert (usual / "in-use.json").exists() == (at_work or name != now.name)
    if not at_work:
        desk.path.write_text("[nonsense]\n")
        assert "touch STATE_DIR/paused" in refused(desk)


@pytest.mark.parametrize("text", ["", "lever", "\x00", "[" * 100_000])
def test_settings_that_say_no_place(working, text):
    desk = working
    desk.path.write_text("[cycle]\ninterval_s = 0\n" + text)
    assert "touch STATE_DIR/paused" in refused(desk)


def test_another_file_with_the_same_place(working):
    """It is not this daemon's, so nobody knows what it was to say."""
    desk = working
    other = desk.path.with_name("other.toml")
    other.write_text(desk.path.read_text() + UNKNOWN_KEY)
    desk.path = other
    assert "no daemon of this file" in refused(desk)


def test_the_same_file_under_another_name(working):
    desk = working
    other = desk.path.with_name("link.toml")
    other.symlink_to(desk.path)
    break_(desk, UNKNOWN_KEY)
    desk.path = other
    desk.run("pause")
    assert hands.paused(str(desk.state))


SPOILED = [
    lambda d: d.update(version=2), lambda d: d.pop("file"), lambda d: d.update(file=7),
    lambda d: d.update(settings=[]), lambda d: d["settings"].pop("daemon"),
    lambda d: d["settings"]["daemon"].update(state_dir="/elsewhere"),
    lambda d: d["settings"]["daemon"].update(unheard_of=1),
    lambda d: d["settings"]["lever"].update(kind="magic"), lambda d: d.clear(),
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILED)
def test_what_was_left_is_spoiled_or_of_another_version(working, spoil):
    desk = working
    left = Path(in_use.path(str(desk.state)))
    document = json.loads(left.read_text())
    spoil(document)
    left.write_text(json.dumps(document))
    break_(desk, UNKNOWN_KEY)
    assert "no daemon of this file" in refused(desk)


def test_a_daemon_that_runs_counts_before_one_that_ran(working):
    """Of its time before the settings named another place something is left in the old one."""
    desk, old = working, working.state
    desk.at_work.close()
    desk.state = old.parent / "other"
    desk.write()
    desk.daemon()
    assert Path(in_use.path(str(old))).exists()
    # back again, and broken in the same edit
    desk.path.write_text(f'[daemon]\nstate_dir = "{old}"\n#state_dir = "{desk.state}"\n{UNKNOWN_KEY}')
    desk.run("pause")
    assert hands.paused(str(desk.state))
    assert not hands.paused(str(old))


def test_all_settings_come_back_as_they_were(desk, tmp_path):
    example = Path(__file__).parents[1] / "contrib" / "config.example.toml"
    text = example.read_text()
    desk.path.write_text(text)
    settings = load_config(str(desk.path))
    desk.state.mkdir()
    settings = settings.model_copy(
        update={"daemon": settings.daemon.model_copy(update={"state_dir": str(desk.state)})}
    )
    in_use.leave(str(desk.path), settings)
    assert (desk.state / "in-use.json").stat().st_mode & 0o777 == 0o640
    desk.path.write_text(f"{text}\n[nonsense]\nstate_dir = '{desk.state}'\n")
    found, warning = in_use.settings(str(desk.path), {"daemon.mode": "enforce"})
    assert warning
    assert found.daemon.mode == "enforce"
    assert found.model_dump(exclude={"daemon": {"mode"}}) == settings.model_dump(exclude={"daemon": {"mode"}})


def test_a_full_disk_keeps_no_daemon_from_starting(desk, monkeypatch):
    def full(*_):
        raise InputError("in-use.json: No space left on device")

    monkeypatch.setattr(in_use, "leave", full)
    structlog.reset_defaults()  # `restore` logs errors alone
    desk.show(waiting(1))
    assert desk.daemon().cycle().writes == 1
    assert "settings in use are not left" in [entry["event"] for entry in desk.log.entries]


@test_no_access.pytestmark
@pytest.mark.parametrize("command", [c for c in COMMANDS if c[0] not in ("once", "plan", "report")])
def test_an_account_that_may_not_look(site, command):
    site.ledger()
    in_use.leave(str(site.top / "c.toml"), load_config(str(site.top / "c.toml")))
    (site.top / "c.toml").write_text((site.top / "c.toml").read_text() + UNKNOWN_KEY)
    os.chown(site.state / "in-use.json", NOBODY, NOBODY)
    site.close("lib/state", 0o700)
    done = site.run(*command)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    first, last = done.stderr.splitlines()
    assert "only_partition" in first
    assert "which this account may not read" in last
