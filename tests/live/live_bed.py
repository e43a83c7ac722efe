"""What live tests do to the cluster that they run in."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tias_slurm.slurm.live import RawTable

CONF = Path("/etc/slurm/slurm.conf")


def run(*argv: str | bytes, user: str = "") -> str:
    """Run a command, as a user; its output."""
    words: list[str | bytes] = (
        ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
    )
    done = subprocess.run([*words, *argv], capture_output=True, timeout=120, check=False, cwd="/tmp")
    assert done.returncode == 0, (argv, done.stderr)
    return done.stdout.decode("utf-8", "replace")


def python(code: str, user: str = "") -> str:
    """Run Python as a user, with this directory's modules."""
    here = str(Path(__file__).parent)
    return run(sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r})\n{code}", user=user)


def shown(job: int | str, key: str) -> str:
    """One field of `scontrol show job`."""
    found = re.search(rf"(?:^|\s){key}=(\S*)", run("scontrol", "-o", "show", "job", str(job)))
    assert found, key
    return found[1]


def epoch(job: int | str, key: str) -> int:
    """A time of a job, epoch s."""
    return int(time.mktime(time.strptime(shown(job, key), "%Y-%m-%dT%H:%M:%S")))


def wait_for(what: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until it is so. The limit is for a machine with much else to do."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.1)


def left_out(why: str) -> None:
    """Skip the test, which this cluster cannot run; a failure where nothing may be left out."""
    if os.environ.get("TIAS_SLURM_NO_SKIP"):
        pytest.fail(why)
    pytest.skip(why)


def has_accounting() -> bool:
    """Whether the cluster has a slurmdbd."""
    return "accounting_storage/slurmdbd" in run("scontrol", "show", "config")


def end_jobs(jobs: Iterable[int]) -> None:
    """Cancel jobs and wait until none holds a node: the next test finds what it would find alone."""
    ids = list(map(str, jobs))
    if not ids:
        return
    # --full --signal=KILL ends what ignores a SIGTERM, but only that which runs
    subprocess.run(
        ["scancel", "--full", "--signal=KILL", *ids], capture_output=True, check=False, timeout=120
    )
    subprocess.run(["scancel", *ids], capture_output=True, check=False, timeout=120)
    listed = ("squeue", "--all", "-h", "-o", "%i", "--jobs", ",".join(ids))

    def gone() -> bool:
        # it fails once slurmctld has forgotten all of them
        done = subprocess.run(listed, capture_output=True, check=False, timeout=120)
        return not done.stdout.strip() and (done.returncode == 0 or b"Invalid job id" in done.stderr)

    wait_for(gone)


def row(table: RawTable, job_id: int) -> dict[str, Any]:
    """One record, by column."""
    at = int(np.searchsorted(table.job_id, job_id))
    assert job_id in table.job_id[at : at + 1], job_id
    return {
        name: getattr(table, name)[at]
        for name in RawTable.__dataclass_fields__
        if name not in ("time", "refused")
    }


@contextlib.contextmanager
def frozen_controller() -> Iterator[None]:
    """slurmctld stopped: it takes connections and answers nothing."""
    pid = int(Path("/run/slurmctld.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def configured(*lines: str, take_up: Callable[[], None] | None = None) -> Iterator[None]:
    """slurm.conf with lines more, and then as it was. `take_up`: None: scontrol reconfigure."""
    take_up, before = take_up or _reconfigure, CONF.read_text()
    CONF.write_text(before + "".join(f"{line}\n" for line in lines))
    try:
        take_up()
        yield
    finally:
        CONF.write_text(before)
        take_up()


@contextlib.contextmanager
def typed_gpus() -> Iterator[None]:
    """Half of each node's eight GPUs are of type a100, half v100, and are counted by type too."""
    gres = CONF.with_name("gres.conf")
    before, gres_before = CONF.read_text(), gres.read_text()
    CONF.write_text(
        before.replace("Gres=gpu:8", "Gres=gpu:a100:4,gpu:v100:4").replace(
            "AccountingStorageTRES=gres/gpu\n", "AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/gpu:v100\n"
        )
    )
    line = gres_before.replace("[0-7]", "[{}]").replace("Name=gpu", "Name=gpu Type={}").strip()
    gres.write_text(line.format("a100", "0-3") + "\n" + line.format("v100", "4-7") + "\n")
    try:
        _reconfigure()
        yield
    finally:
        CONF.write_text(before)
        gres.write_text(gres_before)
        _reconfigure()


@contextlib.contextmanager
def typed_nodes(*types: str) -> Iterator[None]:
    """All GPUs of n1 are of the first type, those of n2 of the second, ...; the others are untyped."""
    before = CONF.read_text()
    [line] = [x for x in before.splitlines() if x.startswith("NodeName=")]
    nodes, ports = re.search(r"n\[1-(\d+)\]", line), re.search(r"Port=\[(\d+)-(\d+)\]", line)
    assert nodes
    assert ports
    lines = []
    for number in range(int(nodes[1])):
        gres = f"gpu:{types[number]}:8" if number < len(types) else "gpu:8"
        one = line.replace(nodes[0], f"n{number + 1}").replace(ports[0], f"Port={int(ports[1]) + number}")
        lines.append(one.replace("Gres=gpu:8", f"Gres={gres}"))
    by_type = [
        f"NodeName=n{n} Name=gpu Type={kind} File=/dev/tias/gpu[0-7]" for n, kind in enumerate(types, 1)
    ]
    rest = f"NodeName=n[{len(types) + 1}-{nodes[1]}] Name=gpu File=/dev/tias/gpu[0-7]"
    with _other_gres(before.replace(line, "\n".join(lines)), "\n".join([*by_type, rest])):
        yield


@contextlib.contextmanager
def sharded_gpus() -> Iterator[None]:
    """Each node's eight GPUs can be had as 32 shards too, and these are counted."""
    conf = (
        CONF.read_text()
        .replace("Gres=gpu:8", "Gres=gpu:8,shard:32")
        .replace("GresTypes=gpu\n", "GresTypes=gpu,shard\n")
    )
    conf = conf.replace("AccountingStorageTRES=gres/gpu\n", "AccountingStorageTRES=gres/gpu,gres/shard\n")
    gres = CONF.with_name("gres.conf").read_text().strip()
    with _other_gres(conf, gres + "\n" + re.sub(r"Name=gpu.*", "Name=shard Count=32", gres)):
        yield


MIG_TRES = "gres/gpu,gres/gpu:1g.5gb,gres/gpu:a100_1g.5gb,gres/gpu:h100,gres/shard"


@contextlib.contextmanager
def mig_gpus(tracked: str = MIG_TRES) -> Iterator[None]:
    """MIG slices as Slurm knows them, GPUs whose type is a profile. `tracked`: AccountingStorageTRES.

    n1 has eight, n2 four beside four whole GPUs, n3 whole ones that can be had as 32 shards, n4 untyped ones.
    """
    before = CONF.read_text()
    [line] = [x for x in before.splitlines() if x.startswith("NodeName=")]
    ports = re.search(r"Port=\[(\d+)-\d+\]", line)
    assert ports
    each = ("gpu:1g.5gb:8", "gpu:a100_1g.5gb:4,gpu:h100:4", "gpu:h100:8,shard:32", "gpu:8")
    lines = [
        re.sub(r"NodeName=\S+", f"NodeName=n{n}", line)
        .replace(ports[0], f"Port={int(ports[1]) + n - 1}")
        .replace("Gres=gpu:8", f"Gres={gres}")
        for n, gres in enumerate(each, 1)
    ]
    conf = before.replace(line, "\n".join(lines)).replace("GresTypes=gpu\n", "GresTypes=gpu,shard\n")
    conf = conf.replace("AccountingStorageTRES=gres/gpu\n", f"AccountingStorageTRES={tracked}\n")
    gpu = "NodeName=n{} Name=gpu {}File=/dev/tias/gpu[{}]"
    gres = [
        gpu.format(1, "Type=1g.5gb ", "0-7"), gpu.format(2, "Type=a100_1g.5gb ", "0-3"),
        gpu.format(2, "Type=h100 ", "4-7"), gpu.format(3, "Type=h100 ", "0-7"),
        "NodeName=n3 Name=shard Count=32", gpu.format(4, "", "0-7"),
    ]  # fmt: skip
    with _other_gres(conf, "\n".join(gres)):
        yield


@contextlib.contextmanager
def _other_gres(conf: str, gres: str) -> Iterator[None]:
    file = CONF.with_name("gres.conf")
    before, gres_before = CONF.read_text(), file.read_text()
    CONF.write_text(conf)
    file.write_text(gres + "\n")
    try:
        _take_up_gres()
        yield
    finally:
        CONF.write_text(before)
        file.write_text(gres_before)
        _take_up_gres()


def _take_up_gres() -> None:
    """The same for Gres=, which a reconfigure changes from 23.11 on; before that all daemons start anew."""
    if run("scontrol", "--version").split()[1] >= "23.11":
        _reconfigure()
        return
    daemons: dict[int, list[str]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            argv = place.joinpath("cmdline").read_text().split("\0")[:-1]
            if argv and Path(argv[0]).name in ("slurmctld", "slurmd"):  # not a job's slurmstepd
                daemons[int(place.name)] = argv
    for pid in daemons:
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not any(_lives(pid) for pid in daemons))
    for argv in daemons.values():
        run(*argv)
    wait_for(nodes_answer)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def _reconfigure() -> None:
    """Have the daemons read slurm.conf, and wait until the nodes are there again.

    scontrol returns when slurmctld has done so; from 23.11 on as a new process, which the slurmds then join.
    """
    run("scontrol", "reconfigure")
    wait_for(nodes_answer)


def nodes_answer() -> bool:
    """Whether slurmctld answers and knows of every node what it does: a job sent to one before would fail."""
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T"],
        capture_output=True,
        timeout=120,
        check=False,
        text=True,
    )
    states = done.stdout.split()
    return done.returncode == 0 and bool(states) and not any("unk" in s or "*" in s for s in states)
