"""Man pages and completions: up to date with --help and the settings' schema, and good for their readers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONTRIB = Path(__file__).parents[1] / "contrib"
MAN, COMPLETIONS = CONTRIB / "man", CONTRIB / "completions"
PAGES = ["tias-slurm.1", "tias-slurm-config.5"]


def run(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "200", "MAN_KEEP_FORMATTING": ""}
    return subprocess.run(
        argv, input=stdin, capture_output=True, text=True, check=False, timeout=60, env=environment
    )


@pytest.mark.parametrize("room", [MAN, COMPLETIONS])
def test_up_to_date(room: Path, tmp_path: Path) -> None:
    done = run(sys.executable, str(room / "generate.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr
    made = sorted(tmp_path.iterdir())
    assert made
    for file in made:
        kept = room / file.name
        assert kept.exists(), f"{kept}: make man completions"
        assert kept.read_text() == file.read_text(), f"{kept} is not up to date: make man completions"


@pytest.mark.parametrize("page", PAGES)
def test_readers_have_nothing_to_complain_of(page: str) -> None:
    text = (MAN / page).read_text()
    lines = text.splitlines()
    assert lines[1].startswith(".TH ")
    # what begins with a dot is an order; none comes out of help texts
    known = (".TH", ".SH", ".SS", ".TP", ".PP", ".RS", ".RE", ".EX", ".EE", ".BR", '.\\"')
    assert [line for line in lines if line.startswith((".", "'")) and not line.startswith(known)] == []
    assert lines.count(".EX") == lines.count(".EE")
    if shutil.which("man"):
        done = run("man", "--warnings", "-l", str(MAN / page))
        assert (done.returncode, done.stderr) == (0, "")
    if shutil.which("mandoc"):
        # the pages have no date, so that they are the same whenever they are made
        said = run("mandoc", "-Tlint", "-W", "warning", str(MAN / page)).stdout.splitlines()
        assert [line for line in said if "missing date" not in line] == []


def test_they_say_what_there_is() -> None:
    program = (MAN / "tias-slurm.1").read_text()
    assert ".SS check\\-config" in program
    assert "\\fB\\-\\-assume\\-deadlines\\fR" in program
    assert ".EX\ntias\\-slurm explain 4711\n.EE" in program
    config = (MAN / "tias-slurm-config.5").read_text()
    assert ".SH [requeue]" in config
    assert "\\fBmax_per_job\\fR" in config
    flowing = " ".join(config.split())
    assert 'One of "dry\\-run", "enforce"; default: "dry\\-run".' in flowing
    assert "A number of at least 5 and at most 3600; default: 60." in flowing


BASH = f"""
set -u
source {COMPLETIONS}/tias-slurm.bash
cd "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_tias_slurm
printf '%s\\n' "${{COMPREPLY[@]-}}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("re", {"restore", "resume"}),
        ("--v", {"--version"}),
        ("run --", {"--config", "--help", "--mode"}),
        ("run --mode ", {"dry-run", "enforce"}),
        ("run --mode e", {"enforce"}),
        ("run --config ", {"a file.txt", "room"}),
        ("dry-run a", {"a file.txt"}),
        ("dry-run --out ", {"room"}),
        ("dry-run --gpus ", set()),
        ("explain 4", set()),
        ("--version ru", {"run"}),
        ("nonsense --", set()),
    ],
)
def test_bash(words: str, offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "a file.txt").touch()
    (tmp_path / "room").mkdir()
    done = run("bash", "--norc", "-c", BASH, "bash", str(tmp_path), "tias-slurm", *words.split(" "))
    assert done.stderr == ""
    found = set(done.stdout.splitlines()) - {""}
    assert found == offered if words != "re" else found >= offered


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish here")
def test_fish(tmp_path: Path) -> None:
    def offered(line: str) -> set[str]:
        script = f"source {COMPLETIONS}/tias-slurm.fish; cd {tmp_path}; complete -C '{line}'"
        done = run("fish", "--no-config", "-c", script)
        assert done.stderr == ""
        return {each.partition("\t")[0] for each in done.stdout.splitlines()}

    (tmp_path / "export.txt").touch()
    assert {"restore", "resume"} <= offered("tias-slurm re")
    assert offered("tias-slurm run --mode ") == {"dry-run", "enforce"}
    assert offered("tias-slurm dry-run exp") == {"export.txt"}
    assert offered("tias-slurm run exp") == set()


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
def test_zsh_reads_it() -> None:
    script = f"autoload -Uz compinit; compinit -u -D; source {COMPLETIONS}/_tias-slurm; "
    done = run("zsh", "-f", "-c", script + "print $_comps[tias-slurm]; whence -w _tias-slurm")
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["_tias-slurm", "_tias-slurm: function"]
