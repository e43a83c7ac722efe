"""GPUs of different types count for what the site says, in service, urgency and shares of the cluster."""

from __future__ import annotations

import numpy as np
import pytest
from raw_queue import queue
from worlds import workload

from tias_slurm.config import Config
from tias_slurm.gpu_weights import weigh
from tias_slurm.replay.dry_run import Options, Run
from tias_slurm.replay.policies import parse
from tias_slurm.slurm.node_set import make

WEIGHTS = {"h100": 3.0, "1g.10gb": 0.25}


def test_by_type() -> None:
    gpus = np.array([2, 8, 4, 1, 2])
    types = ["h100", "a100", "1g.10gb", "", "a100=1,h100=1"]
    assert weigh(gpus, types, WEIGHTS).tolist() == [6, 8, 1, 1, 4]
    assert weigh(gpus, types, {}).tolist() == gpus.tolist()


@pytest.mark.parametrize("where", ["replay", "live"])
def test_service_is_weighed(where: str) -> None:
    """Two jobs of one GPU that ran as long: the better GPU has had more service."""
    config = Config.model_validate({"gpus": {"weights": WEIGHTS}})
    if where == "replay":
        work = workload([{"submit": 0, "work": 7200, "gpus": 1}, {"submit": 0, "work": 7200, "gpus": 1}])
        work.jobs["gpu_type"] = ["h100", "a100"]
        nodes = make(["n1", "n2"], [4, 4], gpu_types=["h100", "a100"], source="test")
        run = Run(work, nodes, config, Options(), [])
        (wanted,) = parse("tias@on", is_trace=True, preemption=None)
        cluster, controller = run.prepare(wanted)
        assert controller is not None
        cluster.advance(3600.0)
        seen = cluster.observe()
        assert seen.capacity == 4 * 3.0 + 4
        known = controller.ledger.remember(seen)
        assert known.attained.tolist() == [3 * 3600.0, 3600.0]
        assert known.gpus.tolist() == [3.0, 1.0]
        return
    from tias_slurm.slurm.observer import Claims, observe

    raw = queue(
        {"gpus": 1, "gpu_type": "h100"}, {"gpus": 2, "gpu_type": ""}, {"gpus": 4, "gpu_type": "1g.10gb"}
    )
    n = len(raw)
    claims = Claims(np.full(n, np.nan), np.full(n, -1), np.full(n, np.nan))
    jobs = observe(raw, claims, config).snapshot.jobs
    assert jobs.weight.tolist() == [3, 2, 1]
    assert jobs.gpus.tolist() == [1, 2, 4]
