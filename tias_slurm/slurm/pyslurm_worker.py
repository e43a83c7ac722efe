"""The process that talks to libslurm through pyslurm, and nothing else does: `-m` this, two descriptors.

An RPC holds the interpreter, may wait for ever, and libslurm ends the process where it sees fit, so all of
it happens here and the daemon watches from outside (`slurm.pyslurm_adapter`). pyslurm is GPL-2.0-only and
optional: no other module imports it. Standard output is not the pipe, since pyslurm prints on it.
"""

from __future__ import annotations

import gc
import importlib
import os
import pwd
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tias_slurm.slurm import pyslurm_errors, pyslurm_pipe, pyslurm_rows, pyslurm_site
from tias_slurm.slurm.live import HELD_ALREADY, NOT_HELD_BY_US, by_admin
from tias_slurm.slurm.pyslurm_pipe import Column

_INFINITE = 0xFFFFFFFF  # as a priority: no explicit one, scontrol(1) release
_NAMES_S = 600.0  # how long a user's name is believed

Answer = tuple[dict[str, Any], dict[str, Column]]


class Worker:
    """Carries out requests, one after the other."""

    def __init__(self, pyslurm: Any) -> None:
        self._slurm = pyslurm
        self._results = pyslurm_errors.by_number(lambda name, usual: int(getattr(pyslurm, name, usual)))
        self._names: dict[int, str] = {}
        self._names_since = time.monotonic()
        self._loaded: Any = None
        self._calls: dict[str, Callable[..., Answer]] = {
            "jobs": self.jobs,
            "nodes": self.nodes,
            "facts": self.facts,
            "write": self.write,
            "unpin": self.unpin,
            "hold": self.hold,
            "release": self.release,
            "state": self.state,
        }

    def answer(self, request: Mapping[str, Any]) -> Answer:
        """The answer to one request: `ok`, or `error` with `code` and what it means."""
        try:
            return self._calls[request["call"]](**request.get("with", {}))
        except self._slurm.RPCError as error:
            code = int(error.errno or 0)
            result = pyslurm_errors.result_of(code, self._results)
            return {"ok": False, "code": code, "result": result, "message": str(error)}, {}
        except Exception as error:  # a fault of ours or of pyslurm's must not end the worker
            message = f"{type(error).__name__}: {error}"
            return {"ok": False, "code": 0, "result": "retry", "message": message, "fault": True}, {}

    def let_go(self) -> None:
        """Free what the last answer was made of, now that it is on its way: nobody waits for that."""
        if self._loaded is not None:
            self._loaded = None
            gc.collect()

    def jobs(self) -> Answer:
        """All jobs, as columns."""
        loaded = self._loaded = self._slurm.Jobs.load()
        now = self._controller_time()
        columns, refused, repaired = pyslurm_rows.job_columns(loaded.values(), now, self._user_name)
        gpus = np.asarray(columns["gpus"])
        if len(gpus) and not gpus.any() and not self._tracks_gpus():
            gpus[:] = pyslurm_rows.GPUS_UNKNOWN
        return {"ok": True, "time": now, "refused": refused, "repaired": repaired}, columns

    def _controller_time(self) -> float:
        """The controller's clock, whole seconds, unless ours says the same and more finely."""
        told = self._slurm.slurmctld.Statistics.load().request_time
        here = time.time()
        return here if told is None or -1.0 <= here - told <= 2.0 else float(told)

    def _user_name(self, uid: int | None) -> str:
        if uid is None:
            return ""
        if time.monotonic() - self._names_since > _NAMES_S:
            self._names.clear()
            self._names_since = time.monotonic()
        name = self._names.get(uid)
        if name is None:
            try:
                name = pwd.getpwuid(uid).pw_name
            except KeyError:
                name = str(uid)
            self._names[uid] = name
        return name

    def nodes(self) -> Answer:
        """All nodes, as columns. `tracked`: whether they say how many of their GPUs are in use."""
        columns = pyslurm_site.node_columns(self._slurm.Nodes.load().values())
        return {"ok": True, "tracked": self._tracks_gpus()}, columns

    def _tracks_gpus(self) -> bool:
        """Whether AccountingStorageTRES has GPUs, without which no job and no node says how many it holds."""
        tracked = self._slurm.slurmctld.Config.load().accounting_storage_tres
        return any(name.startswith("gres/gpu") for name in tracked)

    def facts(self) -> Answer:
        """The controller's configuration, by the names of SiteFacts."""
        return {"ok": True, "facts": pyslurm_site.facts(self._slurm.slurmctld.Config.load())}, {}

    def write(self, job_id: int, field: str, value: int) -> Answer:
        """One field of one record; the value lies in Slurm's range."""
        if field == "priority":
            changes = self._slurm.JobSubmitDescription(priority=value)
        elif field in ("nice", "site_factor"):
            # as text: pyslurm drops a number that is zero
            changes = self._slurm.JobSubmitDescription(**{field: str(value)})
        else:
            raise ValueError(f"no such field: {field}")
        self._slurm.Job(job_id).modify(changes)
        return {"ok": True}, {}

    def state(self, job_id: int) -> Answer:
        """One record as it is now: base state ("" if it is not there any more), `held` (or unknown),
        `by_admin`, and what names it."""
        job = self._slurm.Job.load(job_id)
        # the reply for the id of an array may begin with any of its tasks
        if job.id != job_id:
            return {"ok": True, "state": "", "held": False, "by_admin": False}, {}
        columns, _, _ = pyslurm_rows.job_columns([job], time.time(), self._user_name)
        if not len(columns["job_id"]):
            raise ValueError(f"job {job_id} cannot be read")
        names = ("array_id", "array_task", "het_id", "het_offset")
        record = [columns[n][0] if n == "array_task" else int(columns[n][0]) for n in names]
        priority = int(columns["priority"][0])
        held = {"held": priority <= 0, "by_admin": by_admin(priority, str(columns["reason"][0]))}
        return {"ok": True, "state": columns["state"][0], **held, "record": record}, {}

    def unpin(self, job_id: int) -> Answer:
        """Priority back to Slurm. On a held job this would be a release, so it is looked at right before."""
        return self._if(job_id, _INFINITE, lambda seen: HELD_ALREADY if seen["held"] else "", runs=True)

    def hold(self, job_id: int) -> Answer:
        """Hold a job. A hold of its user's would become an administrator's, so it is looked at before."""
        return self._if(job_id, 0, lambda seen: HELD_ALREADY if seen["held"] else "")

    def release(self, job_id: int) -> Answer:
        """Release a job that an administrator holds."""
        return self._if(job_id, _INFINITE, lambda seen: "" if seen["by_admin"] else NOT_HELD_BY_US)

    def _if(
        self, job_id: int, priority: int, why_not: Callable[[dict[str, Any]], str], *, runs: bool = False
    ) -> Answer:
        """Set the priority of a job that waits (or `runs`) if nothing speaks against it right now."""
        seen, _ = self.state(job_id)
        if seen["state"] not in (("PENDING", "RUNNING", "SUSPENDED") if runs else ("PENDING",)):
            message = f"state {seen['state'] or 'unknown'}"
            return {"ok": False, "code": 0, "result": "gone", "message": message}, {}
        if why := why_not(seen):
            return {"ok": False, "code": 0, "result": "refused", "message": why}, {}
        self._slurm.Job(job_id).modify(self._slurm.JobSubmitDescription(priority=priority))
        return {"ok": True}, {}


def main() -> None:
    """Serve requests until the other side closes the pipe."""
    requests, answers = int(sys.argv[1]), int(sys.argv[2])
    # squeue(1): libslurm cuts lists of array tasks at 64 bytes otherwise
    os.environ["SLURM_BITSTR_LEN"] = "0"
    # may end this process, after up to a minute: no exception tells that there is no slurm.conf
    pyslurm = importlib.import_module("pyslurm")
    worker = Worker(pyslurm)
    # 20,000 new objects in a row are no garbage, and looking through them costs a fifth of the reading
    gc.disable()
    hello = {"ok": True, "pyslurm": str(pyslurm.__version__), "numpy": np.__version__}
    try:
        pyslurm_pipe.write(answers, pyslurm_pipe.pack(hello, {}))
        while True:
            request, _ = pyslurm_pipe.read(requests, None)
            header, columns = worker.answer(request)
            pyslurm_pipe.write(answers, pyslurm_pipe.pack({**header, "id": request.get("id")}, columns))
            worker.let_go()
    except pyslurm_pipe.PipeError:
        return


if __name__ == "__main__":
    main()
