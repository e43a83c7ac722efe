"""What every live adapter tells of GPUs, nodes and the site, on a real Slurm. `live.Adapter` is the contract.

contrib/testbed/testbed exec -- python -m pytest tests/live/test_contract_nodes.py
"""

from __future__ import annotations

import contract_bed
import pytest
from contract_bed import Submit
from live_bed import MIG_TRES, end_jobs, mig_gpus, row, run, typed_gpus

from tias_slurm.gpu_weights import by_type, weigh
from tias_slurm.slurm.live import Adapter

adapter = contract_bed.adapter
submit = contract_bed.submit
running = contract_bed.running

GPUS = {
    ("--gpus=3",): 3,
    ("-N2", "--gres=gpu:3"): 6,
    ("-N2", "--gpus-per-node=4"): 8,
    ("-n3", "--gpus-per-task=2"): 6,
    ("-N2",): 0,
}


def test_gpus_are_of_the_whole_job(adapter: Adapter, submit: Submit) -> None:
    ids = {words: submit("--hold", *words) for words in GPUS}
    table = adapter.jobs()
    assert {words: int(row(table, i)["gpus"]) for words, i in ids.items()} == GPUS
    assert row(table, ids["-N2", "--gres=gpu:3"])["nodes"] == 2


TYPED = {
    ("--gpus=a100:2",): (2, "a100"),
    ("-N2", "--gres=gpu:v100:1"): (2, "v100"),
    ("--gres=gpu:a100:1,gpu:v100:2",): (3, "a100=1,v100=2"),
    ("--gpus=3",): (3, ""),
}


def test_gpus_with_a_type(adapter: Adapter, submit: Submit, running: Submit) -> None:
    if adapter.facts().version < "23.11":
        pytest.skip("a reconfigure changes Gres= from 23.11 on")
    with typed_gpus():
        ids = {words: submit("--hold", *words) for words in TYPED}
        runs = running("--gpus=a100:2")
        table = adapter.jobs()
        seen = {words: (int(row(table, i)["gpus"]), row(table, i)["gpu_type"]) for words, i in ids.items()}
        assert seen == TYPED
        assert (row(table, runs)["gpus"], row(table, runs)["gpu_type"]) == (2, "a100")
        nodes = adapter.nodes()
        assert set(nodes.gpus.tolist()) == {8}
        assert nodes.gpus_used.sum() == 2
        end_jobs([*ids.values(), runs])


SLICES = {
    ("--gres=gpu:1g.5gb:1",): (1, "1g.5gb", 0),  # 22.05 takes none without a count
    ("--gpus=1g.5gb:3",): (3, "1g.5gb", 0),
    ("--gres=gpu:a100_1g.5gb:2",): (2, "a100_1g.5gb", 0),
    ("--gres=gpu:a100_1g.5gb:2,gpu:h100:1",): (3, "a100_1g.5gb=2,h100=1", 0),
    ("--gres=shard:6",): (0, "", 6),
    ("--gres=shard:h100:2",): (0, "", 2),
    ("--gpus=8",): (8, "", 0),
}


@pytest.mark.core
def test_slices_and_shards_of_gpus(adapter: Adapter, submit: Submit, running: Submit) -> None:
    with mig_gpus():
        assert set(MIG_TRES.split(",")) <= set(adapter.facts().tracked_tres.split(","))
        ids = {words: submit("--hold", *words) for words in SLICES}
        runs = [running("--gpus=1g.5gb:2"), running("--gres=shard:3"), running("-w", "n2", "-N1", "--gpus=6")]
        table = adapter.jobs()

        def seen(job: int) -> tuple[int, str, int]:
            one = row(table, job)
            return int(one["gpus"]), one["gpu_type"], int(one["shards"])

        assert {words: seen(job) for words, job in ids.items()} == SLICES
        assert [seen(job) for job in runs[:2]] == [(2, "1g.5gb", 0), (0, "", 3)]
        gpus, kinds, _ = seen(runs[2])
        assert (gpus, sum(by_type(gpus, kinds).values()), by_type(gpus, kinds)[""]) == (6, 6, 0)
        nodes = adapter.nodes()
        assert nodes.gpus.tolist() == [8, 8, 8, 8]
        assert list(nodes.gpu_types) == ["1g.5gb", "a100_1g.5gb=4,h100=4", "h100", ""]
        assert list(nodes.other_gres) == ["", "", "shard", ""]
        assert nodes.gpus_used.tolist() == [2, 6, 0, 0]
        weights = {"1g.5gb": 0.125, "a100_1g.5gb": 0.25, "h100": 2.0, "shard": 0.5}
        assert weigh(nodes.gpus, nodes.gpu_types, weights).tolist() == [1.0, 9.0, 16.0, 8.0]
        end_jobs([*ids.values(), *runs])


def test_nodes(adapter: Adapter, running: Submit) -> None:
    job_id = running("--gpus=3", "-n2")
    name = row(adapter.jobs(), job_id)["node_list"]
    run(
        "scontrol",
        "update",
        f"NodeName={name}",
        "State=DRAIN",
        "Reason=NodeName=n1 State=IDLE\nNodeName=n9 Gres=gpu:9",
    )
    try:
        nodes = adapter.nodes()
        assert "n9" not in nodes.name
        at = nodes.name.index(name)
        assert "DRAIN" in nodes.state[at]
        assert set(nodes.gpus.tolist()) == {8}
        assert nodes.gpus_used[at] == 3
        assert nodes.cpus_used[at] == 2
        assert nodes.cpus[at] == 16
        assert nodes.mem_mb[at] > 1000
        assert "gpu" in nodes.partitions[at]
        assert len(nodes.name) == len(nodes.state) == len(nodes.mem_used_mb) == len(nodes.partitions)
    finally:
        run("scontrol", "update", f"NodeName={name}", "State=RESUME")


def test_facts(adapter: Adapter) -> None:
    facts = adapter.facts()
    said = run("scontrol", "show", "config")
    assert f"SLURM_VERSION           = {facts.version}\n" in said
    assert f"ClusterName             = {facts.cluster}\n" in said
    assert facts.priority_type == "priority/multifactor"
    assert facts.priority_weights["Age"] == 1000
    assert set(facts.priority_weights) == {"Age", "Assoc", "Fairshare", "JobSize", "Partition", "QOS", "TRES"}
    assert "bf_continue" in facts.scheduler_parameters
    assert facts.slurm_user == "root"
    assert facts.min_job_age_s == 300
    assert facts.message_timeout_s == 20
    assert facts.site_factor_plugin in ("", "(null)")
    assert facts.state_save_location == "/var/spool/slurmctld"
