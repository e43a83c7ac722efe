"""The unit file, and what the daemon tells systemd. tests/live has the real Slurm, and a real systemd."""

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from daemon_desk import desk, handlers, run_until  # noqa: F401
from raw_queue import Scripted, waiting
from supervisor import Socket

from tias_slurm.observe.systemd import Notifier, Pulse, Watchdog
from tias_slurm.service import daemon as module
from tias_slurm.slurm.live import AdapterError

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "systemd" / "tias-slurm.service"
MOST_EXPOSURE = 2.5


# ---- the unit


def setting(name):
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def analyze(*words):
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("TIAS_SLURM_NO_SKIP"):
            pytest.fail("systemd-analyze is missing: apt install systemd")
        pytest.skip("no systemd-analyze")
    return subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_unit_is_one(tmp_path):
    # on this machine there is no /usr/bin/tias-slurm
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/bin/tias-slurm", "/bin/true"))
    done = analyze("verify", str(copy))
    assert (done.returncode, done.stderr) == (0, "")


def test_exposure():
    done = analyze("security", "--offline=yes", "--no-pager", str(UNIT))
    level = float(re.search(r"exposure level for tias-slurm.service: ([\d.]+)", done.stdout)[1])
    assert level <= MOST_EXPOSURE


def test_it_never_runs_as_root():
    assert setting("User") == ["tias-slurm"]
    account = (ROOT / "systemd/sysusers.d/tias-slurm.conf").read_text()
    assert re.search(r"^u tias-slurm ", account, re.MULTILINE)
    made = (ROOT / "systemd/tmpfiles.d/tias-slurm.conf").read_text()
    assert dict(re.findall(r"^d (\S+)\s+\d+\s+(\S+)", made, re.MULTILINE)) == {
        "/etc/tias-slurm": "root",
        "/var/lib/tias-slurm": "tias-slurm",
    }


def test_a_config_that_cannot_be_used_is_not_tried_again():
    """Exit status 2 is InputError's, everywhere in the command line."""
    assert setting("RestartPreventExitStatus") == ["2"]
    assert setting("Restart") == ["on-failure"]


# ---- words


def test_words_reach_the_socket(heard):
    out = Notifier()
    assert out.heard
    assert out.send("READY=1", "STATUS=so")
    out.status("two\nlines \x1b[2J")
    out.reloading()
    out.stopping(3.5)
    heard.wait(lambda: len(heard.heard) == 4)
    first, second, third, fourth = (said for _, said in heard.heard)
    assert first == {"READY": "1", "STATUS": "so"}
    assert second == {"STATUS": r"two\nlines \x1b[2J"}
    assert third["RELOADING"] == "1"
    assert abs(int(third["MONOTONIC_USEC"]) / 1e6 - time.clock_gettime(time.CLOCK_MONOTONIC)) < 10
    assert fourth == {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "3500000"}


def test_an_abstract_socket(monkeypatch):
    made = Socket(f"@tias-test-{os.getpid()}")
    try:
        assert Notifier({"NOTIFY_SOCKET": made.path}).send("READY=1")
        made.wait(lambda: made.values("READY") == ["1"])
    finally:
        made.close()


def test_without_systemd_nothing_happens(tmp_path):
    assert not Notifier({}).send("READY=1")
    assert not Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send("READY=1")


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "x"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_watchdog_s_patience(env, seconds):
    assert Notifier({"NOTIFY_SOCKET": "/x", **env}).watchdog_s == seconds


def test_a_socket_that_is_full_holds_nobody_up(tmp_path):
    deaf = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    deaf.bind(str(tmp_path / "deaf"))
    out = Notifier({"NOTIFY_SOCKET": str(tmp_path / "deaf")})
    began = time.monotonic()
    results = [out.send("STATUS=" + "x" * 60_000) for _ in range(20)]
    assert not all(results)
    assert time.monotonic() - began < 20
    deaf.close()


# ---- the watchdog


def test_the_watchdog_is_petted_while_the_cycle_lives(heard, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    pulse, stuck = Pulse(0.5), threading.Event()
    dog = Watchdog(Notifier(), pulse, stuck.set)
    dog.start()
    try:
        heard.wait(lambda: len(heard.values("WATCHDOG")) >= 3)
        assert not stuck.is_set()
        assert stuck.wait(10)
        petted = len(heard.values("WATCHDOG"))
        time.sleep(0.5)
        assert len(heard.values("WATCHDOG")) == petted
        # it may come round again
        pulse.beat(60)
        heard.wait(lambda: len(heard.values("WATCHDOG")) > petted)
    finally:
        dog.stop()


def test_no_watchdog_no_thread():
    dog = Watchdog(Notifier({}), Pulse(), lambda: None)
    dog.start()
    assert not dog._thread.is_alive()
    dog.stop()


# ---- the daemon


def stop():
    os.kill(os.getpid(), signal.SIGTERM)


def test_ready_status_stopping(heard, desk, handlers):  # noqa: F811
    daemon = desk.daemon(waiting(2))
    assert heard.values("READY") == []
    run_until(daemon, lambda: heard.values("STATUS"), stop)
    heard.wait(lambda: heard.values("STOPPING"))
    assert heard.values("READY") == ["1"]
    assert re.match(r"enforce: 2 jobs, 2 wait; last cycle .* 2 written$", heard.values("STATUS")[0])
    assert int(heard.values("EXTEND_TIMEOUT_USEC")[0]) >= 30e6


def test_no_ready_where_the_controller_does_not_answer(heard, desk, monkeypatch):  # noqa: F811
    def no_answer(_):
        raise AdapterError("no answer", retry=True)

    monkeypatch.setattr(Scripted, "facts", no_answer)
    with pytest.raises(AdapterError):
        desk.daemon(waiting(1))
    assert heard.heard == []


@pytest.mark.parametrize(
    ("text", "status"), [(None, None), ("[nonsense]\n", "reload refused, the old settings hold: .*nonsense")]
)
def test_a_reload_is_told_and_done_at_once(heard, desk, handlers, text, status):  # noqa: F811
    daemon = desk.daemon(waiting(2))
    done = []

    def reload():
        heard.wait(lambda: len(heard.values("READY")) == 1 and daemon._schedule.running)
        if text is not None:
            desk.path.write_text(text)
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGHUP)
        heard.wait(lambda: len(heard.values("READY")) == 2)
        done.append(time.monotonic() - began)
        stop()

    run_until(daemon, lambda: desk.said("cycle"), reload)
    assert done[0] < 30  # and not after the interval of a minute
    (at,) = heard.when("RELOADING")
    assert heard.when("READY")[0] < at < heard.when("READY")[1]
    assert len(desk.said("reloaded")) == (text is None)
    if status:
        assert any(re.match(status, line) for line in heard.values("STATUS"))


def test_a_stuck_cycle_is_no_longer_petted(heard, desk, handlers, monkeypatch):  # noqa: F811
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    monkeypatch.setattr(module, "SLACK_S", 0.5)
    desk.write("rpc_timeout_s = 0.01")
    daemon = desk.daemon(waiting(1))
    free = threading.Event()
    daemon.adapter.before_write = lambda *_: free.wait(30)

    def then():
        petted = len(heard.values("WATCHDOG"))
        time.sleep(0.6)
        assert len(heard.values("WATCHDOG")) == petted
        stop()
        free.set()

    run_until(daemon, lambda: desk.said("the cycle is stuck"), then)
    assert heard.values("WATCHDOG")
    assert desk.said("the cycle is stuck")


def test_a_cycle_that_takes_its_time_is_alive(desk):  # noqa: F811
    """Each call is a sign of life, and allows for the next."""
    daemon = desk.daemon(waiting(3))
    allowed = []
    daemon.adapter.before_write = lambda *_: allowed.append(daemon._pulse._until - time.monotonic())
    daemon.cycle()
    assert len(allowed) == 3
    assert min(allowed) > module.CALLS_IN_ONE * daemon.config.daemon.rpc_timeout_s
    assert daemon._pulse._until - time.monotonic() > daemon.config.cycle.interval_s


def test_a_stop_ends_a_look_between_its_questions(desk):  # noqa: F811
    daemon = desk.daemon(waiting(3))
    daemon._stop = True
    seen = daemon.cycle()
    assert (seen.result, seen.message) == ("no answer", "the daemon ends")
    assert daemon.adapter.sent == []
