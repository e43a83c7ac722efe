"""What every live adapter writes, and is refused, on a real Slurm. `live.Adapter` is the contract.

contrib/testbed/testbed exec -- python -m pytest tests/live/test_contract_writes.py
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import contract_bed
import pytest
from adapters import ADAPTERS
from contract_bed import UNKNOWN_JOB, Submit, records, state_of
from live_bed import (
    configured,
    end_jobs,
    frozen_controller,
    has_accounting,
    left_out,
    python,
    row,
    run,
    shown,
    wait_for,
)

from tias_slurm.slurm.live import PRIORITY_UNKNOWN, Adapter, AdapterError

adapter = contract_bed.adapter
submit = contract_bed.submit
running = contract_bed.running
completed = contract_bed.completed


def test_nice_and_its_zero(adapter: Adapter, submit: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    for value in (50, 0, -7, 0):
        assert adapter.write(job_id, "nice", value).result == "ok"
        assert row(adapter.jobs(), job_id)["nice"] == value
        assert shown(job_id, "Nice") == str(value)


def test_site_factor_and_its_zero(adapter: Adapter, submit: Submit, running: Submit) -> None:
    # sprio shows a job that is eligible and cannot start
    every = f"-N{len(adapter.nodes().name)}"
    running(every, "--exclusive")
    job_id = submit(every, "--exclusive")
    for value in (900, 0, -30):
        assert adapter.write(job_id, "site_factor", value).result == "ok"
        wait_for(lambda value=value: adapter.site_factors().get(job_id) == value)  # type: ignore[misc]


def test_values_are_clamped_and_priority_is_never_zero(adapter: Adapter, submit: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    for asked, stands in ((2**31, 2**31 - 3), (-(2**40), -(2**31) + 3), (2**63, 2**31 - 3)):
        assert adapter.write(job_id, "nice", asked).result == "ok"
        assert row(adapter.jobs(), job_id)["nice"] == stands
    for asked, stands in ((0, 1), (-5, 1), (2**32 - 1, 2**32 - 3), (2**32 - 2, 2**32 - 3), (777, 777)):
        assert adapter.write(job_id, "priority", asked).result == "ok"
        assert row(adapter.jobs(), job_id)["priority"] == stands
    assert row(adapter.jobs(), job_id)["reason"] != "JobHeldAdmin"
    assert adapter.write(job_id, "site_factor", 2**40).result == "ok"


def test_held_jobs_stay_held(adapter: Adapter, submit: Submit) -> None:
    job_id = submit("--hold")
    assert adapter.write(job_id, "nice", -5).result == "ok"
    refused = adapter.write(job_id, "priority", 100)
    assert refused.result == "refused"
    assert "held" in refused.message.lower()
    assert adapter.unpin(job_id).result == "refused"
    assert shown(job_id, "Priority") == "0"
    assert shown(job_id, "Nice") == "-5"


def test_the_waiting_tasks_of_an_array_are_one_record(adapter: Adapter, submit: Submit) -> None:
    array = submit("--array=0-9%2", "--gpus=1")
    wait_for(lambda: len(records(adapter.jobs(), array)) == 3)
    before = records(adapter.jobs(), array)
    assert adapter.write(array, "nice", 44).result == "ok"
    table = adapter.jobs()
    assert records(table, array) == before  # nothing was split
    assert {task: int(row(table, i)["nice"]) for task, i in before.items()} == {"0": 0, "1": 0, "2-9": 44}
    assert adapter.write(before["1"], "nice", 3).result == "ok"
    table = adapter.jobs()
    assert {task: int(row(table, i)["nice"]) for task, i in before.items()} == {"0": 0, "1": 3, "2-9": 44}
    assert adapter.write(array, "priority", 5000).result == "ok"
    assert row(adapter.jobs(), array)["priority"] == 5000
    assert adapter.unpin(array).result == "ok"
    assert row(adapter.jobs(), array)["priority"] != 5000
    assert records(adapter.jobs(), array) == before


def test_an_array_that_moved_on_since_it_was_read(adapter: Adapter, submit: Submit) -> None:
    array = submit("--array=0-5", "--hold")
    adapter.jobs()
    run("scancel", f"{array}_[1,3]")
    assert adapter.write(array, "nice", 9).result == "ok"
    assert row(adapter.jobs(), array)["nice"] == 9
    adapter.jobs()
    run("scancel", str(array))
    assert adapter.write(array, "nice", 8).result == "gone"


def test_a_first_write_without_a_look_at_the_queue(adapter: Adapter, submit: Submit) -> None:
    array = submit("--array=0-3", "--hold")
    run("scontrol", "update", f"JobId={array}_2", "Nice=1")
    fresh = ADAPTERS[adapter.name](60.0)
    assert fresh.write(array, "nice", 21).result == "ok"
    fresh.close()
    table = adapter.jobs()
    assert {task: int(row(table, i)["nice"]) for task, i in records(table, array).items()} == {
        "0-1,3": 21,
        "2": 1,
    }


def test_unpin(adapter: Adapter, submit: Submit, running: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    eligible = row(adapter.jobs(), job_id)["eligible"]
    assert adapter.write(job_id, "priority", 4242).result == "ok"
    assert adapter.unpin(job_id).result == "ok"
    one = row(adapter.jobs(), job_id)
    assert one["priority"] not in (4242, 0, PRIORITY_UNKNOWN)
    assert one["eligible"] == eligible
    started = running()
    assert adapter.write(started, "priority", 4242).result == "ok"
    assert adapter.unpin(started).result == "ok"
    assert row(adapter.jobs(), started)["priority"] not in (4242, 0)
    assert adapter.unpin(UNKNOWN_JOB).result == "gone"


def test_gone(adapter: Adapter, completed: int) -> None:
    for job_id in (UNKNOWN_JOB, completed):
        assert adapter.write(job_id, "nice", 1).result == "gone"
        assert adapter.unpin(job_id).result == "gone"
        assert adapter.requeue(job_id).result == "gone"


def test_a_site_that_says_no(adapter: Adapter, submit: Submit) -> None:
    job_id, array = submit("--begin=now+1hour"), submit("--hold", "--array=0-3")
    adapter.jobs()
    Path("/etc/slurm/job_submit.lua").write_text(
        "function slurm_job_submit(d, p, u) return slurm.SUCCESS end\n"
        'function slurm_job_modify(d, r, p, u) slurm.log_user("our site says no") return slurm.ERROR end\n'
    )
    with configured("JobSubmitPlugins=lua"):
        for one in (job_id, array):
            refused = adapter.write(one, "nice", 5)
            assert refused.result == "refused"
            assert refused.message
    assert row(adapter.jobs(), job_id)["nice"] == 0


def test_scrontab(adapter: Adapter) -> None:
    if shutil.which("scrontab") is None:
        pytest.skip("Debian's packages of this release have no scrontab")
    if "enable" not in run("scontrol", "show", "config").split("ScronParameters")[1].splitlines()[0]:
        left_out("needs a cluster that was brought up with --conf ScronParameters=enable")
    subprocess.run(["scrontab", "-"], input=b"0 0 1 1 * true\n", check=True)
    try:
        job_id = int(run("squeue", "-h", "-u", "root", "-n", "true", "-t", "PD", "-o", "%A"))
        knows = adapter.name == "pyslurm" or adapter.facts().version >= "26"
        assert bool(row(adapter.jobs(), job_id)["cron"]) == knows
        assert adapter.write(job_id, "nice", 5).result == "refused"
    finally:
        subprocess.run(["scrontab", "-r"], check=True)


def test_without_rights(adapter: Adapter, submit: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    code = (
        "from adapters import ADAPTERS\n"
        f"a = ADAPTERS[{adapter.name!r}](30.0)\n"
        f"print(*(a.write({job_id}, f, 9).result for f in ('nice', 'priority', 'site_factor')), sep='|')\n"
        "a.close()\n"
    )
    assert python(code, user="alice").strip() == "no rights|no rights|no rights"
    assert row(adapter.jobs(), job_id)["nice"] == 0


def test_an_operator_may(adapter: Adapter, submit: Submit) -> None:
    if not has_accounting():
        left_out("this cluster has no slurmdbd")
    job_id = submit("--begin=now+1hour")
    code = (
        "from adapters import ADAPTERS\n"
        f"a = ADAPTERS[{adapter.name!r}](30.0)\n"
        f"print(*(a.write({job_id}, f, 9).result for f in ('nice', 'site_factor', 'priority')), sep='|')\n"
        f"print(a.unpin({job_id}).result)\na.close()\n"
    )
    assert python(code, user="tias").split() == ["ok|ok|ok", "ok"]


def test_requeue(adapter: Adapter, running: Submit) -> None:
    job_id = running("--gpus=1", "--nice=5")
    before = row(adapter.jobs(), job_id)
    assert adapter.requeue(job_id).result == "ok"
    one = row(adapter.jobs(), job_id)
    assert (one["state"], one["restarts"], one["nice"]) == ("PENDING", 1, 5)
    assert one["submit"] >= before["submit"]
    assert adapter.requeue(running("--no-requeue")).result == "refused"


def test_a_requeue_leaves_ended_jobs_alone(adapter: Adapter, completed: int) -> None:
    assert adapter.requeue(completed).result == "gone"
    time.sleep(1)
    assert (shown(completed, "JobState"), shown(completed, "Restarts")) == ("COMPLETED", "0")


def test_a_requeue_means_one_task(adapter: Adapter, submit: Submit) -> None:
    array = submit("--array=0-2", "--gpus=1", "--hold")
    assert row(adapter.jobs(), array)["array_task"] == "0-2"  # the last that the adapter sees of it
    run("scontrol", "release", str(array))
    wait_for(lambda: run("squeue", "-h", "-r", "-j", str(array), "-o", "%t").split() == ["R"] * 3)
    assert adapter.requeue(array).result == "ok"  # the last task, which bears the array's own id
    table = adapter.jobs()
    assert sorted(int(row(table, i)["restarts"]) for i in records(table, array).values()) == [0, 0, 1]
    assert row(table, array)["restarts"] == 1


def test_a_requeue_of_a_het_job_is_of_all_of_it(adapter: Adapter) -> None:
    words = ["sbatch", "--parsable", "-o", "/dev/null", "-n1", ":", "-n2", "--wrap", "sleep 300"]
    leader = int(run(*words).strip())
    try:
        wait_for(lambda: state_of(adapter, leader) == state_of(adapter, leader + 1) == "RUNNING")
        assert adapter.requeue(leader + 1).result == "refused"
        assert adapter.requeue(leader).result == "ok"
        table = adapter.jobs()
        assert [row(table, leader + i)["state"] for i in (0, 1)] == ["PENDING", "PENDING"]
    finally:
        end_jobs([leader, leader + 1])


def test_every_call_ends_in_time(adapter: Adapter, submit: Submit) -> None:
    job_id = submit("--begin=now+1hour")
    impatient = ADAPTERS[adapter.name](2.0)
    try:
        impatient.jobs()
        with frozen_controller():
            for call in (impatient.jobs, impatient.nodes, impatient.facts, impatient.site_factors):
                begin = time.monotonic()
                with pytest.raises(AdapterError) as caught:
                    call()
                assert caught.value.retry
                assert "\n" not in str(caught.value)
                assert time.monotonic() - begin < 30
            assert impatient.write(job_id, "nice", 9).result == "retry"
            assert impatient.unpin(job_id).result == "retry"
            assert impatient.requeue(job_id).result == "retry"
        wait_for(lambda: run("scontrol", "ping") != "")
        assert impatient.write(job_id, "nice", 11).result == "ok"
        assert row(impatient.jobs(), job_id)["nice"] == 11
    finally:
        impatient.close()
