"""The pyslurm adapter on a real Slurm with a real pyslurm: what can go wrong in between.

What both live adapters have to do is in test_contract_*.py. Runs inside a test cluster:
contrib/testbed/testbed exec -- python -m pytest tests/live/test_pyslurm.py
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import compress
from pathlib import Path

import numpy as np
import pytest
from live_bed import configured, end_jobs, frozen_controller, run, shown, wait_for

from tias_slurm.errors import InputError
from tias_slurm.slurm.choose import choose
from tias_slurm.slurm.command_queue import tasks_of
from tias_slurm.slurm.command_run import Runner
from tias_slurm.slurm.commands import CommandsAdapter
from tias_slurm.slurm.live import AdapterError, RawTable
from tias_slurm.slurm.pyslurm_adapter import PyslurmAdapter, Versions, installed_pyslurm, read_versions

Submit = Callable[..., int]
BUSY = "while :; do sleep 1; done"


def row(table: RawTable, job_id: int) -> int:
    at = int(np.searchsorted(table.job_id, job_id))
    assert table.job_id[at] == job_id
    return at


@pytest.fixture(scope="module")
def commands() -> CommandsAdapter:
    return CommandsAdapter()


@pytest.fixture(scope="module")
def adapter(commands: CommandsAdapter) -> Iterator[PyslurmAdapter]:
    made = PyslurmAdapter(commands, allow_version_mismatch=True)
    yield made
    made.close()


@pytest.fixture
def submit() -> Iterator[Submit]:
    """sbatch with the words given, then the script's text; the job's id. Ends them all afterwards."""
    ids: list[int] = []

    def one(*words: str | bytes, script: str = "sleep 300") -> int:
        said = run("sbatch", "--parsable", "-o", "/dev/null", *words, "--wrap", script)
        ids.append(int(said.strip().split(";")[0]))
        return ids[-1]

    yield one
    end_jobs(ids)


@pytest.fixture
def running(submit: Submit, adapter: PyslurmAdapter) -> Callable[..., int]:
    def one(*words: str, script: str = "sleep 300") -> int:
        job_id = submit(*words, script=script)
        wait_for(lambda: shown(job_id, "JobState") == "RUNNING")
        return job_id

    return one


# ---- zero, and the ends of the ranges ----


def test_a_zero_is_really_sent(adapter: PyslurmAdapter, submit: Submit) -> None:
    job_id = submit("--hold")
    for field, read in (
        ("nice", lambda: int(shown(job_id, "Nice"))),
        ("site_factor", lambda: adapter.site_factors()[job_id]),
    ):
        assert adapter.write(job_id, field, 50).result == "ok"  # type: ignore[arg-type]
        if field == "nice":
            assert read() == 50
            # what it is there for: pyslurm drops a number that is zero
            plain = f"import pyslurm; pyslurm.Job({job_id}).modify(pyslurm.JobSubmitDescription(nice=0))"
            run(sys.executable, "-c", plain)
            assert read() == 50
        assert adapter.write(job_id, field, 0).result == "ok"  # type: ignore[arg-type]
        if field == "nice":
            assert read() == 0


def test_a_zero_site_factor_is_seen_by_sprio(adapter: PyslurmAdapter, submit: Submit) -> None:
    job_id = submit("--begin=now+1hour", "--gpus=1")
    blocked = submit("-N8", "--exclusive", "--dependency=singleton", "--gpus=64")
    for value in (900, 0, -7):
        assert adapter.write(blocked, "site_factor", value).result == "ok"
        assert adapter.write(job_id, "site_factor", value).result == "ok"
        factors = adapter.site_factors()
        for one in (job_id, blocked):
            assert factors.get(one, value) == value


def test_values_are_clamped_and_never_hold(adapter: PyslurmAdapter, submit: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    for value, stands in ((2**31, 2**31 - 3), (-(2**40), -(2**31) + 3), (2**63, 2**31 - 3), (3, 3)):
        assert adapter.write(job_id, "nice", value).result == "ok"
        assert int(shown(job_id, "Nice")) == stands
    for value, stands in ((0, 1), (-5, 1), (2**32 - 1, 2**32 - 3), (7777, 7777)):
        assert adapter.write(job_id, "priority", value).result == "ok"
        assert int(shown(job_id, "Priority")) == stands
    assert "Held" not in shown(job_id, "Reason")


# ---- what users write ----


def test_any_bytes_in_a_comment(adapter: PyslurmAdapter, submit: Submit) -> None:
    comments = [b"caf\xe9 deadline=+3h", b"\xff\xfe|\x1f", "zeit=früh\tja".encode(), b"None", b"'; $(x)\n%s"]
    ids = [submit("--hold", b"--comment=" + raw, b"--job-name=j\xe9") for raw in comments]
    table = adapter.jobs()
    got = [table.comment[row(table, job_id)] for job_id in ids]
    assert got == [raw.decode("utf-8", "replace") for raw in comments]
    assert table.refused == 0
    assert adapter.repaired_texts >= 2


def test_both_adapters_see_the_same_queue(
    adapter: PyslurmAdapter, commands: CommandsAdapter, submit: Submit, running: Callable[..., int]
) -> None:
    running("--gpus=2", "-t", "30", "--comment=deadline=+3h")
    running("-N2", "--gpus-per-node=1", "--no-requeue")
    done = submit(script="true")
    submit("--array=0-5%2", "--gpus=1", "--begin=now+1hour")
    running("--array=0-1", "--gpus=1")
    held = submit("--hold", "--nice=77", "-p", "gpu,debug", "-t", "2-0")
    submit(f"--dependency=afterok:{held}", "--gpus=3", "--mem=3G", "-n", "5")
    submit("--hold", "--gpus=1", ":", "--cpus-per-task=2")
    # records that ended without nodes, and what a controller that starts anew makes of them
    again = running("--array=0-1", "--gpus=1", "--requeue")
    run("scontrol", "requeue", f"{again}_0")
    wait_for(lambda: shown(f"{again}_0", "JobState") == "PENDING")
    split = submit("--array=0-2", "--gpus=2", "--hold")
    run("scontrol", "update", f"JobId={split}_0", "Nice=4")
    end_jobs([again, split])
    with configured():
        pass
    wait_for(lambda: shown(done, "JobState") == "COMPLETED")
    ours, theirs = adapter.jobs(), commands.jobs()
    assert len(ours) > 8
    assert abs(ours.time - theirs.time) < 3.0
    for name in RawTable.__dataclass_fields__:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if name == "suspended_s":
            np.testing.assert_allclose(mine, other, atol=2.0)
        elif name == "array_task":
            waits = [state == "PENDING" and t != "" for state, t in zip(ours.state, mine, strict=True)]
            for one, another in zip(compress(mine, waits), compress(other, waits), strict=True):
                assert tasks_of(one) == tasks_of(another)
        elif name in ("mem_mb", "gpu_type"):
            # of a record that ended without nodes under an earlier slurmctld squeue does not tell the memory
            # that it asked for, and pyslurm not the type of its GPUs
            held = [
                state == "PENDING" or n != "" for state, n in zip(ours.state, ours.node_list, strict=True)
            ]
            np.testing.assert_array_equal(
                list(compress(mine, held)), list(compress(other, held)), err_msg=name
            )
        elif name != "time":
            np.testing.assert_array_equal(mine, other, err_msg=name)


def test_the_state_behind_completing(adapter: PyslurmAdapter, running: Callable[..., int]) -> None:
    stubborn = "trap '' TERM; touch /tmp/trap-$SLURM_JOB_ID; " + BUSY
    cancelled, requeued = running(script=stubborn), running(script=stubborn)
    wait_for(lambda: all(Path(f"/tmp/trap-{job_id}").exists() for job_id in (cancelled, requeued)))
    run("scancel", str(cancelled))
    assert adapter.requeue(requeued).result == "ok"
    table = adapter.jobs()
    assert [table.flags[row(table, i)] for i in (cancelled, requeued)] == ["COMPLETING"] * 2
    # how it ended is known when its processes are gone, that it has ended at once
    assert table.state[row(table, cancelled)] in ("CANCELLED", "COMPLETED")
    assert table.state[row(table, requeued)] == "PENDING"
    assert table.restarts[row(table, requeued)] == 1


def test_suspended_seconds(adapter: PyslurmAdapter, running: Callable[..., int]) -> None:
    job_id = running()
    began = time.time()
    run("scontrol", "suspend", str(job_id))
    wait_for(lambda: time.time() > began + 3)
    table = adapter.jobs()
    assert table.state[row(table, job_id)] == "SUSPENDED"
    # both ends are whole seconds of Slurm's
    assert 2.0 <= table.suspended_s[row(table, job_id)] <= time.time() - began + 3
    run("scontrol", "resume", str(job_id))
    table = adapter.jobs()
    before = table.suspended_s[row(table, job_id)]
    assert table.state[row(table, job_id)] == "RUNNING"
    assert 2.0 <= before <= time.time() - began + 3
    resumed = time.time()
    wait_for(lambda: time.time() > resumed + 2)  # and now it stands still
    table = adapter.jobs()
    assert table.suspended_s[row(table, job_id)] == before


# ---- single writes ----


def test_errors_by_number(adapter: PyslurmAdapter, submit: Submit) -> None:
    unknown = adapter.write(66_000_000, "nice", 1)
    assert (unknown.result, unknown.code) == ("gone", 2017)
    done = submit(script="true")
    wait_for(lambda: shown(done, "JobState") == "COMPLETED")
    assert adapter.write(done, "nice", 1).result == "gone"
    held = submit("--hold")
    refused = adapter.write(held, "priority", 100)
    assert (refused.result, refused.code) == ("refused", 2042)
    assert int(shown(held, "Priority")) == 0


def test_without_rights(submit: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    code = (
        "from tias_slurm.slurm.commands import CommandsAdapter as C\n"
        "from tias_slurm.slurm.pyslurm_adapter import PyslurmAdapter as P\n"
        "p = P(C(), allow_version_mismatch=True)\n"
        f"print(p.write({job_id}, 'nice', -5).result, p.write({job_id}, 'priority', 9).result, sep='|')\n"
        "p.close()\n"
    )
    words = ["setpriv", "--reuid=alice", "--regid=alice", "--init-groups", sys.executable, "-c", code]
    assert run(*words).strip() == "no rights|no rights"
    assert shown(job_id, "Nice") == "0"


def test_unpin_frees_only_what_is_pinned_and_waits(
    adapter: PyslurmAdapter, submit: Submit, running: Callable[..., int]
) -> None:
    job_id = submit("--gpus=64", "-N8", "--begin=now+1hour")
    before = int(shown(job_id, "Priority"))
    assert adapter.write(job_id, "priority", 4242).result == "ok"
    assert adapter.unpin(job_id).result == "ok"
    assert int(shown(job_id, "Priority")) != 4242
    assert before >= 0
    held = submit("--hold")
    assert adapter.unpin(held).result == "refused"
    assert shown(held, "Priority") == "0"
    assert adapter.unpin(running()).result == "ok"  # a running job can be pinned as well
    assert adapter.unpin(66_000_000).result == "gone"


def test_requeue_never_runs_an_ended_job_again(
    adapter: PyslurmAdapter, submit: Submit, running: Callable[..., int]
) -> None:
    done, waits, runs = submit(script="true"), submit("--hold"), running()
    wait_for(lambda: shown(done, "JobState") == "COMPLETED")
    assert adapter.requeue(done).result == "gone"
    assert (shown(done, "JobState"), shown(done, "Restarts")) == ("COMPLETED", "0")
    assert adapter.requeue(waits).result == "refused"
    assert adapter.requeue(66_000_000).result == "gone"
    assert adapter.requeue(runs).result == "ok"
    assert shown(runs, "Restarts") == "1"


def test_requeue_of_the_last_task_of_an_array_leaves_the_others(
    adapter: PyslurmAdapter, submit: Submit
) -> None:
    array = submit("--array=0-2")

    def all_run() -> bool:
        table = adapter.jobs()
        mine = table.array_id == array
        return [s for s, m in zip(table.state, mine, strict=True) if m] == ["RUNNING"] * 3

    wait_for(all_run)
    assert adapter.requeue(array).result == "ok"  # the record that bears the array's own id
    table = adapter.jobs()
    restarts = {
        int(i): int(table.restarts[row(table, int(i))]) for i in table.job_id[table.array_id == array]
    }
    assert restarts[array] == 1
    assert sum(restarts.values()) == 1


# ---- the worker ----


def test_a_killed_worker_is_replaced(adapter: PyslurmAdapter, submit: Submit) -> None:
    job_id = submit("--hold")
    adapter.jobs()
    first = adapter.worker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with pytest.raises(AdapterError) as caught:
        adapter.jobs()
    assert caught.value.retry
    table = adapter.jobs()
    assert adapter.worker.pid != first
    assert table.state[row(table, job_id)] == "PENDING"


def test_a_controller_that_does_not_answer(commands: CommandsAdapter, submit: Submit) -> None:
    job_id = submit("--hold")
    impatient = PyslurmAdapter(commands, allow_version_mismatch=True, call_limit_s=2.0)
    impatient.jobs()
    pid = impatient.worker.pid
    assert pid is not None
    with frozen_controller():
        begin = time.monotonic()
        with pytest.raises(AdapterError) as caught:
            impatient.jobs()
        assert caught.value.retry
        assert time.monotonic() - begin < 30.0
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    wait_for(lambda: shown(job_id, "JobState") == "PENDING")
    assert impatient.write(job_id, "nice", 9).result == "ok"
    assert shown(job_id, "Nice") == "9"
    impatient.close()


def test_no_slurm_conf_ends_the_worker_not_us(
    commands: CommandsAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/nonexistent/slurm.conf")
    fits = Versions("25.11.0", "25.11.0", "25.11.0")
    lost = PyslurmAdapter(commands, start_limit_s=8.0, versions=lambda: fits)
    begin = time.monotonic()
    with pytest.raises(AdapterError, match="worker") as caught:
        lost.facts()
    assert caught.value.retry
    assert time.monotonic() - begin < 60.0
    assert lost.worker.pid is None


def test_a_worker_ends_with_its_daemon() -> None:
    code = (
        "import time\n"
        "from tias_slurm.slurm.commands import CommandsAdapter as C\n"
        "from tias_slurm.slurm.pyslurm_adapter import PyslurmAdapter as P\n"
        "p = P(C(), allow_version_mismatch=True)\n"
        "p.facts()\n"
        "print(p.worker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    daemon = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert daemon.stdout is not None
    worker = int(daemon.stdout.readline())
    daemon.kill()
    daemon.wait(10)

    def ended() -> bool:
        try:
            return Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    wait_for(ended)
    daemon.stdout.close()


# ---- versions and the choice ----


def test_versions_are_read_without_pyslurm(commands: CommandsAdapter) -> None:
    versions = read_versions(commands, Runner(20.0))
    assert versions.pyslurm == installed_pyslurm()
    assert re.fullmatch(r"\d\d\.\d\d\.\d+.*", versions.libslurm)
    assert versions.controller == commands.facts().version
    assert "pyslurm" not in sys.modules


def test_the_choice_says_why(commands: CommandsAdapter) -> None:
    problem = read_versions(commands, Runner(20.0)).problem()
    found, why = choose("auto")
    assert found.name == ("commands" if problem else "pyslurm")
    assert problem in why
    found.close()
    found, why = choose("auto", allow_version_mismatch=True)
    assert found.name == "pyslurm"
    assert problem in why
    assert found.facts().version == commands.facts().version
    found.close()
    if problem:
        with pytest.raises(InputError, match="allow_version_mismatch"):
            choose("pyslurm")
        strict = PyslurmAdapter(commands)
        with pytest.raises(AdapterError, match=re.escape(problem)) as caught:
            strict.jobs()
        assert not caught.value.retry
        assert strict.worker.pid is None
