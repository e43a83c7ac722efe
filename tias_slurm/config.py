"""The settings: one TOML file, read strictly; every value knows where it came from.

Durations are in seconds (`_s`), service in GPU-seconds (`_gpu_s`). Nothing is guessed: an unknown
key, a value of the wrong type or out of range is an error that names the key.
"""

from __future__ import annotations

import difflib
import functools
import os
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self
from zoneinfo import ZoneInfo

from pydantic import PrivateAttr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from tias_slurm.config_changes import bring_up
from tias_slurm.errors import InputError, printable
from tias_slurm.service.leadership import timing
from tias_slurm.setting_kinds import Section
from tias_slurm.settings import (
    Cycle,
    Daemon,
    Deadlines,
    Gpus,
    Learning,
    Lever,
    Metrics,
    Notify,
    Planner,
    Policy,
    Replay,
    Requeue,
    Scope,
)

DEFAULT_PATH = "/etc/tias-slurm/config.toml"
COMMAND_LINE = "command line"
MAX_FILE_BYTES = 1_000_000  # a settings file larger than this is some other file


class ConfigError(InputError):
    """Settings that cannot be used. The message has one line per problem: file, key, what is wrong."""


class Setting(NamedTuple):
    """One effective value, as `show-config` prints it."""

    key: str  # section.name
    value: Any  # a number, string, bool, list, or None (the preset's, or no limit)
    origin: str  # "default", the file's path, or "command line"
    description: str


class Config(Section):
    """All settings. Made by load_config; `Config()` holds the defaults."""

    cycle: Cycle = Cycle()  # type: ignore[call-arg]
    daemon: Daemon = Daemon()  # type: ignore[call-arg]
    scope: Scope = Scope()  # type: ignore[call-arg]
    deadlines: Deadlines = Deadlines()  # type: ignore[call-arg]
    policy: Policy = Policy()  # type: ignore[call-arg]
    learning: Learning = Learning()  # type: ignore[call-arg]
    gpus: Gpus = Gpus()  # type: ignore[call-arg]
    lever: Lever = Lever()  # type: ignore[call-arg]
    requeue: Requeue = Requeue()  # type: ignore[call-arg]
    planner: Planner = Planner()  # type: ignore[call-arg]
    notify: Notify = Notify()  # type: ignore[call-arg]
    metrics: Metrics = Metrics()  # type: ignore[call-arg]
    replay: Replay = Replay()  # type: ignore[call-arg]

    @model_validator(mode="after")
    def _together(self) -> Self:
        """What no section can say for itself."""
        if self.planner.long_share is not None and self.lever.kind != "priority":
            raise ValueError(
                f'planner.long_share holds jobs, which the lever "{self.lever.kind}" cannot do; set '
                'lever.kind = "priority", or leave long_share out'
            )
        return self

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _notes: list[str] = PrivateAttr(default_factory=list)

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be changed in the file, which was made for an older version; a line each."""
        return tuple(self._notes)

    def origin(self, key: str) -> str:
        """Where the value of "section.name" came from: "default", a path, or "command line".

        Raises KeyError for a key that does not exist.
        """
        if key not in known_keys():
            raise KeyError(key)
        return self._origins.get(key, "default")

    def show(self) -> Iterator[Setting]:
        """Every setting in the order of the schema, with its value, origin and description."""
        values = self.model_dump(mode="json")
        for key, description in known_keys().items():
            section, name = key.split(".")
            yield Setting(key, values[section][name], self.origin(key), description)

    def zone(self) -> ZoneInfo:
        """The zone in which times without an offset are read."""
        return ZoneInfo(self.deadlines.timezone) if self.deadlines.timezone else machine_zone()


@functools.cache
def known_keys() -> dict[str, str]:
    """Every key as "section.name" with its description, in the order of the schema."""
    return {
        f"{section}.{name}": field.description or ""
        for section, outer in Config.model_fields.items()
        for name, field in _fields_of(outer.annotation).items()
    }


def _fields_of(model: Any) -> dict[str, Any]:
    return dict(model.model_fields)


def machine_zone() -> ZoneInfo:
    """The machine's own zone, as the C library finds it: TZ, else /etc/localtime; UTC if neither says."""
    name = os.environ.get("TZ", "").removeprefix(":")
    try:
        if name:
            return ZoneInfo(name)
        target = os.path.realpath("/etc/localtime")
        if "/zoneinfo/" in target:
            return ZoneInfo(target.split("/zoneinfo/", 1)[1].removeprefix("posix/"))
        with open("/etc/localtime", "rb") as file:  # a copy: has the rules but no name
            return ZoneInfo.from_file(file, key="localtime")
    except (KeyError, ValueError, OSError):
        return ZoneInfo("UTC")


def load_config(path: str | None = None, overrides: Mapping[str, object] | None = None) -> Config:
    """Read the settings.

    `path`: the file; None: the default one, which may be absent. `overrides`: values of the command
    line by "section.name"; a None among them means not given, and is passed over.
    Raises ConfigError with one line per problem.
    """
    source = DEFAULT_PATH if path is None else path
    data, text = ({}, "") if path is None and not os.path.exists(DEFAULT_PATH) else _read(source)
    changes = bring_up(data, text)
    notes, problems = ([f"{printable(source, 300)}: {line}" for line in lines] for lines in changes)
    origins = {f"{s}.{n}": source for s, part in data.items() if isinstance(part, dict) for n in part}
    for key, value in (overrides or {}).items():
        if value is None:
            continue
        section, _, name = key.partition(".")
        part = data.setdefault(section, {})
        if isinstance(part, dict):
            part[name] = value
            origins[key] = COMMAND_LINE
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        lines = [_line(e, origins, source) for e in error.errors(include_url=False)]
        raise ConfigError("\n".join([*problems, *lines, *notes])) from None
    if problems:
        raise ConfigError("\n".join([*problems, *notes]))
    if config.daemon.lease_path:
        try:
            timing(config.cycle.interval_s, config.daemon.rpc_timeout_s)
        except InputError as error:
            raise ConfigError(f"{printable(source, 300)}: {error}") from None
    config._origins.update(origins)
    config._notes.extend(notes)
    return config


def _read(path: str) -> tuple[dict[str, Any], str]:
    """What is in the file, and its text."""
    shown = printable(path, 300)
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{shown}: cannot be read: {reason}; name a settings file with --config") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{shown}: larger than {MAX_FILE_BYTES} bytes: not a settings file")
    try:
        text = raw.decode("utf-8")
        return tomllib.loads(text), text
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{shown}: line {line} is not UTF-8 text; write the file in TOML") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        raise ConfigError(f"{shown}: not valid TOML: {printable(str(error), 200)}") from None


def _line(error: ErrorDetails, origins: Mapping[str, str], source: str) -> str:
    """One line for one problem that pydantic found."""
    path = [str(p) for p in error["loc"] if not str(p).startswith("function-")]
    key = ".".join(path[:2])
    said = [origin for k, origin in origins.items() if k == key or k.startswith(key + ".")]
    where = COMMAND_LINE if COMMAND_LINE in said else source
    if not path:
        return f"{printable(source, 300)}: {_problem(error, path)}"  # a rule about several sections
    name = printable(key + "".join(f"[{int(p) + 1}]" for p in path[2:3] if p.isdigit()), 100)
    return f"{printable(where, 300)}: {name}: {_problem(error, path)}"


def _problem(error: ErrorDetails, path: list[str]) -> str:
    kind, got = error["type"], error["input"]
    if kind == "extra_forbidden":
        return _unknown(path)
    if kind in {"model_type", "model_attributes_type"}:
        return f"must be a table: write [{printable(path[0])}] and its keys below"
    message = error["msg"].removeprefix("Value error, ").replace("Input should", "must")
    message = (
        message.replace("a valid tuple", "a list in [ ]")
        .replace("Value should", "must")
        .replace(" after validation, not 0", "")
    )
    message = message.replace("String should have at least 1 character", "must not be empty")
    if isinstance(got, dict):  # a rule about several keys names them itself
        return message
    close = difflib.get_close_matches(
        str(got), error.get("ctx", {}).get("expected", "").split("'")[1::2], n=1
    )
    hint = f" (did you mean '{close[0]}'?)" if close and kind == "literal_error" else ""
    return f"{message}; got {printable(repr(got), 60)}{hint}"


def _unknown(path: list[str]) -> str:
    known = known_keys()
    names = (
        list(Config.model_fields)
        if len(path) == 1
        else [k.split(".")[1] for k in known if k.startswith(path[0] + ".")]
    )
    elsewhere = [k for k in known if k.split(".")[1] == path[-1]]
    close = difflib.get_close_matches(path[-1], names, n=1, cutoff=0.5)
    if elsewhere:  # the right name in the wrong section
        near = elsewhere[0]
    elif close:
        near = ".".join([*path[:-1], close[0]])
    else:
        every = {k.split(".")[1]: k for k in known}
        near = next((every[m] for m in difflib.get_close_matches(path[-1], list(every), n=1)), "")
    return "unknown key" + (f"; the nearest known one is {near}" if near else "")
