"""What jobs did before the daemon saw them, out of Slurm's accounting: a bounded sacct now and then."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from tias_slurm.errors import InputError, printable
from tias_slurm.gpu_weights import of_jobs
from tias_slurm.jobs import Floats, Ints
from tias_slurm.ledger.book import Ledger
from tias_slurm.ledger.reruns import Answer, Preempted, Run
from tias_slurm.replay.workload import Refusals
from tias_slurm.slurm import checks, runs, sacct_text
from tias_slurm.slurm.command_run import Runner
from tias_slurm.slurm.live import AdapterError, RawTable
from tias_slurm.slurm.live_cluster import job_names
from tias_slurm.slurm.observer import Observed
from tias_slurm.slurm.records import Reader, Records

# jobs that one call asks for; what is left waits for the next cycle
MOST_JOBS: Final = 500
# slurmdbd learns of a requeue a moment later: so often a job whose runs are not all there is asked for
MOST_ASKS: Final = 3
# after sacct failed it is left alone for so long, s
REST_S: Final = 600.0
# sacct(1): none of these holds text that users write
_FORMAT: Final = "JobID,JobIDRaw,Cluster,User,State,Submit,Start,End,ElapsedRaw,Suspended,AllocTRES,ReqTRES"


@dataclass(frozen=True)
class Filled:
    """What one call learned."""

    asked: int = 0
    learned: int = 0  # jobs of which runs were found
    problem: str = ""  # one line; "": none
    preempted: tuple[Preempted, ...] = ()  # requeues that were Slurm's own preemption


@dataclass(frozen=True)
class Past:
    """All runs but the current one. Shapes (n,)."""

    first_submit: Floats  # epoch s; NaN: no run was found
    attained: Floats  # GPU-seconds
    kept: Floats  # useful seconds
    runs: Ints  # how many were found


class Backfill:
    """Fills the ledger's gaps from sacct. Without accounting it says so and tries again later."""

    def __init__(self, timeout_s: float, slurm_bin: str | None = None) -> None:
        """`timeout_s`: for one sacct. `slurm_bin`: its directory; None: PATH."""
        self.timeout_s, self._slurm_bin = timeout_s, slurm_bin
        self._rests_until = 0.0
        self._asks: Counter[int] = Counter()

    def fill(self, ledger: Ledger, raw: RawTable, observed: Observed, weights: Mapping[str, float]) -> Filled:
        """Ask for the jobs of the last snapshot that had runs which the ledger did not see, or that were
        requeued by nobody knows whom. Never raises for what sacct does or says; LedgerError if that cannot be
        kept. `weights`: of `[gpus]`."""
        wanted, reruns = ledger.unseen, ledger.reruns
        if reruns is not None:
            wanted = wanted | reruns.due(raw.job_id[observed.rows], raw.time)
        rows = np.flatnonzero(wanted)[:MOST_JOBS]
        if not len(rows) or time.monotonic() < self._rests_until:
            return Filled()
        at = observed.rows[rows]
        try:
            records = self._records(_asked(raw, at.tolist()))
        except (AdapterError, InputError, OSError) as error:
            self._rests_until = time.monotonic() + REST_S
            return Filled(len(rows), 0, printable(str(error), 300))
        preempted: list[Preempted] = []
        if reruns is not None:
            saves = observed.snapshot.jobs.checkpoint[rows].tolist()
            ended = zip(at.tolist(), ended_runs(records, raw, at), saves, strict=True)
            told = [Answer(int(raw.job_id[i]), int(raw.restarts[i]), r, s) for i, r, s in ended]
            preempted = reruns.answered(told, raw.time)
        asked, rows = len(rows), rows[ledger.unseen[rows]]
        at, jobs = observed.rows[rows], observed.snapshot.jobs.take(rows)
        past = past_runs(records, raw, at, jobs.checkpoint, jobs.weight, weights)
        ids = raw.job_id[at]
        self._asks.update(ids.tolist())
        tired = np.array([self._asks[job] >= MOST_ASKS for job in ids.tolist()], dtype=np.bool_)
        done = tired | (past.runs >= raw.restarts[at])
        ledger.learn_past(ids[done], past.first_submit[done], past.attained[done], past.kept[done])
        for job in ids[done].tolist():
            del self._asks[job]
        return Filled(asked, int((past.runs[done] > 0).sum()), preempted=tuple(preempted))

    def _records(self, jobs: Sequence[str]) -> Records:
        runner = Runner(self.timeout_s, self._slurm_bin, commands=("sacct",))
        argv = (
            "sacct", "--allusers", "--allocations", "--duplicates", "--parsable2", "--noconvert",
            "--delimiter=|", f"--jobs={','.join(jobs)}", f"--format={_FORMAT}",
        )  # fmt: skip
        status, out, err = runner.run(argv)
        if status:
            raise AdapterError(f"sacct: {' '.join(err.split()) or f'exit status {status}'}", retry=True)
        return read_records(out)


def _asked(raw: RawTable, rows: Sequence[int]) -> list[str]:
    """The names by which sacct knows the jobs: a task alone by its array and number, as a plain ArrayJobId
    means every task."""
    names = job_names(raw, rows)
    plain = (str(int(raw.job_id[r])) for r in rows)
    return [n if n.replace("_", "").isdecimal() else p for n, p in zip(names, plain, strict=True)]


def read_records(text: bytes) -> Records:
    """The checked records of what sacct printed, those that tell the same left out. Raises InputError."""
    reader = Reader(ZoneInfo("UTC"), Refusals(), Counter())
    parts: list[Records] = []
    with tempfile.TemporaryDirectory(prefix="tias-slurm-") as directory:
        path = os.path.join(directory, "sacct")
        with open(path, "wb") as file:
            file.write(text)
        for part in sacct_text.read_text(reader, path, delimiter="|", columns=None, how="sacct --parsable2"):
            if len(part):
                checks.settle(part)
                parts.append(checks.check(part, reader.refused, "sacct"))
    return runs.drop_repeats(Records.concat(parts) if parts else Records.empty(), reader.left_out)


def past_runs(
    r: Records, raw: RawTable, rows: Ints, checkpoint: Floats, weight: Floats, weights: Mapping[str, float]
) -> Past:
    """The earlier runs of the jobs in `rows` of the queue, which save themselves every `checkpoint` seconds
    (0: never) and whose GPUs count for `weight` now. Shapes (n,)."""
    n = len(rows)
    first, attained, kept = np.full(n, np.nan), np.zeros(n), np.zeros(n)
    count = np.zeros(n, dtype=np.int64)
    each = of_jobs(r.gpus, r.gpu_type.tolist(), r.shards, weights)
    for k, chain in enumerate(_chains(r, raw, rows)):
        if not chain:
            continue
        first[k] = r.submit[chain].min()
        work, gpus = r.work[chain], each[chain]
        # without gres/gpu in AccountingStorageTRES no record names a GPU
        attained[k] = (work * np.where(gpus > 0, gpus, weight[k])).sum()
        if checkpoint[k] > 0:
            kept[k] = (np.floor(work / checkpoint[k]) * checkpoint[k]).sum()
        count[k] = len(chain)
    return Past(first, attained, kept, count)


def ended_runs(r: Records, raw: RawTable, rows: Ints) -> list[list[Run]]:
    """The earlier runs of each of the jobs in `rows`, shape (n,), of the queue, the last first."""
    return [
        [Run(str(r.state[i]), float(r.end[i]), float(r.work[i])) for i in chain]
        for chain in _chains(r, raw, rows)
    ]


def _chains(r: Records, raw: RawTable, rows: Ints) -> list[list[int]]:
    """Which records are earlier runs of each of the jobs in `rows` of the queue, the last first."""
    by_key: dict[int, list[int]] = {}
    for i in np.lexsort((np.nan_to_num(r.start, nan=np.inf), r.submit)).tolist():
        by_key.setdefault(int(r.key[i]), []).append(i)
    return [
        _chain(r, by_key.get(int(raw.job_id[row]), []), float(raw.submit[row]), raw.user[row])
        for row in rows.tolist()
    ]


def _chain(r: Records, rows: list[int], submit: float, user: str) -> list[int]:
    """Which of these records of one id, by submit, are earlier runs of the job that was last submitted so."""
    later = next((i for i in rows if r.submit[i] == submit), None)
    chain: list[int] = []
    for i in reversed([i for i in rows if r.submit[i] < submit]):
        if later is not None:
            joined = runs.next_run(r, i, later)
        else:  # slurmdbd does not know the current run yet
            most = runs.SAME_DAY if r.state[i] in runs.REQUEUED_FROM else runs.SOON
            joined = r.user[i] in ("", user) and submit - float(r.end[i]) <= most
        if not joined:
            break
        chain.append(i)
        later = i
    return chain
