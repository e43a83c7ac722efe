"""decisions.jsonl: what the daemon would have sent for the jobs of test_schedules, worked out on paper."""

import io
import json

from test_schedules import JOBS, NODES
from worlds import prepared, workload

from tias_slurm.replay import simulate


def decisions(name):
    work = workload([{**job, "job_id": label} for job, label in zip(JOBS, "ABCDEF", strict=True)])
    run, wanted = prepared(work, NODES, name)
    sink = io.StringIO()
    cluster, controller = run.prepare(wanted, sink)
    simulate.run(cluster, controller, 60.0)
    return [json.loads(line) for line in sink.getvalue().splitlines()], controller


def test_on_paper():
    # 12 levels of 32 steps: nice = 32 x level + step - 383; step = floor(log2 U), U = l g (1 - x).
    # Level 1 has no steps.
    # 60: C 32 - 383. D: 5040 s x 8 = 2^15.3. E, level 6: 359,990 s = 2^18.5. A and B run and are not written.
    # 660: A and B wait. 3120: F, 980 s x 4 = 2^11.9. A keeps its value when it is requeued again.
    got, controller = decisions("tias@on")
    short = [(d["time"], d["job"], d["action"], d["old"], d["new"]) for d in got]
    assert short == [
        (60, "C", "nice", 0, -351),
        (60, "D", "nice", 0, -368),
        (60, "E", "nice", 0, -173),
        (600, "A", "requeue", "RUNNING", "PENDING"),
        (600, "B", "requeue", "RUNNING", "PENDING"),
        (660, "A", "nice", 0, -351),
        (660, "B", "nice", 0, -351),
        (3120, "F", "nice", 0, -372),
        (3120, "A", "requeue", "RUNNING", "PENDING"),
    ]
    assert controller.writes == 6
    assert {d["policy"] for d in got} == {"tias@on"}
    assert [d["reason"] for d in got[:4]] == [
        "level 1: no deadline, queue 0 by attained service",
        f"level 0: urgent, risk {5040 / (1.28 * 5060):.3f} >= 0.1",
        "level 6: calm, risk 0.016, queue 2",
        "makes room for D: level 0 before level 1",
    ]


def test_without_preemption_nobody_is_requeued():
    got, _ = decisions("tias@off")
    assert {d["action"] for d in got} == {"nice"}


def test_only_tias_is_written_down():
    assert decisions("las")[0] == []
