"""Small sacct exports for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from tias_slurm.replay.workload import Workload
from tias_slurm.slurm.history import read_history

BERLIN = ZoneInfo("Europe/Berlin")
COLUMNS = (
    "JobID", "JobIDRaw", "JobName", "Cluster", "User", "Account", "Partition", "QOS", "State", "Submit",
    "Eligible",
    "Start", "End", "ElapsedRaw", "Timelimit", "AllocTRES", "ReqTRES", "Comment", "SubmitLine",
)  # fmt: skip
TRES = "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1"


def record(**values: object) -> dict[str, str]:
    """One record of a job that ran from 10:10 to 11:10; any column may be given another value."""
    base = {
        "JobID": "100", "JobName": "train", "Cluster": "alpha", "User": "ann", "Account": "lab",
        "Partition": "gpu", "QOS": "normal", "State": "COMPLETED", "Submit": "2025-03-01T10:00:00",
        "Start": "2025-03-01T10:10:00", "End": "2025-03-01T11:10:00", "ElapsedRaw": "3600",
        "Timelimit": "02:00:00", "AllocTRES": TRES, "ReqTRES": TRES, "Comment": "",
        "SubmitLine": "sbatch run.sh",
    }  # fmt: skip
    base |= {k: str(v) for k, v in values.items()}
    base.setdefault("JobIDRaw", base["JobID"])
    base.setdefault("Eligible", base["Submit"])
    return base


def text(
    *records: dict[str, str], columns: tuple[str, ...] = COLUMNS, delimiter: str = "|", end: str = ""
) -> str:
    """An export with a header; end is put behind each line (a trailing delimiter)."""
    lines = [delimiter.join(columns)]
    lines += [delimiter.join(r.get(c, "") for c in columns) for r in records]
    return "".join(line + end + "\n" for line in lines)


def write(path: Path, content: str | bytes) -> str:
    """Write a file; returns its path as read_history takes it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
    return str(path)


def read(tmp_path: Path, *contents: str | bytes, **options: object) -> Workload:
    """Read exports of the given contents, in the zone Europe/Berlin."""
    paths = [write(tmp_path / f"export{i}.txt", c) for i, c in enumerate(contents)]
    work = read_history(paths, **{"zone": BERLIN, **options})  # type: ignore[arg-type]
    assert conserved(work)
    return work


def conserved(work: Workload) -> bool:
    """Whether every row is accounted for."""
    return work.rows == len(work.jobs) + work.refused.total + work.left_out.total()


def at(clock: str, day: str = "2025-03-01") -> float:
    """Epoch seconds of a time in Berlin's winter."""
    return datetime.fromisoformat(f"{day}T{clock}:00+01:00").astimezone(UTC).timestamp()


def run(
    submit: str, start: str, end: str, state: str = "COMPLETED", day: str = "2025-03-01", **more: object
) -> dict[str, str]:
    """A record of one run, times as HH:MM of one day."""

    def stamp(t: str) -> str:
        return f"{day}T{t}:00" if t[:1].isdigit() else t

    seconds = at(end) - at(start) if end[0].isdigit() and start[0].isdigit() else more.pop("ElapsedRaw", 0)
    return record(
        Submit=stamp(submit),
        Start=stamp(start),
        End=stamp(end),
        State=state,
        **{"ElapsedRaw": int(seconds)} | more,
    )


SONAR = (
    "JobID,JobIDRaw,User,Account,State,Start,End,AveCPU,AveDiskRead,AveDiskWrite,AveRSS,AveVMSize,ElapsedRaw,ExitCode,"
    "Layout,MaxRSS,MaxVMSize,MinCPU,ReqCPUS,ReqMem,ReqNodes,Reservation,Submit,Suspended,SystemCPU,TimelimitRaw,"
    "UserCPU,NodeList,Partition,AllocTRES,Priority,JobName"
)
