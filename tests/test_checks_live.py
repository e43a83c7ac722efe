"""What `check-config --live` makes of a site's settings. tests/live asks a real Slurm."""

import dataclasses
import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_queue import FACTS, config

from tias_slurm.cli import config_commands
from tias_slurm.slurm.checks_live import judge
from tias_slurm.slurm.live import AdapterError
from tias_slurm.slurm.probes import Probes, judge_rights, look_at_state

GOOD = Probes(
    user="tias",
    rights="yes",
    admin_level="Operator",
    tiers={"gpu": 1, "debug": 1},
    controllers=("ctl1",),
    backend="pyslurm",
    backend_why="pyslurm 26.5.0",
    pyslurm="26.5.0",
)


def look(*, facts=None, probes=None, **sections):
    """Findings by name; no name comes twice."""
    sections.setdefault("daemon", {}).setdefault("writes_per_second", 50.0)
    found = judge(
        config(**sections),
        dataclasses.replace(FACTS, **(facts or {})),
        dataclasses.replace(GOOD, **(probes or {})),
    )
    assert len({f.check for f in found}) == len(found)
    for f in found:
        assert f.severity == "ok" or (f.why and f.do), f
    return {f.check: f for f in found}


def complaints(**site):
    return {name: f.severity for name, f in look(**site).items() if f.severity != "ok"}


def test_a_site_as_it_should_be():
    assert complaints() == {}
    assert set(look()) == {
        "version", "backend", "rights", "private-data", "lever", "bf-continue", "priority-tier",
        "job-comment", "preemption", "state-dir",
    }  # fmt: skip


def parts(*nodes):
    """The partitions of nodes, each a text."""
    tiers = {"gpu": 1, "debug": 1, "old": 1}
    return {"probes": {"node_partitions": tuple(frozenset(n.split()) for n in nodes), "tiers": tiers}}


SHARED = parts("gpu", "gpu debug", "debug gpu old", "")
OWN = parts("gpu", "debug")


@pytest.mark.parametrize(
    ("site", "expected"),
    [
        ({**SHARED}, {}),
        ({**SHARED, "scope": {"only_partitions": ["gpu"]}}, {"scope-nodes": "warning"}),
        ({**SHARED, "scope": {"not_partitions": ["old"]}}, {"scope-nodes": "warning"}),
        ({**SHARED, "scope": {"only_partitions": ["gpu", "debug", "old"]}}, {}),
        ({**OWN, "scope": {"only_partitions": ["gpu"]}}, {}),
        ({**OWN, "scope": {"only_partitions": ["gpuu"]}}, {"scope": "warning"}),
        ({**OWN, "scope": {"only_accounts": ["a1"]}}, {"scope-jobs": "warning"}),
        ({**OWN, "scope": {"not_qos": ["high"]}}, {"scope-jobs": "warning"}),
        (
            {**SHARED, "scope": {"only_partitions": ["gpu"], "not_users": ["bob"]}},
            {"scope-nodes": "warning", "scope-jobs": "warning"},
        ),
    ],
)
def test_jobs_in_scope_that_compete_with_jobs_that_are_not(site, expected):
    assert complaints(**site) == expected


def test_how_far_jobs_in_scope_move_around_the_others():
    scope = {"scope": {"only_partitions": ["gpu"]}}
    found = look(**SHARED, **scope)["scope-nodes"]
    assert found.what.startswith(
        "2 nodes are in partitions in scope (gpu) and in others out of scope (debug, old)"
    )

    def moved(**sections):
        why = look(**SHARED, **scope, **sections)["scope-nodes"].why
        return int(re.findall(r"up to (\d+) of", why)[0])

    # strict levels: beyond all that the site's own weights can say
    assert moved() > 1000
    assert 2048 < moved(lever={"span": 4096}) <= 4096
    assert "in front of all" in look(**SHARED, **scope, lever={"kind": "priority"})["scope-nodes"].why
    assert "1 node is" in look(**parts("gpu debug"), **scope)["scope-nodes"].what
    assert look(**OWN, **scope)["scope-nodes"].severity == "ok"


def test_where_users_find_what_explain_needs():
    where = {"daemon": {"user_export": "/srv/users"}}
    assert look(**where)["user-export"].severity == "ok"
    found = look(**where, probes={"export": ("/srv/users: no such directory", "install -d")})["user-export"]
    assert (found.severity, found.what, found.do) == (
        "warning",
        "/srv/users: no such directory",
        "install -d",
    )


def test_a_person_who_asks_gets_no_rights_for_it():
    """Advice that makes a user an Operator, or the ledger theirs, is followed by somebody one day."""
    alice = {"user": "alice", "is_person": True, "rights": "no", "admin_level": "None", "daemon": "tias"}
    hidden = {"facts": {"private_data": "jobs"}, "daemon": {"mode": "enforce"}}
    for state in ("not writable", "absent, cannot be made"):
        for whose, name in (("tias", "tias"), ("", "tias-slurm")):
            for level in ("None", "", "Operator"):
                seen = {**alice, "state": state, "daemon": whose, "admin_level": level}
                found = look(probes=seen, **hidden)
                assert found["account"].severity == "warning"
                for check in ("account", "rights", "private-data", "state-dir"):
                    do = found[check].do
                    assert do.startswith("run this check as the daemon's account")
                    assert f"runuser -u {name} -- tias-slurm check-config --live" in do
                    assert "alice" not in do
                    assert len(do) < 300  # as it is printed
    asked = look(probes={**alice, "rights": "unknown"})
    assert "alice" not in asked["rights"].do
    # whose state directory it is, whatever its number
    own = look(probes={**alice, "daemon": "alice"}, **hidden)
    assert "account" not in own
    assert "modify user alice" in own["rights"].do


def test_another_system_account_takes_the_directory_over():
    """From an Operator's account to SlurmUser: all of it has to go along."""
    seen = {"user": "slurm", "daemon": "tias", "state": "not writable"}
    assert look(probes=seen)["state-dir"].do.startswith("chown -R slurm /var/lib/tias-slurm, or run this")
    assert look(probes=seen | {"daemon": ""})["state-dir"].do == (
        "install -d -m 0750 -o slurm /var/lib/tias-slurm"
    )


ENFORCE = {"daemon": {"mode": "enforce"}}
NO = {"probes": {"rights": "no"}}
SITE = {"lever": {"kind": "site_factor"}}
TOP = {"facts": {"scheduler_parameters": "bf_continue,enable_user_top"}}
WEIGHED = {"gpus": {"weights": {"shard": 0.25, "1g.5gb": 0.14}}}
LIMITED = {"facts": {"slurmctld_parameters": "rl_enable"}}


def commands(why="", problem="", pyslurm="25.11.2"):
    said = {"backend": "commands", "backend_why": why, "backend_problem": problem, "pyslurm": pyslurm}
    return {"probes": said}


def limited(words):
    return {"facts": {"slurmctld_parameters": f"rl_enable,{words}"}}


CASES = [
    # rights
    ({"probes": {"rights": "no"}}, {"rights": "warning"}),
    ({"probes": {"rights": "no"}, **ENFORCE}, {"rights": "error"}),
    ({"probes": {"rights": "unknown"}, **ENFORCE}, {"rights": "warning"}),
    ({"probes": {"is_root": True}}, {"account": "warning"}),
    # what can be seen
    ({"facts": {"private_data": "jobs,users"}}, {}),
    ({"facts": {"private_data": "jobs,users"}, **NO}, {"rights": "warning", "private-data": "error"}),
    ({"facts": {"private_data": "users"}, **NO}, {"rights": "warning"}),
    # levers
    (SITE, {}),
    ({**SITE, "facts": {"priority_type": "priority/basic"}}, {"lever": "error"}),
    ({**SITE, "facts": {"site_factor_plugin": "site_factor/x"}}, {"lever": "error"}),
    ({**SITE, "facts": {"site_factor_plugin": "(null)"}}, {}),
    ({"facts": {"site_factor_plugin": "site_factor/x"}}, {}),
    ({"facts": {"priority_type": "priority/basic"}}, {}),
    ({"lever": {"kind": "priority"}}, {"lever": "warning"}),
    ({"lever": {"kind": "priority"}, "facts": {"priority_type": "priority/basic"}}, {"lever": "warning"}),
    ({"lever": {"span": 1000}}, {"lever-span": "warning"}),
    ({"lever": {"span": 1001}}, {}),
    # slurm.conf
    ({"facts": {"priority_flags": "INCR_ONLY"}}, {"incr-only": "warning"}),
    ({"facts": {"priority_flags": "['INCR_ONLY', 'SMALL_RELATIVE_TO_TIME']"}}, {"incr-only": "warning"}),
    ({"facts": {"priority_flags": "MAX_TRES"}}, {}),
    ({"facts": {"scheduler_parameters": ""}}, {"bf-continue": "warning"}),
    ({"facts": {"scheduler_parameters": "bf_interval=30,no_bf_continue"}}, {"bf-continue": "warning"}),
    (TOP, {"user-top": "warning"}),
    ({**TOP, **SITE}, {}),
    ({"facts": {"accounting_store_flags": ""}}, {"job-comment": "warning"}),
    ({"facts": {"accounting_store_flags": "JOB_COMMENT,JOB_ENV"}}, {}),
    (WEIGHED, {"gpu-weights": "warning"}),
    ({**WEIGHED, "facts": {"tracked_tres": "cpu,mem,gres/gpu,gres/gpu:1g.5gb,gres/shard"}}, {}),
    ({**WEIGHED, "facts": {"tracked_tres": "cpu,mem,gres/gpu,gres/gpu:1g.5gb"}}, {"gpu-weights": "warning"}),
    ({"facts": {"preempt_type": "preempt/qos", "preempt_mode": "REQUEUE"}}, {}),
    ({"facts": {"preempt_type": "preempt/qos", "preempt_mode": "REQUEUE,WITHIN"}}, {"preemption": "warning"}),
    ({"facts": {"preempt_type": "preempt/qos", "preempt_mode": "WITHIN,UNKNOWN"}}, {"preemption": "warning"}),
    ({"facts": {"preempt_type": "(null)", "preempt_mode": "OFF"}}, {}),
    # partitions
    ({"probes": {"tiers": {"gpu": 1, "debug": 10}}}, {"priority-tier": "warning"}),
    ({"probes": {"tiers": {"gpu": 1, "debug": 10}}, "scope": {"only_partitions": ["gpu"]}}, {}),
    ({"probes": {"tiers": {"gpu": 1, "debug": 10}}, "scope": {"not_partitions": ["debug"]}}, {}),
    ({"scope": {"only_partitions": ["gpuu"]}}, {"scope": "warning"}),
    # rates and times
    (LIMITED, {"rate-limit": "warning"}),
    ({**LIMITED, "daemon": {"writes_per_second": 1.5}}, {}),
    ({**LIMITED, "daemon": {"writes_per_second": 2.0}}, {"rate-limit": "warning"}),
    (limited("rl_refill_rate=100"), {}),
    (limited("rl_refill_rate=100,rl_refill_period=5"), {"rate-limit": "warning"}),
    ({**LIMITED, "probes": {"user": "slurm"}}, {}),
    ({"facts": {"message_timeout_s": 60}}, {"timeout": "warning"}),
    ({"facts": {"min_job_age_s": 60}}, {"min-job-age": "warning"}),
    # messages
    ({"notify": {"how": "mail"}}, {}),
    ({"notify": {"how": "output"}}, {"notify": "warning"}),
    ({"notify": {"how": "output"}, "probes": {"user": "slurm"}}, {}),
    # versions
    ({"facts": {"version": "22.05.8"}}, {}),
    ({"facts": {"version": "21.08.1"}}, {"version": "warning"}),
    ({"facts": {"version": "27.05.0"}}, {"version": "warning"}),
    ({"facts": {"version": ""}}, {"version": "warning"}),
    (commands("commands: pyslurm is built for"), {"backend": "warning"}),
    (commands("commands: not installed", pyslurm=""), {}),
    (commands(problem="pyslurm is not installed here"), {"backend": "error"}),
    (
        {
            "probes": {"backend_why": "pyslurm 25; allow_version_mismatch: built for"},
            "daemon": {"allow_version_mismatch": True},
        },
        {"backend": "warning"},
    ),
    # the machine
    ({"probes": {"state": "not writable"}}, {"state-dir": "error"}),
    ({"probes": {"state": "absent, cannot be made"}}, {"state-dir": "error"}),
    ({"probes": {"state": "absent, can be made"}}, {}),
    ({"probes": {"state_mode": 0o755}}, {"state-dir": "warning"}),
    ({"probes": {"state_mode": 0o770}}, {"state-dir": "warning"}),
    ({"probes": {"state_mode": 0o700}}, {}),
    ({"probes": {"controllers": ("ctl1", "ctl2")}}, {"controllers": "warning"}),
    ({"probes": {"controllers": ("ctl1", "ctl2")}, "daemon": {"lease_path": "/shared/lease"}}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("site", "expected"), CASES)
def test_findings(site, expected):
    assert complaints(**site) == expected


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("None", "sacctmgr modify user tias set AdminLevel=Operator"),
        ("", "SlurmUser"),
        ("Operator", "slurmdbd"),
    ],
)
def test_how_to_get_rights(level, words):
    assert words in look(probes={"rights": "no", "admin_level": level})["rights"].do


def test_tiers_are_shown_in_their_order():
    assert "high=9, a=1, b=1" in look(probes={"tiers": {"b": 1, "high": 9, "a": 1}})["priority-tier"].what


TEXT = st.text(max_size=40)


@given(
    st.fixed_dictionaries(
        {
            f.name: TEXT if f.type == "str" else st.integers(0, 10**6)
            for f in dataclasses.fields(FACTS)
            if f.type in ("str", "int")
        }
    ),
    st.sampled_from(("nice", "priority", "site_factor")),
)
def test_whatever_a_site_says(facts, kind):
    found = look(facts=facts, lever={"kind": kind})
    assert {"version", "rights", "lever", "preemption", "state-dir"} <= set(found)


@pytest.mark.parametrize(
    ("status", "words", "rights"),
    [
        (1, "slurm_update error: Requested reservation is invalid", "yes"),
        (1, "Error updating the reservation: Requested reservation is invalid", "yes"),
        (1, "slurm_update error: Invalid user id", "no"),
        (1, "Access/permission denied", "no"),
        (1, "Unable to contact slurm controller", "unknown"),
        (0, "", "unknown"),
    ],
)
def test_what_the_controllers_answer_means(status, words, rights):
    assert judge_rights(status, words) == rights


def test_state_directories(tmp_path):
    ours = tmp_path / "state"
    ours.mkdir(mode=0o750)
    (tmp_path / "file").touch()
    assert look_at_state(str(ours)) == ("ours", 0o750)
    assert look_at_state(str(tmp_path / "a" / "b"))[0] == "absent, can be made"
    assert look_at_state(str(tmp_path / "file"))[0] == "not writable"
    assert look_at_state(str(tmp_path / "file" / "below"))[0] == "absent, cannot be made"
    assert look_at_state("/proc/absent")[0] in ("absent, cannot be made", "absent, can be made")


# ---- the command ----


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    path = tmp_path / "config.toml"
    path.write_text("[daemon]\nwrites_per_second = 5.0\n")

    def one(*, as_json=False, **probes):
        answer = FACTS, dataclasses.replace(GOOD, **probes)
        monkeypatch.setattr(config_commands, "probe", lambda _: answer)
        code = 0
        try:
            config_commands.check_config(str(path), live=True, as_json=as_json)
        except config_commands.typer.Exit as error:
            code = error.exit_code
        return code, capsys.readouterr().out

    return one


def test_exit_codes(ask):
    assert ask()[0] == 0
    assert ask(state_mode=0o777)[0] == 0
    assert ask(state="not writable")[0] == 1


def test_the_table(ask):
    _, out = ask(state="not writable")
    assert "valid, 1 setting" in out
    assert "install -d -m 0750 -o tias" in " ".join(out.split())
    assert out.splitlines()[-1] == "errors: 1, warnings: 0, ok: 9"


def test_text_of_the_site_is_data(ask):
    _, out = ask(backend_why="[red]x[/red]\x1b[2J")
    assert "[red]x[/red]\\x1b[2J" in out


def test_json(ask):
    code, out = ask(as_json=True, state="not writable")
    document = json.loads(out)
    assert (code, document["valid"]) == (1, True)
    by_name = {f["check"]: f for f in document["findings"]}
    assert by_name["state-dir"]["severity"] == "error"
    assert set(by_name["rights"]) == {"check", "severity", "what", "why", "do"}


def test_no_controller(ask, monkeypatch, capsys, tmp_path):
    def fail(_):
        raise AdapterError("scontrol: not found in PATH", retry=False)

    monkeypatch.setattr(config_commands, "probe", fail)
    with pytest.raises(config_commands.typer.Exit) as caught:
        config_commands.check_config(str(tmp_path / "config.toml"), live=True)
    out = capsys.readouterr().out
    assert caught.value.exit_code == 1
    assert "scontrol: not found in PATH" in out
    assert "errors: 1, warnings: 0, ok: 0" in out


def test_without_live_nobody_is_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(config_commands, "probe", lambda _: os.abort())
    path = tmp_path / "config.toml"
    path.write_text("")
    config_commands.check_config(str(path))
    assert "valid, 0 settings" in capsys.readouterr().out
