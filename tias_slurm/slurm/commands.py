"""The live adapter that speaks to slurmctld through squeue, scontrol and sprio."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tias_slurm.errors import printable
from tias_slurm.jobs import ACTIVE_STATES
from tias_slurm.levers import NICE_MAX
from tias_slurm.slurm.command_parse import (
    all_failed,
    classify,
    may_pass,
    parse_config,
    parse_nodes,
    parse_pinned,
    parse_site_factors,
)
from tias_slurm.slurm.command_places import (
    parse_excluded,
    parse_partitions,
    parse_requests,
    parse_reservations,
    parse_shares,
)
from tias_slurm.slurm.command_queue import (
    FIELDS,
    TASKS_FORMAT,
    doubtful,
    format_option,
    parse_queue,
    ranges,
    tasks_of,
    unknown_fields,
    with_tasks,
)
from tias_slurm.slurm.command_run import Runner
from tias_slurm.slurm.live import (
    HELD_ALREADY,
    NOT_HELD_BY_US,
    PRIORITY_UNKNOWN,
    AdapterError,
    Field,
    Partition,
    RawNodes,
    RawRequests,
    RawTable,
    Reservation,
    Share,
    SiteFacts,
    WriteResult,
    by_admin,
)
from tias_slurm.slurm.requests import REQUEST_FIELDS

# scontrol(1): NO_VAL (0xfffffffe) and above mean something else, 0 holds a job
PRIORITY_MAX: Final = 2**32 - 3
_OPTION: Final = {"nice": "Nice", "priority": "Priority", "site_factor": "SiteFactor"}
# clocks further apart than this differ; below it is the rounding of both to whole seconds and the way
_SAME_CLOCK_S: Final = 2.0
_CLOCK_AGE_S: Final = 600.0
_MOST_IDS: Final = 1000  # that a command is given; more are not told apart
_LONGEST_NAME: Final = 100_000  # execve(2): an argument holds 128 KiB


def clamped(field: Field, value: int) -> int:
    """The value as Slurm takes it: nice and site factor +/-2147483645, priority 1..4294967293."""
    low, high = (1, PRIORITY_MAX) if field == "priority" else (-NICE_MAX, NICE_MAX)
    return min(max(value, low), high)


class _Now(NamedTuple):
    state: str
    priority: int
    reason: str
    spelt: str  # for scontrol


class CommandsAdapter:
    """Adapter by Slurm's own commands; each call is one process or two. See `live.Adapter`."""

    name = "commands"

    def __init__(self, timeout_s: float = 60.0, slurm_bin: str | None = None) -> None:
        """`timeout_s`: for each command. `slurm_bin`: their directory; None: PATH. Raises AdapterError."""
        self._runner = Runner(timeout_s, slurm_bin)
        self._slurm_bin = slurm_bin
        self._fields: list[str] = list(FIELDS)
        self._lacking: set[str] = set()  # fields of requests that this squeue does not have
        self._spelt: dict[int, str] | None = None  # of the records whose number alone means more than them
        self._ahead = 0.0  # the controller's clock minus ours, s
        self._ahead_known = -math.inf  # when that was measured

    def jobs(self) -> RawTable:
        """See Adapter. A second RPC every ten minutes, for the controller's clock; another while arrays wait
        whose tasks squeue does not list in full.

        `cron` is False where squeue does not tell it (24.11 and before); Slurm refuses to change such jobs.
        """
        table = self._queue(self._clock())
        doubt = doubtful(table)
        if doubt:
            only = (f"--jobs={','.join(map(str, doubt))}",) if len(doubt) <= _MOST_IDS else ()
            status, out, _ = self._runner.run(
                ("squeue", "--all", "--local", "--states=PENDING", "--noheader",
                 f"--Format={TASKS_FORMAT}", *only)
            )  # fmt: skip
            if status == 0:  # else they are all gone by now
                table = with_tasks(table, out, doubt)
        alone = np.flatnonzero((table.job_id == table.array_id) | (table.job_id == table.het_id)).tolist()
        self._spelt = {int(table.job_id[row]): _spelt(table, row) for row in alone}
        return table

    def nodes(self) -> RawNodes:
        """See Adapter."""
        return parse_nodes(_text(self._ask("scontrol", "--detail", "--oneliner", "--all", "show", "node")))

    def facts(self) -> SiteFacts:
        """See Adapter. Slurm prints PreemptMode's options that it added lately as UNKNOWN."""
        begin = time.time()
        text = _text(self._ask("scontrol", "show", "config"))
        end = time.time()
        try:
            facts, stamp = parse_config(text)
        except ValueError as error:
            raise AdapterError(f"scontrol: {error}", retry=False) from None
        ahead = 0.0 if math.isnan(stamp) else stamp + 0.5 - (begin + end) / 2
        self._ahead = ahead if abs(ahead) > _SAME_CLOCK_S + (end - begin) else 0.0
        self._ahead_known = end
        return facts

    def site_factors(self) -> dict[int, int]:
        """See Adapter."""
        return parse_site_factors(_text(self._ask("sprio", "--local", "--noheader", "--format=%i|%S")))

    def pinned(self) -> dict[int, bool]:
        """See Adapter."""
        return parse_pinned(_text(self._ask("sprio", "--local", "--noheader", "--format=%i|%Y|%y|%N")))

    def write(self, job_id: int, field: Field, value: int) -> WriteResult:
        """See Adapter."""
        try:
            spelt = self._spelling(job_id)
        except AdapterError as error:
            return _later(error)
        if len(spelt) > _LONGEST_NAME:
            return WriteResult("refused", "too many separate tasks to name them to scontrol")
        change = f"{_OPTION[field]}={clamped(field, value)}"
        return self._tell("update", f"JobId={spelt}", change, tasks=spelt.partition("_")[2])

    def unpin(self, job_id: int) -> WriteResult:
        """See Adapter. Looks first, since a release would start a held job.

        A hold within the milliseconds between the look and the release would be lost.
        """
        return self._if(job_id, lambda job: "" if job.priority != 0 else HELD_ALREADY, runs=True)

    def hold(self, job_id: int) -> WriteResult:
        """See Adapter. Looks first, since a hold of its user's would become an administrator's."""
        return self._if(job_id, lambda job: "" if job.priority != 0 else HELD_ALREADY, "Priority=0")

    def release(self, job_id: int) -> WriteResult:
        """See Adapter."""
        return self._if(job_id, lambda job: "" if by_admin(job.priority, job.reason) else NOT_HELD_BY_US)

    def requeue(self, job_id: int) -> WriteResult:
        """See Adapter. With `Incomplete` Slurm leaves alone what has ended, and says that all went well."""
        try:
            job = self._look(job_id)
        except AdapterError as error:
            return _later(error)
        if job.state not in ("RUNNING", "SUSPENDED"):
            return WriteResult("gone", f"state {job.state or 'unknown'}, not running")
        done = self._tell("requeue", "Incomplete", requeue_spelling(job_id, job.spelt))
        if done.result != "ok":
            return done
        try:
            after = self._look(job_id).state
        except AdapterError as error:
            return _later(error)
        return done if after == "PENDING" else WriteResult("gone", f"state {after or 'unknown'}")

    def signal(self, job_id: int, name: str) -> WriteResult:
        """See Adapter. By `scancel --batch`."""
        try:
            job = self._look(job_id)
        except AdapterError as error:
            return _later(error)
        if job.state != "RUNNING":
            return WriteResult("gone", f"state {job.state or 'unknown'}, not running")
        scancel = Runner(self._runner.timeout_s, self._slurm_bin, commands=("scancel",))
        words = ("scancel", "--batch", f"--signal={name}", requeue_spelling(job_id, job.spelt))
        return self._tell(*words, runner=scancel)

    def requests(self, jobs: Sequence[int] | None = None) -> RawRequests:
        """See Adapter. On 22.05, whose --Format lacks the nodes that a job excludes, two."""
        fields = ["ArrayTaskID", *REQUEST_FIELDS]
        if jobs is not None and not jobs:
            return {}
        only = (f"--jobs={','.join(map(str, jobs))}",) if jobs and len(jobs) <= _MOST_IDS else ()
        while True:
            token = secrets.token_hex(8)
            asked = [name for name in fields if name not in self._lacking]
            # with --array for the records of tasks that wait apart
            status, out, err = self._runner.run(
                ("squeue", "--array", "--all", "--local", "--states=PENDING", "--noheader", "--noconvert",
                 f"--Format={format_option(asked, token)}", *only)
            )  # fmt: skip
            unknown = unknown_fields(err, asked)
            if not unknown:
                break
            self._lacking |= unknown
        if status and only and classify(err) == "gone":
            return {}  # all of them, by now
        if status:
            raise _failed("squeue", status, err)
        excluded = None
        if "ExcNodes" in self._lacking:
            listed = self._ask(
                "squeue",
                "--array",
                "--all",
                "--local",
                "--states=PENDING",
                "--noheader",
                "--format=%A|%x",
                *only,
            )
            excluded = parse_excluded(_text(listed))
        return parse_requests(out, token, asked, excluded)

    def shares(self) -> dict[int, Share]:
        """See Adapter."""
        return parse_shares(_text(self._ask("scontrol", "--detail", "--oneliner", "show", "job")))

    def reservations(self) -> list[Reservation]:
        """See Adapter."""
        return parse_reservations(_text(self._ask("scontrol", "--oneliner", "show", "reservation")))

    def partitions(self) -> dict[str, Partition]:
        """See Adapter."""
        return parse_partitions(_text(self._ask("scontrol", "--oneliner", "--all", "show", "partition")))

    def close(self) -> None:
        """See Adapter. Nothing is held: every command has ended when its call returns."""

    # ---- how it is done ----

    def _queue(self, ahead: float, *more: str) -> RawTable:
        """The queue, or what `more` options make of it."""
        while True:
            token = secrets.token_hex(8)
            begin = time.time()
            # without --array squeue shows waiting tasks that have a record of their own within the common one
            status, out, err = self._runner.run(
                ("squeue", "--array", "--all", "--local", "--states=all", "--noheader", "--noconvert",
                 "--sort=i", f"--Format={format_option(self._fields, token)}", *more)
            )  # fmt: skip
            end = time.time()
            unknown = unknown_fields(err, self._fields)
            if unknown:
                self._fields = [name for name in self._fields if name not in unknown]
                continue
            if status:
                raise _failed("squeue", status, err)
            return parse_queue(out, token, begin, end, ahead, self._fields)

    def _clock(self) -> float:
        if abs(time.time() - self._ahead_known) > _CLOCK_AGE_S:
            self.facts()
        return self._ahead

    def _ask(self, *argv: str) -> bytes:
        status, out, err = self._runner.run(argv)
        if status:
            raise _failed(argv[0], status, err)
        return out

    def _tell(self, *argv: str, tasks: str = "", runner: Runner | None = None) -> WriteResult:
        """One change by scontrol, or by the `runner` of another command; `tasks`: those that it names, if it
        names several."""
        try:
            status, out, err = runner.run(argv) if runner else self._runner.run(("scontrol", *argv))
        except AdapterError as error:
            return _later(error)
        said = f"{err}\n{_text(out)}"
        words = printable(" ".join(said.split()), 300)
        if status == 0 or (tasks and not all_failed(said, tasks)):
            return WriteResult("ok", words)
        return WriteResult(classify(words), words or f"exit status {status}")

    def _spelling(self, job_id: int) -> str:
        """The name by which scontrol means this record alone, as of the last look at the queue."""
        if self._spelt is None:
            self.jobs()
        return (self._spelt or {}).get(job_id, str(job_id))

    def _if(
        self, job_id: int, why_not: Callable[[_Now], str], change: str = "", *, runs: bool = False
    ) -> WriteResult:
        """Change a job, or release it, if it waits (or `runs`) and nothing speaks against it right now."""
        try:
            job = self._look(job_id)
            spelt = self._spelling(job_id)
        except AdapterError as error:
            return _later(error)
        if job.state not in (ACTIVE_STATES if runs else ("PENDING",)):
            return WriteResult("gone", f"state {job.state or 'unknown'}")
        if why := why_not(job):
            return WriteResult("refused", why)
        words = ("update", f"JobId={spelt}", change) if change else ("release", spelt)
        return self._tell(*words, tasks=spelt.partition("_")[2])

    def _look(self, job_id: int) -> _Now:
        """One record as it is now; a state of "": no such record."""
        try:
            table = self._queue(0.0, f"--jobs={job_id}")
        except AdapterError as error:
            if classify(str(error)) == "gone":
                return _Now("", PRIORITY_UNKNOWN, "", "")
            raise
        rows = np.flatnonzero(table.job_id == job_id)  # an array's id also brings all its tasks
        if not rows.size:
            return _Now("", PRIORITY_UNKNOWN, "", "")
        row = int(rows[0])
        return _Now(table.state[row], int(table.priority[row]), table.reason[row], _spelt(table, row))


def spelling(job_id: int, array_id: int, array_task: str, het_id: int, het_offset: int) -> str:
    """The name by which scontrol(1) means one record alone.

    A plain ArrayJobId means every task, and a plain leader every component. The tasks that still wait
    together, all named, mean their common record without splitting it. It knows no steps (`1-9:2`) there.
    """
    if array_id == job_id and array_task:
        if ":" in array_task:
            array_task = ranges(tasks_of(array_task))
        return f"{array_id}_[{array_task}]"
    if het_id == job_id:
        return f"{het_id}+{het_offset}"
    return str(job_id)


def _spelt(table: RawTable, row: int) -> str:
    ids = (int(column[row]) for column in (table.job_id, table.array_id, table.het_id, table.het_offset))
    job_id, array_id, het_id, het_offset = ids
    return spelling(job_id, array_id, table.array_task[row], het_id, het_offset)


def requeue_spelling(job_id: int, spelt: str) -> str:
    """The name for `scontrol requeue` of a record that is spelt so elsewhere: het jobs go as a whole."""
    return str(job_id) if "+" in spelt else spelt


def _later(error: AdapterError) -> WriteResult:
    if not error.retry:
        raise error
    return WriteResult("retry", str(error))


def _failed(command: str, status: int, err: str) -> AdapterError:
    message = printable(" ".join(err.split()), 300) or f"exit status {status}"
    return AdapterError(f"{command}: {message}", retry=may_pass(message))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
