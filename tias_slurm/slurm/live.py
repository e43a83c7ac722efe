"""What a live adapter gives and takes: the queue as columns, facts of the site, single writes.

Two adapters speak this: `slurm.pyslurm_adapter` (fast, in a worker process) and `slurm.commands` (squeue,
scontrol, sprio). Everything above them, from `slurm.observer` on, cannot tell which one it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tias_slurm.jobs import Bools, Floats, Ints

# squeue(1) "JOB REASON CODES": held by an administrator; by its user it is JobHeldUser
HELD_BY_ADMIN = "JobHeldAdmin"
# scontrol(1): a priority of 0xffffffff is "unpinned"; nice and site factor lie in +/-NICE_MAX
PRIORITY_UNKNOWN = -1
NICE_UNKNOWN = -(2**63)

# why a hold or a release was refused: the job changed hands since we looked
HELD_ALREADY = "the job is held"
NOT_HELD_BY_US = "the job is not held by an administrator"

Texts = list[str]
Field = Literal["nice", "priority", "site_factor"]


def by_admin(priority: int, reason: str) -> bool:
    """Whether a waiting job is held by an administrator, and not by its user."""
    return priority == 0 and reason == HELD_BY_ADMIN


@dataclass(frozen=True)
class RawTable:
    """All jobs that the controller knows, finished ones of the last MinJobAge included. Length n each."""

    time: float  # the controller's clock when it answered, epoch s
    job_id: Ints  # numeric id of the record, ascending, unique
    array_id: Ints  # ArrayJobId; 0: no array
    array_task: Texts  # "3", "5-9" for a pending remainder; "": no array
    het_id: Ints  # id of the leader; 0: no het job
    het_offset: Ints  # 0: the leader
    user: Texts
    account: Texts
    qos: Texts
    partition: Texts  # a comma list while pending in several
    state: Texts  # base state, as squeue(1) names them: PENDING, RUNNING, ...
    flags: Texts  # comma list of state flags: COMPLETING, CONFIGURING, SPECIAL_EXIT, ...; "": none
    reason: Texts  # squeue(1) "JOB REASON CODES"; "None": none
    submit: Floats  # epoch s; NaN where unknown, likewise below
    eligible: Floats
    start: Floats  # of a pending job the forecast
    end: Floats
    suspended_s: Floats  # seconds that the current run was suspended
    time_limit_s: Floats  # inf: unlimited
    priority: Ints  # 0: held; PRIORITY_UNKNOWN
    nice: Ints  # NICE_UNKNOWN where it could not be read
    gpus: Ints  # whole GPUs of all types, of the whole job; typed and untyped never added together
    gpu_type: Texts  # see gpu_weights.kinds; "": untyped
    cpus: Ints
    mem_mb: Floats  # of the whole job
    nodes: Ints  # node count asked for or held
    node_list: Texts  # nodes held; "" while waiting
    requeue: Bools  # Requeue=1
    batch: Bools
    restarts: Ints
    comment: Texts  # invalid bytes replaced
    native_deadline: Floats
    cron: Bools  # a scrontab job
    refused: int = 0  # records that could not be read at all, left out
    shards: Ints | None = None  # of GPUs, of the whole job; None: no job has any
    exclusive: Bools | None = None  # gets whole nodes, with all of their GPUs; None: no job does

    def __len__(self) -> int:
        return len(self.job_id)


@dataclass(frozen=True)
class RawNodes:
    """The nodes. Length N each."""

    name: Texts
    state: Texts  # base state and flags: "IDLE+DRAIN"
    gpus: Ints
    gpus_used: Ints
    cpus: Ints
    cpus_used: Ints
    mem_mb: Floats  # that jobs may have
    mem_used_mb: Floats
    partitions: list[frozenset[str]]
    gpu_types: Texts  # see gpu_weights.kinds; "": untyped
    other_gres: Texts  # comma list of GRES that are pieces of GPUs: shard, mps
    features: list[frozenset[str]]  # active ones
    threads: Ints  # CPUs to a core


# what squeue says of each waiting job's request, by job id: the values of requests.REQUEST_FIELDS but the id
RawRequests = dict[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Share:
    """What a running job holds: on each of its nodes at least so much."""

    nodes: str  # hostlist
    all_gpus: int  # of the whole job
    gpus: int
    cpus: int
    mem_mb: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes that are kept for somebody; epoch s."""

    start: float
    end: float
    nodes: str  # hostlist


@dataclass(frozen=True, slots=True)
class Partition:
    """What decides about nodes that partitions share."""

    tier: int  # PriorityTier: all jobs of a higher one go first
    exclusive: bool  # all of its jobs get whole nodes


@dataclass(frozen=True)
class SiteFacts:
    """What `scontrol show config` says that the daemon depends on. Texts as Slurm prints them."""

    version: str  # "26.05.5"
    cluster: str
    priority_type: str
    priority_flags: str
    priority_weights: dict[str, int]  # Age, Assoc, Fairshare, JobSize, Partition, QOS; TRES weights summed
    site_factor_plugin: str
    scheduler_parameters: str
    slurmctld_parameters: str
    preempt_type: str
    preempt_mode: str
    private_data: str
    accounting_store_flags: str
    slurm_user: str
    state_save_location: str
    min_job_age_s: int
    message_timeout_s: int
    preempt_exempt_time_s: float = 0.0
    tracked_tres: str = ""  # AccountingStorageTRES


# what became of one write
Result = Literal[
    "ok",
    "gone",  # ended, or no such job: drop it
    "refused",  # this job cannot have it (held, job_submit.lua, ...): remember, do not try again
    "no rights",  # nobody can be written: stop writing, tell the administrator
    "retry",  # the controller did not answer: later
]


DRY_RUN = "dry run"  # words of a result: nothing was sent, whatever it would have come to


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result, and the controller's own words."""

    result: Result
    message: str = ""
    code: int = 0  # Slurm's errno; 0 where there is none


class Adapter(Protocol):
    """A way to a running slurmctld. Every call is bounded in time and raises AdapterError, nothing else."""

    name: str

    def jobs(self) -> RawTable:
        """The queue, one RPC."""

    def nodes(self) -> RawNodes:
        """The nodes, one RPC."""

    def facts(self) -> SiteFacts:
        """The controller's configuration."""

    def site_factors(self) -> dict[int, int]:
        """Site factor by job id, of pending jobs that are eligible and not held; only sprio(1) knows it."""

    def pinned(self) -> dict[int, bool]:
        """Whether a pending, eligible job that is not held has an explicit priority; only sprio(1) knows it.

        Needs PriorityType=priority/multifactor.
        """

    def write(self, job_id: int, field: Field, value: int) -> WriteResult:
        """Set one field of one record. Zero is really sent; values are clamped to what Slurm takes."""

    def unpin(self, job_id: int) -> WriteResult:
        """Undo an explicit priority of a pending or running job that is not held; Slurm also sets its nice
        to 0."""

    def hold(self, job_id: int) -> WriteResult:
        """Hold a waiting job, as an administrator does; one that is held already is "refused"."""

    def release(self, job_id: int) -> WriteResult:
        """Release a job that an administrator holds, as we do; one that its user holds is "refused"."""

    def requeue(self, job_id: int) -> WriteResult:
        """Requeue a running batch job; one that has ended in the meantime is left alone ("gone")."""

    def signal(self, job_id: int, name: str) -> WriteResult:
        """Send a signal (TERM, USR1, ...) to the batch script of a running job, and to nothing else of it."""

    def requests(self, jobs: Sequence[int] | None = None) -> RawRequests:
        """What the waiting jobs ask for, one RPC. `jobs`: those that are wanted; there may be others too."""

    def shares(self) -> dict[int, Share]:
        """What running jobs on several nodes hold on each, one RPC; jobs of which that is not clear lack."""

    def reservations(self) -> list[Reservation]:
        """Reservations of nodes, now and later; one RPC."""

    def partitions(self) -> dict[str, Partition]:
        """The partitions by name; one RPC."""

    def close(self) -> None:
        """Give up what it holds; safe to call twice."""


class AdapterError(Exception):
    """The controller could not be asked. One line; `retry` says whether waiting may help."""

    def __init__(self, message: str, *, retry: bool) -> None:
        super().__init__(message)
        self.retry = retry
