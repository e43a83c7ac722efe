"""The Slurm releases that Debian packages, and what each needs."""

from __future__ import annotations

from dataclasses import dataclass

# without recommends; procps and psmisc for tests that look at or end processes
_COMMON = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurmdbd",
    "slurm-wlm-basic-plugins",
    "munge",
    "mariadb-server",
    "faketime",
    "python3",
    "python3-venv",
    "procps",
    "ca-certificates",
)


@dataclass(frozen=True)
class Release:
    """A Slurm release: its X.Y, the Debian suite that packages it, and whether pyslurm can be built."""

    slurm: str
    suite: str
    packages: tuple[str, ...]
    pyslurm: str | None  # the version on PyPI to build
    no_pyslurm: str = ""  # why there is none


RELEASES = {
    "26.05": Release(
        "26.05",
        "testing",
        # the compiler lies in the root so that headers and libraries are of one day's archive
        (*_COMMON, "libslurm-dev", "python3-dev", "gcc", "libc6-dev"),
        "25.11.2",
    ),
    "24.11": Release(
        "24.11",
        "trixie",
        _COMMON,
        None,
        "pyslurm 25.11 needs struct members that Slurm 24.11 lacks, and PyPI has no pyslurm for 24.11",
    ),
    "22.05": Release(
        "22.05",
        "bookworm",
        _COMMON,
        None,
        "pyslurm 25.11 needs struct members that Slurm 22.05 lacks, and PyPI has no pyslurm for 22.05",
    ),
}
DEFAULT_RELEASE = "26.05"
