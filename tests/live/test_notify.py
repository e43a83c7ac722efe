"""Owners of jobs are told, on a real Slurm: in the job's output, and by MailProg; once a job and reason."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_bed import Site, update
from live_bed import CONF, run, shown, wait_for
from requeue_bed import YES, old_enough, on, requeues_on, restarts, state, urgent, waiting

BAD = "--comment=deadline=18:00"


def out(site: Site, name: str = "") -> list[str]:
    """Where a job writes, as options of sbatch."""
    return ["-o", f"{site.home}/out{name}", "-e", f"{site.home}/err{name}"]


def said(site: Site, name: str = "") -> list[str]:
    """What the job was told there."""
    path = site.home / f"err{name}"
    text = path.read_text("utf-8", "replace") if path.exists() else ""
    return [line.partition("tias-slurm: ")[2] for line in text.splitlines() if "tias-slurm: " in line]


def told(site: Site, job: int) -> list[tuple[str, str | None]]:
    """Reason and result of what the ledger keeps of a job."""
    return site.query("SELECT reason, result FROM notice WHERE job_id = ? ORDER BY reason", job)


def begins(site: Site, job: int) -> None:
    """Wait until a job runs, that may have been requeued: it would wait two minutes."""
    if restarts(job):
        update(job, "StartTime=now")
    wait_for(lambda: state(job) == "RUNNING")
    # its output is there
    old_enough(job, seconds=1)


@pytest.mark.core
def test_a_refused_claim_is_told_in_the_output_once_the_job_runs(site: Site) -> None:
    site.settings(notify={"how": "output"})
    block = site.block()
    job = waiting(site, BAD, "-w", "n1", *out(site))
    fine = waiting(site, "--comment=deadline=+3d", "-w", "n1", *out(site, "-fine"))
    site.once()
    site.once()
    assert told(site, job) == [("refused", None)]
    assert "waits until the job runs" in site.tias("history", str(job)).out
    run("scancel", str(block))
    begins(site, job)
    for _ in range(3):
        site.once()
    assert told(site, job) == [("refused", "sent")]
    wait_for(lambda: bool(said(site)))
    [line] = said(site)
    assert line.startswith(
        f"job {job}: deadline= in its comment is not taken: clock time only; write the date too"
    )
    assert f"tias-slurm explain {job}" in line
    # the whole message, and not twice
    assert len((site.home / "err").read_text().split("tias-slurm: job")) == 2
    assert (told(site, fine), said(site, "-fine")) == ([], [])
    [message] = site.tias("history", str(job), "--json").json["messages"]
    assert (message["reason"], message["how"], message["result"]) == ("refused", "output", "sent")
    assert site.tias("status", "--json", status=None).json["notify"]["day"] == {"sent": 1}


def test_a_job_that_ends_before_it_ran_is_told_nothing(site: Site) -> None:
    site.settings(notify={"how": "output"})
    site.block()
    job = waiting(site, BAD, "-w", "n1", *out(site))
    site.once()
    assert told(site, job) == [("refused", None)]
    run("scancel", str(job))
    site.once()
    assert told(site, job) == [("refused", "dropped")]
    assert said(site) == []


def test_an_impossible_claim(site: Site) -> None:
    site.settings(notify={"how": "output"})
    block = site.block()
    job = waiting(site, "--comment=deadline=+10s", "-w", "n1", *out(site))

    def hopeless() -> bool:
        site.once()
        return told(site, job) == [("impossible", None)]

    wait_for(hopeless)
    run("scancel", str(block))
    begins(site, job)
    site.once()
    site.once()
    wait_for(lambda: bool(said(site)))
    [line] = said(site)
    assert line.startswith(f"job {job}: its deadline ")
    assert "behind all other jobs" in line


@pytest.mark.core
def test_a_requeue_is_told_in_the_output_of_the_next_run_that_overwrites_the_first(site: Site) -> None:
    requeues_on(site, cooldown_s=0)
    site.settings(notify={"how": "output"})
    victim = on(site, "n1", YES, *out(site))
    job = urgent(site, "-w", "n1")
    old_enough(victim)
    assert site.once().json["requeues"] == 1
    wait_for(lambda: state(job) == "RUNNING" and restarts(victim) == 1)
    site.once()
    assert (told(site, victim), said(site)) == ([("requeue", None)], [])
    run("scancel", str(job))
    begins(site, victim)
    site.once()
    site.once()
    wait_for(lambda: bool(said(site)))
    [line] = said(site)
    assert line.startswith(f"job {victim} was stopped and put back into the queue")
    assert f"job {job}" not in line
    assert "bob" not in line
    # once a job and reason, also after a second requeue
    other = urgent(site, "-w", "n1")
    old_enough(victim)
    assert site.once().json["requeues"] == 1
    wait_for(lambda: state(other) == "RUNNING" and restarts(victim) == 2)
    run("scancel", str(other))
    begins(site, victim)
    site.once()
    site.once()
    assert (told(site, victim), said(site)) == ([("requeue", "sent")], [])


def test_nothing_when_off_or_out_of_scope_or_paused_or_dry(site: Site) -> None:
    job = on(site, "n1", BAD, *out(site))
    site.once()
    assert site.query("SELECT count(*) FROM notice") == [(0,)]
    site.settings(notify={"how": "output"}, scope={"not_users": ["alice"]})
    site.once()
    assert told(site, job) == []
    site.settings(scope={"not_users": []})
    site.tias("ignore", str(job))
    site.once()
    assert told(site, job) == []
    site.tias("unignore", str(job))
    site.tias("pause")
    site.once()
    assert told(site, job) == []
    site.tias("resume")
    done = site.once(mode="dry-run")
    [line] = [line for line in done.log if line["event"] == "would notify"]
    assert (line["job"], line["reason"], line["how"]) == (job, "refused", "output")
    assert site.once(mode="dry-run").log != []
    assert [x for x in site.once(mode="dry-run").log if x["event"] == "would notify"] == []
    assert said(site) == []
    site.once()
    assert told(site, job) == [("refused", "sent")]


def test_an_operator_may_not_write_into_outputs_and_everything_else_goes_on(site: Site) -> None:
    site.home.chmod(0o777)
    site.settings(notify={"how": "output"}, metrics={"textfile": str(site.home / "t.prom")})
    jobs = [on(site, "n1", BAD, *out(site), gpus=1) for _ in range(2)]
    daemon = site.start(user="tias")
    daemon.cycles(3)
    [line] = daemon.said("messages")
    assert "Invalid user id" in line["message"]
    # surely not sent: they wait for the right to
    assert [told(site, job) for job in jobs] == [[("refused", None)]] * 2
    assert 'result="no rights"' in (site.home / "t.prom").read_text()
    assert daemon.end() == 0
    assert said(site) == []
    site.once()
    assert [told(site, job) for job in jobs] == [[("refused", "sent")]] * 2


# ---- mail


RECORDS = """#!{python}
import json, os, sys
with open({path!r}, "a") as file:
    print(json.dumps([sys.argv[1:], sys.stdin.read(), dict(os.environ), os.getuid()]), file=file)
"""


class Program:
    """A MailProg of the test's."""

    def __init__(self, home: Path) -> None:
        self.path, self.log = home / "mailprog", home / "mails"
        self.write(RECORDS.format(python=sys.executable, path=str(self.log)))

    def write(self, text: str) -> None:
        """What it does from now on."""
        self.path.write_text(text)
        self.path.chmod(0o755)

    def mails(self) -> list[Any]:
        """Arguments, standard input, environment and uid of each call."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def program(site: Site) -> Iterator[Program]:
    """The site's MailProg, in slurm.conf."""
    made, before = Program(site.home), CONF.read_text()
    lines = [line for line in before.splitlines() if not line.startswith(("MailProg", "MailDomain"))]
    CONF.write_text("\n".join([*lines, f"MailProg={made.path}", "MailDomain=example.org"]) + "\n")
    try:
        run("scontrol", "reconfigure")
        wait_for(lambda: str(made.path) in run("scontrol", "show", "config"))
        yield made
    finally:
        CONF.write_text(before)
        run("scontrol", "reconfigure")
        wait_for(lambda: str(made.path) not in run("scontrol", "show", "config"))


@pytest.mark.core
def test_mail_of_a_refused_claim_at_once_and_once(site: Site, program: Program) -> None:
    site.settings(notify={"how": "mail"})
    site.block()
    mine = waiting(site, BAD, "-w", "n1")
    other = waiting(site, BAD, "-w", "n1", "--mail-user=bob@lab.example.org", "--mail-type=END")
    nasty = waiting(site, BAD, "-w", "n1", "--mail-user=-oops foo@bar,x", "--mail-type=END")
    for _ in range(2):
        site.once()
    mails = {int(env["SLURM_JOB_ID"]): (argv, body, env) for argv, body, env, _ in program.mails()}
    assert len(program.mails()) == len(mails) == 3
    argv, body, env = mails[mine]
    assert argv == [
        "-s",
        f"Slurm Job_id={mine} tias-slurm: a key in the comment is not taken",
        "alice@example.org",
    ]
    assert body.startswith(f"job {mine}: deadline= in its comment is not taken: clock time only;")
    assert env["SLURM_JOB_USER"] == "alice"
    assert mails[other][0][2] == "bob@lab.example.org"
    assert mails[nasty][0][2] == "alice@example.org"
    assert told(site, mine) == [("refused", "sent")]


def test_mail_by_an_operator_of_a_requeue_and_of_an_array(site: Site, program: Program) -> None:
    program.log.touch()
    program.log.chmod(0o666)
    requeues_on(site)
    site.settings(notify={"how": "mail"})
    victim = on(site, "n1", YES)
    job = urgent(site, "-w", "n1")
    array = waiting(site, BAD, "--array=0-3%1", "-w", "n2", gpus=1, script="sleep 1")
    old_enough(victim)
    daemon = site.start(user="tias")
    wait_for(lambda: restarts(victim) == 1)
    wait_for(lambda: shown(f"{array}_3", "JobState") == "COMPLETED")
    daemon.cycles(2)
    assert daemon.end() == 0
    assert sorted((m[0][1].split()[1], m[3]) for m in program.mails()) == sorted(
        (f"Job_id={j}", int(run("id", "-u", "tias"))) for j in (victim, array)
    )
    assert not any(f"job {job}" in m[1] or "bob" in m[1] for m in program.mails())


@pytest.mark.parametrize("fault", ["hangs", "fails", "missing"])
def test_a_mail_program_that_does_not_work_stops_nothing(site: Site, program: Program, fault: str) -> None:
    site.settings(notify={"how": "mail", "timeout_s": 12}, metrics={"textfile": str(site.home / "t.prom")})
    if fault == "missing":
        program.path.unlink()
    else:
        program.write(
            "#!/bin/sh\n" + ("sleep 300\n" if fault == "hangs" else "echo no such host >&2; exit 1\n")
        )
    site.block()
    job = waiting(site, BAD, "-w", "n1", "--nice=3")
    daemon = site.start()
    daemon.cycles(1)
    # cycles go on while it hangs
    assert max(line["seconds"] for line in daemon.said("cycle")) < 5
    word = {"hangs": "timed out", "fails": "failed", "missing": "no program"}[fault]
    wait_for(lambda: f'result="{word}"' in (site.home / "t.prom").read_text())
    daemon.cycles(1)
    assert all(line["result"] == "ok" for line in daemon.said("cycle"))
    assert daemon.end() == 0
    # what may have been sent is not sent again; what surely was not waits
    assert told(site, job) == [("refused", None if fault == "missing" else word)]


def test_a_daemon_that_is_killed_while_it_sends_does_not_send_again(site: Site, program: Program) -> None:
    site.settings(notify={"how": "mail", "timeout_s": 60})
    text = RECORDS.format(python=sys.executable, path=str(program.log))
    program.write(text + "import time; time.sleep(20)\n")
    site.block()
    job = waiting(site, BAD, "-w", "n1")
    daemon = site.start()
    wait_for(lambda: len(program.mails()) == 1)
    assert told(site, job) == [("refused", None)]
    daemon.end(9)
    program.write(text)
    site.once()
    site.once()
    assert len(program.mails()) == 1
    assert "not known" in site.tias("history", str(job)).out


def test_the_hours_limit(site: Site, program: Program) -> None:
    site.settings(notify={"how": "mail", "max_per_hour": 2})
    site.block()
    for _ in range(4):
        waiting(site, BAD, "-w", "n1")
    for _ in range(3):
        site.once()
    assert len(program.mails()) == 2
    site.settings(notify={"max_per_hour": 3})
    site.once()
    assert len(program.mails()) == 3
