"""contrib/job_submit/tias.lua finds what deadlines.py finds, in every Lua that Slurm may be linked to."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tias_slurm.cli.app import app
from tias_slurm.config import load_config
from tias_slurm.deadlines import Limits, admit, read_comment
from tias_slurm.lua_settings import PLACE, lua_differs, lua_settings
from tias_slurm.settings import Deadlines

SCRIPT = Path(__file__).parents[1] / "contrib" / "job_submit" / "tias.lua"
TABLE = json.loads(Path(__file__).with_name("comments_table.json").read_text(encoding="utf-8"))
TEXTS = [
    *(f"deadline={value}" for value, _ in TABLE["forms"] + TABLE["refusals"]),
    *TABLE["no_deadline"],
    *(text for text, _ in TABLE["comments"]),
]
SUBMIT = 1_790_000_000.0
BERLIN = ZoneInfo("Europe/Berlin")


class Lua:
    """The script in an interpreter, with a `slurm` that keeps what it is told."""

    def __init__(self, name: str) -> None:
        self.runtime = importlib.import_module(f"lupa.{name}").LuaRuntime(encoding=None)
        self.said: list[str] = []
        self.logged: list[str] = []
        self.runtime.globals()[b"said"] = lambda text: self.said.append(text.decode())
        self.runtime.globals()[b"logged"] = lambda text: self.logged.append(text.decode("utf-8", "replace"))
        self.runtime.execute(
            b"slurm = {SUCCESS = 0, ERROR = -1,"
            b" log_user = function(form, ...) said(string.format(form, ...)) end,"
            b" log_info = function(form, ...) logged(string.format(form, ...)) end}"
        )
        self.runtime.execute(SCRIPT.read_bytes())

    def read(self, text: str) -> tuple[float | None, list[tuple[str, str, str]]]:
        deadline, refusals, *_ = self.call(b"read", text, SUBMIT)
        found = [tuple(r[k].decode() for k in (b"key", b"code", b"text")) for r in refusals.values()]
        return deadline, found

    def call(self, name: bytes, *arguments: object) -> Any:
        encoded = [
            a.encode("utf-8", "surrogatepass").replace(b"\0", b"") if isinstance(a, str) else a
            for a in arguments
        ]
        return self.runtime.globals()[b"tias_slurm"][name](*encoded)

    def do(self, code: str) -> Any:
        return self.runtime.execute(code.encode())


@pytest.fixture(scope="module", autouse=True)
def in_berlin() -> Iterator[None]:
    """Lua knows only the machine's zone."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.fixture(scope="module", params=["lua51", "lua52", "lua53", "lua54", "lua55"])
def lua(request: pytest.FixtureRequest) -> Lua:
    return Lua(request.param)


def expected(text: str) -> tuple[float | None, list[tuple[str, str, str]]]:
    claim = read_comment(text, first_submit=SUBMIT, zone=BERLIN)
    return claim.deadline, [(r.key, r.code, r.text) for r in claim.refusals]


@pytest.mark.parametrize("text", TEXTS)
def test_the_table(lua: Lua, text: str) -> None:
    assert lua.read(text) == expected(text)


PIECES = st.lists(
    st.sampled_from(["deadline=", "requeue=", "checkpoint=", "requeue_signal=", "@", "+", "now", "36", "h"])
    | st.sampled_from(["2026-12-01", "T18:00", "2026-03-29", "T02:30", "2026-10-25", "18:00", "1d", "USR1"])
    | st.sampled_from(
        [" ", ",", "{", '"', ":", "}", "=", "-", "yes", "Z", "+01:00", "\\", "[", "]", ".", "/"]
    )
    | st.sampled_from(
        ['"deadline":', '"dead\\u006cine":', "\u00a0", "\u3000", "\x1c", "\n", "1e5", "null", "pm"]
    )
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3),
    max_size=10,
).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**42) | st.floats() | PIECES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PIECES, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["deadline", "Deadline", "requeue", "checkpoint", "requeue_signal", "x"])
JSON = st.builds(
    lambda members, ascii_, indent: json.dumps(members, ensure_ascii=ascii_, indent=indent),
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.booleans(),
    st.sampled_from([None, 1]),
)
DATES = st.builds(
    "deadline={}-{:02}-{:02}{}".format,
    st.sampled_from(["1969", "1970", "1999", "2024", "2026", "2100", "0000", "0001"]),
    st.integers(0, 13),
    st.integers(0, 32),
    st.builds(
        "T{:02}:{:02}{}{}".format,
        st.integers(0, 25),
        st.integers(0, 61),
        st.sampled_from(["", ":00", ":59", ":60"]),
        st.sampled_from(["", "", "Z", "+0100", "-14:00", "+14:01", "+02:60"]),
    )
    | st.just(""),
)
NEWEST = Lua("lua51"), Lua("lua55")


@settings(max_examples=600)
@given(PIECES | JSON | DATES | st.builds("deadline={}".format, PIECES))
@example("deadline=2026-10-25T02:30")
@example('{"deadline": ' + "[" * 60_000 + "]" * 60_000 + "}")
@example('{"deadline": ' + "9" * 5000 + "}")
@example("deadline=" + " " * 30_000 + "{" * 30_000)
@example("deadline=+" + "1h" * 30_000)
def test_any_text(text: str) -> None:
    # what Python lowers to an ASCII letter and Lua does not
    text = text.replace("\u212a", "").replace("\u0130", "")
    for lua in NEWEST:
        assert lua.read(text) == expected(text)


def told(lua: Lua, function: str, comment: str, record: str = "nil") -> tuple[int, list[str]]:
    lua.said.clear()
    lua.runtime.globals()[b"comment"] = comment.encode()
    return lua.do(f"return {function}({{comment = comment}}, {record})"), list(lua.said)


def test_the_user_is_told_and_the_job_taken(lua: Lua) -> None:
    assert told(lua, "slurm_job_submit", "deadline=+36h,requeue=yes") == (0, [])
    assert told(lua, "slurm_job_submit", "deadline=18:00,requeue=maybe") == (
        0,
        [
            "deadline= in the comment is not taken: write the date too: deadline=2026-12-01T18:00",
            "requeue= in the comment is not taken: write requeue=yes or requeue=no",
        ],
    )
    past = "deadline= in the comment is not taken: the deadline is not after the submit; write a later one"
    assert told(lua, "slurm_job_submit", "deadline=@1000") == (0, [past])
    record = f"{{submit_time = {int(SUBMIT)}}}"
    assert told(lua, "slurm_job_modify", f"deadline=@{int(SUBMIT) + 1}", record) == (0, [])
    assert told(lua, "slurm_job_modify", f"deadline=@{int(SUBMIT)}", record) == (0, [past])
    assert lua.do("return slurm_job_modify({}, {})") == 0
    assert lua.do("return slurm_job_submit({})") == 0


def test_the_site_may_refuse_and_has_limits() -> None:
    lua = Lua("lua51")
    lua.do("tias_slurm.settings = {refuse = true, key = 'due', min_window_s = 60, max_window_s = 7200}")
    assert told(lua, "slurm_job_submit", "due=5") == (
        -1,
        [
            "due= in the comment is not taken: "
            "write due=+36h after the submit, or due=@1796148000 for epoch seconds"
        ],
    )
    assert told(lua, "slurm_job_submit", "requeue=maybe")[0] == 0
    assert told(lua, "slurm_job_submit", "due=+1h") == (0, [])
    limits = Limits(min_window_s=60, max_window_s=7200)
    for hours_s in (30, 7201):
        code, (said,) = told(lua, "slurm_job_submit", f"due=+{hours_s}s")
        refusal = admit(float(hours_s), first_submit=0.0, limits=limits)
        assert refusal
        assert (code, said) == (-1, f"due= in the comment is not taken: {refusal.text}")


NAMES = st.sampled_from(["a1", "a2", "A1", "gpu", 'q"\\uote', "naïve", "x y", ""])
LISTS = st.lists(NAMES.filter(bool), max_size=3, unique=True).map(tuple)
WHO = st.fixed_dictionaries(
    {"account": NAMES, "qos": NAMES, "user": NAMES, "partition": st.lists(NAMES, max_size=3).map(",".join)}
)


@settings(max_examples=300)
@given(
    LISTS, LISTS, LISTS, LISTS, WHO, st.sampled_from([-5.0, 0.0, 5.0, 60.5, 9e6]), st.none() | st.just(3600.0)
)
def test_who_may_is_judged_as_by_the_daemon(
    accounts: tuple[str, ...],
    qos: tuple[str, ...],
    partitions: tuple[str, ...],
    users: tuple[str, ...],
    who: dict[str, str],
    window: float,
    most: float | None,
) -> None:
    site = Deadlines(
        accounts=accounts, qos=qos, partitions=partitions, users=users, min_window_s=60.0, max_window_s=most
    )
    # what is not known yet is not judged
    told_of = {f"{n}s".replace("qoss", "qos"): value for n, value in who.items() if value}
    limits = Limits(**{n: frozenset(getattr(site, n)) for n in told_of}, min_window_s=60.0, max_window_s=most)
    no = admit(window, first_submit=0.0, limits=limits, **who)
    for lua in NEWEST:
        lua.do(lua_settings(site, "UTC"))
        try:
            made = lua.runtime.table_from({n.encode(): value.encode() for n, value in who.items()})
            said = lua.call(b"admit", window, 0.0, made)
        finally:
            lua.do(lua_settings(Deadlines(), "UTC"))
        assert (said and (said[b"code"].decode(), said[b"text"].decode())) == (no and (no.code, no.text))


def test_the_fields_of_the_job_and_their_defaults(lua: Lua) -> None:
    site = Deadlines(accounts=("good",), qos=("high",), partitions=("gpu", "debug"), users=("alice",))
    lua.do(lua_settings(site, "Europe/Berlin"))
    parts = "{gpu = {flag_default = 1}, cpu = {flag_default = 0}}"
    good = "account = 'good', qos = 'high', partition = 'gpu', user_name = 'alice'"

    def said(fields: str, function: str = "submit", more: str = parts) -> list[str]:
        lua.said.clear()
        code = f"return tias_slurm.{function}({{comment = 'deadline=+1h', {fields}}}, {more})"
        assert lua.do(code) == 0
        return [line.partition("not taken: ")[2] for line in lua.said]

    def no(name: str) -> list[str]:
        return [f"this site takes no deadlines from this {name}; leave it out"]

    try:
        assert said(good) == []
        assert said("account = 'bad', default_account = 'good'") == no("account")
        assert said("default_account = 'bad'") == no("account")
        assert said("qos = 'normal'") == no("QOS")
        assert said("default_qos = 'high', default_account = 'good', partition = 'gpu,debug'") == []
        assert said("partition = 'gpu,cpu'") == no("partition")
        assert said("user_name = 'bob'") == no("user")
        assert said("", more="{cpu = {flag_default = 1}}") == no("partition")
        assert said("", more="nil") == []
        # a change of the comment is judged by what the job is and will be
        record = "{submit_time = 1, account = 'good', qos = 'high', partition = 'gpu', user_name = 'bob'}"
        lua.do(lua_settings(site.model_copy(update={"users": ()}), "Europe/Berlin"))
        assert said("comment = 'deadline=@' .. os.time() + 60", "modify", record) == []
        assert said("comment = 'deadline=@' .. os.time() + 60, qos = 'x'", "modify", record) == no("QOS")
        # whose name stands in the change is the owner's if the number says so
        lua.do(lua_settings(site, "Europe/Berlin"))
        record = "{submit_time = 1, account = 'good', qos = 'high', partition = 'gpu', user_id = 7}"
        change = "comment = 'deadline=@' .. os.time() + 60, user_name = 'bob', user_id = "
        assert said(change + "7", "modify", record) == no("user")
        assert said(change + "0", "modify", record) == []
    finally:
        lua.do(lua_settings(Deadlines(), "Europe/Berlin"))


def test_the_settings_are_those_of_the_daemons_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[deadlines]\nkey = "due"\ntimezone = "Asia/Tokyo"\nusers = ["alice"]\nmax_window_s = 86_400\n'
    )
    lines = lua_settings(load_config(str(file)).deadlines, "Europe/Berlin").splitlines()
    assert lines[1:] == [
        'tias_slurm.settings.key = "due"',
        "tias_slurm.settings.accounts = {}",
        "tias_slurm.settings.qos = {}",
        "tias_slurm.settings.partitions = {}",
        'tias_slurm.settings.users = { "alice" }',
        "tias_slurm.settings.min_window_s = 0.0",
        "tias_slurm.settings.max_window_s = 86400.0",
        "tias_slurm.settings.machine_zone = false",
    ]
    assert lua_settings(Deadlines(timezone="Asia/Tokyo"), "Asia/Tokyo").endswith("machine_zone = true\n")
    # check-config says where those of the script are others
    script = tmp_path / "tias_settings.lua"
    site = load_config(str(file)).deadlines
    assert lua_differs(site, "Europe/Berlin", str(script)) == ""
    script.write_text(lua_settings(site, "Europe/Berlin"))
    assert lua_differs(site, "Europe/Berlin", str(script)) == ""
    for other in ({"users": ()}, {"key": "due2"}, {"max_window_s": None}):
        said = lua_differs(site.model_copy(update=other), "Europe/Berlin", str(script))
        assert said.startswith(
            f"{script} is not what [deadlines] says here: tias-slurm show-config --lua > {script}"
        )
        assert said.endswith("; touch /etc/slurm/job_submit.lua")  # a reconfigure does nothing on 22.05
    assert PLACE in SCRIPT.read_text()
    # what the script has by itself are the daemon's defaults
    lua = Lua("lua51")
    own = {name.decode(): value for name, value in lua.do("return tias_slurm.settings").items()}
    lua.do(lua_settings(Deadlines(), ""))
    for name, value in lua.do("return tias_slurm.settings").items():
        before = own[name.decode()]
        assert (dict(before) if hasattr(before, "items") else before) == (
            dict(value) if hasattr(value, "items") else value
        )


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, place = tmp_path / "config.toml", tmp_path / "tias_settings.lua"
    file.write_text('[deadlines]\nusers = ["alice"]\n')
    monkeypatch.setattr("tias_slurm.lua_settings.PLACE", str(place))

    def ran(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*words, "--config", str(file)])
        return done.exit_code, done.stdout

    code, printed = ran("show-config", "--lua")
    assert code == 0
    assert 'tias_slurm.settings.users = { "alice" }\n' in printed
    assert ran("show-config", "--lua", "--json")[0] == 2
    place.write_text(printed)
    assert ran("check-config") == (0, f"{file}: valid, 1 setting\n")
    place.write_text(printed.replace("alice", "bob"))
    code, said = ran("check-config")
    assert code == 0
    assert f"to change: {place} is not what [deadlines] says here" in said
    assert len(json.loads(ran("check-config", "--json")[1])["notes"]) == 1


def test_another_zone_than_the_machines() -> None:
    lua = Lua("lua51")
    lua.do("tias_slurm.settings.machine_zone = false")
    for quiet in ("2026-03-29T02:30", "2001-01-01", "2001-01-01T00:00"):
        assert told(lua, "slurm_job_submit", f"deadline={quiet}") == (0, [])
    for loud in ("2001-01-01T00:00Z", "@5", "2026-02-29", "18:00"):
        assert len(told(lua, "slurm_job_submit", f"deadline={loud}")[1]) == 1


def test_a_fault_of_ours_stops_nobody(lua: Lua) -> None:
    lua.do("kept, tias_slurm.read = tias_slurm.read, function() error('broken') end")
    try:
        for function in ("slurm_job_submit", "slurm_job_modify"):
            lua.logged.clear()
            assert told(lua, function, "deadline=18:00") == (0, [])
            assert "a comment was not checked" in lua.logged[0]
    finally:
        lua.do("tias_slurm.read = kept")


def test_it_costs_little() -> None:
    lua = Lua("lua51")
    for worst in (
        "deadline=" + "1h" * 30_000,
        "x" * 60_000 + "deadline=",
        '{"deadline": "' + "\\n" * 30_000 + '"}',
        "deadline=" + " }" * 30_000,
        "deadline=1," * 6_000,
    ):
        begin = time.process_time()
        lua.read(worst)
        assert time.process_time() - begin < 0.5
