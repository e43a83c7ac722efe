"""When we requeued whose jobs, for as long as an hourly budget has to know it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

HOUR_S = 3600.0


class RequeueLog:
    """The requeues of the last hour: at most one entry a cycle and user, so that it stays small."""

    def __init__(self) -> None:
        self._log: list[tuple[float, Counter[str]]] = []

    def add(self, now: float, users: Iterable[str]) -> None:
        """Jobs of these users, one name each, are requeued at `now` (epoch s)."""
        self._log = [one for one in self._log if now - one[0] < HOUR_S]
        self._log.append((now, Counter(users)))

    def take_back(self, users: Iterable[str]) -> None:
        """Jobs of these users were not requeued after all, of those added last."""
        if self._log:
            self._log[-1][1].subtract(users)

    def last_hour(self, now: float) -> Counter[str]:
        """How many jobs of each user were requeued less than an hour before `now`."""
        spent: Counter[str] = Counter()
        for time, users in self._log:
            if now - time < HOUR_S:
                spent.update(users)
        return spent

    def dumps(self) -> str:
        """As text, to be kept over restarts."""
        return json.dumps([[time, users] for time, users in self._log])

    def loads(self, text: str) -> None:
        """Take up what was kept; "" or what cannot be read: nothing."""
        try:
            self._log = [(float(time), Counter(users)) for time, users in json.loads(text or "[]")]
        except (ValueError, TypeError):
            self._log = []
