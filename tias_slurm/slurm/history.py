"""A site's accounting history, from files of `sacct` text or JSON to one row a job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from tias_slurm.errors import InputError, printable
from tias_slurm.replay.wording import plural
from tias_slurm.replay.workload import COLUMNS, Refusals, Workload
from tias_slurm.slurm import checks, fields, files, runs, sacct_json, sacct_text
from tias_slurm.slurm.records import Raw, Reader, Records

FIELDS = (
    "Cluster,JobID,JobIDRaw,User,Account,Partition,QOS,State,Submit,Eligible,"
    "Start,End,ElapsedRaw,Suspended,TimelimitRaw,AllocTRES,ReqTRES,NNodes,NodeList,Comment,SubmitLine"
)
HOW_TO_EXPORT = (
    "SLURM_TIME_FORMAT=%s SLURM_BITSTR_LEN=0 sacct -a -D -X --parsable2 --noconvert --delimiter=$'\\x1f' "
    f"-S now-60days -E now --format={FIELDS} > export.txt"
)

# What a history is the poorer without: any of the columns, and what that means.
USEFUL: tuple[tuple[tuple[str, ...], str], ...] = (
    (("comment",), "no Comment column: deadlines and consent can only come from SubmitLine"),
    (("submitline",), "no SubmitLine column: a comment that was replaced later cannot be recovered from it"),
    (("user",), "no User column: reused job ids cannot be told apart by their users"),
    (("timelimit", "timelimitraw"), "no Timelimit column: backfill has no time limits to plan with"),
    (("eligible",), "no Eligible column: every job counts as eligible from its submit"),
    (("elapsed", "elapsedraw"), "no Elapsed column: work is End - Start, suspended time included"),
    (("partition",), "no Partition column: all jobs share all nodes"),
    (("jobidraw",), "no JobIDRaw column: runs of a job are joined by JobID"),
)


class NoJobsError(InputError):
    """A history that can be read, without a job that can be replayed."""


def how_to_export() -> str:
    """The command that makes the best input: one line of shell."""
    return HOW_TO_EXPORT


def sniff(path: str) -> str:
    """What a file holds, by its first lines: `json`, `sacct`, `csv-trace` or `swf`. Raises InputError.

    Standard input and pipes can still be read afterwards.
    """
    head = files.peek(path).decode("utf-8", "replace").lstrip("\ufeff")
    if head.lstrip()[:1] in ("{", "["):
        return "json"
    lines = [line.rstrip("\r") for line in head.split("\n")[: sacct_text.HEADER_LINES]]
    if any(fields.header(line, None) and re.search("job_?id", line, re.I) for line in lines):
        return "sacct"
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith(";") or re.fullmatch(r"\s*-?[\d.]+(?:\s+-?[\d.]+){17}\s*", first):
        return "swf"
    if "," in first and not re.search(r"[|\x1f\t;]", first) and re.match(r'\s*"?[A-Za-z_][^,]*,', first):
        return "csv-trace"
    return "sacct"


def read_history(
    paths: Sequence[str],
    *,
    delimiter: str | None = None,
    columns: str | None = None,
    zone: ZoneInfo,
    cluster: str | None = None,
    keep_nodes: bool = False,
    keep_ids: bool = False,
    between: tuple[float, float] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Workload:
    """The jobs of one cluster's history.

    paths      files of sacct text or JSON, also compressed; `-` is standard input
    delimiter  of text; None: found from the header or the lines
    columns    the `sacct --format` list, for text without a header
    zone       in which text gives times that name no zone
    cluster    which cluster's jobs, where the files hold several
    keep_nodes add the column of NODE_COLUMNS: on which nodes each job ran
    keep_ids   add the columns of ID_COLUMNS: what it takes to join the jobs with the daemon's ledger
    between    leave out records of before and after two times, epoch s, as sacct -S and -E do
    progress   is called with the bytes of input, as stored, taken since its last call

    Every row read is a job, or counted in `refused` or `left_out`:
    rows == len(jobs) + refused.total + left_out.total(). Raises InputError where there is nothing to replay.
    """
    if not paths:
        raise InputError("no input: name the files of the history, or - for standard input")
    if len(set(paths)) < len(paths):
        double = next(p for p in paths if list(paths).count(p) > 1)
        raise InputError(f"{files.label(double)} is named twice")
    reader = Reader(zone, Refusals(), Counter(), keep_nodes)
    parts: list[Records] = []
    clusters: set[str] = set()
    twice = 0
    for path in paths:
        if files.peek(path, 4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
            chunks = sacct_json.read_json(reader, path, how=HOW_TO_EXPORT, progress=progress)
        else:
            chunks = sacct_text.read_text(
                reader, path, delimiter=delimiter, columns=columns, how=HOW_TO_EXPORT, progress=progress
            )
        for raw in chunks:
            if not len(raw):
                continue
            if cluster is not None and "cluster" not in reader.names[-1]:
                raise InputError(
                    f"{files.label(path)} has no Cluster column, so --cluster {printable(cluster)} cannot be "
                    f"told apart in it: leave --cluster out, or export with: {HOW_TO_EXPORT}"
                )
            clusters.update(pd.unique(raw.cluster))
            if cluster is not None:
                raw = _of_cluster(raw, cluster, reader.left_out)
            twice += checks.settle(raw)
            parts.append(checks.check(raw, reader.refused, files.label(path)))
    if clusters:
        _judge_clusters(sorted(clusters - {""}), cluster)
    records = runs.drop_repeats(Records.concat(parts) if parts else Records.empty(), reader.left_out)
    if between is not None:
        there = (records.submit <= between[1]) & ~(records.end <= between[0])
        reader.left_out["not there in that time"] += int((~there).sum())
        records = records.take(there)
    pending = records.state == "PENDING"
    if pending.any():
        reader.left_out["pending"] += int(pending.sum())
        records = records.take(~pending)
    jobs = runs.join(records)
    if len(records) > len(jobs.last):
        reader.left_out["earlier runs, joined"] += len(records) - len(jobs.last)
    if not len(jobs.last):
        raise NoJobsError(_nothing(reader, [files.label(p) for p in paths]))
    place = {files.label(p): i for i, p in enumerate(paths)}
    reader.refused.examples.sort(key=lambda r: (place[r.file], r.line))
    table = _table(records, jobs)
    if keep_nodes:
        lists = np.array(list(reader.node_lists), object)
        held = np.where(jobs.run >= 0, records.hosts[jobs.run], 0)
        table["node_list"] = pd.Series(lists[held], dtype="object", copy=False)
    if keep_ids:
        table["raw_id"], table["first_start"] = records.key[jobs.last], records.start[jobs.first]
    notes = _notes(reader, table, records, jobs, twice)
    return Workload(table, False, len(paths), reader.rows, reader.refused, +reader.left_out, notes)


def _judge_clusters(found: list[str], cluster: str | None) -> None:
    shown = printable(", ".join(found), 200)
    if cluster is None and len(found) > 1:
        raise InputError(f"the history holds {len(found)} clusters ({shown}): choose one with --cluster NAME")
    if cluster is not None and not found:
        raise InputError(
            f"no job of the history names its cluster, so --cluster {printable(cluster)} chooses nothing: "
            f"leave it out"
        )
    if cluster is not None and cluster not in found:
        raise InputError(f"no job of cluster {printable(cluster)!r}: the history holds {shown}")


def _of_cluster(raw: Raw, cluster: str, left_out: Counter[str]) -> Raw:
    other = (raw.cluster != cluster) & (raw.cluster != "")
    if not other.any():
        return raw
    left_out["other clusters"] += int(other.sum())
    return raw.take(~other)


def _nothing(reader: Reader, names: list[str]) -> str:
    where = names[0] if len(names) == 1 else f"{len(names)} files"
    if not reader.rows:
        return f"{where}: a header but no jobs: check -S, -E and -a of the export: {HOW_TO_EXPORT}"
    counts = [f"{n} {what}" for what, n in (+reader.left_out).most_common()]
    counts += [f"{n} refused ({why})" for why, n in reader.refused.by_reason.most_common(3)]
    return f"{where}: none of {reader.rows} rows is a job that can be replayed: {', '.join(counts)}"


def _table(r: Records, jobs: runs.Jobs) -> pd.DataFrame:
    if len(jobs.last) < len(r):
        first, run = r.take(jobs.first), r.take(np.where(jobs.run >= 0, jobs.run, jobs.last))
        r = r.take(jobs.last)
    else:
        first = run = r
    ran = jobs.run >= 0
    submit, eligible = first.submit, first.eligible
    # Eligible is unknown of a job that was held: it never stood in the queue before it started or left.
    latest = np.where(ran, np.where(np.isnan(first.start), jobs.run_start, first.start), r.end)
    eligible = np.where(np.isnan(eligible), np.where(ran, submit, latest), eligible)
    for job, text in jobs.comment.items():
        r.comment[job] = text
    data = {
        "job_id": r.job_id, "cluster": r.cluster, "user": r.user, "account": r.account,
        "partition": r.partition, "qos": r.qos, "state": r.state, "first_submit": submit,
        "eligible": np.maximum(np.minimum(eligible, latest), submit), "start": jobs.run_start, "end": run.end,
        "work": jobs.work, "lost_work": jobs.lost_work, "runs": jobs.runs, "gpus": r.gpus,
        "gpu_type": r.gpu_type, "shards": r.shards, "cpus": r.cpus, "mem_mb": r.mem_mb, "nodes": r.nodes,
        "time_limit": r.time_limit, "comment": r.comment, "submit_line": r.submit_line,
        "native_deadline": r.native_deadline,
    }  # fmt: skip
    return pd.DataFrame(
        {x: pd.Series(data[x], dtype=kind, copy=False) for x, (kind, _) in COLUMNS.items()}, copy=False
    )


def _notes(reader: Reader, table: pd.DataFrame, records: Records, jobs: runs.Jobs, twice: int) -> list[str]:
    notes = [text for any_of, text in USEFUL if not all(set(any_of) & names for names in reader.names)]
    if not reader.said_gpu:
        notes.append(
            "no record names a GPU, so all jobs have 0 (is gres/gpu in AccountingStorageTRES of slurm.conf?)"
        )
    if twice:
        notes.append(
            f"{plural(twice, 'record has', 'records have')} a time in an hour that happens twice, "
            "settled by Elapsed and order"
        )
    if reader.mended:
        notes.append(
            f"{plural(reader.mended, 'record was', 'records were')} torn by text that holds the delimiter or "
            "a line break, and mended"
        )
    if unfinished := int(table["state"].isin(["RUNNING", "SUSPENDED"]).sum()):
        whose = "its work" if unfinished == 1 else "their work"
        notes.append(f"{plural(unfinished, 'job')} still ran at the export: {whose} is the run time so far")
    last_requeued = int((table["state"] == "REQUEUED").sum())
    if last_requeued:
        who = "job was requeued last: its" if last_requeued == 1 else "jobs were requeued last: their"
        notes.append(f"{last_requeued:,} {who} next run is not in the history")
    withdrawn = jobs.started > jobs.runs
    if withdrawn.any():
        hours = float((table["lost_work"] * table["gpus"])[withdrawn].sum()) / 3600.0
        number = int(withdrawn.sum())
        they, count = ("it", "it counts") if number == 1 else ("they", "they count")
        notes.append(
            f"{plural(number, 'job was', 'jobs were')} requeued and then cancelled while {they} waited: "
            f"{count} as cancelled while waiting; the {hours:.1f} GPU-hours that {they} ran before are in no "
            "measure"
        )
    # as many runs as restarts, and one more unless that was withdrawn
    restarts = records.restarts[jobs.last]
    if lost := int(((restarts > 0) & (jobs.started < np.minimum(2, restarts + ~withdrawn))).sum()):
        who = (
            "job was requeued before but only its"
            if lost == 1
            else "jobs were requeued before but only their"
        )
        notes.append(f"{lost:,} {who} last run is here: export with -D")
    if jobs.reused:
        notes.append(f"{plural(jobs.reused, 'job id was', 'job ids were')} used again by another job")
    return notes
