"""The command on input that cannot be used, and how it ends when it is ended."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import HEADER, T0, Cli, Done, row

COMMAND = [sys.executable, "-c", "from tias_slurm.cli import main; main()"]
EXAMPLES = Path(__file__).parents[1] / "examples"


# --- how it refuses


def refused(done: Done) -> str:
    """What was said of input that cannot be used: one line, and nothing on standard output."""
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("tias-slurm: error: ")
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    assert "internal error" not in done.err
    return done.err


BAD_OPTIONS: list[tuple[list[Any], str]] = [
    (["--policies", "multifator"], "did you mean 'multifactor'"),
    (["--policies", "TIAS"], "did you mean 'tias'"),
    (["--policies", "zzz"], "known are recorded, fifo"),
    (["--policies", "tias@x"], "@on, @off or @all"),
    (["--policies", "fifo@on"], "leave @ out"),
    (["--policies", ","], "names no policy"),
    (["--gpus", "0"], "no number of GPUs"),
    (["--gpus", "-1"], "no number of GPUs"),
    (["--gpus", "1" + "0" * 30], "no number of GPUs"),
    (["--gpus", "x"], "'--gpus'"),
    (["--gpus", "8", "--gpus-per-node", "0"], "no number of GPUs"),
    (["--gpus-per-node", "8"], "give --gpus as well"),
    (["--gpus", "8", "--nodes", "nodes.txt"], "give one of them"),
    (["--placement", "x"], "nodes or count"),
    (["--preemption", "maybe"], "on or off"),
    (["--gpus", "8", "--consent", "nan"], "from 0 to 1"),
    (["--gpus", "8", "--consent", "2"], "from 0 to 1"),
    (["--gpus", "8", "--consent", "-1"], "from 0 to 1"),
    (["--interval", "0"], "cycle.interval_s"),
    (["--interval", "inf"], "cycle.interval_s"),
    (["--checkpoint", "nan"], "replay.checkpoint_s"),
    (["--restart-cost", "-1"], "replay.restart_s"),
    (["--gpus", "8", "--assume-deadlines", "share=2"], "share must be"),
    (["--gpus", "8", "--assume-deadlines", "nonsense"], "unknown key 'nonsense'"),
    (["--gpus", "8", "--assume-deadlines", "share=1,slack=2..1"], "slack goes from"),
    (["--timezone", "Mars/X"], "no IANA time zone"),
    (["--nodes", "none.txt"], "No such file"),
    (["--config", "none.toml"], "No such file"),
    (["--config", "unknown.toml"], "the nearest known one is policy.urgent_risk"),
    (["--out", ""], "is empty"),
    (["--out", "export.txt"], "is no directory"),
    (["--out", "export.txt/x"], "directory"),
    (["--nope"], "--nope"),
    (["--policies"], "requires an argument"),
    (["--cluster"], "requires an argument"),
]


@pytest.mark.parametrize(
    ("options", "said"), BAD_OPTIONS, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_options_that_cannot_be_used(cli: Cli, history: Path, options: list[Any], said: str) -> None:
    (history.parent / "unknown.toml").write_text("[policy]\nurgent = 1\n", encoding="utf-8")
    assert said in refused(cli("dry-run", history, *options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["trace.csv", "--delimiter", ";"], "--delimiter is for exports"),
        (["trace.csv", "--cluster", "x"], "--cluster is for exports"),
        (["trace.csv", "--time-unit", "parsec"], "not a unit of time"),
        (["trace.csv", "--columns", "a=b"], "no field of a trace"),
        (["trace.csv", "--columns", "deadline=+nope"], "no column nope"),
        (["trace.csv", "--policies", "recorded", "--gpus", "8"], "no recorded schedule"),
        (["trace.csv"], "give --nodes FILE or --gpus N"),
        (["trace.csv", "trace.csv"], "named twice"),
        (["export.txt", "--time-unit", "min"], "--time-unit is for traces"),
        (["trace.csv", "export.txt"], "in runs of their own"),
        (["none.txt"], "does not exist"),
        ([], "no EXPORT given"),
    ],
)
def test_input_that_does_not_go_together(
    cli: Cli, history: Path, trace: Path, options: list[str], said: str
) -> None:
    assert said in refused(cli("dry-run", *options))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (HEADER.encode() + b"\n", "no jobs"),
        (bytes(range(256)) * 10, "binary"),
        (b'{"a": 1}', "no list 'jobs'"),
        (f"{HEADER}\n{row(1, End=T0)}\n".encode(), "ends before its start"),
        (f"{HEADER}\n{row(1, Submit=-5)}\n".encode(), "negative time"),
        (f"{HEADER}\n{row(1, AllocTRES='cpu=4')}\n".encode(), "gres/gpu"),
        (b"JobID|State\n1|COMPLETED\n", "sacct -a -D"),  # what to run instead
    ],
)
def test_files_that_cannot_be_used(cli: Cli, tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "x").write_bytes(content)
    assert said in refused(cli("dry-run", "x", "--policies", "fifo"))


def test_a_textbook_policy_needs_one_pool(cli: Cli, history: Path) -> None:
    pool = ("--gpus", 16, "--gpus-per-node", 8, "--policies", "srtf")
    assert "--placement count" in refused(cli("dry-run", history, *pool))
    assert cli("dry-run", history, *pool, "--placement", "count").code == 0


def test_no_command_and_a_wrong_one(cli: Cli) -> None:
    done = cli()
    assert done.code == 2
    assert "dry-run" in done.out + done.err
    assert "No such command" in refused(cli("nope"))


# --- how it ends


def start(*arguments: object, cwd: Path, **options: Any) -> subprocess.Popen[bytes]:
    # whoever runs the tests in the background of a script has SIGINT ignored, and children inherit that
    options.setdefault("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    return subprocess.Popen([*COMMAND, *map(str, arguments)], cwd=cwd, stderr=subprocess.PIPE, **options)


def until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end, "nothing happened for a minute"
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_one_line_without_half_files(tmp_path: Path, number: signal.Signals) -> None:
    example, nodes = EXAMPLES / "cluster-export.txt.gz", EXAMPLES / "nodes.txt"
    process = start(
        *("dry-run", example, "--nodes", nodes, "--out", "out"), cwd=tmp_path, stdout=subprocess.PIPE
    )
    until(lambda: process.poll() is not None or any((tmp_path / "out").glob(".decisions*")))
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (out, err) == (b"", b"tias-slurm: error: interrupted\n")
    assert process.returncode == 128 + number
    assert list((tmp_path / "out").iterdir()) == []


def test_a_reader_that_goes_away(history: Path, tmp_path: Path) -> None:
    process = start("dry-run", history, "--policies", "fifo", "--json", cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(60) == 1
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_full_disk(history: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        process = start("dry-run", history, "--policies", "fifo", *options, cwd=tmp_path, stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.count(b"\n") == 1
    assert b"No space left" in err


def test_standard_input(history: Path, tmp_path: Path) -> None:
    packed = gzip.compress(history.read_bytes())
    done = subprocess.run(
        [*COMMAND, "dry-run", "-", "--gpus", "8", "--policies", "fifo", "--json"],
        input=packed,
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(done.stdout)["input"]["jobs"] == 60


def test_a_terminal_without_unicode(history: Path, tmp_path: Path) -> None:
    arguments = ("dry-run", history, "--gpus", "8", "--policies", "tias,oracle-srtf")
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert b"oracle-srtf ? " in done.stdout
    assert done.stderr == b""
