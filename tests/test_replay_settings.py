"""Settings that the replay shares with the daemon: the lever, and the site's word on checkpoints."""

import numpy as np
import pytest
from worlds import replay, workload

from tias_slurm.config import load_config
from tias_slurm.replay.dry_run import Options, Run
from tias_slurm.slurm.node_set import uniform


def crowd(n=60):
    """Jobs that must wait for each other, a third of them with deadlines."""
    rng = np.random.Generator(np.random.PCG64(5))
    rows = []
    for _ in range(n):
        submit, work = int(rng.integers(0, 40_000)), int(rng.integers(600, 30_000))
        row = {"submit": submit, "work": work, "gpus": int(rng.choice([1, 2, 4, 8]))}
        if rng.random() < 0.35:
            row["deadline"] = submit + work * float(rng.uniform(1.2, 4.0))
        rows.append(row)
    return rows


@pytest.mark.parametrize("name", ["tias@off", "tias@on"])
def test_every_lever_gives_the_same_schedule(name):
    made = {
        kind: replay(crowd(), uniform(16, 8), name, config=load_config(None, {"lever.kind": kind}))
        for kind in ("nice", "site_factor", "priority")
    }
    nice = made["nice"]
    assert nice.writes > 0
    for other in (made["site_factor"], made["priority"]):
        assert np.array_equal(other.outcome.start, nice.outcome.start)
        assert np.array_equal(other.outcome.end, nice.outcome.end)
        assert other.metrics["requeues"] == nice.metrics["requeues"]


def test_what_the_site_says_of_checkpoints_counts_before_the_models_guess():
    def every(trace, **overrides):
        work = workload(crowd(3), trace=trace)
        work.jobs["checkpoint"] = [np.nan, 300.0, np.nan]
        notes = []
        run = Run(work, uniform(16, 8), load_config(None, overrides), Options(), notes)
        return run.checkpoint.tolist(), " ".join(notes)

    assert every(False)[0] == [600.0, 300.0, 600.0]
    silent, notes = every(False, **{"requeue.checkpoint_s": 0.0})
    assert silent == [0.0, 300.0, 0.0]
    assert "never is assumed (requeue.checkpoint_s)" in notes
    assert every(True, **{"requeue.checkpoint_s": 0.0})[0] == [600.0, 300.0, 600.0]
