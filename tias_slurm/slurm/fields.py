"""The fields of sacct, how an export names them, and how its lines are cut into fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tias_slurm.errors import InputError, printable
from tias_slurm.slurm import times, values

MOST_COLUMNS = 1000  # sacct has about 130 fields

# Every field that some sacct from 17.11 to 26.05 prints, lower case.
SACCT_FIELDS = frozenset(
    """
    account admincomment alloccpus allocgres allocnodes alloctres associd avecpu avecpufreq avediskread
    avediskwrite avepages averss avevmsize blockid cluster comment constraints consumedenergy
    consumedenergyraw container cputime cputimeraw dbindex deadline derivedexitcode elapsed elapsedraw
    eligible end exclusive exitcode expandedstderr expandedstdin expandedstdout extra failednode flags
    gid group hetjobid hetjoboffset jobid jobidraw jobname layout licenses maxdiskread maxdiskreadnode
    maxdiskreadtask maxdiskwrite maxdiskwritenode maxdiskwritetask maxpages maxpagesnode maxpagestask
    maxrss maxrssnode maxrsstask maxvmsize maxvmsizenode maxvmsizetask mcslabel mincpu mincpunode
    mincputask ncpus nnodes nodelist ntasks originalsluid oversubscribe partition planned plannedcpu
    plannedcpuraw priority qos qosraw qosreq reason reqcpufreq reqcpufreqgov reqcpufreqmax reqcpufreqmin
    reqcpus reqgres reqmem reqnodes reqreservation reqtres reserved reservation reservationid restarts
    resvcpu resvcpuraw segment segmentsize sluid start state stderr stderrexpanded stdin stdinexpanded
    stdout stdoutexpanded submit submitline suspended systemcomment systemcpu timelimit timelimitraw
    totalcpu tresusageinave tresusageinmax tresusageinmaxnode tresusageinmaxtask tresusageinmin
    tresusageinminnode tresusageinmintask tresusageintot tresusageoutave tresusageoutmax
    tresusageoutmaxnode tresusageoutmaxtask tresusageoutmin tresusageoutminnode tresusageoutmintask
    tresusageouttot uid user usercpu wckey wckeyid workdir
    """.split()  # noqa: SIM905  a list would be many times as long
)

# Fields that may hold a delimiter or a line break; sacct escapes neither.
FREE_TEXT = frozenset(
    """
    admincomment comment constraints container expandedstderr expandedstdin expandedstdout extra jobname
    licenses reason reservation reqreservation stderr stderrexpanded stdin stdinexpanded stdout
    stdoutexpanded submitline systemcomment wckey workdir
    """.split()  # noqa: SIM905  a list would be many times as long
)

# What the replay reads.
USED = frozenset(
    """
    jobid jobidraw cluster user account partition qos state submit eligible start end elapsed elapsedraw
    suspended timelimit timelimitraw alloctres reqtres allocgres reqgres nnodes allocnodes reqnodes
    ncpus alloccpus reqcpus reqmem comment submitline deadline restarts
    """.split()  # noqa: SIM905  a list would be many times as long
)

# What a reason of a refusal calls these columns: as sacct writes them, not only with a capital.
_SPELLED = {
    x.lower(): x
    for x in (
        "AllocCPUS", "AllocGRES", "AllocNodes", "AllocTRES", "ElapsedRaw", "JobID", "JobIDRaw", "NCPUS",
        "NNodes", "ReqCPUS", "ReqGRES", "ReqMem", "ReqNodes", "ReqTRES", "SubmitLine", "TimelimitRaw",
    )
}  # fmt: skip

SUBMIT_COMMANDS = re.compile(r"(?:\S*/)?(?:sbatch|salloc|srun|scrontab)\b")


def _reads(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def valid(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return valid


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda text: compiled.fullmatch(text) is not None


def _is_id(text: str) -> bool:
    return values.JOB_ID.fullmatch(text) is not None or values.STEP_ID.fullmatch(text) is not None


_time, _duration, _count = (
    _reads(times.parse_time),
    _reads(values.parse_duration),
    _reads(values.parse_count),
)
_tres, _whole, _word = _reads(values.parse_tres), _matches(r"\d*"), _matches(r"\S*")
VALID: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(("jobid", "jobidraw"), _is_id),
    "state": _reads(values.parse_state),
    **dict.fromkeys(("submit", "eligible", "start", "end"), _time),
    **dict.fromkeys(
        ("elapsed", "timelimit", "suspended", "cputime", "totalcpu", "usercpu", "systemcpu"), _duration
    ),
    **dict.fromkeys(
        ("elapsedraw", "cputimeraw", "dbindex", "uid", "gid", "associd", "restarts", "qosraw"), _whole
    ),
    **dict.fromkeys(("timelimitraw",), _duration),
    **dict.fromkeys(("alloctres", "reqtres"), _tres),
    **dict.fromkeys(("nnodes", "allocnodes", "reqnodes", "ncpus", "alloccpus", "reqcpus"), _count),
    **dict.fromkeys(("exitcode", "derivedexitcode"), _matches(r"(\d+:\d+)?")),
    "nodelist": _matches(r"[\w.,\[\]-]*|None assigned|\(null\)"),
    "reqmem": _reads(values.parse_memory),
    **dict.fromkeys(("user", "account", "partition", "qos", "cluster", "group"), _word),
}
# Fields that no record leaves empty and that little else looks like: they tell where a record begins.
TELLING = frozenset({"jobid", "jobidraw", "state"})
_TIMES = frozenset({"submit", "start", "end"})


@dataclass(frozen=True)
class Layout:
    """How the lines of one file are cut."""

    delimiter: str
    names: tuple[str, ...]  # lower case, in order
    trailing: bool  # --parsable: a delimiter ends each record
    index: dict[str, int] = field(repr=False)  # name -> position of its first occurrence
    free: tuple[int, ...] = field(repr=False)
    checks: tuple[tuple[int, Callable[[str], bool]], ...] = field(repr=False)

    @property
    def cuts(self) -> int:
        """Delimiters in a whole record."""
        return len(self.names) - 1 + self.trailing

    def fields(self, line: str) -> list[str]:
        """The fields of one record."""
        parts = line.split(self.delimiter)
        if self.trailing and parts[-1] == "":
            parts.pop()
        return parts

    def plausible(self, parts: Sequence[str]) -> bool:
        """Whether these are the fields of one record: as many as the header names, each typed one of its
        type.
        """
        return len(parts) == len(self.names) and all(valid(parts[i]) for i, valid in self.checks)

    def begins(self, parts: Sequence[str]) -> bool | None:
        """Whether a line cut short can be the start of a record; None: nothing in it tells."""
        told: bool | None = None
        for i, valid in self.checks:
            if i >= len(parts) or (i == len(parts) - 1 > 0):
                break  # the last field may be cut itself
            text, name = parts[i], self.names[i]
            if not valid(text) or (not text and name in TELLING):
                return False
            if name in TELLING or (name in _TIMES and len(text) > 8):
                told = True
        return told


def spelled(name: str) -> str:
    """A column's lower-case name as sacct writes it: elapsedraw is ElapsedRaw."""
    return _SPELLED.get(name, name.capitalize())


def layout(names: Sequence[str], delimiter: str, trailing: bool) -> Layout:
    """A layout of the given columns."""
    index: dict[str, int] = {}
    for i, name in enumerate(names):
        index.setdefault(name, i)
    return Layout(
        delimiter,
        tuple(names),
        trailing,
        index,
        tuple(i for i, name in enumerate(names) if name in FREE_TEXT),
        tuple((i, VALID[name]) for i, name in enumerate(names) if name in VALID),
    )


def column_list(text: str) -> list[str]:
    """The names of a `sacct --format` list, lower case, widths (`JobID%20`) removed. Raises InputError,
    also on an empty name.
    """
    if text.count(",") >= MOST_COLUMNS:
        raise InputError(f"the list of columns has {text.count(',') + 1} names; sacct has about 130 fields")
    names = [_name(x) for x in text.removeprefix("--format=").split(",")]
    if len(names) < 2 or not any(names):
        raise InputError(
            f"the list of columns {printable(text)!r} names no columns: give sacct's --format list"
        )
    if "" in names:
        raise InputError(
            f"the list of columns {printable(text)!r} has an empty name at place {names.index('') + 1}: "
            f"leave out the comma, or name the column"
        )
    return names


def _name(text: str) -> str:
    """One name of a --format list; sacct takes the beginning of a name for the name."""
    name = text.strip().partition("%")[0].lower()
    if name and name not in SACCT_FIELDS:
        longer = [f for f in SACCT_FIELDS if f.startswith(name)]
        return longer[0] if len(longer) == 1 else name
    return name


def read_delimiter(text: str) -> str:
    r"""A delimiter as typed: `\t` and `\x1f` may be written out. Raises InputError."""
    text = text.removeprefix("$'").removesuffix("'") if text.startswith("$'") else text
    if "\\" in text and text != "\\":
        text = re.sub(
            r"\\(?:x([0-9a-fA-F]{1,2})|(t)|0*([0-3]?[0-7]{1,2}))",
            lambda m: chr(int(m[1], 16)) if m[1] else "\t" if m[2] else chr(int(m[3], 8)),
            text,
        )
    if not text or "\n" in text:
        raise InputError("the delimiter is empty or a line break: give the characters of sacct's --delimiter")
    return text


def header_delimiter(line: str) -> str | None:
    """What stands between the first two names of a header; None if the line begins with no field name."""
    m = re.match(r"\s*([A-Za-z]+)([^A-Za-z0-9]+)[A-Za-z]", line)
    return m[2] if m is not None and m[1].lower() in SACCT_FIELDS else None


def header(line: str, delimiter: str | None) -> tuple[list[str], str, bool] | None:
    """A header line as (names, delimiter, trailing), or None if the line is none."""
    delimiter = delimiter or header_delimiter(line)
    if delimiter is None:
        return None
    if line.count(delimiter) > MOST_COLUMNS:
        return None
    names = [x.strip().lower() for x in line.split(delimiter)]
    trailing = len(names) > 1 and not names[-1]
    if trailing:
        names.pop()
    known = sum(name in SACCT_FIELDS for name in names)
    if len(names) < 2 or known < 2 or known < 0.7 * len(names):
        return None
    return names, delimiter, trailing


def usual_delimiter(lines: Sequence[str]) -> str | None:
    """The delimiter, of those that exports have, that cuts most of the lines; None if none cuts any."""
    found = {c: sum(c in line for line in lines) for c in ("\x1f", "|", "\t", ";", ",")}
    best = max(found, key=lambda c: found[c])
    return best if found[best] else None


def find_delimiter(lines: Sequence[str], columns: int) -> str | None:
    """The delimiter of lines without a header that have that many columns; None if none fits most lines."""
    candidates = {"|", "\x1f", "\t", ";", ","}
    for line in lines[:20]:
        runs = re.findall(r"[^\w\s.:+\[\]=/-]+|\t+|[\x1c-\x1f]+", line[:4000])
        for run in runs:
            candidates.update((run, run[:1], run[:2]))
    best: tuple[int, int, str] | None = None
    for candidate in candidates:
        fits = sum(line.count(candidate) in (columns - 1, columns) for line in lines)
        score = (fits, len(candidate), candidate)
        if fits > len(lines) // 2 and (best is None or score > best):
            best = score
    return best[2] if best else None
