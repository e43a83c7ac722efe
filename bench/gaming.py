"""What a user gains by gaming his claims: python bench/gaming.py prints the tables of docs/policy.md.

Made-up jobs on nodes of 8 GPUs: twenty users, one of whom has a seventh of the jobs and may cheat with all of
his. Each cheat is compared with honest twins: users with the same jobs, and other honest deadlines each. How
far the twins lie apart is luck, and what a cheat gains has to be seen against that.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from cheats import BESIDE, CHEAT, CHEATS, FULL, Cheat, Mine, Says, Size, honest_jobs

from tias_slurm.config import Config
from tias_slurm.controller import Controller
from tias_slurm.jobs import RUNNING, Floats, RankInput, Snapshot
from tias_slurm.replay import simulate
from tias_slurm.replay.dry_run import Options, Run
from tias_slurm.replay.policies import parse
from tias_slurm.replay.workload import Refusals, Workload
from tias_slurm.slurm.nodes import uniform

PRESETS = ("jct-first", "steady", "wide-fair", "balanced", "guard", "slots")
LEARNED = ("balanced", "slots")  # the presets that finished jobs teach
# the rules that limit cheats, and whom each of them is for; `play` can do without one
RULES = {"max_changes": "hourly", "lost": "removed", "late": "running", "teachers": "teach"}


@dataclass(frozen=True)
class Result:
    """Of one replay."""

    jct: float  # mean of the cheat's jobs, s
    others_jct: float  # mean of the honest users' jobs without a deadline, s
    others_miss: float  # honest users' deadline miss rate


def play(
    seed: int,
    cheat: Cheat | None,
    config: Config,
    policy: str = "tias@all",
    *,
    size: Size = FULL,
    twin: int = 0,
    without: str = "",
) -> Result:
    """Replay; `cheat`: what user CHEAT does, None: he is honest. `without`: one of RULES is not there."""
    honest = honest_jobs(seed, size, twin)
    jobs = honest
    if cheat is not None:
        his = honest["user"] == CHEAT
        jobs = pd.concat([honest[~his], cheat.jobs(honest[his])]).sort_values("submit", kind="stable")
    jobs = jobs.reset_index(drop=True)
    config = _without_setting(config, without)
    run = Run(_workload(jobs), uniform(8 * size.nodes, 8), config, Options(), [])
    (wanted,) = parse(policy, is_trace=True, preemption=None)
    cluster, controller = run.prepare(wanted)
    if controller is not None:
        if cheat is not None and cheat.says is not None:
            _Talking(controller, cheat.says, run, jobs)
        _without_mark(controller, without)
    simulate.run(cluster, controller, config.cycle.interval_s)
    end = cluster.state.end[run.requests.number]
    his = (jobs["user"] == CHEAT).to_numpy()
    count = his & (jobs["job"] != BESIDE).to_numpy()
    # the parts of a job count as one, which ends with the last of them
    done = pd.Series(end[count]).groupby(jobs["job"][count].to_numpy()).max()
    submitted = honest["submit"][honest["user"] == CHEAT].to_numpy()
    due = jobs["deadline"].to_numpy()
    claims, rest = ~his & np.isfinite(due), ~his & ~np.isfinite(due)
    return Result(
        jct=float((done.to_numpy() - submitted).mean()),
        others_jct=float((end - jobs["submit"].to_numpy())[rest].mean()),
        others_miss=float((end > due)[claims].mean()),
    )


def _without_setting(config: Config, rule: str) -> Config:
    gone = {
        "max_changes": {"deadlines": {"max_changes": 1000}},
        "teachers": {"learning": {"user_jobs": 1e9}},
    }.get(rule, {})
    said = config.model_dump()
    for section, settings in gone.items():
        said[section] |= settings
    return Config.model_validate(said) if gone else config


def _without_mark(controller: Controller, rule: str) -> None:
    field = {"lost": "claim_lost", "late": "late"}.get(rule)
    if field is None:
        return
    view = controller.ledger.view

    def unmarked(snapshot: Snapshot) -> RankInput:
        known = view(snapshot)
        return replace(known, **{field: np.zeros(len(known), dtype=np.bool_)})

    controller.ledger.view = unmarked


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
def twins(seed: int, settings: str, policy: str, size: Size) -> tuple[Result, Result]:
    """Two honest users with the same jobs, and other deadlines each. `settings`: a Config as JSON."""
    said = Config.model_validate_json(settings)
    a, b = (play(seed, None, said, policy, size=size, twin=twin) for twin in (0, 1))
    return a, b


@dataclass(frozen=True)
class Gain:
    """Of a cheat against his honest twins, by seed. Shapes (seeds,)."""

    jct: Floats  # his mean JCT as a ratio to the mean of the twins'
    others_jct: Floats  # likewise of the others' jobs without a deadline
    others_miss: Floats  # percentage points of deadlines that the others miss more

    @property
    def mean(self) -> float:
        """Of `jct` over the seeds, each of which weighs the same."""
        return float(np.exp(np.log(self.jct).mean()))

    @property
    def interval(self) -> tuple[float, float]:
        """In which the mean of all seeds lies, 95 %: Student's t on the logarithms."""
        logs = np.log(self.jct)
        if len(logs) < 2:
            return 0.0, np.inf
        half = T95[len(logs) - 1] * logs.std(ddof=1) / np.sqrt(len(logs))
        return float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))


# 97.5 % quantiles of Student's t by degrees of freedom
T95 = (np.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


def compare(
    seeds: Sequence[int],
    cheat: Cheat,
    settings: Config,
    policy: str = "tias@all",
    *,
    size: Size = FULL,
    without: str = "",
) -> Gain:
    """Over several seeds. The twins live with all rules: no rule concerns them."""
    text = settings.model_dump_json()
    honest = [twins(seed, text, policy, size) for seed in seeds]
    now = [play(seed, cheat, settings, policy, size=size, without=without) for seed in seeds]
    pairs = list(zip(now, honest, strict=True))
    return Gain(
        np.array([2 * r.jct / (a.jct + b.jct) for r, (a, b) in pairs]),
        np.array([2 * r.others_jct / (a.others_jct + b.others_jct) for r, (a, b) in pairs]),
        np.array([100 * (r.others_miss - (a.others_miss + b.others_miss) / 2) for r, (a, b) in pairs]),
    )


def luck(seeds: Sequence[int], settings: Config, policy: str = "tias@all", *, size: Size = FULL) -> Gain:
    """What one honest twin gains over the other."""
    honest = [twins(seed, settings.model_dump_json(), policy, size) for seed in seeds]
    return Gain(
        np.array([b.jct / a.jct for a, b in honest]),
        np.array([b.others_jct / a.others_jct for a, b in honest]),
        np.array([100 * (b.others_miss - a.others_miss) for a, b in honest]),
    )


def _columns(interval_s: float) -> dict[str, tuple[Config, str]]:
    """What is compared: settings and policy by title."""
    found = {preset: (config(preset, interval_s=interval_s), "tias@all") for preset in PRESETS}
    found["jct-first, quota 0.7"] = config("jct-first", interval_s=interval_s, quota_rate=0.7), "tias@all"
    # what else a site might do
    found["deadline-qos"] = config("jct-first", interval_s=interval_s), "deadline-qos@all"
    return found


def _his(gain: Gain) -> str:
    low, high = gain.interval
    return f"{gain.mean:.2f} ({low:.2f}-{high:.2f}; {gain.jct.min():.2f})"


def _theirs(gain: Gain) -> str:
    return f"{np.exp(np.log(gain.others_jct).mean()):.2f}, {gain.others_miss.mean():+.1f}"


def _rows(rules: bool, cheats: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Cheat and missing rule by title."""
    found = {CHEATS[key].title: (key, "") for key in cheats}
    if rules:
        found |= {f"{CHEATS[key].title}, without `{rule}`": (key, rule) for rule, key in RULES.items()}
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="Ctrl-C prints those that are done")
    parser.add_argument("--interval", type=float, default=600.0, help="of the daemon's cycles, s")
    parser.add_argument("--columns", nargs="*", default=list(PRESETS), help="presets, and others")
    parser.add_argument("--cheats", nargs="*", default=list(CHEATS), help="only these")
    parser.add_argument("--rules", action="store_true", help="and what cheats gain where a rule is missing")
    args = parser.parse_args()
    columns = {t: c for t, c in _columns(args.interval).items() if t in args.columns}
    rows = _rows(args.rules, args.cheats)
    honest = "nothing: one honest twin against the other"
    found: dict[tuple[str, str], list[Gain]] = {}
    try:
        for seed in range(args.seeds):
            this = {}
            for column, (settings, policy) in columns.items():
                this[honest, column] = luck([seed], settings, policy)
                for row, (key, rule) in rows.items():
                    if key != "teach" or column in LEARNED:
                        this[row, column] = compare([seed], CHEATS[key], settings, policy, without=rule)
                        print(seed, column, key, rule, this[row, column], file=sys.stderr, flush=True)
            for cell, gain in this.items():
                found.setdefault(cell, []).append(gain)
    except KeyboardInterrupt:
        pass
    for title, words in (("what he does", _his), ("what it does to the others", _theirs)):
        print(f"| {title} | {' | '.join(columns)} |")
        print("|---" * (1 + len(columns)) + "|")
        for row in (honest, *rows):
            cells = [
                words(Gain(*(np.concatenate(parts) for parts in zip(*map(_parts, gains), strict=True))))
                if (gains := found.get((row, column)))
                else ""
                for column in columns
            ]
            print(f"| {row} | {' | '.join(cells)} |")
        print(flush=True)


def _parts(gain: Gain) -> tuple[Floats, Floats, Floats]:
    return gain.jct, gain.others_jct, gain.others_miss


if __name__ == "__main__":
    main()
