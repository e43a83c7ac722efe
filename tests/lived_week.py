"""A week that was lived in the virtual cluster by the real cycle: its ledger, its export, and the truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from worlds import HOUR, workload

from tias_slurm.assemble import ledger
from tias_slurm.config import Config
from tias_slurm.ledger import tally
from tias_slurm.ledger.store import Entry, SqliteStore
from tias_slurm.ledger.table import COLUMNS, REDONE
from tias_slurm.replay import simulate
from tias_slurm.replay.dry_run import Options, Run
from tias_slurm.replay.policies import parse
from tias_slurm.service.start import ledger_path
from tias_slurm.slurm.nodes import uniform

T0 = 1_790_000_000.0
COLUMN_NAMES = (
    "Cluster|JobID|JobIDRaw|User|Account|Partition|QOS|State|Submit|Eligible|Start|End|ElapsedRaw|Suspended"
    "|TimelimitRaw|AllocTRES|ReqTRES|NNodes|NodeList|Comment|SubmitLine"
)


@dataclass
class Week:
    """What the test knows."""

    home: Path
    config: Path
    export: Path
    jobs: list[dict]
    start: np.ndarray  # epoch s, by job
    end: np.ndarray
    requeues: list[tuple[float, int, int]] = field(default_factory=list)  # when, who, for whom
    lost_gpu_s: dict[int, float] = field(default_factory=dict)  # what requeues cost, by job
    writes: int = 0
    cycles: int = 0

    def missed(self, jobs=None):
        """Jobs that ended after their deadlines."""
        which = range(len(self.jobs)) if jobs is None else jobs
        return {j for j in which if self.end[j] > self.jobs[j]["deadline"]}


def jobs_of(n, seed, share=0.5):
    """Jobs of one to eight GPUs, a part of them with deadlines; more than 16 GPUs can serve at once."""
    rng = np.random.default_rng(seed)
    submit = np.sort(T0 + np.round(rng.uniform(0, 60 * HOUR, n)))
    made = []
    for i in range(n):
        work = float(np.round(rng.lognormal(8.7, 0.9)))
        window = np.round(work * (0.7 if i % 11 == 0 else rng.uniform(1.1, 4)))
        due = float(submit[i] + max(window, 600.0)) if rng.random() < share else np.nan
        made.append(
            {"submit": submit[i], "work": max(work, 60.0), "gpus": int(rng.choice([1, 2, 4, 8])), "cpus": 1,
             "deadline": due, "consent": int(rng.random() < 0.7), "user": f"u{i % 4}", "partition": "gpu"}
        )  # fmt: skip
    return made


def live(home, *, n=90, seed=1, requeue="on", mode="enforce") -> Week:
    """Let jobs live under the real cycle, with a ledger on disk."""
    state, config_path = home / "state", home / "config.toml"
    state.mkdir(exist_ok=True)
    config_path.write_text(
        f'[daemon]\nmode = "{mode}"\nstate_dir = "{state}"\n[requeue]\nmode = "{requeue}"\n'
        '[deadlines]\ntimezone = "UTC"\n[cycle]\ninterval_s = 300\n'
    )
    config = Config.model_validate(
        {
            "daemon": {"mode": mode, "state_dir": str(state)},
            "requeue": {"mode": requeue},
            "cycle": {"interval_s": 300},
        }
    )
    jobs = jobs_of(n, seed)
    run = Run(workload(jobs, trace=False), uniform(16, 8), config, Options(), [])
    (wanted,) = parse(f"tias@{'on' if requeue == 'on' else 'off'}", is_trace=False, preemption=None)
    cluster, controller = run.prepare(wanted)
    store = SqliteStore(ledger_path(config))
    week = Week(home, config_path, home / "export.txt", jobs, np.full(n, np.nan), np.full(n, np.nan))
    runs: list[tuple[int, float, float, float]] = []  # job, submit, start, end of runs that were stopped
    submit = {i: job["submit"] for i, job in enumerate(jobs)}

    def record(snapshot, ranking, plan):
        ids, now = snapshot.jobs.job_id, snapshot.now
        entries = [
            Entry(now, int(ids[r]), "nice", old, new, controller.policy.reason(ranking, r), "ok")
            for r, old, new in zip(plan.write.tolist(), plan.old.tolist(), plan.new.tolist(), strict=True)
        ]
        for r, other in zip(plan.victims.tolist(), plan.beneficiaries.tolist(), strict=True):
            job = int(ids[r])
            entries.append(
                Entry(now, job, "requeue", None, float(ids[other]), f"level {ranking.level[r]}", "ok")
            )
            week.requeues.append((now, job, int(ids[other])))
            runs.append((job, submit[job], now - float(snapshot.jobs.run_time[r]), now))
            submit[job] = now
        store.record(entries)
        week.writes += len(plan.write)

    def step(name):
        if not name:
            week.cycles += 1
            tally.note(
                store, cluster.now, "ok", paused=False, claims={}, jobs={"overridden": week.cycles % 3}
            )

    controller.ledger = ledger(config, store, told_at_submit=True)
    controller.record, controller.step = record, step
    simulate.run(cluster, controller, config.cycle.interval_s)
    number = run.requests.number
    week.start, week.end = cluster.state.started[number], cluster.state.end[number]
    ids, table, _ = store.load()
    gone, more = store.recall(np.arange(n))
    for job, row in [*zip(ids, table, strict=True), *zip(gone, more, strict=True)]:
        if row[REDONE]:
            week.lost_gpu_s[int(job)] = float(row[REDONE]) * jobs[job]["gpus"]
    assert table.shape[1] == len(COLUMNS)
    store.close()
    _export(week, runs, submit)
    return week


def _export(week, runs, submit):
    """What sacct -D would show: a record for each run, the comment as it stands in the end."""
    lines = [COLUMN_NAMES]

    def line(job, state, since, start, end):
        what, tres = week.jobs[job], f"cpu=1,gres/gpu={week.jobs[job]['gpus']}"
        said = [] if np.isnan(what["deadline"]) else [f"deadline=@{what['deadline']:.0f}"]
        said += [f"requeue={'yes' if what['consent'] else 'no'}"]
        cells = (
            "alpha",
            f"900_{job}",
            job,
            what["user"],
            "lab",
            "gpu",
            "normal",
            state,
            f"{since:.0f}",
            f"{since:.0f}",
            f"{start:.0f}",
            f"{end:.0f}",
            f"{end - start:.0f}",
            0,
            "",
            tres,
            tres,
            1,
            "",
            ",".join(said),
            "",
        )
        lines.append("|".join(map(str, cells)))

    for job, since, start, end in runs:
        line(job, "REQUEUED", since, start, end)
    for job in range(len(week.jobs)):
        line(job, "COMPLETED", submit[job], week.start[job], week.end[job])
    week.export.write_text("\n".join(lines) + "\n")
