"""What the comments of a queue say, read again only where something has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from tias_slurm.assemble import claim_limits
from tias_slurm.config import Config
from tias_slurm.deadlines import Refusal, admit, own_keys, read_comment
from tias_slurm.jobs import Floats, Ints
from tias_slurm.slurm.live import RawTable
from tias_slurm.slurm.observer import Claims


class _Said(NamedTuple):
    """What one comment says, as far as it is taken."""

    deadline: float  # NaN: none, likewise below
    consent: int  # -1: unsaid
    checkpoint_s: float
    warning_s: float
    refusals: tuple[Refusal, ...]
    signal: str  # that it wants to be warned by; "": unsaid


class ClaimReader:
    """Reads comments, and remembers what it read of which job."""

    def __init__(
        self, config: Config, zone: ZoneInfo, first_submit: Callable[[Ints, Floats], Floats]
    ) -> None:
        """`first_submit`: of the ledger, see there."""
        self._config = config
        self._zone = zone
        self._limits = claim_limits(config)
        self._keys = own_keys(config.deadlines.key)
        self._first_submit = first_submit
        self._known: dict[int, tuple[tuple[object, ...], _Said]] = {}

    def read(self, raw: RawTable) -> Claims:
        """Deadline, consent and checkpoint of every job."""
        n = len(raw)
        deadline, checkpoint, warning = (np.full(n, np.nan) for _ in range(3))
        consent = np.full(n, -1, dtype=np.int64)
        search = self._keys.search
        talking = [i for i, text in enumerate(raw.comment) if text and search(text)]
        firsts = self._first_submit(raw.job_id, raw.submit) if talking else raw.submit
        known: dict[int, tuple[tuple[object, ...], _Said]] = {}
        for i in talking:
            job, first = int(raw.job_id[i]), float(firsts[i])
            # all that decides about the claim
            basis = (raw.comment[i], first, raw.account[i], raw.qos[i], raw.partition[i], raw.user[i])
            old = self._known.get(job)
            if old is None or old[0] != basis:
                old = basis, self._read(raw, i, first)
            known[job] = old
            deadline[i], consent[i], checkpoint[i], warning[i] = old[1][:4]
        self._known = known
        return Claims(deadline, consent, checkpoint, warning)

    def refusals(self, job: int) -> tuple[Refusal, ...]:
        """What is not taken of the job's comment, at the last look."""
        return self._known[job][1].refusals if job in self._known else ()

    def refused(self) -> dict[int, tuple[str, ...]]:
        """Why something in a job's comment is not taken, by job, at the last look."""
        return {
            j: tuple(r.code for r in said.refusals) for j, (_, said) in self._known.items() if said.refusals
        }

    def warning(self, job: int) -> tuple[str, float]:
        """The signal by which a job is warned of a requeue, and how long before, s: its own wish or the
        site's."""
        said = self._known[job][1] if job in self._known else None
        if said is None or not said.signal:
            return self._config.requeue.signal, self._config.requeue.grace_s
        return said.signal, said.warning_s

    def _read(self, raw: RawTable, i: int, first: float) -> _Said:
        claim = read_comment(
            raw.comment[i], key=self._config.deadlines.key, first_submit=first, zone=self._zone
        )
        refusals = list(claim.refusals)
        due = np.nan
        if claim.deadline is not None:
            no = admit(
                claim.deadline,
                first_submit=first,
                limits=self._limits,
                account=raw.account[i],
                qos=raw.qos[i],
                partition=raw.partition[i],
                user=raw.user[i],
            )
            if no is None:
                due = claim.deadline
            else:
                refusals.append(no)
        consent = -1 if claim.requeue is None else int(claim.requeue)
        checkpoint = np.nan if claim.checkpoint_s is None else claim.checkpoint_s
        name, seconds = claim.warning or ("", np.nan)
        return _Said(due, consent, checkpoint, seconds, tuple(refusals), name)
