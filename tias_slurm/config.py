"""The settings: one TOML file, read strictly; every value knows where it came from.

Durations are in seconds (`_s`), service in GPU-seconds (`_gpu_s`). Nothing is guessed: an unknown
key, a value of the wrong type or out of range is an error that names the key.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import itertools
import os
import signal
import tomllib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic import model_validator as check
from pydantic_core import ErrorDetails

from tias_slurm.errors import InputError, printable
from tias_slurm.leadership import timing

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


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _comment_key(value: object) -> object:
    if isinstance(value, str) and not (
        value.isascii() and value.replace("_", "a").replace("-", "a").isalnum()
    ):
        raise ValueError("must be made of letters, digits, '-' and '_'")
    if isinstance(value, str) and value.lower() in {"requeue", "checkpoint"}:
        raise ValueError("is a key with a meaning of its own; choose another")
    return value


def _signal_name(value: object) -> object:
    if isinstance(value, str) and f"SIG{value}" not in signal.Signals.__members__:
        raise ValueError("is no signal that this machine knows (write TERM, USR1, ...)")
    return value


def _address(value: object) -> object:
    if isinstance(value, str) and value:
        host, colon, port = value.rpartition(":")
        try:
            ipaddress.ip_address(host.strip("[]"))
            good = bool(colon) and (":" in host) == host.startswith("[") and 0 <= int(port) < 2**16
        except ValueError:
            good = False
        if not good:
            raise ValueError("must be an IP address and a port (127.0.0.1:9418, [::1]:9418)")
    return value


def _zone_name(value: object) -> object:
    if isinstance(value, str) and value:
        try:
            ZoneInfo(value)
        except (KeyError, ValueError, OSError):
            raise ValueError("is no IANA time zone that this machine knows (such as Europe/Berlin)") from None
    return value


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_tuple)]
Thresholds = Annotated[tuple[Annotated[float, Field(gt=0)], ...], BeforeValidator(_tuple)]


Shares = dict[str, Annotated[float, Field(gt=0, le=1)]]
Weights = dict[str, Annotated[float, Field(gt=0, le=1000)]]


class Section(BaseModel):
    """What all sections share: no unknown keys, no silent conversions, no changes once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Cycle(Section):
    """How often the daemon looks."""

    interval_s: float = Field(60.0, ge=5, le=3600, description="seconds from one cycle to the next")


class Deadlines(Section):
    """Where deadlines are read and who may claim one. Empty lists: everybody may."""

    key: Annotated[str, BeforeValidator(_comment_key)] = Field(
        "deadline", min_length=1, max_length=32, description="the key in a job's comment"
    )
    timezone: Annotated[str, BeforeValidator(_zone_name)] = Field(
        "", description="IANA name of the zone of times without an offset; empty: the machine's"
    )
    accounts: Names = Field((), description="accounts that may claim a deadline; empty: all")
    qos: Names = Field((), description="QOS in which a deadline may be claimed; empty: all")
    partitions: Names = Field((), description="partitions in which a deadline may be claimed; empty: all")
    users: Names = Field((), description="users who may claim a deadline; empty: all")
    min_window_s: float = Field(
        0.0, ge=0, description="a deadline nearer than this to the first submit is refused"
    )
    max_window_s: float | None = Field(
        None,
        gt=0,
        description="a deadline further than this from the first submit is refused; unset: no limit",
    )
    max_changes: int = Field(
        3, ge=0, description="how often a job may change its deadline; further changes are refused"
    )
    quota_rate: float | None = Field(
        None,
        gt=0,
        le=10,
        description="GPU time that an account may use under deadlines, over its share of the cluster; "
        "unset: no quota",
    )
    quota_burst_s: float = Field(
        259_200.0, gt=0, description="an account saves up its quota for as long as this"
    )
    quota_shares: Shares = Field(
        {}, description="fair shares of accounts, by name; others share what is left equally"
    )

    @check(mode="after")
    def _window(self) -> Deadlines:
        if self.max_window_s is not None and self.max_window_s < self.min_window_s:
            raise ValueError("max_window_s is less than min_window_s: no deadline could be claimed")
        return self


class Policy(Section):
    """The preset, and single values that differ from it. Unset: the preset's."""

    preset: Literal["jct-first", "wide-fair", "balanced", "guard", "slots"] = Field(
        "jct-first", description="the set of values to start from"
    )
    thresholds_gpu_s: Thresholds | None = Field(
        None,
        min_length=1,
        max_length=15,
        description="attained service at which a job falls to the next queue",
    )
    risk: Literal["closed-form", "learned"] | None = Field(
        None, description="how the chance of meeting a deadline is found"
    )
    delta_s: float | None = Field(None, gt=0, description="the wait whose cost in that chance is the risk")
    urgent_risk: float | None = Field(None, gt=0, le=1, description="a risk of at least this is urgent")
    warming_ratio: float | None = Field(
        None, ge=0, le=1, description="a risk of at least this share of urgent_risk is warming"
    )
    window_hint: float | None = Field(
        None, ge=0, le=1, description="share of GPUs x window that counts as size before a job has run"
    )
    hopeless_chance: float | None = Field(
        None, ge=0, le=1, description="a waiting job whose chance is below this is hopeless"
    )
    overdue: Literal["last", "best-effort"] = Field(
        "last", description="hopeless and overdue jobs: behind all others, or as if they had no deadline"
    )
    queue_urgency: Literal["u", "edf", "laxity", "elapsed"] = Field(
        "u", description="the order inside a level of deadline jobs"
    )
    slot_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of the cluster's GPUs that long deadline jobs may hold in slots; 0: no slots",
    )
    slot_window_s: float | None = Field(
        None, gt=0, description="a window of at least this makes a deadline job long"
    )
    starving_s: float = Field(
        2_592_000.0,
        ge=0,
        description="a job that has waited so long goes before all levels, without preempting; 0: never",
    )
    starving_share: float = Field(
        0.1, ge=0, le=1, description="share of the cluster's GPUs for jobs brought to the front"
    )
    size_hint: Literal["none", "time-limit"] = Field(
        "none", description="what tells the size of a job without a deadline before it has run"
    )

    @check(mode="after")
    def _ascending(self) -> Policy:
        values = self.thresholds_gpu_s or ()
        if any(a >= b for a, b in itertools.pairwise(values)):
            raise ValueError("thresholds_gpu_s must ascend, each larger than the one before")
        return self

    def overrides(self) -> dict[str, object]:
        """The values that differ from the preset's, by name. Without `preset` itself."""
        return {
            name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if name != "preset" and getattr(self, name) != field.default
        }


class Daemon(Section):
    """How the daemon runs."""

    mode: Literal["dry-run", "enforce"] = Field(
        "dry-run", description="dry-run: say what would be written; enforce: write it"
    )
    backend: Literal["auto", "pyslurm", "commands"] = Field(
        "auto", description="how slurmctld is spoken to; auto: pyslurm where it matches, else commands"
    )
    allow_version_mismatch: bool = Field(
        False, description="use a pyslurm that was built for another Slurm release, at your own risk"
    )
    state_dir: str = Field(
        "/var/lib/tias-slurm", min_length=1, description="where the ledger and the lock are kept"
    )
    rpc_timeout_s: float = Field(30.0, gt=0, le=600, description="an answer of slurmctld may take this long")
    jitter_s: float = Field(5.0, ge=0, description="cycles begin up to this much earlier or later")
    writes_per_second: float = Field(
        50.0, gt=0, description="writes are sent no faster; below 2 for an Operator under rl_enable"
    )
    keep_days: float = Field(90.0, gt=0, description="how long the ledger keeps what has ended")
    user_export: str = Field(
        "",
        description="where users find what explain needs of the ledger, each of their own jobs; empty: none",
    )
    lease_path: str = Field(
        "",
        description="a file that the daemons of all controllers see, so that one acts; empty: only one",
    )
    log_format: Literal["json", "console"] = Field("json", description="form of the log on standard error")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level logged")


class Scope(Section):
    """Whose jobs may be written. Empty lists: everybody's. What is in a not_ list is out in any case."""

    only_partitions: Names = Field((), description="only jobs whose partitions are all among these")
    not_partitions: Names = Field((), description="no job of one of these partitions")
    only_accounts: Names = Field((), description="only jobs of these accounts")
    not_accounts: Names = Field((), description="no job of these accounts")
    only_users: Names = Field((), description="only jobs of these users")
    not_users: Names = Field((), description="no job of these users")
    only_qos: Names = Field((), description="only jobs in these QOS")
    not_qos: Names = Field((), description="no job in these QOS")


class Gpus(Section):
    """What GPUs count for in service and urgency."""

    weights: Weights = Field(
        {}, description="weight of a GPU by type, as Slurm names it, and of a shard; 1 where unsaid"
    )


class Lever(Section):
    """Which field of a job carries its place, and how coarsely."""

    kind: Literal["nice", "site_factor", "priority"] = Field(
        "nice", description="the field of a job that is written"
    )
    urgency_steps: int = Field(32, ge=1, le=256, description="steps of urgency inside a level")
    span: int | None = Field(
        None,
        ge=1,
        le=2_147_483_645,
        description="largest nice to use; unset: strict levels, each step above the site's summed weights",
    )


class Requeue(Section):
    """Preemption by requeue: whether, whom, how often."""

    mode: Literal["off", "on", "slurm"] = Field(
        "off", description="whether running jobs may be requeued for others; slurm: by Slurm's own preemption"
    )
    consent_default: bool = Field(False, description="consent of a job whose comment does not say requeue=")
    min_run_s: float = Field(600.0, ge=0, description="a run is left alone for this long")
    max_per_job: int = Field(8, ge=0, description="requeues of one job at most")
    max_preemptors_per_cycle: int = Field(
        10, ge=0, description="waiting jobs that others are requeued for, per cycle"
    )
    checkpoint_s: float = Field(
        0.0,
        ge=0,
        description="how often a job saves itself if its comment is silent; 0: a requeue loses the whole run",
    )
    max_per_hour: int | None = Field(None, ge=0, description="jobs requeued in any hour; unset: no limit")
    max_per_user_per_hour: int | None = Field(
        None, ge=0, description="jobs of one user requeued in any hour; unset: no limit"
    )
    cooldown_s: float = Field(
        300.0, ge=0, description="a job that others were requeued for has no more requeued for so long"
    )
    grace_s: float = Field(
        0.0, ge=0, le=3600, description="a job is warned so long before it is requeued; 0: it is not"
    )
    signal: Annotated[str, BeforeValidator(_signal_name)] = Field(
        "TERM", description="the signal that warns the job's batch script"
    )


class Planner(Section):
    """Budgets of one cycle."""

    dead_band_steps: int = Field(
        0, ge=0, le=256, description="a value that is off by no more steps of urgency than this is left alone"
    )
    max_writes_per_cycle: int = Field(1000, ge=0, description="jobs that one cycle may write")
    long_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the GPUs for all but near deadlines; what is over it is held; unset: all",
    )
    long_window_s: float = Field(
        86_400.0, gt=0, description="a deadline job that may run longer than this counts as long"
    )


class Metrics(Section):
    """What Prometheus is shown."""

    listen: Annotated[str, BeforeValidator(_address)] = Field(
        "", description="ADDRESS:PORT of /metrics, /readyz and /healthz, as 127.0.0.1:9418; empty: none"
    )
    textfile: str = Field(
        "", description="a file for the textfile collector of node_exporter, ending in .prom; empty: none"
    )

    @property
    def address(self) -> tuple[str, int] | None:
        """Where to listen: address and port; None: nowhere."""
        host, _, port = self.listen.rpartition(":")
        return (host.strip("[]"), int(port)) if self.listen else None


class Replay(Section):
    """What the dry run assumes of the jobs and of the site's Slurm."""

    checkpoint_s: float = Field(600.0, ge=0, description="how often the jobs of a trace save themselves")
    restart_s: float = Field(60.0, ge=0, description="run time that a restart costs")
    requeue_delay_s: float = Field(120.0, ge=0, description="a requeued job may start after this long")
    priority_weight_age: int = Field(1000, ge=0, description="Slurm's PriorityWeightAge")
    priority_max_age_s: float = Field(604_800.0, gt=0, description="Slurm's PriorityMaxAge")
    priority_weight_fairshare: int = Field(1000, ge=0, description="Slurm's PriorityWeightFairshare")
    usage_half_life_s: float = Field(604_800.0, gt=0, description="Slurm's PriorityDecayHalfLife")
    priority_calc_period_s: float = Field(300.0, gt=0, description="Slurm's PriorityCalcPeriod")


class Config(Section):
    """All settings. Made by load_config; `Config()` holds the defaults."""

    cycle: Cycle = Cycle()  # type: ignore[call-arg]
    daemon: Daemon = Daemon()  # type: ignore[call-arg]
    scope: Scope = Scope()  # type: ignore[call-arg]
    deadlines: Deadlines = Deadlines()  # type: ignore[call-arg]
    policy: Policy = Policy()  # type: ignore[call-arg]
    gpus: Gpus = Gpus()  # type: ignore[call-arg]
    lever: Lever = Lever()  # type: ignore[call-arg]
    requeue: Requeue = Requeue()  # type: ignore[call-arg]
    planner: Planner = Planner()  # type: ignore[call-arg]
    metrics: Metrics = Metrics()  # type: ignore[call-arg]
    replay: Replay = Replay()  # type: ignore[call-arg]
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

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
    data = {} if path is None and not os.path.exists(DEFAULT_PATH) else _read(source)
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
        raise ConfigError("\n".join(lines)) from None
    if config.daemon.lease_path:
        try:
            timing(config.cycle.interval_s, config.daemon.rpc_timeout_s)
        except InputError as error:
            raise ConfigError(f"{printable(source, 300)}: {error}") from None
    config._origins.update(origins)
    return config


def _read(path: str) -> dict[str, Any]:
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
        return tomllib.loads(raw.decode("utf-8"))
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
