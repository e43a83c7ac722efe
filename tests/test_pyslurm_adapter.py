"""The pyslurm adapter and the choice of it: versions, error numbers, writes whose worker dies."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pyslurm_worker_double
import pytest
from pyslurm_worker_double import CHECKOUT

from tias_slurm.errors import InputError
from tias_slurm.slurm import choose as choose_module
from tias_slurm.slurm import pyslurm_errors
from tias_slurm.slurm.commands import CommandsAdapter
from tias_slurm.slurm.live import AdapterError
from tias_slurm.slurm.pyslurm_adapter import PyslurmAdapter, Versions

script = pyslurm_worker_double.script


@pytest.fixture
def no_slurm(tmp_path: Path) -> str:
    """A directory of commands that fail: what follows never gets as far as a controller."""
    where = tmp_path / "bin"
    where.mkdir()
    for name in ("squeue", "scontrol", "sprio"):
        (where / name).write_text("#!/bin/sh\necho 'slurm: fatal: no' >&2\nexit 1\n")
        (where / name).chmod(0o755)
    return str(where)


MATCH = Versions("25.11.2", "25.11.4", "25.11.4")


def adapter(
    no_slurm: str, script: Path, tmp_path: Path, versions: Versions = MATCH, **kw: Any
) -> PyslurmAdapter:
    argv = [sys.executable, str(script), CHECKOUT, "greet", str(tmp_path / "starts")]
    return PyslurmAdapter(
        CommandsAdapter(5.0, no_slurm),
        call_limit_s=5.0,
        slurm_bin=no_slurm,
        worker=argv,
        versions=lambda: versions,
        **kw,
    )


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (MATCH, ""),
        (Versions("25.11.2", "25.11.0", "26.05.1"), ""),  # a controller may be ahead
        (Versions("", "25.11.0", "25.11.0"), "not installed"),
        (Versions("25.11.2", "26.05.5", "26.05.5"), "install pyslurm 26.05"),
        (Versions("25.11.2", "25.11.0", "25.05.9"), "upgrade the controller"),
        (Versions("25.11.2", "25.1.0", "25.1.0"), "install pyslurm 25.1."),
        (Versions("nonsense", "25.11.0", "25.11.0"), "install pyslurm"),
    ],
)
def test_versions_have_to_fit(versions: Versions, words: str) -> None:
    problem = versions.problem()
    assert (words in problem) if words else not problem


def test_a_mismatch_starts_nothing_unless_allowed(
    no_slurm: str, script: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = Versions("25.11.2", "26.05.5", "26.05.5")
    refused = adapter(no_slurm, script, tmp_path, wrong)
    with pytest.raises(AdapterError, match=r"26\.05") as caught:
        refused.facts()
    assert not caught.value.retry
    assert not (tmp_path / "starts").exists()
    allowed = adapter(no_slurm, script, tmp_path, wrong, allow_version_mismatch=True)
    allowed.write(1, "nice", 5)
    allowed.worker.end()
    allowed.write(1, "nice", 5)
    allowed.close()
    allowed.close()
    assert sum("may be wrong" in record.message for record in caplog.records) == 1  # said once


def test_a_write_that_dies_is_to_be_tried_again(no_slurm: str, script: Path, tmp_path: Path) -> None:
    one = adapter(no_slurm, script, tmp_path)
    one.write(1, "nice", 1)
    assert one.worker.pid is not None
    os.kill(one.worker.pid, signal.SIGKILL)
    assert one.write(1, "nice", 1).result == "retry"
    assert one.write(1, "nice", 1).result == "ok"
    one.close()


@pytest.mark.parametrize(("call", "what"), [("jobs", "a queue"), ("nodes", "nodes"), ("facts", "facts")])
def test_an_answer_without_what_was_asked_for(
    no_slurm: str, script: Path, tmp_path: Path, call: str, what: str
) -> None:
    one = adapter(no_slurm, script, tmp_path)
    with pytest.raises(AdapterError, match=f"pyslurm worker: {what} that cannot be read") as caught:
        getattr(one, call)()
    assert caught.value.retry
    assert one.worker.pid is None  # a worker that talks nonsense is done with
    one.close()


def test_error_numbers_are_classified() -> None:
    known = pyslurm_errors.by_number(lambda name, usual: usual)
    expected = {
        2017: "gone", 2021: "gone", 2084: "gone", 2002: "no rights", 2010: "no rights", 2095: "no rights",
        2042: "refused", 2037: "refused", 2096: "refused", 2027: "retry", 111: "retry", 1800: "retry",
        1803: "retry", 5004: "retry", 6000: "retry", 2050: "refused", 9999: "refused", -1: "refused",
    }  # fmt: skip
    assert {code: pyslurm_errors.result_of(code, known) for code in expected} == expected
    # a release that numbers them otherwise is believed
    moved = pyslurm_errors.by_number(lambda name, usual: usual + 500)
    assert pyslurm_errors.result_of(2517, moved) == "gone"


def test_the_choice_without_pyslurm(no_slurm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_module, "installed_pyslurm", lambda: "")
    for backend in ("auto", "commands"):
        found, why = choose_module.choose(backend, slurm_bin=no_slurm)  # type: ignore[arg-type]
        assert found.name == "commands"
        assert why.startswith("commands: ")
    with pytest.raises(InputError, match="not installed here"):
        choose_module.choose("pyslurm", slurm_bin=no_slurm)


def test_only_the_worker_imports_pyslurm() -> None:
    package = Path(CHECKOUT) / "tias_slurm"
    named = [
        path.name
        for path in package.rglob("*.py")
        if any(
            line.split()[:2] in (["import", "pyslurm"], ["from", "pyslurm"])
            for line in path.read_text().splitlines()
        )
        or 'import_module("pyslurm")' in path.read_text()
    ]
    assert named == ["pyslurm_worker.py"]
    assert "pyslurm" not in sys.modules
