"""A made-up GPU site for four weeks: its nodes and its users, and which jobs they submit when.

Whole numbers only (seconds, GPUs, fixed-point logarithms) and nothing but `random.Random.getrandbits`, so
that one seed gives one history on every platform and Python version.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import isqrt

HOUR, DAY = 3600, 86400
BEGIN = 1791151200  # Monday 2026-10-05T00:00 in Berlin
SUMMER_TIME_ENDS = 1792890000  # Sunday 2026-10-25: 02:00 to 03:00 happens twice
FINISH = 1793574000  # Monday 2026-11-02T00:00 in Berlin

ACCOUNTS = ("vision", "nlp", "robotics", "genomics", "climate", "theory")
USERS = (
    *("amara", "bjorn", "chidi", "dagmar", "emre", "fatou", "gianni", "hanna", "ivo", "jun", "katya"),
    *("leila", "mateo", "nadia", "ole", "priya", "quentin", "rosa", "sven", "tomoko", "umut", "vera"),
    *("wanjiru", "yusuf", "zofia"),
)
GPU_WEIGHTS = {1: 560, 2: 215, 4: 125, 8: 78, 16: 16, 32: 6}
HUMAN_LIMITS = (
    *(10, 15, 30, 60, 90, 120, 180, 240, 360, 480, 720, 1080, 1440, 2160, 2880, 4320, 5760, 7200, 10080),
)
HOUR_WEIGHTS = (3, 2, 2, 1, 1, 1, 2, 3, 6, 10, 11, 11, 8, 10, 12, 12, 11, 10, 7, 6, 5, 5, 4, 4)
WEEK_WEIGHTS = (85, 112, 118, 85)  # the third week has a conference's date in sight
# (node, from, to): both come back
FAILURES = (
    ("gn04", BEGIN + 9 * DAY + 14 * HOUR + 1234, BEGIN + 9 * DAY + 17 * HOUR),
    ("gn07", FINISH - 2 * DAY - 11 * HOUR - 77, FINISH - 9 * HOUR),
)
IDS_FALL_BACK = BEGIN + 23 * DAY  # the controller lost its state: 25 ids of the first week come again


# Fixed point: 2 ** (q / 65536) as an integer with 40 binary places.
_ROOTS: list[int] = [2 << 40]
for _ in range(16):
    _ROOTS.append(isqrt(_ROOTS[-1] << 40))


def exp2(q: int) -> int:
    """2 ** (q / 2**16), times 2**40."""
    whole, part = divmod(q, 65536)
    value = 1 << 40
    for bit in range(16):
        if part >> (15 - bit) & 1:
            value = value * _ROOTS[bit + 1] >> 40
    return value << whole if whole >= 0 else value >> -whole


class Dice:
    """Integer draws from one seeded stream."""

    def __init__(self, seed: int) -> None:
        self.bits = random.Random(seed).getrandbits

    def below(self, n: int) -> int:
        """0 .. n - 1."""
        return self.bits(48) * n >> 48

    def between(self, low: int, high: int) -> int:
        """low .. high."""
        return low + self.below(high - low + 1)

    def chance(self, per_mille: int) -> bool:
        """True in so many of 1000 draws."""
        return self.below(1000) < per_mille

    def pick(self, items):
        """One of a sequence; of a dict of weights, a key."""
        if isinstance(items, dict):
            at = self.below(sum(items.values()))
            for key, weight in items.items():
                at -= weight
                if at < 0:
                    return key
        return items[self.below(len(items))]

    def log_normal(self, median_log2: int, sigma_log2: int) -> int:
        """A whole number; both parameters are logarithms to base 2, times 65536."""
        z = sum(self.bits(16) for _ in range(12)) - 6 * 65536
        return exp2(median_log2 + (z * sigma_log2 >> 16)) >> 40


@dataclass
class Node:
    name: str
    partitions: tuple[str, ...]
    gpus: int
    cpus: int = 64
    mem_mb: int = 512_000
    up: bool = True
    free_gpus: int = 0
    free_cpus: int = 0
    free_mem: int = 0

    def __post_init__(self) -> None:
        self.free_gpus, self.free_cpus, self.free_mem = self.gpus, self.cpus, self.mem_mb


def make_nodes() -> list[Node]:
    """Ten GPU nodes, the last one also for debugging, and two without GPUs."""
    gpu = [Node(f"gn{i:02}", ("gpu", "debug") if i == 10 else ("gpu",), 8) for i in range(1, 11)]
    return gpu + [Node(f"cn{i:02}", ("cpu",), 0, mem_mb=256_000) for i in (1, 2)]


@dataclass
class Run:
    """One record of the accounting: from a submit (or requeue) to an end."""

    submit: int
    eligible: int | None
    start: int | None = None
    end: int | None = None
    state: str = "PENDING"
    nodes: list[str] = field(default_factory=list)
    suspended: int = 0


@dataclass
class Array:
    job_id: int
    size: int
    throttle: int  # 0: none
    unstarted: int
    running: int = 0


@dataclass(eq=False)
class Job:
    user: str
    account: str
    partition: str
    submit: int
    gpus: int
    nodes: int
    cpus: int  # whole job
    mem_mb: int  # whole job
    duration: int  # what it needs to complete
    limit: int | None  # minutes; None: unlimited
    fate: str  # state in which its last run ends if nothing else happens
    runs_for: int  # seconds until that
    delay: int = 0  # eligible so long after the submit
    patience: int | None = None  # seconds of waiting until the user cancels it
    requeue_at: int | None = None  # an operator requeues its first run after so many seconds
    requeueable: bool = True
    held: bool = False
    suspended: int = 0
    array: Array | None = None
    task: int = 0
    raw_id: int = 0
    het: Job | None = None  # second component: starts and ends with this one
    het_leader: Job | None = None
    runs: list[Run] = field(default_factory=list)

    @property
    def first_submit(self) -> int:
        return self.runs[0].submit


def draw_limit(dice: Dice, duration: int) -> int:
    """Minutes, as people ask: 1.5 to 4 times the run, mostly a round number."""
    wanted = duration * dice.between(150, 400) // 6000 + 1
    if dice.chance(150):
        return min(wanted, HUMAN_LIMITS[-1])
    return next((m for m in HUMAN_LIMITS if m >= wanted), HUMAN_LIMITS[-1])


def draw_submits(dice: Dice, count: int) -> list[int]:
    """Moments of submission with the rhythm of days and weeks."""
    hours = []
    for hour in range((FINISH - BEGIN) // HOUR):
        day = hour // 24
        weight = HOUR_WEIGHTS[hour % 24] * WEEK_WEIGHTS[day // 7 % 4] * (35 if day % 7 > 4 else 100)
        hours.append(weight)
    table = dict(enumerate(hours))
    return sorted(BEGIN + dice.pick(table) * HOUR + dice.below(HOUR) for _ in range(count))


def draw_job(dice: Dice, user: int, submit: int, kind: str) -> Job:
    """One job of a kind: gpu, debug or cpu."""
    gpus = {"gpu": dice.pick(GPU_WEIGHTS), "debug": 1, "cpu": 0}[kind]
    nodes = max(1, gpus // 8)
    if gpus == 4 and dice.chance(60):
        nodes = 2  # two GPUs on each of two nodes, as some insist
    if gpus:
        cpus, mem_mb = gpus * dice.pick((4, 8, 8)), gpus * dice.pick((32, 48, 60)) * 1024
    else:
        cpus = dice.pick((1, 2, 4, 8, 16))
        mem_mb = cpus * 3 * 1024
    duration = max(20, dice.log_normal(752_000, 122_000))
    longest = {"gpu": 3 * DAY if gpus < 8 else 14 * HOUR, "debug": 1500, "cpu": 10 * HOUR}
    duration = min(duration, longest[kind])
    limit: int | None = 60 if kind == "debug" else draw_limit(dice, duration)
    fate = dice.pick(
        {"COMPLETED": 800, "FAILED": 90, "CANCELLED": 45, "TIMEOUT": 35, "OUT_OF_MEMORY": 15, "UNLIMITED": 15}
    )
    runs_for = duration
    if fate in ("FAILED", "CANCELLED", "OUT_OF_MEMORY"):
        runs_for = 0 if dice.chance(40) else duration * dice.between(2, 90) // 100
    elif fate == "TIMEOUT":
        limit = max(5, duration // 60 * dice.between(50, 90) // 100)
        runs_for = 60 * limit + dice.between(1, 29)  # Slurm looks every half minute
        duration = max(duration, runs_for + 60)
    elif fate == "UNLIMITED":
        fate, limit = "COMPLETED", None
    job = Job(
        *(
            USERS[user],
            ACCOUNTS[user % 6],
            kind,
            submit,
            gpus,
            nodes,
            cpus,
            mem_mb,
            duration,
            limit,
            fate,
            runs_for,
        )
    )
    job.requeueable = not dice.chance(120)
    if dice.chance(20):
        job.delay = dice.between(60, 6 * HOUR)
    if dice.chance(45):
        job.patience = dice.between(60, 20 * HOUR)
    if job.runs_for > 1800 and job.requeueable and dice.chance(25):
        job.requeue_at = dice.between(600, job.runs_for - 60)
    if job.runs_for > 3600 and dice.chance(8):
        job.suspended = dice.between(60, 1800)
    return job


def draw_jobs(dice: Dice, submissions: int, load_percent: int) -> list[Job]:
    """All jobs in order of submission, scaled so that they ask for load_percent of the GPU time there is."""
    weights = {i: 100 // (i // 2 + 2) for i in range(len(USERS))}
    jobs: list[Job] = []
    for submit in draw_submits(dice, submissions):
        job = draw_job(dice, dice.pick(weights), submit, dice.pick({"gpu": 870, "debug": 45, "cpu": 85}))
        if job.partition == "gpu" and job.gpus <= 2 and dice.chance(42):
            size = dice.between(4, 24)
            array = Array(0, size, 4 if dice.chance(250) else 0, size)
            for task in range(size):
                twin = draw_job(dice, USERS.index(job.user), submit, "gpu")
                twin.gpus, twin.nodes, twin.cpus, twin.mem_mb = job.gpus, job.nodes, job.cpus, job.mem_mb
                twin.duration = max(20, job.duration * dice.between(70, 130) // 100)
                twin.fate = "FAILED" if dice.chance(60) else "COMPLETED"
                twin.runs_for = twin.duration if twin.fate == "COMPLETED" else twin.duration // 7
                least = twin.duration // 40 + 1
                twin.limit = HUMAN_LIMITS[-1] if job.limit is None else max(job.limit, least)
                twin.delay, twin.suspended, twin.requeue_at = 0, 0, None
                twin.patience = job.patience
                twin.array, twin.task = array, task
                jobs.append(twin)
        else:
            jobs.append(job)
            if job.partition == "gpu" and job.gpus == 4 and job.nodes == 1 and dice.chance(12):
                add_component(jobs, job)
    add_last_array(jobs)
    demand = sum(j.gpus * j.runs_for for j in jobs if j.fate != "TIMEOUT")
    fixed = sum(j.gpus * j.runs_for for j in jobs if j.fate == "TIMEOUT")
    wanted = 80 * (FINISH - BEGIN) * load_percent // 100 - fixed
    for job in jobs:
        if job.fate != "TIMEOUT" and job.gpus and job.partition == "gpu":
            job.duration = max(1, job.duration * wanted // demand)
            job.runs_for = job.runs_for * wanted // demand
            if job.requeue_at is not None:
                job.requeue_at = max(1, job.requeue_at * wanted // demand)
            if job.limit is not None and job.limit * 60 < job.runs_for:
                job.limit = draw_limit(dice, job.runs_for)
    for job in (j for j in jobs if j.het):
        job.het.duration, job.het.runs_for = job.duration, job.runs_for
    dice_held = [j for j in jobs if j.partition == "cpu"][5::160]
    for job in dice_held:
        job.held, job.patience = True, 5 * HOUR + job.cpus
    return jobs


def add_last_array(jobs: list[Job]) -> None:
    """An array, two tasks at a time, of which a remainder waits when the four weeks are over."""
    submit = FINISH - 8 * HOUR
    array = Array(0, 12, 2, 12)
    place = sum(j.submit <= submit for j in jobs)
    for task in range(12):
        job = Job(USERS[3], ACCOUNTS[3], "gpu", submit, 1, 1, 8, 49_152, 9000, 240, "COMPLETED", 9000)
        job.array, job.task = array, task
        jobs.insert(place + task, job)


def add_component(jobs: list[Job], leader: Job) -> None:
    """Make a heterogeneous job: a second component that takes CPUs beside the leader's GPUs."""
    leader.requeue_at, leader.suspended, leader.delay, leader.patience = None, 0, 0, None
    second = Job(
        *(leader.user, leader.account, "cpu", leader.submit, 0, 1, 8, 24_576, leader.duration, leader.limit),
        *(leader.fate, leader.runs_for),
    )
    leader.requeueable = second.requeueable = False
    leader.het, second.het_leader = second, leader
    jobs.append(second)
