"""What Prometheus may see: numbers of the daemon itself. No label names a user, an account or a job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tias_slurm import __version__
from tias_slurm.errors import InputError, printable
from tias_slurm.ledger.trim import Trimmed
from tias_slurm.observe.steps import STEPS
from tias_slurm.policy.tias import CLASSES

CYCLE_RESULTS = ("ok", "no answer", "stale", "failed")
STANDINGS = ("on_time", "at_risk", "impossible", "missed")
_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
# reasons of refused claims are a fixed set; more than so many would be a fault of ours
_MOST_REASONS = 60


class Metrics:
    """All metrics of one daemon, in a registry of its own. Names and labels: docs/operate.md."""

    def __init__(self) -> None:
        self.registry = made = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tias_slurm_{name}", text, labels, registry=made)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tias_slurm_{name}", text, labels, registry=made)

        self._build = gauge(
            "build_info", "1; what runs", "version", "slurm", "backend", "mode", "lever", "preset"
        )
        self._cycles = counter("cycles", "Cycles by how they ended.", "result")
        self._seconds = Histogram(
            "tias_slurm_cycle_seconds", "How long the steps of good cycles took.", ["step"],
            registry=made, buckets=_BUCKETS_S,
        )  # fmt: skip
        self._success = gauge("last_success_timestamp_seconds", "End of the last good cycle, epoch seconds.")
        self._interval = gauge("interval_seconds", "Seconds from one cycle to the next, as set.")
        self._jobs = gauge("jobs", "GPU jobs by class and state.", "class", "state")
        self._deadlines = gauge("deadline_jobs", "Jobs with a deadline, by how it stands.", "standing")
        self._over_quota = gauge("over_quota_jobs", "Of these jobs, those whose deadline does not count.")
        self._overridden = gauge("overridden_jobs", "Jobs whose value a person has changed.")
        self._writes = counter("writes", "Writes of jobs by lever and result.", "lever", "result")
        self._requeues = counter("requeues", "Requeues of running jobs by result.", "result")
        self._preempted = counter("requeues_by_slurm", "Requeues by Slurm's own preemption that were found.")
        self._claims = counter("refused_claims", "Claims in comments not taken, by reason.", "reason")
        self._notices = counter("notices", "Messages to owners of jobs.", "reason", "how", "result")
        self._notices_wait = gauge("waiting_notices", "Messages to owners of jobs that wait to be sent.")
        self._left = gauge("budget_left", "What the last cycle left of a budget.", "budget")
        self._held_back = gauge("held_back_writes", "Writes that the last cycle left for the next.")
        self._leading = gauge("leading", "1: this daemon may write; 0: it stands by.")
        self._term = gauge(
            "lease_term", "How often the lease had been taken when this daemon took it; 0: none."
        )
        self._reload = gauge("reload_success", "1: the last reload of the settings was taken; 0: refused.")
        self._reloaded = gauge("last_reload_timestamp_seconds", "Last reload that was taken, epoch seconds.")
        self._paused = gauge("paused", "1: an administrator has paused writing.")
        self._ledger = gauge("ledger_bytes", "Size of the ledger's file.")
        self._dropped = counter("ledger_dropped", "What the ledger dropped for its size.", "kind")
        self._no_rights = gauge("no_rights", "1: Slurm refuses all writes for lack of rights.")
        self._reasons: set[str] = set()
        for result in CYCLE_RESULTS:
            self._cycles.labels(result)
        for step in (*STEPS, "all"):
            self._seconds.labels(step)
        for kind in ("job", "audit"):
            self._dropped.labels(kind)
        self._reload.set(1)

    def build(self, **labels: str) -> None:
        """What runs: slurm, backend, mode, lever, preset."""
        self._build.clear()
        self._build.labels(version=__version__, **{k: printable(v, 40) for k, v in labels.items()}).set(1)

    def cycle(self, result: str, seconds: Mapping[str, float], whole_s: float, now: float) -> None:
        """A cycle ended. `seconds`: by step; `now`: epoch s."""
        self._cycles.labels(result).inc()
        if result != "ok":
            return
        self._success.set(now)
        for step in STEPS:
            if step in seconds:
                self._seconds.labels(step).observe(seconds[step])
        self._seconds.labels("all").observe(whole_s)

    def settings(self, interval_s: float) -> None:
        """What the alerts have to know of the settings."""
        self._interval.set(interval_s)

    def queue(self, queue: Mapping[str, Any], overridden: int, held_back: int) -> None:
        """How the queue stands: see status.queue_summary."""
        counts = {(kind, state): 0 for kind in CLASSES for state in ("waiting", "running")}
        for row in queue["classes"]:
            for state in ("waiting", "running"):
                counts[row["class"], state] += row[state]
        for (kind, state), n in counts.items():
            self._jobs.labels(kind, state).set(n)
        for standing in STANDINGS:
            both = queue["deadlines"][standing]
            self._deadlines.labels(standing).set(both["waiting"] + both["running"])
        self._over_quota.set(queue["over_quota"]["waiting"] + queue["over_quota"]["running"])
        self._overridden.set(overridden)
        self._held_back.set(held_back)

    def sent(self, event: str, lever: str, result: str) -> None:
        """One write or requeue came to an end; a warning counts to neither."""
        if event == "write":
            self._writes.labels(lever, result).inc()
        elif event == "requeue":
            self._requeues.labels(result).inc()

    def requeued_by_slurm(self, jobs: int) -> None:
        """So many requeues by Slurm's own preemption were found."""
        self._preempted.inc(jobs)

    def refused_claims(self, reasons: Mapping[str, int]) -> None:
        """Claims that were not taken since this was called last, by reason."""
        for reason, n in reasons.items():
            if len(self._reasons) < _MOST_REASONS:
                self._reasons.add(reason)
            self._claims.labels(printable(reason, 60) if reason in self._reasons else "other").inc(n)

    def notice(self, reason: str, how: str, result: str) -> None:
        """A message to a job's owner came to an end."""
        self._notices.labels(reason, how, result).inc()

    def notices_wait(self, messages: int) -> None:
        """How many messages wait to be sent."""
        self._notices_wait.set(messages)

    def budgets(self, left: Mapping[str, float]) -> None:
        """What is left of each budget that is limited."""
        self._left.clear()
        for name, n in left.items():
            self._left.labels(name).set(n)

    def leadership(self, leads: bool, term: int) -> None:
        """Whether this daemon may write, and in which term."""
        self._leading.set(int(leads))
        self._term.set(term)

    def reloaded(self, taken: bool, now: float) -> None:
        """The settings were read again."""
        self._reload.set(int(taken))
        if taken:
            self._reloaded.set(now)

    def silenced(self, paused: bool, no_rights: bool) -> None:
        """Why nothing is written."""
        self._paused.set(int(paused))
        self._no_rights.set(int(no_rights))

    def ledger(self, trimmed: Trimmed) -> None:
        """How large the ledger is, and what went for its size since this was called last."""
        self._ledger.set(trimmed.bytes)
        self._dropped.labels("job").inc(trimmed.jobs)
        self._dropped.labels("audit").inc(trimmed.audit)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)

    def leave(self, path: str) -> None:
        """Write them for the textfile collector of node_exporter, readable for all, a whole file at a time.

        Raises InputError.
        """
        temp = f"{path}.{os.getpid()}.tmp"  # the collector takes *.prom alone
        try:
            file = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            with os.fdopen(file, "wb") as out:
                os.fchmod(file, 0o644)  # whatever the umask
                out.write(self.text())
            os.replace(temp, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temp)
            raise InputError(
                f"{printable(path, 300)}: {error.strerror or error}; [metrics] textfile must lie in a "
                "directory that the daemon may write"
            ) from None
