"""What goes wrong outside of us, and how user text is shown."""

from __future__ import annotations


class InputError(Exception):
    """Input that cannot be used at all. The message is one line: what is wrong, where, and how to fix it."""


class LedgerError(InputError):
    """The ledger could not be read or kept, at least for now. What was to be sent next must not be sent."""


def printable(text: str, width: int = 80) -> str:
    """User text made safe for a terminal or a log: control characters escaped, cut to width."""
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text[: 2 * width]
    )
    return safe if len(safe) <= width else safe[: width - 1] + "…"
