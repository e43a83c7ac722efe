"""What the contract tests of live adapters share: one adapter after the other, and jobs that are ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from adapters import ADAPTERS
from live_bed import (
    end_jobs,
    row,
    run,
    wait_for,
)

from tias_slurm.slurm.live import Adapter, RawTable

UNKNOWN_JOB = 66_000_000
Submit = Callable[..., int]


@pytest.fixture(scope="module", params=sorted(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    made = ADAPTERS[request.param](60.0)
    yield made
    made.close()
    made.close()  # safe to call twice


@pytest.fixture
def submit() -> Iterator[Submit]:
    """sbatch with the words given; the job's id. All are ended afterwards."""
    ids: list[int] = []

    def one(*words: str | bytes, script: str = "sleep 300", user: str = "") -> int:
        said = run("sbatch", "--parsable", "-o", "/dev/null", *words, "--wrap", script, user=user)
        ids.append(int(said.strip().split(";")[0]))
        return ids[-1]

    yield one
    end_jobs(ids)


def state_of(adapter: Adapter, job_id: int) -> str:
    return str(row(adapter.jobs(), job_id)["state"])


@pytest.fixture
def running(adapter: Adapter, submit: Submit) -> Submit:
    def one(*words: str, script: str = "sleep 300") -> int:
        job_id = submit(*words, script=script)
        wait_for(lambda: state_of(adapter, job_id) == "RUNNING")
        return job_id

    return one


@pytest.fixture
def completed(adapter: Adapter, submit: Submit) -> int:
    job_id = submit(script="true")
    wait_for(lambda: (one := row(adapter.jobs(), job_id))["state"] == "COMPLETED" and not one["flags"])
    return job_id


def records(table: RawTable, array: int) -> dict[str, int]:
    """array_task -> job_id of the records of one array."""
    return {
        task: int(job_id)
        for task, job_id, of in zip(table.array_task, table.job_id, table.array_id, strict=True)
        if of == array
    }
