"""Slurm's short form of lists of host names: n[001-139,150],login1."""

from __future__ import annotations

import itertools
import re
from typing import Final

MAX_HOSTS: Final = 100_000  # more nodes than any cluster has: a typing error or an attack

_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def expand(text: str) -> list[str]:
    """The names that a hostlist stands for, in its order.

    Raises ValueError with a reason on a list that is malformed or too long.
    """
    names: list[str] = []
    for part in _split(text):
        pieces = re.split(r"\[([^\[\]]*)\]", part)  # text, inside, text, inside, ..., text
        if any("[" in p or "]" in p for p in pieces[::2]):
            raise ValueError("brackets do not match")
        choices = [_numbers(p) if i % 2 else [p] for i, p in enumerate(pieces)]
        size = 1
        for choice in choices:
            size *= len(choice)
        if len(names) + size > MAX_HOSTS:
            raise ValueError(f"more than {MAX_HOSTS} names")
        names.extend("".join(combination) for combination in itertools.product(*choices))
    return names


def _split(text: str) -> list[str]:
    """Cut at commas that are not inside brackets."""
    parts = [part.strip() for part in re.split(r",(?![^\[\]]*\])", text)]
    if not all(parts):
        raise ValueError("a name is empty")
    return parts


def _numbers(inside: str) -> list[str]:
    found: list[str] = []
    for item in inside.split(","):
        match = _RANGE.fullmatch(item.strip())
        if not match:
            raise ValueError("brackets hold numbers and ranges, such as [001-139,150]")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise ValueError("a range goes from the smaller number to the larger")
        if int(high) - int(low) >= MAX_HOSTS:
            raise ValueError(f"more than {MAX_HOSTS} names")
        found.extend(str(n).zfill(len(low)) for n in range(int(low), int(high) + 1))
    return found
