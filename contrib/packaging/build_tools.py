#!/usr/bin/env python3
"""Print the entries of requirements/dev.txt, hashes and all, that make the wheel of the project itself."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "testbed"))

from bed.venvs import lock_entries  # noqa: E402

TOOLS = ("setuptools",)


def build_tools(locked: str) -> str:
    """Those entries of the text of a lock file."""
    return lock_entries(locked, TOOLS)


if __name__ == "__main__":
    print(build_tools((HERE.parents[1] / "requirements" / "dev.txt").read_text()), end="")
