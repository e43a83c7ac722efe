"""Comments of which something is not taken, so that each of them counts once. No I/O of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from tias_slurm.ledger.tally import Values

NAME = "refusals"  # of the setting of the ledger that holds them


class Refused(NamedTuple):
    """What is not taken of the comment of a job that waits or runs."""

    job: int
    root: int  # the array that the job is a task of, for all tasks have its one comment; else the job
    comment: str
    codes: tuple[str, ...]  # why, one for each key that is not taken


@dataclass
class Refusals:
    """Comments by job or array, and what of them is counted."""

    known: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def news(self, refused: Iterable[Refused], shown: Set[int]) -> list[tuple[int, str]]:
        """Jobs and codes that are not counted yet, and are from now on. `shown`: the roots of all jobs that
        Slurm shows, also as ended; others are forgotten."""
        self.known = {root: said for root, said in self.known.items() if int(root) in shown}
        found = []
        for r in refused:
            # users' words are not kept
            mark = blake2b(r.comment.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
            counted = self.known.setdefault(str(r.root), {}).setdefault(mark, [])
            for code in r.codes:
                if code not in counted:
                    counted.append(code)
                    found.append((r.job, code))
        return found

    def dumps(self) -> str:
        """As one text."""
        return json.dumps(self.known, sort_keys=True)

    def loads(self, text: str | None) -> None:
        """Take in what `dumps` gave; what is none counts nothing."""
        try:
            found = json.loads(text) if text else {}
            self.known = {
                str(int(root)): {str(mark): [str(code) for code in codes] for mark, codes in said.items()}
                for root, said in found.items()
            }
        except (ValueError, AttributeError, TypeError, RecursionError):
            self.known = {}


def counted(store: Values) -> Refusals:
    """What the ledger has counted. Raises LedgerError."""
    kept = Refusals()
    kept.loads(store.get(NAME))
    return kept


def count(store: Values, refused: Iterable[Refused], shown: Set[int]) -> Counter[str]:
    """What this ledger has not counted yet, by code, and from now on has. Raises LedgerError."""
    kept = counted(store)
    before = kept.dumps()
    found = Counter(code for _, code in kept.news(refused, shown))
    if (text := kept.dumps()) != before:
        store.put(NAME, text)
    return found
