"""How long each step of a cycle takes."""

from __future__ import annotations

import time
from collections.abc import Callable

STEPS = ("observe", "remember", "rank", "plan", "apply")


class StepClock:
    """Told of the beginning of each step; what comes between `begin` and the first of them counts to none."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: float | None = None
        self._step = ""
        self.seconds: dict[str, float] = {}

    def begin(self) -> None:
        """A cycle begins."""
        self.seconds, self._since = {}, None

    def step(self, name: str) -> None:
        """A step begins, and the one before it ends; "": none begins."""
        at = self._now()
        if self._since is not None:
            self.seconds[self._step] = self.seconds.get(self._step, 0.0) + at - self._since
        self._step, self._since = name, at if name else None
