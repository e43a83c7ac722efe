"""Who compiles: what replays, and nothing that speaks to a running Slurm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[1])
LOOPS = """
import numpy, sys
from types import FunctionType
from tias_slurm.jit import HAVE_NUMBA
PLACES = ("tias_slurm.placement", "tias_slurm.preemption.", "tias_slurm.replay.engine")

def plain():
    return {
        f"{name}.{key}" for name, module in list(sys.modules.items()) if name.startswith(PLACES)
        for key, value in vars(module).items() if isinstance(value, FunctionType) and key in MARKED
    }

MARKED = {"find_nodes", "occupy", "set_aside", "enough", "could_hold", "walk", "requeue", "copy"}
"""


def alone(code, cwd, **environment):
    """What a fresh interpreter prints."""
    kept = {k: v for k, v in os.environ.items() if k != "TIAS_SLURM_NO_NUMBA"}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {ROOT!r})\n{code}"],
        capture_output=True, text=True, check=True, cwd=cwd, env={**kept, **environment},
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.parametrize(
    "words",
    [
        ("check-config", "--live"), ("once",), ("plan",), ("explain", "7"), ("status",), ("history", "7"),
        ("restore",), ("ignore", "7"), ("run", "--help"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_live_commands_do_not_compile(tmp_path, words):
    (tmp_path / "state").mkdir()
    (tmp_path / "c.toml").write_text(f'[daemon]\nstate_dir = "{tmp_path / "state"}"\nbackend = "commands"\n')
    (tmp_path / "home").mkdir()
    words = words if "--help" in words else (*words, "--config", str(tmp_path / "c.toml"))
    code = f"""
import contextlib, io, os
sys.argv = ["tias-slurm", *{words!r}]
from tias_slurm.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main()
print("numba" in sys.modules, "tias_slurm.cli.app" in sys.modules)
"""
    assert alone(code, tmp_path, HOME=str(tmp_path / "home"), PATH="/nowhere") == "False True"
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize(
    "first", ["tias_slurm.service.daemon", "tias_slurm.replay.dry_run", "tias_slurm.planner"]
)
def test_what_replays_has_all_of_them_compiled(tmp_path, first):
    """In whichever order the modules come, nobody keeps a loop as it stood."""
    pytest.importorskip("numba")
    code = (
        f"{LOOPS}\nimport {first}, tias_slurm.replay.dry_run, tias_slurm.planner\nprint(HAVE_NUMBA, plain())"
    )
    assert alone(code, tmp_path) == "True set()"


def test_the_daemon_runs_them_as_they_stand(tmp_path):
    code = f"{LOOPS}\nimport tias_slurm.service.daemon\nprint(len(plain()) > 5, 'numba' in sys.modules)"
    assert alone(code, tmp_path) == "True False"


def test_turned_off_or_not_there_nothing_is_compiled(tmp_path):
    code = f"{LOOPS}\nimport tias_slurm.replay.dry_run\n"
    code += "print(HAVE_NUMBA, len(plain()) > 5, 'numba' in sys.modules)"
    assert alone(code, tmp_path, TIAS_SLURM_NO_NUMBA="1") == "False True False"
    gone = "import importlib.util as u; find = u.find_spec\n"
    gone += "u.find_spec = lambda n, *a: None if n == 'numba' else find(n, *a)\n"
    assert alone(gone + code, tmp_path) == "False True False"


def test_loops_from_before_and_after_give_the_same(tmp_path):
    """One is called as it stands, then compiled, by a name that was imported before."""
    code = """
import numpy as np
from tias_slurm import planner
from tias_slurm.jit import njit
import tias_slurm.placement as p

@njit
def twice(x):
    return x + x

before, kind = twice(np.arange(3)).tolist(), type(p.occupy).__name__
import tias_slurm.replay.engine
print(before == twice(np.arange(3)).tolist(), kind, type(p.occupy).__name__ != "function")
"""
    assert alone(code, tmp_path).startswith("True function")
