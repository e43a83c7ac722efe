"""Accounting records as columns: one row an allocation's record, before the runs of a job are joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from tias_slurm.jobs import Bools, Floats, Ints
from tias_slurm.replay.workload import Refusals
from tias_slurm.slurm import values
from tias_slurm.slurm.cells import Cells
from tias_slurm.slurm.values import Memo, Tres

Texts = npt.NDArray[np.object_]

NO_NODES = frozenset({"", "None assigned", "(null)"})  # what NodeList holds of a job that has no nodes


class Table:
    """Columns of one length. A base of dataclasses whose fields are arrays of shape (n,)."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def take(self, rows: Ints | Bools) -> Self:
        """The given rows only."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})  # type: ignore[arg-type]

    @classmethod
    def concat(cls, parts: list[Self]) -> Self:
        """All rows, in order; takes the parts' columns away, so that no two copies of all are held."""
        if len(parts) == 1:
            return parts[0]
        columns = {}
        for f in fields(cls):  # type: ignore[arg-type]
            columns[f.name] = np.concatenate([getattr(p, f.name) for p in parts])
            for p in parts:
                setattr(p, f.name, None)
        return cls(**columns)

    @classmethod
    def empty(cls) -> Self:
        """No rows."""
        kinds = {"Texts": object, "Floats": np.float64, "Ints": np.int64, "Bools": np.bool_}
        return cls(**{f.name: np.empty(0, kinds[str(f.type)]) for f in fields(cls)})  # type: ignore[arg-type]


@dataclass
class Records(Table):
    """Checked records in input order. Times are epoch seconds, durations seconds, NaN: unknown or none."""

    key: Ints  # JobIDRaw, or JobID where there is none; negative for an id that is no number
    job_id: Texts
    cluster: Texts
    user: Texts
    account: Texts
    partition: Texts
    qos: Texts
    state: Texts
    comment: Texts
    submit_line: Texts
    gpu_type: Texts
    submit: Floats
    eligible: Floats
    start: Floats  # NaN: never started
    end: Floats  # NaN: still runs or waits
    work: Floats  # seconds executed; 0 without a start
    time_limit: Floats  # inf: unlimited
    native_deadline: Floats
    mem_mb: Floats
    gpus: Ints
    shards: Ints  # pieces of GPUs
    cpus: Ints
    nodes: Ints
    restarts: Ints
    hosts: Ints  # place in Reader.node_lists of the nodes that it held; 0: none, or not kept


@dataclass
class Raw(Table):
    """Records as read, before they are checked: the columns of Records but for `work`, and these.

    Of a time that a DST change makes ambiguous, the plain column holds the earlier reading and `_late` the
    later.
    """

    line: Ints
    key: Ints
    job_id: Texts
    cluster: Texts
    user: Texts
    account: Texts
    partition: Texts
    qos: Texts
    state: Texts
    comment: Texts
    submit_line: Texts
    gpu_type: Texts
    submit: Floats
    submit_late: Floats
    eligible: Floats
    eligible_late: Floats
    start: Floats
    start_late: Floats
    end: Floats
    end_late: Floats
    elapsed: Floats
    suspended: Floats
    time_limit: Floats
    native_deadline: Floats
    mem_mb: Floats
    gpus: Ints
    shards: Ints  # pieces of GPUs
    cpus: Ints
    nodes: Ints
    restarts: Ints
    hosts: Ints
    allocated: Bools  # False: the record names no allocation although it could


def texts(items: Sequence[Any]) -> Texts:
    """Texts as an array of objects."""
    out = np.empty(len(items), object)
    out[:] = items
    return out


def same_text(n: int, text: str = "") -> Texts:
    """One text n times."""
    out = np.empty(n, object)
    out.fill(text)
    return out


@dataclass
class Reader:
    """What reading several files shares: the zone, the account of what was not taken, values worked out
    before.
    """

    zone: ZoneInfo
    refused: Refusals
    left_out: Counter[str]
    keep_nodes: bool = False
    rows: int = 0
    mended: int = 0
    names: list[frozenset[str]] = field(default_factory=list)  # the columns of each file
    said_gpu: bool = False  # some record names GPUs
    words: dict[str, str] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    node_lists: dict[str, int] = field(default_factory=lambda: {"": 0})  # each with its place
    states: Memo[str] = field(default_factory=lambda: Memo(values.parse_state))
    durations: Memo[float] = field(default_factory=lambda: Memo(values.parse_duration))
    minutes: Memo[float] = field(default_factory=lambda: Memo(lambda t: values.parse_duration(t, 60.0)))
    counts: Memo[float] = field(default_factory=lambda: Memo(values.parse_count))
    tres: Memo[Tres] = field(default_factory=lambda: Memo(values.parse_tres))
    gres: Memo[tuple[float, str, bool]] = field(default_factory=lambda: Memo(values.parse_gres))
    gres_shards: Memo[tuple[float, str, bool]] = field(
        default_factory=lambda: Memo(lambda t: values.parse_gres(t, "shard"))
    )
    memory: Memo[tuple[float, str]] = field(default_factory=lambda: Memo(values.parse_memory))

    def intern(self, text: str) -> str:
        """The text without blanks around it, one object for equal ones."""
        text = text.strip()
        return self.words.setdefault(text, text)

    def key_of(self, job_id: str) -> int:
        """A key for a job id that is no number."""
        return self.keys.setdefault(job_id, -1 - len(self.keys))

    def place_of(self, node_list: str) -> int:
        """The place of a list of nodes in node_lists; 0 of one that names none."""
        node_list = node_list.strip()
        if node_list in NO_NODES:
            return 0
        return self.node_lists.setdefault(node_list, len(self.node_lists))


class Bad:
    """The first reason for which each of some records is refused."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.reason: dict[int, tuple[str, str]] = {}

    @property
    def none(self) -> bool:
        return not self.reason

    def where(self, hit: Bools, reason: str, name: str) -> None:
        """Refuse the rows where hit holds; the column of that name shows what stood there."""
        if not hit.any():
            return
        rows = np.flatnonzero(hit)
        shown = self.cells.texts(name, rows) if name in self.cells.spans else [""] * len(rows)
        for i, text in zip(rows.tolist(), shown, strict=True):
            self.reason.setdefault(i, (reason, text[:400]))

    def refuse(self, refused: Refusals, file: str) -> Bools:
        """Count them; returns the mask of the rows that stay."""
        keep = np.ones(len(self.cells), bool)
        for i in sorted(self.reason):
            keep[i] = False
            refused.add(file, int(self.cells.lines[i]), *self.reason[i])
        return keep
