"""When we requeued whose jobs, for as long as an hourly budget has to know it."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable

HOUR_S = 3600.0


class RequeueLog:
    """The requeues of the last hour: at most one entry a cycle and user, so that it stays small."""

    def __init__(self) -> None:
        self._log: deque[tuple[float, Counter[str]]] = deque()
        self._spent: Counter[str] = Counter()  # the sum of the log

    def add(self, now: float, users: Iterable[str]) -> None:
        """Jobs of these users, one name each, are requeued at `now` (epoch s), which never goes back."""
        self._log.append((now, Counter(users)))
        self._spent.update(self._log[-1][1])

    def take_back(self, users: Iterable[str]) -> None:
        """Jobs of these users were not requeued after all, of those added last."""
        if self._log:
            spared = Counter(users)
            self._log[-1][1].subtract(spared)
            self._spent.subtract(spared)

    def last_hour(self, now: float) -> Counter[str]:
        """How many jobs of each user were requeued less than an hour before `now`."""
        while self._log and now - self._log[0][0] >= HOUR_S:
            self._spent -= self._log.popleft()[1]
        return self._spent

    def dumps(self) -> str:
        """As text, to be kept over restarts."""
        return json.dumps([[time, users] for time, users in self._log])

    def loads(self, text: str) -> None:
        """Take up what was kept; "" or what cannot be read: nothing."""
        try:
            self._log = deque((float(time), Counter(users)) for time, users in json.loads(text or "[]"))
        except (ValueError, TypeError):
            self._log = deque()
        self._spent = sum((users for _, users in self._log), Counter())
