"""The job scripts of docs/sbatch-examples.md, as a user who copies them: run, requeued, gone on with."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from daemon_bed import Site, update
from live_bed import run, shown, wait_for
from requeue_bed import restarts, state

from tias_slurm.config import machine_zone
from tias_slurm.deadlines import Claim, read_comment

PAGE = (Path(__file__).parents[2] / "docs" / "sbatch-examples.md").read_text(encoding="utf-8")
# a training that runs until it is told to save itself, and ends once it went on from what it saved
TRAIN = """
import pathlib, sys, time
words = sys.argv[1:]
given = dict(zip(words[::2], words[1::2]))
if "--resume" in given:
    sys.exit(print("went on from", given["--resume"]))
if "--checkpoints" not in given:
    sys.exit(print("trained", *words))
print("began", flush=True)
room = pathlib.Path(given["--checkpoints"])
while True:
    if (room / "save-now").exists():
        (room / "1.pt").touch()
        (room / "save-now").unlink()
        print("saved", flush=True)
    time.sleep(0.1)
"""


def script(site: Site, heading: str) -> Path:
    """The script below a heading of the page, beside a train.py, where alice may write."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    file = site.home / "job.sh"
    file.write_text(part.split("```bash\n")[1].split("```")[0])
    (site.home / "train.py").write_text(TRAIN)
    return file


def submit(site: Site, heading: str) -> int:
    # the test bed says where output goes, which no script can change
    words = ["env", "-u", "SBATCH_OUTPUT", "sbatch", "--parsable", f"--chdir={site.home}"]
    words.append(str(script(site, heading)))
    job = int(run(*words, user="alice").strip().partition(";")[0])
    site.jobs.append(job)
    return job


def output(site: Site, name: str) -> str:
    file = site.home / name
    return file.read_text("utf-8", "replace") if file.exists() else ""


def claim(job: int | str) -> Claim:
    """What the daemon reads in the comment that Slurm has; nothing of it refused."""
    found = read_comment(shown(job, "Comment"), first_submit=0.0, zone=machine_zone())
    assert found.refusals == ()
    return found


def ends(job: int | str) -> None:
    wait_for(lambda: state(job) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"))
    assert state(job) == "COMPLETED"


def requeued(job: int) -> None:
    """Requeued as the daemon does it, and started at once instead of after two minutes."""
    run("scontrol", "requeue", "Incomplete", str(job))
    wait_for(lambda: restarts(job) == 1 and state(job) == "PENDING")
    update(job, "StartTime=now")


def test_only_a_deadline(site: Site) -> None:
    job = submit(site, "Only a deadline")
    ends(job)
    assert claim(job) == Claim(deadline=36 * 3600.0, relative=True)
    assert output(site, f"train-{job}.out") == "trained\n"


@pytest.mark.core
def test_it_goes_on_from_its_checkpoint(site: Site) -> None:
    job = submit(site, "Goes on from its checkpoint")
    said = claim(job)
    assert (said.requeue, said.checkpoint_s, shown(job, "Requeue")) == (True, 900.0, "1")
    out = f"train-{job}.out"
    wait_for(lambda: "began" in output(site, out))
    saved = f"checkpoints/{job}/7.pt"
    run("touch", f"{site.home}/{saved}", user="alice")
    requeued(job)
    ends(job)
    # the first run's output is still there
    assert output(site, out).startswith("began\n")
    assert output(site, out).endswith(f"went on from {saved}\n")


def test_it_saves_itself_when_it_is_told(site: Site) -> None:
    job = submit(site, "Saves itself when it is told")
    assert claim(job).warning == ("USR1", 120.0)
    out = f"train-{job}.out"
    wait_for(lambda: "began" in output(site, out))
    # the second signal finds it waiting as the first did
    for times in (1, 2):
        run("scancel", "--signal=USR1", "--batch", str(job))
        wait_for(lambda times=times: output(site, out).count("saved") == times)  # type: ignore[misc]
        assert state(job) == "RUNNING"
    requeued(job)
    ends(job)
    assert output(site, out).endswith(f"went on from checkpoints/{job}/1.pt\n")


def test_an_array(site: Site) -> None:
    job = submit(site, "An array")
    ends(f"{job}_3")
    assert (claim(f"{job}_3").deadline, claim(f"{job}_3").requeue) == (3 * 86_400.0, True)
    assert output(site, f"sweep-{job}_3.out") == "trained --seed 3\n"


def test_interactive(site: Site) -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith("    salloc ")]
    words = [*shlex.split(line), "scontrol", "-o", "show", "job"]
    as_alice = ["setpriv", "--reuid=alice", "--regid=alice", "--init-groups"]
    done = subprocess.run(
        [*as_alice, *words], capture_output=True, text=True, timeout=120, check=False, cwd="/tmp"
    )
    assert done.returncode == 0, done.stderr
    job = int(re.findall(r"job allocation (\d+)", done.stderr)[0])
    assert f"JobId={job} " in done.stdout
    assert claim(job).deadline == 4 * 3600.0
    # as the page says of those
    assert " BatchFlag=0 " in next(row for row in done.stdout.splitlines() if f"JobId={job} " in row)


def test_a_comment_of_sbatch_replaces_that_of_the_script(site: Site) -> None:
    file = script(site, "Goes on from its checkpoint")
    words = ["sbatch", "--parsable", "--hold", f"--chdir={site.home}", "--comment=deadline=+2d", str(file)]
    job = int(run(*words, user="alice").strip().partition(";")[0])
    site.jobs.append(job)
    assert claim(job) == Claim(deadline=2 * 86_400.0, relative=True)
