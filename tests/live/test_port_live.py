"""The contract of the Cluster port, on a real Slurm through each live adapter."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from adapters import ADAPTERS
from live_bed import end_jobs, epoch, run, shown, wait_for

sys.path.insert(0, str(Path(__file__).parents[1]))  # for port_contract.py
import port_contract

from tias_slurm.config import load_config
from tias_slurm.slurm.live_cluster import LiveCluster


class LiveWorld:
    """One job that holds n2, four that wait for it; the others of the cluster are out of sight."""

    def __init__(self, backend: str) -> None:
        self.adapter = ADAPTERS[backend](60.0)
        self._submitted: list[int] = []
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        before = {int(j) for j in self.adapter.jobs().job_id}
        self.blocker = self._submit("sleep 900")
        wait_for(lambda: shown(self.blocker, "JobState") == "RUNNING")
        words = (("--comment=deadline=@1999999999",), (), (), ("--nice=7",))
        self.waiting = [self._submit("sleep 2", *more) for more in words]
        self.deadline = 1_999_999_999.0
        # the first is told Resources, the others Priority or that the node is planned for the first
        wait_for(lambda: shown(self.waiting[0], "Reason") == "Resources")
        wait_for(lambda: all(shown(j, "Reason") != "None" for j in self.waiting))
        config = load_config(None)
        self.cluster = LiveCluster(
            _Ours(self.adapter, before),
            config,
            config.zone(),
            enforce=True,
            field="nice",
            first_submit=lambda ids, submit: submit,
        )

    def _submit(self, script: str, *words: str) -> int:
        said = run(
            "sbatch",
            "--parsable",
            "-o",
            "/dev/null",
            "-w",
            "n2",
            "--gpus=8",
            *words,
            "--wrap",
            script,
            user="alice",
        )
        self._submitted.append(int(said.split(";")[0]))
        return self._submitted[-1]

    def release(self) -> None:
        started = epoch(self.blocker, "StartTime")
        wait_for(lambda: time.time() > started + 2)  # it has run, in whole seconds too
        run("scancel", str(self.blocker))
        wait_for(lambda: not run("squeue", "-h", "-j", ",".join(map(str, self.waiting))).strip(), 300.0)

    def started(self) -> list[int]:
        start = {j: shown(j, "StartTime") for j in self.waiting}
        return sorted(self.waiting, key=lambda j: start[j])

    def close(self) -> None:
        self.adapter.close()
        end_jobs(self._submitted)


class _Ours:
    """The adapter, without the jobs that were there before."""

    def __init__(self, adapter, before):
        self._adapter, self._before = adapter, before

    def __getattr__(self, name):
        return getattr(self._adapter, name)

    def jobs(self):
        raw = self._adapter.jobs()
        keep = [i for i, j in enumerate(raw.job_id.tolist()) if j not in self._before]
        columns = {}
        for name in type(raw).__dataclass_fields__:
            value = getattr(raw, name)
            if name in ("time", "refused"):
                columns[name] = value
            else:
                columns[name] = [value[i] for i in keep] if isinstance(value, list) else value[keep]
        return type(raw)(**columns)


@pytest.fixture(params=sorted(ADAPTERS))
def world(request: pytest.FixtureRequest) -> Iterator[LiveWorld]:
    made = LiveWorld(request.param)
    yield made
    made.close()


@pytest.mark.core
@pytest.mark.smoke
@pytest.mark.parametrize("check", port_contract.CHECKS, ids=lambda check: check.__name__)
def test_contract(world: LiveWorld, check) -> None:
    check(world)
