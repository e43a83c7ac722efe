"""What Slurm's error numbers mean for one write. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tias_slurm.slurm.live import Result

# name in slurm_errno.h, its number there (the same since 22.05), what became of the write
ERRORS: Mapping[str, tuple[int, Result]] = {
    "ESLURM_INVALID_JOB_ID": (2017, "gone"),
    "ESLURM_ALREADY_DONE": (2021, "gone"),
    "ESLURM_JOB_FINISHED": (2084, "gone"),
    "ESLURM_JOB_NOT_PENDING_NOR_RUNNING": (2086, "gone"),
    "ESLURM_ACCESS_DENIED": (2002, "no rights"),
    "ESLURM_USER_ID_MISSING": (2010, "no rights"),
    # an unprivileged owner changed a priority: it does not last
    "ESLURM_PRIO_RESET_FAIL": (2095, "no rights"),
    "ESLURM_NOT_TOP_PRIORITY": (2013, "refused"),
    "ESLURM_JOB_PENDING": (2024, "refused"),
    "ESLURM_DISABLED": (2037, "refused"),
    "ESLURM_BATCH_ONLY": (2039, "refused"),
    "ESLURM_JOB_HELD": (2042, "refused"),
    "ESLURM_JOB_NOT_PENDING": (2073, "refused"),
    "ESLURM_CANNOT_MODIFY_CRON_JOB": (2096, "refused"),
    "ESLURM_NOT_HET_JOB_LEADER": (2107, "refused"),
    "ESLURM_INVALID_NICE": (2123, "refused"),
    "ESLURM_TRANSITION_STATE_NO_UPDATE": (2020, "retry"),
    "ESLURM_IN_STANDBY_MODE": (2027, "retry"),
    "ESLURM_IN_STANDBY_USE_BACKUP": (2131, "retry"),
}


def by_number(number_of: Callable[[str, int], int]) -> dict[int, Result]:
    """Result by number; `number_of(name, usual)` tells what the present libslurm calls it."""
    return {number_of(name, usual): result for name, (usual, result) in ERRORS.items()}


def result_of(code: int, known: Mapping[int, Result]) -> Result:
    """What a number means; an unknown one of slurmctld's own is a refusal, job_submit.lua may send any."""
    if code in known:
        return known[code]
    # SLURM_ERROR, which job_submit.lua sends when it says no
    if code == -1:
        return "refused"
    # errno(3), messages (1000-), slurmctld not reached (1800-), sockets (5000-), credentials (6000-)
    if code < 2000 or 5000 <= code < 7000:
        return "retry"
    return "refused"
