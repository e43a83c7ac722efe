"""`check-config --live` on a real Slurm: as root, an Operator or anybody, on a good site and on a bad one."""

from __future__ import annotations

import pwd
from pathlib import Path
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
    # a person is not to get them
    assert "as the daemon's account" in found["do"]
    assert "modify user" not in found["do"]
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


def test_partitions_that_share_nodes(site: Site) -> None:
    """debug is a part of gpu: one of them in scope competes with the other."""
    site.settings(scope={"only_partitions": ["debug"]})
    found = look(site, status=0)["scope-nodes"]
    assert found["severity"] == "warning"
    assert "partitions in scope (debug) and in others out of scope (gpu)" in found["what"]
    job = site.submit("--hold", user="bob")
    told = site.tias("plan", "--json").json
    assert len(told["scope"]) == 1
    assert (told["in_scope"], told["writes"]) == (0, [])
    assert "is in scope" in site.tias("plan").out
    site.settings(scope={"only_partitions": ["debug", "gpu"]})
    assert look(site, status=0)["scope-nodes"]["severity"] == "ok"
    told = site.tias("plan", "--json").json
    assert (told["in_scope"], told["scope"]) == (1, []), job


def test_files_for_users_that_root_left_first(site: Site, tmp_path: Path) -> None:
    """Root tries a cycle, then the daemon's account takes over."""
    if not has_accounting():
        left_out("this cluster has no slurmdbd")
    for part in (tmp_path, *tmp_path.parents):
        part.chmod(part.stat().st_mode | 0o001)
    users = tmp_path / "users"
    site.settings(daemon={"mode": "enforce", "user_export": str(users)})
    run("install", "-d", "-m", "0750", "-o", "tias", str(site.state))
    missing = look(site, "tias", 0)["user-export"]
    assert (missing["severity"], missing["do"]) == ("warning", f"install -d -m 0711 -o tias {users}")
    site.submit("--hold", user="bob")
    site.tias("once")
    assert {p.owner() for p in (users, *users.rglob("*"))} == {"tias"}
    assert look(site, "tias", 0)["user-export"]["severity"] == "ok"
    site.tias("once", user="tias")
    assert site.tias("status", "--json", user="tias", status=1).json["daemon"]["user_export"] == ""
    bob = pwd.getpwnam("bob").pw_uid
    assert run("cat", str(users / str(bob) / "jobs.json"), user="bob").startswith("{")


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
