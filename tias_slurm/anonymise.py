"""Names and texts of people, taken out of what was read before anything is made of it.

Users, accounts and files get stand-ins by their first appearance: user1, account1, file1. The same name has
the same one everywhere in one run, and nothing but the order tells who is who, so that no list of names leads
back. What people wrote (comments, submit lines, reasons) and what Slurm or the machine said is dropped. Job
ids, partitions, QOS, nodes, clusters and GPU types stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tias_slurm.deadlines import Refusal
    from tias_slurm.ledger.store import Entry
    from tias_slurm.replay.claims import ClaimReport
    from tias_slurm.replay.workload import Refusals, Workload
    from tias_slurm.slurm.live import RawTable
    from tias_slurm.slurm.node_set import NodeSet

Kind = Literal["user", "account", "file"]


class Names:
    """The stand-ins of one run."""

    def __init__(self) -> None:
        self._of: dict[Kind, dict[str, str]] = {"user": {}, "account": {}, "file": {}}

    def of(self, kind: Kind, name: str) -> str:
        """The stand-in of a name; none stays none."""
        known = self._of[kind]
        return known.setdefault(name, f"{kind}{len(known) + 1}") if name else name

    # -- the history

    def workload(self, work: Workload, found: ClaimReport) -> None:
        """Of a history and of what was made of its claims, in place: claims are judged by true names."""
        jobs = work.jobs
        kinds: tuple[Kind, ...] = ("user", "account")
        for kind in kinds:
            if kind in jobs:
                stand_in = partial(self._of_value, kind)
                jobs[kind] = jobs[kind].map(stand_in).astype("object")
        for text in ("comment", "submit_line"):
            if text in jobs:
                jobs[text] = jobs[text].map(lambda _: "").astype("object")
        self._refusals(work.refused, files=True)
        for refusals in (found.refused, found.refused_other):
            self._refusals(refusals, files=False)  # these name the job, not a file
        found.hints.clear()

    def _of_value(self, kind: Kind, value: Any) -> str:
        return self.of(kind, "" if value is None or value != value else str(value))

    def _refusals(self, refusals: Refusals, *, files: bool) -> None:
        refusals.examples[:] = [
            replace(r, file=self.of("file", r.file) if files else r.file, detail="")
            for r in refusals.examples
        ]

    def nodes(self, nodes: NodeSet) -> NodeSet:
        """Of the nodes: how they are known, without the file's name."""
        kind, colon, path = nodes.source.partition(": ")
        return replace(nodes, source=f"{kind}: {self.of('file', path)}" if colon else kind)

    # -- the queue and the ledger

    def queue(self, raw: RawTable) -> RawTable:
        """Of a queue, after the cycle that had to know the true names."""
        return replace(
            raw,
            user=[self.of("user", name) for name in raw.user],
            account=[self.of("account", name) for name in raw.account],
            comment=[""] * len(raw),
        )

    def refusals(self, refusals: Iterable[Refusal]) -> tuple[Refusal, ...]:
        """Of refused claims: the reason stays, the advice quotes what was written."""
        return tuple(replace(r, text="") for r in refusals)

    def entries(self, entries: Iterable[Entry]) -> list[Entry]:
        """Of audit records: what Slurm said goes."""
        return [replace(e, message="") for e in entries]

    def pause(self, note: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Of a note on a pause: who paused gets a stand-in."""
        if note is None:
            return None
        kept = {"time": note["time"]} if isinstance(note.get("time"), int | float) else {}
        return {**kept, "by": self.of("user", str(note.get("by") or "")), "reason": ""}

    def _named(self, key: str, named: list[str]) -> list[str]:
        """Of what a key of [scope] names."""
        kinds: dict[str, Kind] = {"users": "user", "accounts": "account"}
        kind = kinds.get(key.partition("_")[2])
        return [self.of(kind, name) for name in named] if kind else named

    def left(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Of what the daemon left of its last cycle: words of Slurm's and of the machine's go."""
        made = dict(document)
        for key in ("no_rights", "trouble", "no_raise", "user_export"):
            if made.get(key):
                made[key] = "see the log"
        if isinstance(made.get("scope"), Mapping):
            made["scope"] = {key: self._named(key, v) for key, v in made["scope"].items()}
        for part, key in (("cycle", "message"), ("leadership", "why"), ("reload", "problem")):
            if isinstance(made.get(part), Mapping) and made[part].get(key):
                made[part] = {**made[part], key: "see the log" if part == "reload" else ""}
        return made
