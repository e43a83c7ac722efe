"""`tias-slurm dry-run`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tias_slurm.anonymise import Names
from tias_slurm.cli.config_commands import ANONYMISE
from tias_slurm.config import Config, load_config
from tias_slurm.errors import InputError, printable
from tias_slurm.replay.workload import Workload, weigh_jobs
from tias_slurm.slurm.node_set import NodeSet

FILES = "Input"
CLUSTER = "Cluster"
POLICIES = "Policies"
OUTPUT = "Output"


def dry_run(
    exports: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPORT...", help="sacct text or JSON, CSV trace or SWF; '-': standard input"),
    ] = None,
    config_file: Annotated[
        str | None, typer.Option("--config", help="Settings. Default: /etc/tias-slurm/config.toml, if there.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Between the fields of the text.", rich_help_panel=FILES)
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="Columns of a text without a header.", rich_help_panel=FILES),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Names in a trace: submit_time=arrival,deadline=+window (+: relative).",
            rich_help_panel=FILES,
        ),
    ] = None,
    time_unit: Annotated[str, typer.Option(help="Of a trace: s, min, h, ...", rich_help_panel=FILES)] = "s",
    timezone: Annotated[
        str | None,
        typer.Option(
            help="Zone of times without an offset, such as Europe/Berlin. Default: this machine's.",
            rich_help_panel=FILES,
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Take this cluster's jobs only.", rich_help_panel=FILES)
    ] = None,
    assume_deadlines: Annotated[
        str | None,
        typer.Option(help="Give jobs deadlines: share=0.3,slack=0.5..2,seed=1.", rich_help_panel=FILES),
    ] = None,
    how_to_export: Annotated[
        bool, typer.Option("--how-to-export", help="Print the sacct command and stop.", rich_help_panel=FILES)
    ] = False,
    nodes: Annotated[
        str | None,
        typer.Option(help="'scontrol show node' as text or JSON, or TOML.", rich_help_panel=CLUSTER),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="One pool of this many GPUs.", rich_help_panel=CLUSTER)
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="With --gpus: nodes of this size instead.", rich_help_panel=CLUSTER)
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(help="nodes, or count: GPUs as one pool.", rich_help_panel=CLUSTER),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(help="Comma list, such as multifactor,tias,tias:guard@off.", rich_help_panel=POLICIES),
    ] = None,
    preemption: Annotated[
        str | None,
        typer.Option(help="on or off, for names without an @ of their own.", rich_help_panel=POLICIES),
    ] = None,
    consent: Annotated[
        float | None,
        typer.Option(help="Share of jobs (0..1) that may be requeued.", rich_help_panel=POLICIES),
    ] = None,
    consent_seed: Annotated[int, typer.Option(help="Of the draw.", rich_help_panel=POLICIES)] = 1,
    interval: Annotated[
        float | None, typer.Option(help="Seconds between cycles.", rich_help_panel=POLICIES)
    ] = None,
    checkpoint: Annotated[
        float | None,
        typer.Option(
            help="Seconds between checkpoints of jobs that do not say; 0: never.", rich_help_panel=POLICIES
        ),
    ] = None,
    restart_cost: Annotated[
        float | None, typer.Option(help="Seconds that a restart costs.", rich_help_panel=POLICIES)
    ] = None,
    requeue_delay: Annotated[
        float | None,
        typer.Option(help="Seconds until a requeued job may start.", rich_help_panel=POLICIES),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Directory for report.html, jobs.parquet, decisions.jsonl, metrics.json.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output.", rich_help_panel=OUTPUT)
    ] = False,
    anonymise: Annotated[bool, typer.Option("--anonymise", help=ANONYMISE, rich_help_panel=OUTPUT)] = False,
) -> None:
    """Replay a site's own history and say what TIAS would have done.

    Nothing is sent to Slurm. Example:

        tias-slurm dry-run jobs.txt --nodes nodes.txt --out report

    A trace of another cluster, times in minutes:

        tias-slurm dry-run trace.csv --time-unit min --gpus 1112 --gpus-per-node 8
    """
    began = time.perf_counter()
    if how_to_export:
        from tias_slurm.slurm.history import how_to_export as command

        typer.echo(command())
        return
    if not exports:
        raise InputError("no EXPORT given; see tias-slurm dry-run --how-to-export for one")
    _one_of("--placement", placement, ("nodes", "count"))
    _one_of("--preemption", preemption, ("on", "off"))
    out_dir = out_dir_of(out)
    config = load_config(
        config_file,
        {
            "deadlines.timezone": timezone,
            "cycle.interval_s": interval,
            "replay.checkpoint_s": checkpoint,
            "replay.restart_s": restart_cost,
            "replay.requeue_delay_s": requeue_delay,
        },
    )
    need_extras()
    from tias_slurm.replay import document, report, table
    from tias_slurm.replay import policies as names
    from tias_slurm.replay.dry_run import Options
    from tias_slurm.replay.dry_run import dry_run as run_all

    names.parse(policies, is_trace=False, preemption=None)  # a wrong name is told before a long reading
    with bar() as show:
        work = _read(exports, config, delimiter, format_, columns, time_unit, cluster, gpus is None, show)
        if not (weigh_jobs(work.jobs, config.gpus.weights) > 0).any():
            raise InputError(
                "no job of the input has GPUs: there is nothing to rank; if they did use GPUs, "
                "AccountingStorageTRES in slurm.conf lacks gres/gpu"
            )
        wanted = names.parse(
            policies, is_trace=work.is_trace, preemption=cast(Literal["off", "on"] | None, preemption)
        )
        node_set = _nodes(work, nodes, gpus, gpus_per_node, placement, config.gpus.weights)
        options = Options(
            preemption=cast(Literal["off", "on"] | None, preemption),
            consent=consent,
            consent_seed=consent_seed,
            assume_deadlines=assume_deadlines,
            placement=cast(Literal["nodes", "count"], placement or "nodes"),
        )
        hidden = Names() if anonymise else None
        result = run_all(work, node_set, wanted, config, options, out_dir, show, names=hidden)
        result.elapsed_s = time.perf_counter() - began
        if out_dir is not None:
            show("report", 0.0)
            report.write_report(result, work, out_dir)
    if json_:
        sys.stdout.write(document.dumps(document.to_document(result)))
    else:
        table.print_tables(result, Console())
        if out_dir is not None:
            typer.echo(f"Report: {out_dir / 'report.html'}" if not anonymise else "Report: in report.html")


def _one_of(option: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        raise InputError(f"{option} {value!r}: write {' or '.join(known)}")


def out_dir_of(path: str | None) -> Path | None:
    """The output directory. InputError if it cannot become one: to be told before a long run, not after."""
    if path is None:
        return None
    if not path:
        raise InputError("--out: the name of the directory is empty")
    out = Path(path)
    try:
        there = next(p for p in (out, *out.absolute().parents) if p.exists())
    except OSError as error:
        raise InputError(f"--out {printable(path)}: {error.strerror}; name another directory") from None
    if not there.is_dir():
        raise InputError(f"--out {printable(path)}: {printable(str(there))} is no directory; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--out {printable(path)}: no permission to write there; name another directory")
    return out


def need_extras() -> None:
    from importlib.util import find_spec

    from tias_slurm.replay.output import need_extra

    for module in ("scipy", "jinja2", "matplotlib", "pyarrow"):
        if find_spec(module) is None:
            raise need_extra(module)


def _read(
    paths: list[str],
    config: Config,
    delimiter: str | None,
    format_: str | None,
    columns: str | None,
    time_unit: str,
    cluster: str | None,
    keep_nodes: bool,
    show: Show,
) -> Workload:
    from tias_slurm.replay.traces import read_trace
    from tias_slurm.slurm.files import label
    from tias_slurm.slurm.history import read_history, sniff

    for p in paths:
        if paths.count(p) > 1:
            raise InputError(f"{label(p)} is named twice")
    kinds = {p: sniff(p) for p in paths}
    reading = Reading(paths, show)
    traces = [p for p, kind in kinds.items() if kind in ("csv-trace", "swf")]
    as_traces = format_ is None and (columns is not None or len(traces) == len(paths))
    _fitting_options(
        paths[0],
        as_traces,
        exports={"--delimiter": delimiter, "--cluster": cluster},
        traces={"--columns": columns, "--time-unit": time_unit if time_unit != "s" else None},
    )
    if as_traces:
        return read_trace(paths, columns=columns, time_unit=time_unit, progress=reading)
    if traces and len(traces) < len(paths):
        raise InputError(
            f"{label(traces[0])} is a trace and others are not; replay them in runs of their own"
        )
    return read_history(
        paths,
        delimiter=delimiter,
        columns=format_,
        zone=config.zone(),
        cluster=cluster,
        keep_nodes=keep_nodes,
        progress=reading,
    )


def _fitting_options(
    path: str, is_trace: bool, exports: dict[str, str | None], traces: dict[str, str | None]
) -> None:
    """Refuse an option that would have no effect: whoever gives it means something by it."""
    from tias_slurm.slurm.files import label

    kind, other, wrong = (
        ("a trace", "exports of sacct", exports) if is_trace else ("an export of sacct", "traces", traces)
    )
    for option, value in wrong.items():
        if value is not None:
            raise InputError(f"{option} is for {other}, and {label(path)} is {kind}; leave it out")


def _nodes(
    work: Workload,
    path: str | None,
    gpus: int | None,
    per_node: int | None,
    placement: str | None,
    weights: Mapping[str, float] | None = None,
) -> NodeSet:
    from tias_slurm.slurm import nodes as known

    if path is not None and gpus is not None:
        raise InputError("--nodes and --gpus both say what the cluster is; give one of them")
    if per_node is not None and gpus is None:
        raise InputError("--gpus-per-node says how --gpus are spread; give --gpus as well")
    if path is not None:
        found = known.read_nodes(path, work.jobs)
    elif gpus is not None:
        found = known.uniform(gpus, per_node) if per_node is not None else known.pool(gpus)
    else:
        found = known.infer(work.jobs, weights)
    if placement == "count" and len(found) > 1:
        found = known.pool(found.total_gpus, found)
    return found


class Show:
    """Tells a person how far the work is. Says nothing before two seconds are over, or into a pipe."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._began = time.monotonic()
        self._task: TaskID | None = None

    def __call__(self, what: str, share: float) -> None:
        """`what` is under way, `share` (0..1) of it done."""
        if self._progress is None or time.monotonic() - self._began < 2.0:
            return
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(what, total=1.0)
        self._progress.update(self._task, description=what, completed=share)


class Reading:
    """Shows how much of the input is read: of what it takes on disk, where all of it are files."""

    def __init__(self, paths: list[str], show: Show) -> None:
        self._show = show
        self._done = 0
        self._size = sum(os.path.getsize(p) for p in paths) if all(map(os.path.isfile, paths)) else 0

    def __call__(self, more: int) -> None:
        """`more` bytes are read."""
        self._done += more
        share = min(self._done / self._size, 1.0) if self._size else 0.0
        self._show(f"reading, {self._done / 1e6:,.0f} MB", share)


@contextmanager
def bar() -> Iterator[Show]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Show(None)
        return
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
    )
    try:
        yield Show(progress)
    finally:
        progress.stop()
