"""A settings file of an older version: read with a word on what to change, or refused with what to write.

No setting was ever renamed; the table is the test's own.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from daemon_desk import desk  # noqa: F401
from raw_queue import waiting
from test_config import EXAMPLE, app
from typer.testing import CliRunner

from tias_slurm import config_changes
from tias_slurm.config import ConfigError, known_keys, load_config
from tias_slurm.config_changes import REMOVED, RENAMED, Removed, Renamed

OLD = (
    Renamed("cycle.period_s", "cycle.interval_s", "0.2"),
    Renamed("limits.writes", "planner.max_writes_per_cycle", "0.3"),
)
GONE = (
    Removed("daemon.colour", "0.2", "the log has none", harmless=True),
    Removed("requeue.force", "0.3", "write consent_default = true in [requeue]", harmless=False),
)


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "RENAMED", OLD)
    monkeypatch.setattr(config_changes, "REMOVED", GONE)


@pytest.fixture
def write(tmp_path: Path):
    def made(text: str) -> str:
        path = tmp_path / "old.toml"
        path.write_text(text)
        return str(path)

    return made


def test_the_real_tables_are_sound() -> None:
    known = set(known_keys())
    assert {change.new for change in RENAMED} <= known
    assert not {change.old for change in RENAMED} & known
    assert not {gone.key for gone in REMOVED} & known


def test_an_old_name_holds_and_is_told_of(write) -> None:
    path = write("# ours\n[cycle]\nperiod_s = 15  # often\n\n[limits]\nwrites = 7\n")
    found = load_config(path)
    assert (found.cycle.interval_s, found.planner.max_writes_per_cycle) == (15, 7)
    assert found.origin("cycle.interval_s") == path
    assert found.notes == (
        f"{path}: line 3: cycle.period_s: is called cycle.interval_s since 0.2; write that",
        f"{path}: line 6: limits.writes: is called planner.max_writes_per_cycle since 0.3; write that",
    )
    # and what it says to write is right
    new = write("[cycle]\ninterval_s = 15\n[planner]\nmax_writes_per_cycle = 7\n")
    assert load_config(new).model_dump() == found.model_dump()
    assert load_config(new).notes == ()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("cycle.period_s = 15", "line 1: "),
        ("\n cycle . period_s = 15", "line 2: "),
        ("cycle = { period_s = 15 }", ""),
        ('["cycle"]\nperiod_s = 15', ""),
        ('[ cycle ]\n"period_s" = 15', "line 2: "),
        ("[replay]\nrestart_s = 1\n# period_s = 3\n[cycle]\nperiod_s = 15", "line 5: "),
        ('[daemon]\nstate_dir = """\n[cycle]\nperiod_s = 3"""\n[cycle]\nperiod_s = 15', None),
    ],
)
def test_however_it_is_written(write, text: str, at: str | None) -> None:
    found = load_config(write(text))
    assert found.cycle.interval_s == 15
    (note,) = found.notes
    assert at is None or note.startswith(f"{write(text)}: {at}cycle.period_s: is called")


def test_both_names_at_once(write) -> None:
    with pytest.raises(
        ConfigError, match=r"line 2: cycle\.period_s: is the old name of cycle\.interval_s, which"
    ):
        load_config(write("[cycle]\nperiod_s = 15\ninterval_s = 30\n"))


def test_a_bad_value_under_an_old_name(write) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write("[cycle]\nperiod_s = 1\n[policy]\nurgent = 1\n"))
    lines = str(caught.value).splitlines()
    assert "cycle.interval_s: must be greater than or equal to 5; got 1" in lines[0]
    assert "policy.urgent: unknown key" in lines[1]
    assert "cycle.period_s: is called cycle.interval_s" in lines[2]


def test_what_is_gone(write) -> None:
    path = write("[daemon]\ncolour = true\n")
    assert load_config(path).notes == (
        f"{path}: line 2: daemon.colour: is no setting any more since 0.2; the log has none",
    )
    with pytest.raises(ConfigError, match=r"line 2: requeue\.force: .* write consent_default = true in"):
        load_config(write("[requeue]\nforce = true\n"))


@pytest.mark.parametrize(
    "text", ["cycle = 3", "limits = 3", "[limits]\nwrites = 7\nother = 1", "planner = 1"]
)
def test_other_faults_are_said_as_ever(write, text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be a table|unknown key"):
        load_config(write(text))


def test_check_config_says_which_lines_to_change(write) -> None:
    path = write("[cycle]\nperiod_s = 15\n[daemon]\ncolour = true\n")
    said = CliRunner().invoke(app, ["check-config", "--config", path])
    assert said.exit_code == 0
    first, *rest = said.stdout.splitlines()
    assert first == f"{path}: valid, 1 setting"
    assert [line.split(": ")[:4] for line in rest] == [
        ["to change", path, "line 2", "cycle.period_s"],
        ["to change", path, "line 4", "daemon.colour"],
    ]
    document = json.loads(CliRunner().invoke(app, ["check-config", "--config", path, "--json"]).stdout)
    assert document["set"] == ["cycle.interval_s"]
    assert document["notes"] == list(load_config(path).notes)


def test_the_daemon_tells_its_log(desk) -> None:  # noqa: F811
    desk.write(extra="[cycle]\nperiod_s = 60.0")
    daemon = desk.daemon(waiting(1))
    (said,) = desk.said("settings")
    assert "cycle.period_s: is called cycle.interval_s" in said["message"]
    daemon._on_reload()
    daemon.cycle()
    assert len(desk.said("settings")) == 2


def test_the_example_of_this_version_needs_no_change() -> None:
    assert load_config(str(EXAMPLE)).notes == ()
