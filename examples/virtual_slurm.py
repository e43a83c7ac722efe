"""A small Slurm that starts and ends the jobs of the made-up site.

The scheduler walks the queue by priority (age and fair share, 1000 points each) at every submit and end and
skips what does not fit. Once a job of several nodes has waited for a day, nodes are kept for it, which only
jobs may use that end in time by their time limits. Each job occupies GPUs, CPUs and memory of real nodes.
"""

from __future__ import annotations

import heapq

from virtual_site import (
    BEGIN,
    DAY,
    FAILURES,
    FINISH,
    HUMAN_LIMITS,
    IDS_FALL_BACK,
    USERS,
    Dice,
    Job,
    Node,
    Run,
    draw_jobs,
    exp2,
    make_nodes,
)

REQUEUE_DELAY = 121  # seconds until a requeued job may start again


class Site:
    """The controller: queue, nodes, clock."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        self.nodes = make_nodes()
        self.by_name = {n.name: n for n in self.nodes}
        self.queue: list[Job] = []
        self.running: dict[int, Job] = {}  # by id()
        self.usage = dict.fromkeys(USERS, 0)
        self.share = dict.fromkeys(USERS, 1000)
        self.events: list[tuple[int, int, str, object]] = []
        self.serial = 0
        self.next_id = 118_200
        self.again: list[int] = []
        self.kept_for: Job | None = None
        self.kept: set[str] = set()
        self.kept_from = 0  # when the job that they are kept for starts at the latest
        self.now = BEGIN

    def at(self, time: int, what: str, thing: object) -> None:
        self.serial += 1
        heapq.heappush(self.events, (time, self.serial, what, thing))

    def new_id(self, now: int) -> int:
        if now >= IDS_FALL_BACK and len(self.again) < 25:
            self.again.append(118_260 + 3 * len(self.again))
            return self.again[-1]
        self.next_id += 1
        return self.next_id

    def run(self) -> None:
        """From BEGIN to FINISH."""
        for job in self.jobs:
            self.at(job.submit, "submit", job)
        for time in range(BEGIN, FINISH, 300):
            self.at(time, "tick", None)
        for name, down, up in FAILURES:
            self.at(down, "down", name)
            self.at(up, "up", name)
        while self.events and self.events[0][0] < FINISH:
            now = self.events[0][0]
            look = False
            while self.events and self.events[0][0] == now:
                _, _, what, thing = heapq.heappop(self.events)
                look |= getattr(self, "on_" + what)(now, thing)
            if look:
                self.schedule(now)

    def on_submit(self, now: int, job: Job) -> bool:
        if job.array is None:
            job.raw_id = self.new_id(now)
        elif job.task == 0:
            job.array.job_id = self.new_id(now)
        job.runs.append(Run(now, None if job.held else now + job.delay))
        if job.patience is not None:
            self.at(now + job.patience, "patience", job)
        if not job.held and not job.het_leader:
            self.at(now + job.delay, "eligible", job)
        return False

    def on_eligible(self, now: int, job: Job) -> bool:
        if job.runs[-1].state == "PENDING":
            self.queue.append(job)
        return True

    def on_patience(self, now: int, job: Job) -> bool:
        run = job.runs[-1]
        if run.state == "PENDING":
            run.state, run.end = "CANCELLED", now
            if job in self.queue:
                self.queue.remove(job)
        return False

    def on_tick(self, now: int, _: object) -> bool:
        for user in USERS:
            self.usage[user] = self.usage[user] * 1099133655364 >> 40  # halves in 7 days
        for job in self.running.values():
            self.usage[job.user] += 300 * job.gpus
        total = sum(self.usage.values())
        for user in USERS:
            share = self.usage[user] * len(USERS) * 65536 // total if total else 0
            self.share[user] = 1000 * exp2(-share) >> 40
        return False

    def on_end(self, now: int, what: tuple[Job, Run]) -> bool:
        job, run = what
        if run.end is None:
            self.release(job, now, job.fate)
        return True

    def on_requeue(self, now: int, what: tuple[Job, Run]) -> bool:
        job, run = what
        if run.end is None:
            self.release(job, now, "REQUEUED" if job.submit % 4 else "PREEMPTED")
            self.again_later(job, now)
        return True

    def on_down(self, now: int, name: str) -> bool:
        self.by_name[name].up = False
        for i, job in enumerate([j for j in self.running.values() if name in j.runs[-1].nodes]):
            self.release(job, now, "NODE_FAIL")
            if job.requeueable and i % 3:
                self.again_later(job, now)
        return True

    def on_up(self, now: int, name: str) -> bool:
        self.by_name[name].up = True
        return True

    def again_later(self, job: Job, now: int) -> None:
        job.runs.append(Run(now, now + REQUEUE_DELAY))
        self.at(now + REQUEUE_DELAY, "eligible", job)

    def release(self, job: Job, now: int, state: str) -> None:
        run = job.runs[-1]
        run.end, run.state = now, state
        for name in run.nodes:
            node = self.by_name[name]
            node.free_gpus += job.gpus // job.nodes
            node.free_cpus += job.cpus // job.nodes
            node.free_mem += job.mem_mb // job.nodes
        del self.running[id(job)]
        if job.array:
            job.array.running -= 1
        if job.het:
            self.release(job.het, now, state)

    def place(self, job: Job) -> list[Node] | None:
        """The fullest nodes that still have room."""
        ends_in_time = job.limit is not None and self.now + 60 * job.limit <= self.kept_from
        g, c, m = job.gpus // job.nodes, job.cpus // job.nodes, job.mem_mb // job.nodes
        fit = [
            n
            for n in self.nodes
            if n.up
            and job.partition in n.partitions
            and (n.free_gpus >= g and n.free_cpus >= c and n.free_mem >= m)
            and (n.name not in self.kept or job is self.kept_for or ends_in_time)
        ]
        if len(fit) < job.nodes:
            return None
        return sorted(fit, key=lambda n: (n.free_gpus, n.free_cpus, n.name))[: job.nodes]

    def schedule(self, now: int) -> None:
        def rank(job: Job) -> tuple[int, int, int]:
            age = 1000 * min(now - job.runs[-1].eligible, 7 * DAY) // (7 * DAY)
            return -age - self.share[job.user], job.runs[-1].submit, job.task

        self.queue.sort(key=rank)
        self.now = now
        self.keep_nodes(now)
        no_room: set[tuple[object, ...]] = set()
        left = []
        for job in self.queue:
            shape = (job.partition, job.gpus, job.nodes, job.cpus, job.mem_mb, job.limit)
            throttled = job.array is not None and 0 < job.array.throttle <= job.array.running
            hopeless = throttled or (shape in no_room and job is not self.kept_for)
            nodes = None if hopeless else self.place(job)
            beside = self.place(job.het) if nodes and job.het else []
            if nodes is None or beside is None:
                left.append(job)
                if not throttled and not job.het:
                    no_room.add(shape)
                continue
            self.start(job, nodes, now)
            if job.het:
                self.start(job.het, beside, now)
        self.queue = left

    def keep_nodes(self, now: int) -> None:
        """Choose, and stay with, the nodes that have the least to run off."""
        if self.kept_for and self.kept_for in self.queue and all(self.by_name[n].up for n in self.kept):
            return
        self.kept_for, self.kept = None, set()
        for job in self.queue:
            if job.gpus > 8 and now - job.runs[-1].eligible > DAY:
                own = [n for n in self.nodes if job.partition in n.partitions and n.up and n.gpus]
                busy_until = dict.fromkeys((n.name for n in own), now)
                for other in self.running.values():
                    for name in other.runs[-1].nodes:
                        limit = 60 * (other.limit or HUMAN_LIMITS[-1])
                        busy_until[name] = max(busy_until.get(name, now), other.runs[-1].start + limit)
                own.sort(key=lambda n: (busy_until[n.name], n.name))
                self.kept_for, self.kept = job, {n.name for n in own[: job.nodes]}
                self.kept_from = max(busy_until[name] for name in self.kept)
                return

    def start(self, job: Job, nodes: list[Node], now: int) -> None:
        run = job.runs[-1]
        run.start, run.state, run.nodes = now, "RUNNING", [n.name for n in nodes]
        for node in nodes:
            node.free_gpus -= job.gpus // job.nodes
            node.free_cpus -= job.cpus // job.nodes
            node.free_mem -= job.mem_mb // job.nodes
        self.running[id(job)] = job
        if job.array:
            job.array.running += 1
            if not job.raw_id:  # the last task to start keeps the array's own id
                job.array.unstarted -= 1
                job.raw_id = self.new_id(now) if job.array.unstarted else job.array.job_id
        if job.het_leader:
            return
        run.suspended = job.suspended
        if len(job.runs) == 1 and job.requeue_at is not None and job.requeue_at < job.runs_for:
            self.at(now + job.requeue_at, "requeue", (job, run))
            run.suspended = 0
        self.at(now + job.runs_for + run.suspended, "end", (job, run))


def history(seed: int, submissions: int = 4400, load_percent: int = 90) -> list[Job]:
    """The jobs of four weeks with all their runs, in order of submission."""
    jobs = draw_jobs(Dice(seed), submissions, load_percent)
    Site(jobs).run()
    return jobs
