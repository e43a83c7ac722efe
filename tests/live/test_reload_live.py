"""SIGHUP to a daemon on a real Slurm: mode, lever, listener and Slurm's own preemption, without a restart."""

from __future__ import annotations

import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from daemon_bed import TIAS, URGENT, Running, Site, nice, priority
from live_bed import configured, nodes_answer, run, wait_for
from requeue_bed import YES, on, urgent

from tias_slurm.levers import PRIORITY_BASE


class Daemon(Running):
    """`tias-slurm run` with the settings file alone."""

    def __init__(self, site: Site) -> None:
        argv = [TIAS, "run", "--config", str(site.config)]
        super().__init__(argv, site.home / f"log{len(site.daemons)}")
        site.daemons.append(self)

    def reload(self, event: str = "reloaded") -> dict[str, Any]:
        """SIGHUP; the log's line that answers it."""
        known = len(self.said("reload"))
        self.process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(self.said("reload")) > known, 60)
        line = self.said("reload")[known]
        assert line["event"].startswith(event), line
        return line


def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


def healthy(at: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{at}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.core
def test_mode_from_dry_run_to_enforce_and_back(site: Site) -> None:
    site.block()
    first = site.submit(f"--comment={URGENT}", "--nice=7")
    site.settings(daemon={"mode": "dry-run"})
    daemon = Daemon(site)
    daemon.cycles(2)
    assert daemon.said("would write", job=str(first))
    assert nice(first) == 7
    site.settings(daemon={"mode": "enforce"})
    daemon.reload()
    wait_for(lambda: nice(first) < 0)
    value = nice(first)
    site.settings(daemon={"mode": "dry-run"})
    daemon.reload()
    assert daemon.said("dry-run from now on")
    second = site.submit(f"--comment={URGENT}")
    wait_for(lambda: bool(daemon.said("would write", job=str(second))))
    # what stands stays, and is known as ours
    assert (nice(first), nice(second)) == (value, 0)
    assert not any(line.get("overridden") for line in daemon.said("cycle"))
    assert len(daemon.said("would write", job=str(first))) == 1
    site.settings(daemon={"mode": "enforce"})
    daemon.reload()
    wait_for(lambda: nice(second) < 0)
    assert daemon.end() == 0
    site.tias("restore")
    assert (nice(first), nice(second)) == (7, 0)


def test_a_deadline_that_passes_in_the_dry_run(site: Site) -> None:
    """What the dry run planned is what enforcement does: the job is overdue, not one without a deadline.

    Meanwhile somebody breaks the settings file: the pause works.
    """
    site.block()
    site.settings(daemon={"mode": "dry-run"}, deadlines={"min_window_s": 1.0})
    daemon = Daemon(site)
    plain, late = site.submit(), site.submit("--comment=deadline=+1m")

    def planned(job: int) -> int:
        lines = daemon.said("would write", job=str(job))
        return int(lines[-1]["new"]) if lines else 0

    wait_for(lambda: planned(plain) != 0 and planned(late) > planned(plain), 150)  # overdue: behind
    before = site.config.read_text()
    site.config.write_text(before + '[scope]\nonly_partition = ["gpu"]\n')
    for command in ("pause", "status"):
        assert "is broken" in site.tias(command).err
    daemon.reload("reload refused")
    site.settings(daemon={"mode": "enforce"}, deadlines={"min_window_s": 1.0})
    daemon.reload()
    daemon.cycles(2)
    assert (nice(plain), nice(late)) == (0, 0)
    site.tias("resume")
    wait_for(lambda: nice(late) == planned(late) and nice(plain) == planned(plain))
    assert site.tias("explain", str(late), "--json").json["claim_unaccepted"] is None
    assert daemon.end() == 0
    site.tias("restore")
    assert (nice(plain), nice(late)) == (0, 0)


@pytest.mark.core
def test_lever(site: Site) -> None:
    site.block()
    job = site.submit(f"--comment={URGENT}", "--nice=7")
    site.settings(daemon={"mode": "enforce"})
    daemon = Daemon(site)
    wait_for(lambda: nice(job) < 0)
    site.lever("priority")
    daemon.reload()
    wait_for(lambda: priority(job) >= PRIORITY_BASE)
    assert nice(job) >= 0
    assert daemon.said("values put back", lever="nice", restored=1)
    # nothing goes back while nothing may be written
    site.tias("pause", "--reason", "test")
    site.lever("nice")
    line = daemon.reload("reload refused")
    assert "the daemon is paused" in line["message"]
    daemon.cycles(1)
    assert priority(job) >= PRIORITY_BASE
    status = site.tias("status", "--json", status=None).json
    assert "paused" in status["daemon"]["reload"]["problem"]
    assert "reload refused" in " ".join(site.tias("status", status=None).out.split())
    site.tias("resume")
    daemon.reload()
    wait_for(lambda: nice(job) < 0)
    assert 0 < priority(job) < PRIORITY_BASE
    assert daemon.end() == 0
    site.tias("restore")
    assert nice(job) == 7


@pytest.mark.core
def test_listener(site: Site) -> None:
    one, two = port(), port()
    site.settings(daemon={"mode": "enforce"})
    daemon = Daemon(site)
    daemon.cycles(1)
    site.settings(metrics={"listen": f"127.0.0.1:{one}"})
    daemon.reload()
    assert healthy(one)
    site.settings(metrics={"listen": f"127.0.0.1:{two}"}, daemon={"rpc_timeout_s": 20.0})
    with socket.create_server(("127.0.0.1", two)):
        line = daemon.reload("reload refused")
        assert "Address already in use" in line["message"]
        assert healthy(one)
    daemon.reload()
    assert healthy(two)
    wait_for(lambda: not healthy(one))  # the new one is there before the old one is let go
    daemon.cycles(1)
    assert daemon.end() == 0


def restart() -> None:
    pid = int(Path("/run/slurmctld.pid").read_text())
    run("scontrol", "shutdown", "slurmctld")
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    run("slurmctld")
    wait_for(nodes_answer)


@pytest.fixture
def slurm_preempts() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        lines = ("PreemptType=preempt/qos", "PreemptMode=REQUEUE,WITHIN", "PreemptExemptTime=00:00:10")
        # preemption is taken up at a start only
        stack.enter_context(configured(*lines, take_up=restart))
        yield stack


def test_slurms_preemption_is_watched_and_left(site: Site, slurm_preempts: ExitStack) -> None:
    site.settings(daemon={"mode": "enforce"}, requeue={"min_run_s": 1}, lever={"kind": "priority"})
    daemon = Daemon(site)
    daemon.cycles(1)
    # the same guards as at a start
    site.settings(requeue={"mode": "slurm", "min_run_s": 11})
    assert "PreemptExemptTime is 10 s" in daemon.reload("reload refused")["message"]
    site.settings(requeue={"min_run_s": 1})
    daemon.reload()
    runs = [on(site, f"n{n}", YES, "--no-requeue") for n in (1, 2, 3, 4)]
    wait_for(lambda: all(priority(job) >= 2 * PRIORITY_BASE for job in runs))
    # another engine at the wheel: slurm.conf changes while the daemon runs
    with configured("PreemptExemptTime=00:00:01"):
        daemon.cycles(2)
        assert len(daemon.said('requeue mode "slurm": nobody is raised')) == 1
        late = urgent(site)
        daemon.cycles(2)
        assert priority(late) < PRIORITY_BASE
    wait_for(lambda: priority(late) >= PRIORITY_BASE)
    assert daemon.said('requeue mode "slurm": the guards hold again')
    # who runs must not lose his protection while Slurm goes on to preempt
    site.settings(requeue={"mode": "off"})
    assert "Slurm goes on to preempt" in daemon.reload("reload refused")["message"]
    assert all(priority(job) >= 2 * PRIORITY_BASE for job in runs)
    slurm_preempts.close()
    daemon.reload()
    wait_for(lambda: all(priority(job) < PRIORITY_BASE for job in runs))
    time.sleep(5)
    assert all(run("squeue", "-h", "-j", str(job), "-o", "%T").strip() == "RUNNING" for job in runs)
    assert priority(late) >= PRIORITY_BASE
    assert daemon.end() == 0


@pytest.fixture
def read_only(site: Site) -> Iterator[Path]:
    """A directory that nobody can write to, as systemd's ProtectSystem= leaves most of them."""
    place = site.home / "read-only"
    place.mkdir()
    run("mount", "-t", "tmpfs", "-o", "ro", "none", str(place))
    yield place
    run("umount", str(place))


@pytest.mark.core
def test_state_directory_and_lease(site: Site, read_only: Path) -> None:
    site.block()
    job, left = site.submit(f"--comment={URGENT}", "--nice=7"), site.submit(f"--comment={URGENT}")
    old, new = site.state, site.home / "deep" / "state"
    site.settings(daemon={"mode": "enforce"})
    daemon = Daemon(site)
    daemon.cycles(1)
    site.tias("ignore", str(left))
    wait_for(lambda: nice(job) < 0)
    value, was = nice(job), nice(left)
    # nowhere to write to
    site.settings(daemon={"state_dir": str(read_only / "state")})
    line = daemon.reload("reload refused")
    assert "Read-only file system" in line["message"]
    assert "ReadWritePaths=" in line["message"]
    # somebody else's ledger
    site.settings(daemon={"state_dir": str(site.home / "second")})
    (site.home / "second").mkdir(mode=0o750)
    (site.home / "second" / "ledger.sqlite").write_bytes((old / "ledger.sqlite").read_bytes())
    assert "a ledger lies there already" in daemon.reload("reload refused")["message"]
    daemon.cycles(1)
    site.settings(daemon={"state_dir": str(new)})
    daemon.reload()
    later = site.submit(f"--comment={URGENT}")
    wait_for(lambda: nice(later) < 0)
    assert (nice(job), nice(left)) == (value, was)
    assert not any(line.get("overridden") for line in daemon.said("cycle"))
    told = site.tias("status", "--json").json["daemon"]
    assert (told["running"], told["ignored"]) == (True, [str(left)])
    # a lease, another one, and none
    first, second = site.home / "lease", site.home / "lease2"
    for path in (first, second):
        site.settings(daemon={"lease_path": str(path), "rpc_timeout_s": 2})
        daemon.reload()
        daemon.cycles(2)
        assert site.tias("status", "--json").json["daemon"]["leadership"]["leads"]
    assert f'"moved": "{second}"' in first.read_text()
    site.settings(daemon={"lease_path": ""})
    daemon.reload()
    last = site.submit(f"--comment={URGENT}")
    wait_for(lambda: nice(last) < 0)
    assert not daemon.said("cycle failed")
    assert not any(line.get("overridden") for line in daemon.said("cycle"))
    assert daemon.end() == 0
    # nobody goes on with what is of the past
    site.settings(daemon={"state_dir": str(old)})
    for argv in (("once",), ("restore",)):
        done = site.tias(*argv, status=None)
        assert (done.status != 0, f'state_dir = "{new}"' in done.err) == (True, True)
    assert nice(job) == value
    site.settings(daemon={"state_dir": str(new)})
    site.tias("restore")
    assert (nice(job), nice(later), nice(last)) == (7, 0, 0)
