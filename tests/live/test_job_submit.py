"""contrib/job_submit/tias.lua in slurmctld: what users are told, and that it stops nobody."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from live_bed import CONF, configured, end_jobs, run, shown, wait_for

from tias_slurm.config import machine_zone
from tias_slurm.deadlines import Limits, admit, read_comment
from tias_slurm.lua_settings import lua_settings
from tias_slurm.settings import Deadlines

CHECKOUT = Path(__file__).parents[2]
SCRIPT = CHECKOUT / "contrib" / "job_submit" / "tias.lua"
PLUGIN = CONF.with_name("job_submit.lua")
SETTINGS = CONF.with_name("tias_settings.lua")
TABLE = json.loads((CHECKOUT / "tests" / "comments_table.json").read_text(encoding="utf-8"))
TEXTS = [
    *(f"deadline={value}" for value, _ in TABLE["forms"] + TABLE["refusals"]),
    *(text for text in TABLE["no_deadline"] if text),
    *(text for text, _ in TABLE["comments"]),
]
jobs: list[int] = []


def install(text: str) -> None:
    """Another job_submit.lua; slurmctld looks at its time, in whole seconds, before each call."""
    PLUGIN.write_text(text)
    later = int(time.time()) + len(jobs) + 5
    subprocess.run(["touch", f"--date=@{later}", str(PLUGIN)], check=True)


@pytest.fixture(scope="module", autouse=True)
def plugin() -> Iterator[None]:
    shutil.copyfile(SCRIPT, PLUGIN)
    try:
        with configured("JobSubmitPlugins=lua"):
            yield
    finally:
        end_jobs(jobs)
        PLUGIN.unlink()
        SETTINGS.unlink(missing_ok=True)


def submit(comment: str, *options: str, user: str = "alice") -> tuple[int, list[str]]:
    """sbatch of a held job as a user: the job (0: not taken) and what sbatch said beside it."""
    words = f"setpriv --reuid={user} --regid={user} --init-groups sbatch --parsable --hold --wrap true"
    done = subprocess.run(
        [*words.split(), *options, "--comment", comment],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/tmp",
    )
    assert (done.returncode == 0) == bool(done.stdout.strip()), done.stderr
    job = int(done.stdout.partition(";")[0] or 0)
    if job:
        jobs.append(job)
    return job, [line.removeprefix("sbatch: ") for line in done.stderr.splitlines()]


def expected(comment: str, now: float, zone: ZoneInfo) -> list[str]:
    claim = read_comment(comment, first_submit=now, zone=zone)
    past = claim.deadline is not None and admit(claim.deadline, first_submit=now, limits=Limits())
    refusals = [*([past] if past else []), *claim.refusals]
    return [f"{r.key}= in the comment is not taken: {r.text}" for r in refusals]


@pytest.mark.core
def test_each_comment_is_judged_as_the_daemon_does() -> None:
    zone = machine_zone()
    for text in TEXTS:
        job, said = submit(text)
        assert job, text
        assert said == expected(text, time.time(), zone), text


@pytest.mark.smoke
def test_a_bad_one_is_told_and_taken_and_the_comment_left_alone() -> None:
    job, said = submit("deadline=18:00,x=1")
    assert said == ["deadline= in the comment is not taken: write the date too: deadline=2026-12-01T18:00"]
    assert shown(job, "Comment") == "deadline=18:00,x=1"
    assert submit("deadline=+36h")[1] == []


def test_a_change_is_judged_too() -> None:
    job, _ = submit("deadline=+36h")

    def change(comment: str) -> str:
        done = subprocess.run(
            ["scontrol", "update", f"JobId={job}", f"Comment={comment}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stderr

    version = re.search(r"(\d+)\.(\d+)", run("scontrol", "--version"))
    assert version
    told = change("deadline=+48")
    # before 23.02 slurmctld keeps what a script says at a change
    if (int(version[1]), int(version[2])) >= (23, 2):
        assert "write a whole number with a unit: deadline=+36h" in told
    assert change("deadline=+48h") == ""
    run("scontrol", "update", f"JobId={job}", "Nice=-5")  # as the daemon writes
    assert shown(job, "Nice") == "-5"


@pytest.mark.smoke
def test_who_may_not_is_told_at_submit() -> None:
    """With the settings of `show-config --lua`, and Slurm's own defaults where a job names nothing."""
    no = "deadline= in the comment is not taken: this site takes no deadlines from this {}; leave it out"

    def site(**lists: tuple[str, ...]) -> None:
        SETTINGS.write_text(lua_settings(Deadlines(**lists), ""))
        install(SCRIPT.read_text())

    # alice is in a1 by default, bob in a1 and a2; gpu is the default partition and normal the default QOS
    site(accounts=("a2",))
    assert submit("deadline=+1h")[1] == [no.format("account")]
    assert submit("deadline=+1h", "--account=a1", user="bob")[1] == [no.format("account")]
    job, said = submit("deadline=+1h", "--account=a2", user="bob")
    assert said == []
    assert submit("x=1")[1] == submit("requeue=yes")[1] == []
    site(qos=("high",))
    assert submit("deadline=+1h")[1] == submit("deadline=+1h", "--qos=normal")[1] == [no.format("QOS")]
    site(qos=("normal",))
    assert submit("deadline=+1h")[1] == submit("deadline=+1h", "--qos=normal")[1] == []
    site(partitions=("gpu",))
    assert submit("deadline=+1h")[1] == submit("deadline=+1h", "--partition=gpu")[1] == []
    for others in ("debug", "gpu,debug"):
        assert submit("deadline=+1h", f"--partition={others}")[1] == [no.format("partition")]
    site(partitions=("debug",))
    assert submit("deadline=+1h")[1] == [no.format("partition")]
    site(users=("alice",))
    assert submit("deadline=+1h")[1] == []
    assert submit("deadline=+1h", user="bob")[1] == [no.format("user")]
    # a change, of the job as it is: told from 23.02 on, refused on all
    site(users=("alice",), partitions=("gpu",))
    install(f"dofile('{SCRIPT}')\ntias_slurm.settings.refuse = true\nreturn slurm.SUCCESS\n")
    for who, taken in ((job, False), (submit("x=1")[0], True)):
        done = subprocess.run(
            ["scontrol", "update", f"JobId={who}", "Comment=deadline=+2h"],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode == 0) == taken, done.stderr
    # a file of settings that Lua cannot read is none
    SETTINGS.write_text("tias_slurm.settings.users = {")
    install(SCRIPT.read_text())
    assert submit("deadline=+1h", user="bob")[1] == []
    assert len(submit("deadline=18:00")[1]) == 1
    SETTINGS.unlink()


def test_a_site_may_refuse() -> None:
    install(f"dofile('{SCRIPT}')\ntias_slurm.settings.refuse = true\nreturn slurm.SUCCESS\n")
    job, said = submit("deadline=18:00")
    assert not job
    assert any("write the date too" in line for line in said)
    assert submit("deadline=+36h")[0]
    assert submit("requeue=maybe")[0]


@pytest.mark.core
def test_a_fault_stops_nobody() -> None:
    install(
        f"dofile('{SCRIPT}')\n"
        "tias_slurm.settings.refuse = true\n"
        "tias_slurm.read = function() error('broken by the test') end\n"
        "return slurm.SUCCESS\n"
    )
    job, said = submit("deadline=18:00")
    assert job
    assert said == []
    log = Path("/var/log/slurm/slurmctld.log")
    wait_for(lambda: "broken by the test" in log.read_text("utf-8", "replace"))
