"""The contract of the Cluster port, on the model of Slurm in virtual time."""

from __future__ import annotations

import numpy as np
import port_contract
import pytest
from worlds import prepared, workload

from tias_slurm.slurm.node_set import uniform


class VirtualWorld:
    """One job of 8 GPUs that runs, four that wait for it."""

    deadline = 90_000.0

    def __init__(self) -> None:
        rows = [{"submit": 0, "work": 5000, "gpus": 8}]
        rows += [{"submit": 10 + i, "work": 700, "gpus": 8} for i in range(4)]
        rows[1]["deadline"] = self.deadline
        run, wanted = prepared(workload(rows), uniform(8, 8), "tias@off")
        self.cluster, _ = run.prepare(wanted)
        self.cluster.state.lever[4] = 7.0
        self.blocker, self.waiting = 0, [1, 2, 3, 4]
        self.cluster.advance(60.0)

    def release(self) -> None:
        self.cluster.advance(20_000.0)

    def started(self) -> list[int]:
        return [int(j) for j in np.argsort(self.cluster.state.started) if j in self.waiting]


@pytest.mark.parametrize("check", port_contract.CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    check(VirtualWorld())
