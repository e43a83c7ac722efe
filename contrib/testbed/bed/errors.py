"""The one error that reaches the user, as a single line."""

from __future__ import annotations


class TestbedError(Exception):
    """What went wrong, where the log is, what to do. Printed as one line; exit status 1."""

    __test__ = False  # not a test class, whatever pytest thinks of the name
