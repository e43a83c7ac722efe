"""Where things lie on this machine. All of it is below one cache directory, outside the checkout."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from bed.errors import TestbedError

CHECKOUT = Path(__file__).resolve().parents[3]
DEFAULT_CACHE = "/var/cache/tias-slurm-testbed"
UNUSED_S = 14 * 86400.0


@dataclass(frozen=True)
class Layout:
    """The cache: roots/, venvs/, pyslurm/ are kept; clusters/NAME/ is gone after down; log/, lock/."""

    cache: Path

    @classmethod
    def from_environment(cls) -> Layout:
        """TIAS_TESTBED_CACHE, else /var/cache/tias-slurm-testbed."""
        return cls(Path(os.environ.get("TIAS_TESTBED_CACHE") or DEFAULT_CACHE).absolute())

    def root(self, suite: str, key: str) -> Path:
        return self.cache / "roots" / f"{suite}-{key}"

    def venv(self, suite: str, key: str) -> Path:
        return self.cache / "venvs" / f"{suite}-{key}"

    def pyslurm(self, suite: str, key: str) -> Path:
        return self.cache / "pyslurm" / f"{suite}-{key}"

    def log(self, name: str) -> Path:
        return self.cache / "log" / name

    def lock(self, name: str) -> Path:
        return self.cache / "lock" / name

    def cluster(self, name: str) -> Path:
        return self.cache / "clusters" / checked_name(name)

    def clusters(self) -> list[str]:
        """Names of the clusters that are up or left something behind."""
        found = self.cache / "clusters"
        return sorted(entry.name for entry in found.iterdir()) if found.is_dir() else []

    def used(self, entry: Path, now: float) -> list[Path]:
        """Note that a cached entry is used; those of its kind that nobody used for `UNUSED_S`, to be removed.

        What a cluster's record names is in use.
        """
        os.utime(entry, (now, now))
        named = set()
        for name in self.clusters():
            with contextlib.suppress(FileNotFoundError):  # it ends meanwhile
                record = json.loads((self.cluster(name) / "cluster.json").read_text())
                named |= {value for value in record.values() if isinstance(value, str)}
        unused = []
        for other in entry.parent.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another testbed builds it, or removes it
                if other != entry and str(other) not in named and now - other.stat().st_mtime > UNUSED_S:
                    unused.append(other)
        return sorted(unused)


def checked_name(name: str) -> str:
    """A cluster's name as given, if it is one that can be a directory and a ClusterName."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,38}", name):
        raise TestbedError(
            f"--name {name!r}: use small letters, digits, dot, dash; at most 39, a letter or digit first"
        )
    return name
