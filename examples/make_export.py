"""Write the bundled example: cluster-export.txt.gz (sacct's history of four weeks) and nodes.txt.

    python examples/make_export.py [--seed N] [--directory DIR]

The same seed gives the same text. Everything in it is made up; README.md beside it says what it holds.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

from comments import local, oddities, stamp, write_comment
from virtual_site import ACCOUNTS, FINISH, USERS, Dice, Job, Node, Run, make_nodes
from virtual_slurm import history

SEED = 20261005
COLUMNS = (
    *("JobID", "JobIDRaw", "Cluster", "User", "Account", "Partition", "QOS", "State", "Submit", "Eligible"),
    *("Start", "End", "ElapsedRaw", "Suspended", "TimelimitRaw", "NNodes", "NCPUS", "ReqMem", "ReqTRES"),
    *("AllocTRES", "NodeList", "Flags", "Restarts", "JobName", "Comment", "SubmitLine"),
)
NAMES = ("train", "finetune", "eval", "sweep", "ablation", "pretrain", "infer", "diffusion", "gnn", "md-run")
STEP_COLUMNS = ("JobID", "JobIDRaw", "Cluster", "Account", "State", "Start", "End", "ElapsedRaw")

Row = dict[str, str]


def job_label(job: Job) -> str:
    """JobID as sacct prints it."""
    if job.array:
        return f"{job.array.job_id}_{job.task}"
    leader = job if job.het else job.het_leader
    return f"{leader.raw_id}+{0 if job.het else 1}" if leader else str(job.raw_id)


def tres(job: Job, types: str) -> str:
    """A TRES string; types: 'typed', 'untyped', 'both'."""
    parts = [f"billing={max(job.cpus, 8 * job.gpus)}", f"cpu={job.cpus}"]
    if job.gpus and types != "untyped":
        parts.append(f"gres/gpu:a100={job.gpus}")
    if job.gpus and types != "typed":
        parts.append(f"gres/gpu={job.gpus}")
    mem = f"{job.mem_mb // 1024}G" if job.mem_mb % 1024 == 0 else f"{job.mem_mb}M"
    return ",".join([*parts, f"mem={mem}", f"node={job.nodes}"])


def node_list(names: list[str]) -> str:
    """gn01 or gn[01-03,07]."""
    if len(names) < 2:
        return names[0] if names else "None assigned"
    numbers, groups = sorted(int(n[2:]) for n in names), []
    for number in numbers:
        if groups and groups[-1][1] == number - 1:
            groups[-1][1] = number
        else:
            groups.append([number, number])
    return "gn[" + ",".join(f"{a:02}" if a == b else f"{a:02}-{b:02}" for a, b in groups) + "]"


def duration(seconds: int) -> str:
    """[D-]HH:MM:SS."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def base_row(job: Job, comment: str, dice: Dice) -> Row:
    """The columns that all records of a job share."""
    name = dice.pick(NAMES) + f"-{dice.below(400)}"
    in_script = dice.chance(300)  # the comment stands in the script and not on the command line
    limit = "UNLIMITED" if job.limit is None else str(job.limit)
    line = f"sbatch -p {job.partition} --time={limit} -c {job.cpus // job.nodes}"
    if job.gpus:
        line += f" --gpus-per-node={job.gpus // job.nodes}"
    if job.array:
        line += f" --array=0-{job.array.size - 1}" + (f"%{job.array.throttle}" if job.array.throttle else "")
    if comment and not in_script:
        quoted = f"'{comment}'" if any(c in comment for c in " {\"'") else comment
        line += dice.pick((f" --comment={quoted}", f" --comment {quoted}"))
        if not comment.startswith("{") and dice.chance(80):
            comment = dice.pick(("", '{"gpu_util": 63.0, "gpu_mem_max": 20110}'))  # as an epilog leaves it
    return {
        "JobID": job_label(job),
        "JobIDRaw": str(job.raw_id),
        "Cluster": "example",
        "User": job.user,
        "Account": job.account,
        "Partition": job.partition,
        "QOS": "high" if job.account == ACCOUNTS[1] and dice.chance(200) else "normal",
        "TimelimitRaw": limit,
        "NNodes": str(job.nodes),
        "NCPUS": str(job.cpus),
        "ReqMem": f"{job.mem_mb // 1024}G",
        "ReqTRES": tres(job, dice.pick({"untyped": 7, "both": 3})),
        "JobName": name,
        "Comment": comment,
        "SubmitLine": f"{line} {name}.sh",
    }


def run_row(job: Job, number: int, base: Row, dice: Dice) -> Row:
    """One record: a job has one for each run."""
    run: Run = job.runs[number]
    row = dict.fromkeys(COLUMNS, "") | base
    end = FINISH if run.start is not None and run.end is None else run.end
    state = run.state
    if state == "CANCELLED":
        uid = 0 if dice.chance(80) else 20_000 + USERS.index(job.user)
        state = f"CANCELLED by {uid}"
    row |= {
        "State": state,
        "Submit": stamp(run.submit),
        "Eligible": "Unknown" if run.eligible is None else stamp(run.eligible),
        "Start": "Unknown" if run.state == "PENDING" else "None" if run.start is None else stamp(run.start),
        "End": "Unknown" if run.end is None else stamp(run.end),
        "ElapsedRaw": str(0 if run.start is None else end - run.start - min(run.suspended, end - run.start)),
        "Suspended": duration(0 if run.start is None else min(run.suspended, end - run.start)),
        "AllocTRES": "" if run.start is None else tres(job, dice.pick({"both": 9, "typed": 1})),
        "NodeList": node_list(run.nodes),
        "Flags": "" if run.start is None else "SchedSubmit" if run.start == run.eligible else "SchedMain",
        "Restarts": str(number),
    }
    if run.state == "PENDING" and dice.chance(30):
        row["TimelimitRaw"] = "Partition_Limit"
    return row


def step_rows(job: Job, row: Row) -> list[Row]:
    """The batch and extern steps of a record, and of a job on several nodes its first srun step."""
    state = "CANCELLED" if row["State"].startswith(("CANCELLED", "TIMEOUT", "REQUEUED")) else row["State"]
    rows = []
    for step in ("batch", "extern") + (("0",) if job.nodes > 1 else ()):
        new = dict.fromkeys(COLUMNS, "") | {c: row[c] for c in (*STEP_COLUMNS, "NNodes", "NCPUS", "NodeList")}
        new |= {"JobID": f"{row['JobID']}.{step}", "JobIDRaw": f"{row['JobIDRaw']}.{step}", "JobName": step}
        new |= {"State": state, "Submit": row["Start"], "Eligible": row["Start"]}
        new |= {"AllocTRES": row["AllocTRES"].split(",", 1)[1]}
        new |= {"Restarts": row["Restarts"], "Suspended": row["Suspended"]}
        rows.append(new)
    return rows


def remainder_row(tasks: list[Job], base: Row, dice: Dice) -> Row:
    """One record for the tasks of an array that never started, as the controller keeps them."""
    row = run_row(tasks[0], 0, base, dice)
    numbers, spans = [t.task for t in tasks], []
    for n in numbers:
        if spans and spans[-1][1] == n - 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    array = tasks[0].array
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    throttle = f"%{array.throttle}" if array.throttle else ""
    return row | {"JobID": f"{array.job_id}_[{text}{throttle}]", "JobIDRaw": str(array.job_id)}


def make_rows(jobs: list[Job], dice: Dice) -> list[Row]:
    """All records, by the submit of the run."""
    comments: dict[int, str] = {}
    by_array: dict[int, str] = {}
    for job in jobs:
        if (job.array and id(job.array) in by_array) or job.het_leader:
            comments[id(job)] = "" if job.het_leader else by_array[id(job.array)]
            continue
        comments[id(job)] = write_comment(dice, job)
        if job.array:
            by_array[id(job.array)] = comments[id(job)]
    oddities(jobs, comments)

    records: list[tuple[int, int, list[Row]]] = []
    unstarted: dict[tuple[int, str], list[Job]] = {}
    bases: dict[int, Row] = {}
    for job in jobs:
        key = id(job.array or job)
        if key not in bases:
            bases[key] = base_row(job, comments[id(job)], dice)
        base = bases[key] | {"JobID": job_label(job), "JobIDRaw": str(job.raw_id)}
        base["TimelimitRaw"] = "UNLIMITED" if job.limit is None else str(job.limit)
        if job.array and job.runs[0].start is None:
            unstarted.setdefault((key, job.runs[0].state), []).append(job)
            continue
        with_steps = dice.chance(120)
        for number, run in enumerate(job.runs):
            row = run_row(job, number, base, dice)
            steps = step_rows(job, row) if with_steps and run.start is not None else []
            records.append((run.submit, len(records), [row, *steps]))
    for tasks in unstarted.values():
        row = remainder_row(tasks, bases[id(tasks[0].array)], dice)
        records.append((tasks[0].submit, len(records), [row]))
    return [row for _, _, rows in sorted(records, key=lambda r: r[:2]) for row in rows]


def spoil(rows: list[Row]) -> list[bytes]:
    """The rows as lines, with what happens to real exports: see README.md for the list."""
    good = [
        i
        for i, r in enumerate(rows)
        if r["State"] in ("COMPLETED", "FAILED") and r["Restarts"] == "0" and r["JobID"].isdigit()
    ]

    def some(kind: int, count: int) -> list[int]:
        return [good[((kind + 1) * 131 + i * 797) % len(good)] for i in range(count)]

    for i in some(0, 3):
        rows[i]["JobName"] = "train|lr=0.1|bs=64"
    for i in some(1, 2):
        rows[i]["JobName"] = "two\nlines"
    rows[some(2, 1)[0]]["Comment"] = "left|right\nand below"
    for i in some(3, 2):
        rows[i]["ElapsedRaw"] = "INVALID"
    for i in some(4, 2):
        rows[i]["Start"], rows[i]["End"] = rows[i]["End"], rows[i]["Start"]
        rows[i]["ElapsedRaw"] = "-" + rows[i]["ElapsedRaw"]
    rows[some(5, 1)[0]]["Submit"] = "Unknown"
    rows[some(6, 1)[0]]["State"] = "COMPLETELY"
    for i in some(7, 2):
        rows[i]["ReqTRES"] = rows[i]["AllocTRES"] = "cpu=4,gres/gpu=four,mem=32G,node=1"
    rows[some(8, 1)[0]]["End"] = "2026-13-45T99:00:00"
    latin = set(some(9, 3))
    cut = set(some(10, 2))
    twice = set(some(11, 4))
    warning, header, blank = some(12, 3)

    lines = ["|".join(COLUMNS).encode()]
    for i, row in enumerate(rows):
        line = "|".join(row[c] for c in COLUMNS).encode()
        if i in latin:
            line = line.replace(row["JobName"].encode(), "größe".encode("latin-1"), 1)
        if i in cut:
            line = b"|".join(line.split(b"|")[:9])
        lines.append(line)
        if i in twice:
            lines.append(line)
        if i == warning:
            lines.append(b"sacct: error: slurm_persist_conn_open_without_init: Connection refused")
        if i == header:
            lines.append(lines[0])
        if i == blank:
            lines.append(b"")
    lines[-1] = lines[-1][: len(lines[-1]) // 2]  # the disk was full
    return lines


def export_text(seed: int = SEED) -> bytes:
    """The whole export, uncompressed."""
    jobs = history(seed)
    return b"\n".join(spoil(make_rows(jobs, Dice(seed + 1))))


def nodes_text() -> str:
    """`scontrol show node` at the end of the four weeks."""
    blocks = []
    spare = Node("gn11", ("gpu",), 8)  # bought and not yet in service: it never ran a job
    for i, node in enumerate([*make_nodes(), spare]):
        state = "DOWN*+DRAIN" if node is spare else "MIXED" if node.gpus else "IDLE"
        gres = f"gpu:a100:{node.gpus}(S:0-1)" if node.gpus else "(null)"
        tres_gpu = f",gres/gpu={node.gpus},gres/gpu:a100={node.gpus}" if node.gpus else ""
        lines = [
            f"NodeName={node.name} Arch=x86_64 CoresPerSocket=32 ",
            f"   CPUAlloc=0 CPUEfctv={node.cpus} CPUTot={node.cpus} CPULoad=0.{10 + i}",
            "   AvailableFeatures=(null)",
            "   ActiveFeatures=(null)",
            f"   Gres={gres}",
            f"   NodeAddr={node.name} NodeHostName={node.name} Version=25.05.3",
            "   OS=Linux 6.1.0-40-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.1.153-1 (2025-09-20) ",
            f"   RealMemory={node.mem_mb} AllocMem=0 FreeMem={node.mem_mb - 9000 - i} Sockets=2 Boards=1",
            f"   State={state} ThreadsPerCore=1 TmpDisk=0 Weight={10 if node.gpus else 1} Owner=N/A",
            f"   Partitions={','.join(node.partitions)} ",
            "   BootTime=2026-09-28T06:12:09 SlurmdStartTime=2026-09-28T06:13:40",
            f"   LastBusyTime={local(FINISH - 60 * i).isoformat()} ResumeAfterTime=None",
            f"   CfgTRES=cpu={node.cpus},mem={node.mem_mb}M,billing={node.cpus}{tres_gpu}",
            "   AllocTRES=",
            "   CurrentWatts=0 AveWatts=0",
        ]
        if node is spare:
            lines.append("   Reason=not yet in service [root@2026-09-30T09:12:40]")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--directory", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    packed = gzip.compress(export_text(args.seed), compresslevel=9, mtime=0)
    (args.directory / "cluster-export.txt.gz").write_bytes(packed)
    (args.directory / "nodes.txt").write_text(nodes_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
