"""Settings: what is taken, what is refused and how it is said, and that the example is true."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tias_slurm import config as module
from tias_slurm.cli.config_commands import check_config, effective, show_config
from tias_slurm.config import Config, ConfigError, known_keys, load_config, machine_zone
from tias_slurm.policy.tias import PRESETS, preset

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "contrib" / "config.example.toml"

app = typer.Typer()
app.command("check-config")(check_config)
app.command("show-config")(show_config)


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.fixture(autouse=True)
def _no_system_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "DEFAULT_PATH", str(tmp_path / "default.toml"))


def test_defaults_without_any_file() -> None:
    found = load_config(None)
    assert found == Config()
    assert {row.origin for row in found.show()} == {"default"}
    assert found.cycle.interval_s == 60
    assert found.policy.preset == "jct-first"
    assert found.policy.overrides() == {}
    assert found.requeue.mode == "off"


def test_default_file_is_read_if_there(tmp_path: Path) -> None:
    path = write(tmp_path / "default.toml", "[cycle]\ninterval_s = 30\n")
    found = load_config(None)
    assert (found.cycle.interval_s, found.origin("cycle.interval_s")) == (30, path)


def test_origins(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.toml",
        '[policy]\npreset = "guard"\nthresholds_gpu_s = [1, 2.5]\n[requeue]\nmode = "on"\n',
    )
    found = load_config(path, {"requeue.mode": "off", "cycle.interval_s": 15, "policy.delta_s": None})
    assert found.policy.overrides() == {"thresholds_gpu_s": (1.0, 2.5)}
    assert (found.requeue.mode, found.cycle.interval_s) == ("off", 15)
    assert found.origin("policy.preset") == path
    assert found.origin("requeue.mode") == found.origin("cycle.interval_s") == "command line"
    assert found.origin("policy.delta_s") == "default"
    with pytest.raises(KeyError):
        found.origin("policy.nothing")


@pytest.mark.parametrize("name", list(PRESETS))
def test_overrides_are_the_policys_words(name: str) -> None:
    """Every value that the settings can override is one of the policy's, preset by preset."""
    values = {
        "thresholds_gpu_s": [1, 2],
        "risk": "learned",
        "delta_s": 1,
        "urgent_risk": 0.9,
        "warming_ratio": 0.9,
        "window_hint": 0.9,
        "hopeless_chance": 0.9,
        "overdue": "best-effort",
        "queue_urgency": "edf",
        "slot_share": 0.3,
        "slot_window_s": 7200,
        "slot_level": 4,
        "keep_served": 0.2,
        "caps": [[0, 6], [0.5, 3]],
        "prior_upper": 1.5,
        "time_limit_factor": 2,
        "starving_s": 0,
        "starving_share": 0.2,
        "size_hint": "time-limit",
    }
    found = Config.model_validate({"policy": {"preset": name, **values}})
    overrides = found.policy.overrides()
    assert set(overrides) == set(values) == set(type(found.policy).model_fields) - {"preset"}
    made = preset(name, **overrides)
    assert (made.queue_urgency, made.caps) == ("edf", ((0, 6), (0.5, 3)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[policy]\nurgent = 1", ["policy.urgent: unknown key; the nearest known one is policy.urgent_risk"]),
        ("[polcy]", ["polcy: unknown key; the nearest known one is policy"]),
        ("preset = 'guard'", ["preset: unknown key; the nearest known one is policy.preset"]),
        (
            "[cycle]\nmin_run_s = 1",
            ["cycle.min_run_s: unknown key; the nearest known one is requeue.min_run_s"],
        ),
        ("[policy]\npreset = 'gaurd'", ["policy.preset: must be", "did you mean 'guard'?"]),
        ("[cycle]\ninterval_s = 4", ["cycle.interval_s: must be greater than or equal to 5; got 4"]),
        ("[cycle]\ninterval_s = '60'", ["cycle.interval_s: must be a valid number; got '60'"]),
        ("[cycle]\ninterval_s = true", ["cycle.interval_s: must be a valid number"]),
        ("[cycle]\ninterval_s = nan", ["cycle.interval_s: must be a finite number"]),
        ("[planner]\nmax_writes_per_cycle = 1.0", ["planner.max_writes_per_cycle: must be a valid integer"]),
        ("[requeue]\nconsent_default = 1", ["requeue.consent_default: must be a valid boolean"]),
        ("[requeue]\nmin_run_s = 1" + "0" * 400, ["requeue.min_run_s: must be"]),
        ("[policy]\nthresholds_gpu_s = [2, 1]", ["policy: thresholds_gpu_s must ascend"]),
        ("[policy]\nthresholds_gpu_s = []", ["policy.thresholds_gpu_s: must have at least 1 item"]),
        ("[policy]\nthresholds_gpu_s = [1, 'x']", ["policy.thresholds_gpu_s[2]: must be a valid number"]),
        ("[deadlines]\nusers = 'ann'", ["deadlines.users: must be a list in [ ]; got 'ann'"]),
        ("[deadlines]\nusers = ['']", ["deadlines.users[1]: must not be empty"]),
        ("[deadlines]\ntimezone = 'Mars/Base'", ["deadlines.timezone: is no IANA time zone"]),
        ("[deadlines]\ntimezone = '../../etc/passwd'", ["deadlines.timezone: is no IANA time zone"]),
        ("[deadlines]\nkey = 'a=b'", ["deadlines.key: must be made of letters"]),
        ("[deadlines]\nkey = 'Requeue'", ["deadlines.key: is a key with a meaning of its own"]),
        ("[deadlines]\nmin_window_s = 9\nmax_window_s = 5", ["max_window_s is less than min_window_s"]),
        ("cycle = 3", ["cycle: must be a table: write [cycle]"]),
        ("x = 1\nx = 2", ["not valid TOML"]),
        ("x = " + "[" * 50_000, ["not valid TOML"]),
        (b"\xff\xfe", ["line 1 is not UTF-8"]),
        (b"#" * 1_000_001, ["larger than"]),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str | bytes, says: list[str]) -> None:
    path = write(tmp_path / "c.toml", text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(path + ": ")
    for part in says:
        assert part in message


def test_one_line_for_each_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", "[cycle]\ninterval_s = 1\n[lever]\nspan = 0\nspam = 0\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, {"policy.preset": "best"})
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert sum(line.startswith("command line: policy.preset: must be") for line in lines) == 1
    assert sum(line.startswith(path) for line in lines) == 3


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "absent.toml"), "a\0b"):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_config(path)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().cycle.interval_s = 5  # type: ignore[misc]


@given(st.binary(max_size=200) | st.text(alphabet="[]=.\"'#\n abkeypolicy0123", max_size=100).map(str.encode))
def test_no_file_breaks_it(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(raw)
    try:
        assert isinstance(load_config(str(path)), Config)
    except ConfigError as error:
        assert str(path) in str(error)  # noqa: PT017


def test_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config.model_validate({"deadlines": {"timezone": "Asia/Tokyo"}}).zone().key == "Asia/Tokyo"
    monkeypatch.setenv("TZ", ":Europe/Paris")
    assert machine_zone().key == Config().zone().key == "Europe/Paris"
    monkeypatch.setenv("TZ", "../../etc/passwd")
    assert machine_zone().key == "UTC"


def test_the_example_loads_and_holds_the_defaults_of_every_key() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    loaded = load_config(str(EXAMPLE))
    assert loaded.model_dump() == Config().model_dump()
    # with the unset ones written out too, every key is there and the presets' values are those shown
    full = tomllib.loads(re.sub(r"(?m)^#(\w+ = )", r"\1", text))
    assert {f"{s}.{k}" for s, part in full.items() for k in part} == set(known_keys())
    full["lever"]["kind"] = "priority"  # without which there is no long_share
    shown = Config.model_validate(full).policy
    base = PRESETS["jct-first"]
    for name, value in shown.overrides().items():
        assert value == getattr(base, name)
    # what can be chosen stands beside it
    assert set(re.findall(r"(?m)^#   (\S+)  +\S", text.split("[policy]")[1].split("preset =")[0])) == set(
        PRESETS
    )


def test_the_page_names_every_key_with_its_default() -> None:
    page = (ROOT / "docs" / "configure.md").read_text(encoding="utf-8")
    for row in Config().show():
        section, name = row.key.split(".")
        assert f"## `[{section}]`" in page
        part = page.split(f"## `[{section}]`")[1].split("\n## ")[0]
        (line,) = [text for text in part.splitlines() if text.startswith(f"| `{name}` |")]
        assert row.description in line
        if isinstance(row.value, int | float) and not isinstance(row.value, bool):
            assert f"| `{row.value:.15g}` |" in line


def test_every_key_is_described() -> None:
    assert all(known_keys().values())


def test_show_config(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", '[policy]\npreset = "guard"\ndelta_s = 60\n')
    result = CliRunner().invoke(app, ["show-config", "--config", path, "--json"])
    assert result.exit_code == 0
    rows = {row["key"]: row for row in json.loads(result.stdout)["settings"]}
    assert set(rows) == set(known_keys())
    assert (rows["policy.delta_s"]["value"], rows["policy.delta_s"]["origin"]) == (60.0, path)
    assert rows["policy.hopeless_chance"]["value"] == 0.03
    assert rows["policy.hopeless_chance"]["origin"] == "preset guard"
    assert rows["cycle.interval_s"]["origin"] == "default"
    plain = CliRunner().invoke(app, ["show-config", "--config", path])
    assert plain.exit_code == 0
    for key in known_keys():
        assert key in plain.stdout
    assert "preset guard" in plain.stdout


def test_effective_values_are_never_unset_by_a_preset() -> None:
    assert all(row.value is not None for row in effective(Config()) if row.key.startswith("policy."))


def test_check_config(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", "[cycle]\ninterval_s = 30\n")
    result = CliRunner().invoke(app, ["check-config", "--config", path])
    assert (result.exit_code, result.stdout) == (0, f"{path}: valid, 1 setting\n")
    document = json.loads(CliRunner().invoke(app, ["check-config", "--config", path, "--json"]).stdout)
    assert document == {"valid": True, "path": path, "set": ["cycle.interval_s"], "notes": []}
    bad = CliRunner().invoke(app, ["check-config", "--config", str(tmp_path / "absent")])
    assert isinstance(bad.exception, ConfigError)


@pytest.mark.parametrize("command", ["check-config", "show-config"])
def test_help_has_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: tias-slurm {command}" in result.stdout
