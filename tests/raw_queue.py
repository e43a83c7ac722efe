"""Queues as a live adapter shows them, and an adapter that shows what a test gives it, for faults."""

from __future__ import annotations

import dataclasses
from collections import deque

import numpy as np

from tias_slurm.config import Config
from tias_slurm.slurm.live import RawNodes, RawTable, SiteFacts, WriteResult
from tias_slurm.slurm.observer import Claims

NOW = 1_800_000_000.0
JOB = {
    "job_id": 100, "array_id": 0, "array_task": "", "het_id": 0, "het_offset": 0,
    "user": "ann", "account": "lab", "qos": "normal", "partition": "gpu",
    "state": "PENDING", "flags": "", "reason": "Priority",
    "submit": NOW - 600, "eligible": NOW - 600, "start": np.nan, "end": np.nan, "suspended_s": 0.0,
    "time_limit_s": 3600.0, "priority": 1000, "nice": 0,
    "gpus": 1, "gpu_type": "", "cpus": 1, "mem_mb": 100.0, "nodes": 1, "node_list": "",
    "requeue": True, "batch": True, "restarts": 0, "comment": "", "native_deadline": np.nan, "cron": False,
    "shards": 0, "exclusive": False,
}  # fmt: skip
_TYPES = {int: np.int64, float: np.float64, bool: np.bool_}


def queue(*jobs, time=NOW):
    """A RawTable of jobs as dicts of what differs from a waiting job; ids count up from 100."""
    rows = [{**JOB, "job_id": 100 + i, **job} for i, job in enumerate(jobs)]
    rows.sort(key=lambda row: row["job_id"])
    columns = {}
    for name, usual in JOB.items():
        values = [row[name] for row in rows]
        columns[name] = values if isinstance(usual, str) else np.array(values, dtype=_TYPES[type(usual)])
    return RawTable(time=time, **columns)


def waiting(n, **columns):
    """A queue of n waiting jobs."""
    time = columns.pop("time", NOW)
    return queue(*[columns] * n, time=time)


def running(**columns):
    """One running job."""
    return {"state": "RUNNING", "reason": "None", "start": NOW - 300, "node_list": "n1", **columns}


def claims(n, **columns):
    """What n jobs claim: nothing, unless said otherwise."""
    given = {"deadline": np.nan, "consent": -1, "checkpoint": np.nan, **columns}
    types = {"consent": np.int64}
    return Claims(**{k: np.broadcast_to(v, n).astype(types.get(k, float)) for k, v in given.items()})


def config(**sections):
    """Settings out of keyword sections; a pause between writes that tests need not wait for."""
    sections.setdefault("daemon", {}).setdefault("writes_per_second", 1e6)
    return Config.model_validate(sections)


def nodes(*rows):
    """RawNodes of nodes as dicts of what differs from an idle one of 8 GPUs; names count up from n1."""
    usual = {
        "state": "IDLE", "gpus": 8, "gpus_used": 0, "cpus": 16, "cpus_used": 0, "mem_mb": 1000.0,
        "mem_used_mb": 0.0, "partitions": frozenset({"gpu"}), "gpu_types": "", "other_gres": "",
        "features": frozenset(), "threads": 1,
    }  # fmt: skip
    made = [{"name": f"n{i + 1}", **usual, **row} for i, row in enumerate(rows)]
    columns = {}
    for name, value in {"name": "", **usual}.items():
        values = [row[name] for row in made]
        plain = isinstance(value, str | frozenset)
        columns[name] = values if plain else np.array(values, dtype=_TYPES[type(value)])
    return RawNodes(**columns)


FACTS = SiteFacts(
    version="26.05.5",
    cluster="c",
    priority_type="priority/multifactor",
    priority_flags="",
    priority_weights={"Age": 1000, "TRES": 0},
    site_factor_plugin="",
    scheduler_parameters="bf_continue",
    slurmctld_parameters="",
    preempt_type="preempt/none",
    preempt_mode="OFF",
    private_data="none",
    accounting_store_flags="job_comment",
    slurm_user="slurm",
    state_save_location="/var/spool/slurmctld",
    min_job_age_s=300,
    message_timeout_s=10,
)


class Scripted:
    """An adapter that shows the next of the given queues (the last one again and again) and takes writes.

    A queue may be an exception, which is raised. `answers`: what becomes of each write, by job id; else "ok".
    With `obeys` a write is seen in the queues that come later.
    """

    name = "scripted"

    def __init__(self, *queues, answers=None, obeys=True, facts=FACTS, factors=None):
        self.queues = deque(queues)
        self.answers = dict(answers or {})
        self.obeys = obeys
        self.said = facts
        self.factors = factors or {}
        self.sent = []
        self.values = {}
        self.before_write = lambda job, field, value: None
        self.closed = 0
        self.words = ""
        self.place, self.asked, self.held, self.reserved = nodes(), {}, {}, []
        self.parts = {}

    def jobs(self):
        shown = self.queues.popleft() if len(self.queues) > 1 else self.queues[0]
        if isinstance(shown, Exception):
            raise shown
        for (job, field), value in self.values.items():
            if field != "site_factor" and job in shown.job_id:
                column = getattr(shown, field).copy()
                column[shown.job_id == job] = value
                shown = dataclasses.replace(shown, **{field: column})
        return shown

    def nodes(self):
        return self.place

    def requests(self, jobs=None):
        return self.asked

    def shares(self):
        return self.held

    def reservations(self):
        return self.reserved

    def partitions(self):
        return self.parts

    def facts(self):
        return self.said

    def site_factors(self):
        return {**self.factors, **{j: v for (j, f), v in self.values.items() if f == "site_factor"}}

    def pinned(self):
        return {j: True for j, f in self.values if f == "priority"}

    def write(self, job_id, field, value):
        self.before_write(job_id, field, value)
        self.sent.append((job_id, field, value))
        answer = self.answers.get(job_id, "ok")
        if answer == "ok" and self.obeys:
            self.values[job_id, field] = value
        return WriteResult(answer, self.words or f"said {answer}")

    def unpin(self, job_id):
        self.sent.append((job_id, "unpin", 0))
        answer = self.answers.get(job_id, "ok")
        if answer == "ok":
            self.values.pop((job_id, "priority"), None)
        return WriteResult(answer, f"said {answer}")

    def requeue(self, job_id):
        self.sent.append((job_id, "requeue", 0))
        return WriteResult(self.answers.get(job_id, "ok"), self.words or "said so")

    def signal(self, job_id, name):
        self.sent.append((job_id, name, 0))
        return WriteResult(self.answers.get(job_id, "ok"), self.words or "said so")

    def close(self):
        self.closed += 1
