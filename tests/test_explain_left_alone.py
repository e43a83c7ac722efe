"""What `explain` says of jobs that the daemon leaves alone: that it does, why, and who orders them then."""

import pytest
from raw_queue import queue, running
from test_explain_page import ON, closed, desk, line  # noqa: F401

CPU = {"gpus": 0, "priority": 2000}
SHARES = ({}, CPU, {"partition": "debug", "priority": 9000}, {"priority": 9000, "reason": "Dependency"})


def flat(desk, job=200):  # noqa: F811
    return " ".join(desk.run("explain", str(job)).out.split())


@pytest.mark.parametrize(
    ("job", "scope", "rules"),
    [
        ({"user": "bob"}, {"not_users": ["bob", "cid"]}, ["user bob is in [scope] not_users"]),
        ({"user": "bob"}, {"only_users": ["ann", "cid"]}, ["user bob is not in [scope] only_users"]),
        ({"account": "bio"}, {"only_accounts": ["lab"]}, ["account bio is not in [scope] only_accounts"]),
        (
            {"account": ""},
            {"only_accounts": ["lab"]},
            ["it has no account, which is not in [scope] only_accounts"],
        ),
        ({"qos": "long"}, {"not_qos": ["long"]}, ["QOS long is in [scope] not_qos"]),
        (
            {"partition": "gpu,old,new"},
            {"only_partitions": ["gpu"]},
            ["partitions old, new are not in [scope] only_partitions"],
        ),
        (
            {"partition": "gpu,old", "user": "bob"},
            {"only_partitions": ["gpu", "old"], "not_partitions": ["old"], "not_users": ["bob"]},
            ["partition old is in [scope] not_partitions", "user bob is in [scope] not_users"],
        ),
    ],
)  # fmt: skip
def test_out_of_scope_says_so_first_and_by_which_rule(desk, job, scope, rules):  # noqa: F811
    desk.write(scope=scope)
    desk.show(queue(*SHARES, {"job_id": 200, **job}))
    told = desk.json("explain", "200")
    assert told["out_of_scope"] == rules
    assert told["answer"] == (
        f"The daemon leaves 200 alone: {'; '.join(rules)}. Slurm alone orders it, by priority 1000: 2 "
        "waiting jobs that may use its partitions come before it; Slurm says Priority"
    )
    page = flat(desk)
    assert (
        "Slurm's order priority 1000; 2 waiting jobs before it that may use its partitions and can start"
        in page
    )
    assert "lever nice 0, not ours" in page
    for word in ("level", "queue 0", "would be", "should be", "What would change"):
        assert word not in page
    # nobody else's name, and no list of the settings
    for name in ("cid", "ann"):
        assert name not in page or job.get("user", "ann") == name
    # a job that the rules let in is told nothing of them
    assert desk.json("explain", "100")["out_of_scope"] == [] or "user" not in job


def test_whole_page_of_a_job_out_of_scope(desk):  # noqa: F811
    desk.write(deadlines={"timezone": "UTC"}, scope={"not_users": ["bob"]}, requeue=ON)
    desk.show(
        queue(
            {"job_id": 200, "user": "bob", "comment": "deadline=+3h", "reason": "Resources"}, {"job_id": 201}
        )
    )
    first, second, *rest = (line.rstrip() for line in desk.run("explain", "200").out.splitlines())
    assert f"{first} {second}" == (
        "The daemon leaves 200 alone: user bob is in [scope] not_users. Slurm alone orders it, by priority "
        "1000: no other waiting job that may use its partitions comes before it; Slurm says Resources"
    )
    assert rest == [
        "",
        "job            bob, account lab, gpu, 1 GPU",
        "first submit   2027-01-15 07:50:00",
        "left alone     user bob is in [scope] not_users",
        "deadline       nobody looks at it: the job is out of scope",
        "lever          nice 0, not ours",
        "Slurm's order  priority 1000; 0 waiting jobs before it that may use its partitions and can start",
        "Slurm says     Resources",
        "requeue        saves nothing",
    ]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            {"priority": 0, "reason": "JobHeldAdmin"},
            "It waits because it is held by an administrator, who alone may release it (scontrol release "
            "200); nothing else counts before that",
        ),
        ({"reason": "Dependency"}, "It waits for what no better place can give: Slurm says Dependency"),
        ({"reason": "BeginTime"}, "It waits for what no better place can give: Slurm says BeginTime"),
        ({"priority": -1}, "Slurm alone orders it; Slurm says Priority"),
    ],
)
def test_out_of_scope_and_something_else(desk, job, said):  # noqa: F811
    desk.write(scope={"not_users": ["bob"]})
    desk.show(queue({"job_id": 200, "user": "bob", **job}))
    assert line(desk, {"job_id": 200, "user": "bob", **job}, job=200) == (
        f"The daemon leaves 200 alone: user bob is in [scope] not_users. {said}"
    )
    assert "Slurm's order" not in flat(desk) or "priority" not in job


def test_running_out_of_scope(desk):  # noqa: F811
    runs = running(job_id=200, user="bob")
    desk.write(scope={"not_users": ["bob"]}, requeue=ON)
    said = line(desk, runs, job=200)
    assert said == "200 runs, and the daemon leaves it alone: user bob is in [scope] not_users"
    assert "requeue is not requeued for others: out of scope" in flat(desk)
    desk.write(scope={"not_users": ["bob"]}, requeue={"mode": "slurm"}, lever={"kind": "priority"})
    said = line(desk, runs, {"comment": "deadline=+3h"}, job=200)
    assert said.startswith(
        "200 runs, out of scope: user bob is in [scope] not_users. All that the daemon does is"
    )
    # that one value is ours, and it is the one that the cycle would write
    lever = desk.json("explain", "200")["lever"]
    assert (lever["should_be"], lever["state"]) == (2e9, "not written")
    assert "lever priority 0, should be 2000000000: not written (no daemon runs)" in flat(desk)


def test_running_without_gpus_where_slurm_preempts(desk):  # noqa: F811
    desk.write(requeue={"mode": "slurm"}, lever={"kind": "priority"})
    assert line(desk, running(gpus=0)).startswith(
        "100 runs and asks for no GPUs. All that the daemon does is to"
    )


def test_without_the_ledger_it_is_the_same(closed):  # noqa: F811
    text = closed.path.read_text()
    closed.path.write_text(f'{text}\n[scope]\nnot_users = ["no-such-user"]\n')
    told = closed.json("explain", "101")
    assert told["answer"].startswith(
        "The daemon leaves 101 alone: user no-such-user is in [scope] not_users. "
    )
    page = flat(closed, 101)
    assert "may not read the ledger" not in page  # nothing there hangs on it
    assert closed.json("explain", "100")["out_of_scope"] == []


def test_names_are_stand_ins_where_that_is_asked_for(desk):  # noqa: F811
    desk.write(scope={"not_users": ["bob"], "only_accounts": ["physics"]})
    desk.show(queue({"job_id": 200, "user": "bob"}))
    out = desk.run("explain", "200", "--anonymise").out
    assert "bob" not in out
    assert "account lab" not in out
    assert "[scope] not_users" in " ".join(out.split())
    assert "[scope] only_accounts" in " ".join(out.split())


def test_text_of_a_user_is_text(desk):  # noqa: F811
    evil = "al\x1b[2J[bold]"
    desk.write(scope={"only_users": ["ann"]})
    desk.show(queue({"job_id": 200, "user": evil}))
    assert "[bold]" in desk.run("explain", "200").out  # and no escape, which `run` looks for


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            {"priority": 0, "reason": "JobHeldUser"},
            "200 waits because it is held, and its owner may release it (scontrol release 200); nothing else "
            "counts before that",
        ),
        (
            {"priority": 0, "reason": "launch failed requeued held"},
            "held: Slurm says launch failed requeued held;",
        ),
        ({"cron": True}, "; the daemon leaves it alone (cron job), without that level 1 (no deadline)"),
    ],
)
def test_held_and_others_that_are_not_written(desk, job, said):  # noqa: F811
    assert said in line(desk, {"job_id": 200, **job}, {}, job=200)
    page = flat(desk)
    assert "would be" in page
    assert "should be" not in page
    assert "What would change its level" in page


def test_a_job_that_waits_for_something_else_is_not_called_left_alone(desk):  # noqa: F811
    assert "leaves it alone" not in line(desk, {"job_id": 200, "reason": "Dependency"}, job=200)


def test_pinned_ignored_and_overridden_jobs_say_so_in_the_first_line(desk):  # noqa: F811
    desk.show(queue({}, {"job_id": 200}, {"job_id": 201}, running(job_id=202)))
    desk.adapter.pinned = lambda: {200: True}
    said = desk.json("explain", "200")["answer"]
    assert said.endswith(
        "the daemon leaves it alone (pinned: somebody gave it an explicit priority), without that level 1 "
        "(no deadline)"
    )
    desk.state.mkdir()
    for job in ("201", "202"):
        desk.run("ignore", job)
    ignored = "ignored, by order of an administrator"
    assert (
        f"the daemon leaves it alone ({ignored}), without that level 1"
        in desk.json("explain", "201")["answer"]
    )
    assert desk.json("explain", "202")["answer"] == f"202 runs, level 1 (no deadline); {ignored}"
    assert "nice 0, would be" in flat(desk, 201)
    # a running job is not written, so nothing is told of what it should be
    assert "lever nice 0: left alone (it runs)" in flat(desk, 202)
