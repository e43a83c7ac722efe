"""What a user gains by gaming his claims: python bench/gaming.py prints the table of docs/policy.md.

Made-up jobs on 8 nodes of 8 GPUs at a load of 0.95: twenty users, one of whom may cheat with all of his jobs.
Each cheat is replayed beside its honest twin, which has the same jobs.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tias_slurm.config import Config
from tias_slurm.controller import Controller
from tias_slurm.jobs import RUNNING, Floats, Snapshot
from tias_slurm.replay import simulate
from tias_slurm.replay.dry_run import Options, Run
from tias_slurm.replay.policies import parse
from tias_slurm.replay.workload import Refusals, Workload
from tias_slurm.slurm.nodes import uniform

NODES, USERS, JOBS, LOAD = 8, 20, 600, 0.95
CHEAT = 0  # the user who may cheat
HOUR, DAY = 3600.0, 86_400.0
BESIDE = ("las", "deadline-qos")  # what else a site might do
PRESETS = ("jct-first", "wide-fair", "balanced", "guard", "slots")


def honest_jobs(seed: int) -> pd.DataFrame:
    """The honest jobs: submit, work, gpus, user, deadline (half of them have one), job."""
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1, 2, 4, 8, 16], JOBS, p=[0.5, 0.18, 0.14, 0.14, 0.04])
    work = np.round(np.clip(rng.lognormal(np.log(2.2 * HOUR), 1.3, JOBS), 120, 3 * DAY))
    span = float((work * gpus).sum()) / (8 * NODES * LOAD)
    submit = np.sort(np.round(rng.random(JOBS) * span))
    user = rng.integers(0, USERS, JOBS)
    window = work * (1 + rng.uniform(0.3, 2, JOBS))
    claims = rng.random(JOBS) < 0.5
    return pd.DataFrame(
        {
            "submit": submit,
            "work": work,
            "gpus": gpus,
            "user": user,
            "deadline": np.where(claims, submit + window, np.nan),
            "job": np.arange(JOBS),
        }
    )


# what the comments of the cheat's jobs say at a look: (now, his jobs' columns) -> deadlines, NaN: none
Says = Callable[[float, "Mine"], Floats]


@dataclass(frozen=True)
class Mine:
    """The cheat's jobs of one look. Shapes (m,)."""

    submit: Floats  # first submit
    honest: Floats  # the deadline that he really has; NaN: none
    running: np.ndarray[Any, np.dtype[np.bool_]]
    run_time: Floats  # so far in this run


@dataclass(frozen=True)
class Cheat:
    """A way to game: other jobs from the start, or other comments over time."""

    title: str
    jobs: Callable[[pd.DataFrame], pd.DataFrame] = lambda jobs: jobs
    says: Says | None = None


def _tight(hours: float) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda jobs: jobs.assign(deadline=jobs["submit"] + hours * HOUR)


def _accurate(jobs: pd.DataFrame) -> pd.DataFrame:
    return jobs.assign(deadline=jobs["submit"] + 1.3 * jobs["work"] + 600)


def _split(jobs: pd.DataFrame) -> pd.DataFrame:
    """Each job of over two hours as four parts of a quarter, submitted together; the last to end counts."""
    long = jobs["work"] > 2 * HOUR
    parts = [jobs[~long]] + [jobs[long].assign(work=np.ceil(jobs["work"][long] / 4))] * 4
    return pd.concat(parts)


def _wide_window(jobs: pd.DataFrame) -> pd.DataFrame:
    long = jobs["work"] * jobs["gpus"] > 20 * HOUR
    return jobs.assign(deadline=np.where(long, jobs["submit"] + 7 * DAY, np.nan))


def _each_minute(now: float, mine: Mine) -> Floats:
    return np.floor(now / 60.0) * 60.0 + 2 * HOUR + np.zeros(len(mine.submit))


def _when_waiting(now: float, mine: Mine) -> Floats:
    return np.where((now - mine.submit > HOUR) & ~mine.running, mine.submit + 12 * HOUR, np.nan)


def _remove_when_lost(now: float, mine: Mine) -> Floats:
    said = mine.submit + 6 * HOUR
    return np.where((said - now < HOUR) & ~mine.running, np.nan, said)


def _move_when_lost(now: float, mine: Mine) -> Floats:
    """Six hours, and twelve more each time that it comes near."""
    moves = np.maximum(np.ceil((now - mine.submit - 5 * HOUR) / (12 * HOUR)), 0.0)
    return mine.submit + 6 * HOUR + moves * 12 * HOUR


def _while_running(now: float, mine: Mine) -> Floats:
    """An hour from now, once it runs: nobody may requeue it then."""
    ends = now - mine.run_time + np.ceil((mine.run_time + 60) / HOUR) * HOUR
    return np.where(mine.running, ends, np.nan)


CHEATS = {
    "absurd": Cheat("an hour from the submit, on every job", _tight(1)),
    "plausible": Cheat("twelve hours from the submit, on every job", _tight(12)),
    "accurate": Cheat("1.3 times the true run time, on every job", _accurate),
    "split": Cheat("jobs of over two hours in four parts", _split),
    "minute": Cheat("two hours from now, changed each minute", says=_each_minute),
    "wide": Cheat("seven days, on his long jobs only", _wide_window),
    "late": Cheat("twelve hours, added once the job waits", says=_when_waiting),
    "removed": Cheat("six hours, withdrawn when it is nearly lost", says=_remove_when_lost),
    "moved": Cheat("six hours, moved when it is nearly lost", says=_move_when_lost),
    "running": Cheat("an hour from now, added once the job runs", says=_while_running),
}


@dataclass(frozen=True)
class Result:
    """Of one replay."""

    jct: float  # mean of the cheat's jobs, s
    others_jct: float  # mean of the honest users' jobs without a deadline, s
    others_miss: float  # honest users' deadline miss rate


def play(seed: int, cheat: Cheat | None, config: Config, policy: str = "tias@all") -> Result:
    """Replay; `cheat`: what user CHEAT does, None: he is honest."""
    honest = honest_jobs(seed)
    jobs = honest
    if cheat is not None:
        his = honest["user"] == CHEAT
        jobs = pd.concat([honest[~his], cheat.jobs(honest[his])]).sort_values("submit", kind="stable")
    jobs = jobs.reset_index(drop=True)
    run = Run(_workload(jobs), uniform(8 * NODES, 8), config, Options(), [])
    (wanted,) = parse(policy, is_trace=True, preemption=None)
    cluster, controller = run.prepare(wanted)
    if cheat is not None and cheat.says is not None and controller is not None:
        _Talking(controller, cheat.says, run, jobs)
    simulate.run(cluster, controller, config.cycle.interval_s)
    end = cluster.state.end[run.requests.number]
    his = (jobs["user"] == CHEAT).to_numpy()
    # the parts of a job count as one, which ends with the last of them
    done = pd.Series(end[his]).groupby(jobs["job"][his].to_numpy()).max()
    submitted = honest["submit"][honest["user"] == CHEAT].to_numpy()
    due = jobs["deadline"].to_numpy()
    claims, rest = ~his & np.isfinite(due), ~his & ~np.isfinite(due)
    return Result(
        jct=float((done.to_numpy() - submitted).mean()),
        others_jct=float((end - jobs["submit"].to_numpy())[rest].mean()),
        others_miss=float((end > due)[claims].mean()),
    )


def _workload(jobs: pd.DataFrame) -> Workload:
    n = len(jobs)
    users = ("u" + jobs["user"].astype(str)).to_numpy()
    empty = np.array([""] * n, dtype=object)
    table = dict.fromkeys(("cluster", "account", "partition", "qos", "gpu_type"), empty)
    nothing = np.full(n, np.nan)
    frame = pd.DataFrame(
        table
        | {
            "job_id": np.arange(n).astype(str),
            "user": users,
            "account": users,
            "state": ["COMPLETED"] * n,
            "first_submit": jobs["submit"].to_numpy(),
            "eligible": jobs["submit"].to_numpy(),
            "start": nothing,
            "end": nothing,
            "work": jobs["work"].to_numpy(),
            "lost_work": np.zeros(n),
            "runs": np.ones(n, dtype=np.int64),
            "gpus": jobs["gpus"].to_numpy(),
            "cpus": np.zeros(n, dtype=np.int64),
            "mem_mb": np.zeros(n),
            "nodes": np.zeros(n, dtype=np.int64),
            "time_limit": nothing,
            "comment": empty,
            "submit_line": empty,
            "native_deadline": nothing,
            "deadline": jobs["deadline"].to_numpy(),
            "consent": np.ones(n, dtype=np.int64),
            "checkpoint": nothing,
        }
    )
    return Workload(frame, True, 1, n, Refusals())


class _Talking:
    """Stands between a controller and its cluster, and says other things in the cheat's comments."""

    def __init__(self, controller: Controller, says: Says, run: Run, jobs: pd.DataFrame) -> None:
        self._cluster, self._says = controller.cluster, says
        self._his = (jobs["user"].to_numpy() == CHEAT)[run.requests.row]
        self._submit = run.requests.first_submit
        self._honest = run.requests.deadline
        self.pinned, self.apply = controller.cluster.pinned, controller.cluster.apply
        controller.cluster = self
        controller.ledger._told_at_submit = False

    def observe(self) -> Snapshot:
        """As the cluster does it, but for the deadlines of the cheat's jobs."""
        seen = self._cluster.observe()
        ids = seen.jobs.job_id
        his = np.flatnonzero(self._his[ids])
        if not len(his):
            return seen
        mine = Mine(
            self._submit[ids[his]],
            self._honest[ids[his]],
            seen.jobs.state[his] == RUNNING,
            seen.jobs.run_time[his],
        )
        deadline = seen.jobs.deadline.copy()
        deadline[his] = self._says(seen.now, mine)
        return replace(seen, jobs=replace(seen.jobs, deadline=deadline))


def config(preset: str, *, interval_s: float = 60.0, **deadlines: object) -> Config:
    """Settings of a replay."""
    return Config.model_validate(
        {"policy": {"preset": preset}, "cycle": {"interval_s": interval_s}, "deadlines": deadlines}
    )


@functools.cache
def _honest(seed: int, settings: str, policy: str) -> Result:
    return play(seed, None, Config.model_validate_json(settings), policy)


@dataclass(frozen=True)
class Gain:
    """Of a cheat against his honest twin."""

    jct: float  # his mean JCT as a ratio to the twin's
    others_jct: float  # likewise of the others' jobs without a deadline
    others_miss: float  # percentage points of deadlines that the others miss more


def compare(seeds: Sequence[int], cheat: Cheat, settings: Config, policy: str = "tias@all") -> Gain:
    """Over several seeds."""
    text = settings.model_dump_json()
    honest = [_honest(seed, text, policy) for seed in seeds]
    now = [play(seed, cheat, settings, policy) for seed in seeds]
    return Gain(
        sum(r.jct for r in now) / sum(r.jct for r in honest),
        sum(r.others_jct for r in now) / sum(r.others_jct for r in honest),
        100 * float(np.mean([a.others_miss - b.others_miss for a, b in zip(now, honest, strict=True)])),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quota", type=float, help="[deadlines] quota_rate")
    args = parser.parse_args()
    quota = {} if args.quota is None else {"quota_rate": args.quota}
    print(f"| what he does | {' | '.join((*PRESETS, *BESIDE))} |")
    print("|---" * (1 + len(PRESETS) + len(BESIDE)) + "|")
    for cheat in CHEATS.values():
        gains = [
            compare(range(args.seeds), cheat, config(preset, interval_s=300.0, **quota)) for preset in PRESETS
        ]
        gains += [
            compare(range(args.seeds), cheat, config("jct-first", interval_s=300.0), f"{p}@all")
            for p in BESIDE
        ]
        cells = (f"{g.jct:.2f} ({g.others_jct:.2f}, {g.others_miss:+.1f})" for g in gains)
        print(f"| {cheat.title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
