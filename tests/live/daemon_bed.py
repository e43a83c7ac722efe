"""A daemon of one test: its settings, its jobs, its ledger; driven by its own commands."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters import ADAPTERS
from live_bed import end_jobs, nodes_answer, run, shown, wait_for

BACKENDS = sorted(ADAPTERS)
TIAS = shutil.which("tias-slurm") or "tias-slurm"
URGENT, CALM = "deadline=+3h", "deadline=+20d"


@dataclass
class Done:
    """What a command of the daemon's printed."""

    status: int
    out: str
    err: str

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]

    @property
    def json(self) -> dict[str, Any]:
        """The answer, of a command with --json."""
        answer: dict[str, Any] = json.loads(self.out)
        return answer


class Running:
    """`tias-slurm run` as a process."""

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self.path = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out, cwd="/tmp")

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the log so far."""
        lines = self.path.read_text("utf-8", "replace").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def said(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """The log's lines of one event, with these fields."""
        return [e for e in self.log if e["event"].startswith(event) and fields.items() <= e.items()]

    def cycles(self, more: int) -> None:
        """Wait for so many cycles from now on."""
        began = len(self.said("cycle"))

        def done() -> bool:
            assert self.process.poll() is None, self.path.read_text("utf-8", "replace")
            return len(self.said("cycle")) >= began + more

        wait_for(done)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


class Site:
    """One daemon, its jobs and its ledger."""

    def __init__(self, home: Path, backend: str) -> None:
        self.home, self.backend = home, backend
        home.chmod(0o777)
        self.state = home / "state"
        self.config = home / "config.toml"
        self.jobs: list[int] = []
        self.daemons: list[Running] = []
        self._settings: dict[str, dict[str, object]] = {
            "cycle": {"interval_s": 5},
            "daemon": {
                "backend": backend,
                "allow_version_mismatch": backend == "pyslurm",
                "state_dir": str(self.state),
                "jitter_s": 0,
            },
        }
        self.settings()

    # -- settings

    def settings(self, **sections: dict[str, object]) -> None:
        """Change the settings file, section by section."""
        for name, values in sections.items():
            self._settings.setdefault(name, {}).update(values)
        lines = []
        for name, values in self._settings.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.config.write_text("\n".join(lines) + "\n")

    def lever(self, kind: str) -> None:
        """The field that the daemon writes."""
        self.settings(lever={"kind": kind})

    # -- jobs

    def submit(self, *words: str, user: str = "alice", script: str = "sleep 900", gpus: int = 8) -> int:
        """A job of eight GPUs on n1."""
        said = run(
            "sbatch", "--parsable", "-o", "/dev/null", "-w", "n1", f"--gpus={gpus}", *words,
            "--wrap", script, user=user,
        )  # fmt: skip
        job = int(said.strip().split(";")[0])
        self.jobs.append(job)
        if any(word.startswith("--array") for word in words):
            # the scheduler looks at an array first
            wait_for(lambda: shown(job, "EligibleTime") != "Unknown")
        return job

    def block(self) -> int:
        """A job that holds all of n1, and runs."""
        job = self.submit("--exclusive", user="root")
        wait_for(lambda: shown(job, "JobState") == "RUNNING")
        return job

    def order(self) -> Callable[[], list[int]]:
        """A function that returns the jobs which ran `self.tell`, in the order in which they began."""
        path = self.home / "order"
        path.touch()
        path.chmod(0o666)
        return lambda: [int(word) for word in path.read_text().split()]

    @property
    def tell(self) -> str:
        """A script that notes its job's start, and ends."""
        return f"echo $SLURM_JOB_ID >> {self.home}/order"

    # -- the daemon

    def tias(self, *words: str, user: str = "", status: int | None = 0) -> Done:
        """A command of tias-slurm with this site's settings. `status`: that it must end with; None: any."""
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        argv = [*as_user, TIAS, words[0], "--config", str(self.config), *words[1:]]
        done = subprocess.run(argv, capture_output=True, timeout=240, check=False, text=True, cwd="/tmp")
        assert status is None or done.returncode == status, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def once(self, mode: str = "enforce", user: str = "", status: int | None = 0) -> Done:
        """One cycle."""
        return self.tias("once", "--mode", mode, "--json", user=user, status=status)

    def start(self, mode: str = "enforce", user: str = "") -> Running:
        """The daemon itself, after its first cycle."""
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        argv = [*as_user, TIAS, "run", "--config", str(self.config), "--mode", mode]
        self.daemons.append(Running(argv, self.home / f"log{len(self.daemons)}"))
        return self.daemons[-1]

    # -- the ledger

    def query(self, sql: str, *values: object, name: str = "ledger.sqlite") -> list[tuple[Any, ...]]:
        """Rows of the ledger."""
        with contextlib.closing(sqlite3.connect(self.state / name, timeout=10)) as db:
            return db.execute(sql, values).fetchall()

    def audit(self) -> int:
        """How many audit records there are."""
        return int(self.query("SELECT count(*) FROM audit")[0][0])

    def known(self, job: int, column: str) -> Any:
        """What the ledger knows of a job."""
        return self.query(f'SELECT "{column}" FROM job WHERE job_id = ?', job)[0][0]

    # -- the end

    def clean(self) -> None:
        """End all daemons and jobs."""
        for daemon in self.daemons:
            daemon.end(signal.SIGKILL)
        end_jobs(self.jobs)


def update(job: int | str, *changes: str, user: str = "") -> None:
    """scontrol update, by the job's owner or another user; "" for root."""
    run("scontrol", "update", f"JobId={job}", *changes, user=user)


def nice(job: int | str) -> int:
    """The nice of a job, as Slurm shows it."""
    return int(shown(job, "Nice"))


def priority(job: int | str) -> int:
    """The priority of a job, as Slurm shows it."""
    return int(shown(job, "Priority"))


def in_slurms_order(jobs: Sequence[int]) -> list[int]:
    """Waiting jobs as Slurm will look at them: by priority, then by id. In one look, for priorities move."""
    rows = run("squeue", "-h", "-o", "%A %Q", "--jobs", ",".join(map(str, jobs))).splitlines()
    seen = {int(job): int(value) for job, value in (row.split() for row in rows)}
    return sorted(jobs, key=lambda job: (-seen[job], job))


def site_factor(job: int) -> int:
    """The site factor of a waiting job, as soon as sprio shows the job."""
    wait_for(lambda: str(job) in run("sprio", "-h", "-o", "%i").split())
    return int(run("sprio", "-h", "-j", str(job), "-o", "%S").split()[0])


def lever_value(kind: str, job: int) -> int:
    """The field that a lever writes."""
    return {"nice": nice, "priority": priority, "site_factor": site_factor}[kind](job)


def updates() -> int:
    """How many updates of jobs slurmctld has been asked for since it began."""
    found = re.search(r"REQUEST_UPDATE_JOB .*?count:(\d+)", run("sdiag"))
    return int(found[1]) if found else 0


def reason(job: int) -> str:
    """Why a job waits."""
    return run("squeue", "-h", "-j", str(job), "-o", "%r").strip()


def saved(job: int) -> None:
    """Wait until slurmctld has saved the queue as it is now. It saves within seconds of a change, so it is
    given one of a job that nobody minds, again and again."""
    state, since = Path("/var/spool/slurmctld/job_state"), time.time()

    def once_more() -> bool:
        update(job, "Comment=saved")
        return state.stat().st_mtime > since + 1

    wait_for(once_more)


@contextlib.contextmanager
def controller_down(seconds: float) -> Iterator[None]:
    """slurmctld killed without a word, and started again after so many seconds."""
    pid = int(Path("/run/slurmctld.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    try:
        yield
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    finally:
        run("slurmctld")
        wait_for(nodes_answer)
