"""`check-config --live` on a real Slurm: as root, an Operator or anybody, on a good site and on a bad one."""

from __future__ import annotations

from typing import Any

import pytest
from daemon_bed import Site
from live_bed import configured, frozen_controller, has_accounting, left_out, run


def look(site: Site, user: str = "", status: int | None = None) -> dict[str, dict[str, Any]]:
    """Findings by name."""
    done = site.tias("check-config", "--live", "--json", user=user, status=status)
    return {f["check"]: f for f in done.json["findings"]}


def severities(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: f["severity"] for name, f in found.items() if f["severity"] != "ok"}


@pytest.mark.core
@pytest.mark.smoke
def test_rights_as_the_controller_has_them(site: Site) -> None:
    site.settings(daemon={"mode": "enforce"})
    assert look(site, status=0)["rights"]["severity"] == "ok"
    found = look(site, "tias", 0 if has_accounting() else 1)["rights"]
    assert found["severity"] == ("ok" if has_accounting() else "error")
    assert ("AdminLevel=Operator" in found["what"]) == has_accounting()
    found = look(site, "alice", 1)["rights"]
    assert found["severity"] == "error"
    assert "set AdminLevel=Operator" in found["do"]
    # and it is the truth
    job = site.submit("--hold", user="bob")
    for user in ("tias", "alice"):
        may = run("sh", "-c", f"scontrol update JobId={job} Nice=-1 && echo yes || echo no", user=user)
        assert may.strip() == ("yes" if user == "tias" and has_accounting() else "no")


def test_an_account_that_lost_its_rights(site: Site) -> None:
    if not has_accounting():
        left_out("this cluster has no slurmdbd")
    site.settings(daemon={"mode": "enforce"})
    run("sacctmgr", "-i", "modify", "user", "tias", "set", "AdminLevel=None")
    try:
        assert look(site, "tias", 1)["rights"]["severity"] == "error"
    finally:
        run("sacctmgr", "-i", "modify", "user", "tias", "set", "AdminLevel=Operator")
    assert look(site, "tias", 0)["rights"]["severity"] == "ok"


@pytest.mark.core
def test_a_good_site(site: Site) -> None:
    if not has_accounting():
        left_out("this cluster has no slurmdbd")
    found = look(site, "tias", 0)
    # the test bed's pyslurm is bent to fit, and its MinJobAge is its own
    assert severities(found) == ({"backend": "warning"} if site.backend == "pyslurm" else {})
    assert found["version"]["what"] == f"Slurm {run('scontrol', '--version').split()[1]}"


def test_a_site_that_is_set_up_badly(site: Site) -> None:
    more = {}
    lines = ["SchedulerParameters=enable_user_top", "PriorityFlags=INCR_ONLY", "PrivateData=jobs"]
    if has_accounting():
        lines.append("AccountingStoreFlags=job_script")
        more = {"job-comment": "warning"}
    if run("scontrol", "--version").split()[1] >= "23.02":
        lines.append("SlurmctldParameters=rl_enable")
        more["rate-limit"] = "warning"
    site.settings(daemon={"rpc_timeout_s": 5.0}, scope={"not_partitions": ["gpuu"]})
    try:
        with configured(*lines):
            run("scontrol", "update", "PartitionName=debug", "PriorityTier=7")
            found = look(site, "alice", 1)
            done = site.tias("check-config", "--live", user="alice", status=1)
    finally:
        run("scontrol", "update", "PartitionName=debug", "PriorityTier=1")
    expected = {
        "rights": "warning",
        "private-data": "error",
        "incr-only": "warning",
        "bf-continue": "warning",
        "user-top": "warning",
        "priority-tier": "warning",
        "scope": "warning",
        "timeout": "warning",
        **more,
    }
    assert expected.items() <= severities(found).items()
    assert "debug=7, gpu=1" in found["priority-tier"]["what"]
    assert "PrivateData" in done.out
    assert "-> add bf_continue" in done.out


def test_preemption_that_compares_priorities(site: Site) -> None:
    with configured("PreemptType=preempt/qos", "PreemptMode=REQUEUE,WITHIN"):
        assert look(site, status=0)["preemption"]["severity"] == "warning"


def test_a_state_directory_of_somebody_else(site: Site) -> None:
    site.state.mkdir(mode=0o755)
    found = look(site, "tias", 1)
    assert found["state-dir"]["severity"] == "error"
    run("install", "-d", "-m", "0750", "-o", "tias", str(site.state))
    assert look(site, "tias", 0)["state-dir"]["severity"] == "ok"


@pytest.mark.core
def test_no_answer(site: Site) -> None:
    site.settings(daemon={"rpc_timeout_s": 1.0})
    with frozen_controller():
        found = look(site, status=1)
    assert list(found) == ["controller"]
    assert found["controller"]["severity"] == "error"


def test_it_changes_nothing(site: Site) -> None:
    job = site.submit("--hold")
    before = run("scontrol", "show", "job", str(job)), run("scontrol", "show", "reservation")
    look(site)
    assert (run("scontrol", "show", "job", str(job)), run("scontrol", "show", "reservation")) == before
    assert not site.state.exists()
