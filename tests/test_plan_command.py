"""What a plan says besides what it would write: who competes, and why there is nothing to do."""

import command_desk
import pytest
from raw_queue import nodes, queue, running

desk = command_desk.desk


def _on(*places):
    return nodes(*({"partitions": frozenset(p.split())} for p in places))


def test_a_plan_tells_of_jobs_out_of_scope_that_compete(desk):
    desk.write(scope={"only_partitions": ["gpu"]})
    desk.show(queue({}, {"partition": "debug"}))
    desk.adapter.place = _on("gpu debug", "gpu")
    told = desk.json("plan")
    assert [row["job"] for row in told["writes"]] == ["100"]
    assert told["in_scope"] == 1
    assert len(told["scope"]) == 1
    for words in ("1 node is in partitions in scope (gpu)", "(debug)", "keep their places", "up to"):
        assert words in told["scope"][0]
    assert "keep their places" in " ".join(desk.run("plan").out.split())
    desk.adapter.place = _on("debug", "gpu")
    assert desk.json("plan")["scope"] == []
    desk.write(scope={"not_accounts": ["x"]})
    assert "not_accounts" in desk.json("plan")["scope"][0]
    desk.write()
    assert desk.json("plan")["scope"] == []


@pytest.mark.parametrize(
    ("jobs", "scope", "words"),
    [
        ([{}], {"only_partitions": ["gpuu", "gpu-b"]}, "none of the 1 jobs that ask for GPUs is in scope"),
        ([{}], {"only_partitions": ["gpuu"]}, "[scope] only_partitions = gpuu"),
        ([{}], {"only_partitions": ["gpuu"]}, "partitions that no node is in: gpuu"),
        ([{}, running(account="x")], {"not_accounts": ["lab"]}, "no job in scope waits"),
        ([], {"not_accounts": ["lab"]}, "no job that asks for GPUs waits or runs"),
        ([{"priority": 0, "reason": "JobHeldUser"}], {}, "no waiting job may be written"),
        ([running()], {}, "no job in scope waits"),
    ],
)
def test_a_plan_says_why_there_is_nothing_to_write(desk, jobs, scope, words):
    desk.write(scope=scope)
    desk.show(queue(*jobs))
    desk.adapter.place = _on("gpu", "debug")
    said = " ".join(desk.run("plan").out.split())
    assert said.startswith("Nothing to write:")
    assert words in said
    assert "stands where it should" not in said
