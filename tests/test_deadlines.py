"""The comment grammar: every form, every refusal, and that no text breaks it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tias_slurm.deadlines import (
    OTHER_KEYS,
    Claim,
    Limits,
    admit,
    read_comment,
    read_submit_line,
)

# contrib/job_submit/tias.lua has to find the same (test_submit_script.py, live/test_job_submit.py). In Berlin
TABLE = json.loads(Path(__file__).with_name("comments_table.json").read_text(encoding="utf-8"))
BERLIN = ZoneInfo("Europe/Berlin")
SUBMIT = 1_790_000_000.0  # 2026-09-21T13:33:20Z


def claim(text: str, **more: object) -> Claim:
    return read_comment(text, **{"first_submit": SUBMIT, "zone": BERLIN, **more})  # type: ignore[arg-type]


def utc(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()


def code(text: str) -> str:
    """The code of the one refusal, which must leave no deadline behind."""
    found = claim(text)
    assert found.deadline is None
    (refusal,) = found.refusals
    assert refusal.text
    assert "\n" not in refusal.text
    return refusal.code


@pytest.mark.parametrize(("value", "expected"), TABLE["forms"])
def test_each_form(value: str, expected: float) -> None:
    for text in (
        f"deadline={value}",
        f"DeadLine={value}",
        f"vision,deadline={value};x=1",
        f" a\ndeadline={value}\t",
    ):
        found = claim(text)
        assert found.deadline == expected + (SUBMIT if found.relative else 0)
        assert found.relative == value.lower().startswith(("+", "now"))
        assert found.refusals == ()
        assert found.holds_key
    assert claim(json.dumps({"other": {"deadline": 1}, "Deadline": value})).deadline == found.deadline


@pytest.mark.parametrize(("text", "codes"), TABLE["comments"])
def test_each_comment(text: str, codes: list[str]) -> None:
    assert [r.code for r in claim(text).refusals] == codes


@pytest.mark.parametrize(("value", "expected"), TABLE["refusals"])
def test_each_refusal(value: str, expected: str) -> None:
    assert code(f"deadline={value}") == expected
    assert claim(f"deadline={value}").holds_key


def test_doubled_hour_is_the_earlier() -> None:
    assert claim("deadline=2026-10-25T02:30").deadline == utc(2026, 10, 25, 0, 30)


def test_the_end_of_a_day_whose_midnight_is_skipped() -> None:
    # in Beirut the clocks went from 00:00 to 01:00 on 2022-03-27
    found = claim("deadline=2022-03-26", zone=ZoneInfo("Asia/Beirut"))
    assert found.deadline == utc(2022, 3, 26, 22)


@pytest.mark.parametrize("text", TABLE["no_deadline"])
def test_what_is_no_deadline(text: str) -> None:
    assert claim(text) == Claim()


def test_public_comments_hold_no_deadline(shared_data: Path) -> None:
    lines = (shared_data / "comments.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 40
    for line in lines:
        entry = json.loads(line)
        found = claim(entry["comment"])
        assert found.deadline == entry["deadline_expected"]
        assert not found.holds_key


def test_json() -> None:
    assert claim(' {"deadline": 1796148000.5}\n').deadline == 1_796_148_000.5
    assert code('{"deadline": 1, "DEADLINE": 2}') == "two keys"
    assert code('{"deadline": "2026-12-01 18:00"}') == "date and time apart"
    for bad in ("true", "null", "[1]", "{}"):
        assert code(f'{{"deadline": {bad}}}') == "not a time"
    for bad in ("NaN", "-1", "1e300", "Infinity"):
        assert code(f'{{"deadline": {bad}}}') == "out of range"
    both = claim('{"deadline": "+1h", "requeue": true, "checkpoint": "15m"}')
    assert (both.requeue, both.checkpoint_s) == (True, 900.0)
    assert claim('{"deadline": ' + "[" * 60_000 + "]" * 60_000 + "}").deadline is None  # deep
    assert claim('{"deadline": ' + "9" * 5000 + "}").deadline is None  # more digits than Python reads


@pytest.mark.parametrize(
    ("text", "warning", "reason"),
    [
        ("requeue_signal=USR1@2m", ("USR1", 120.0), None),
        ("deadline=+1h,Requeue_Signal=sigterm@1m30s", ("TERM", 90.0), None),
        ('{"requeue_signal": "USR2@0s"}', ("USR2", 0.0), None),
        ("requeue_signal=USR1", None, "no signal"),
        ("requeue_signal=@2m", None, "no signal"),
        ("requeue_signal=FOO@2m", None, "no signal"),
        ("requeue_signal=USR1@120", None, "no unit"),
        ("requeue_signal=USR1@2h", None, "too long"),
        ('{"requeue_signal": 10}', None, "no signal"),
        ("requeue_signal=USR1@2m requeue_signal=USR1@2m", None, "two keys"),
    ],
)
def test_a_warning_before_a_requeue(text: str, warning: tuple[str, float] | None, reason: str | None) -> None:
    found = claim(text)
    assert found.warning == warning
    assert [r.code for r in found.refusals] == ([f"requeue_signal: {reason}"] if reason else [])


def test_consent_and_checkpoint() -> None:
    assert claim("requeue=yes").requeue is True
    assert claim("Requeue=NO,checkpoint=1h30m") == Claim(requeue=False, checkpoint_s=5400.0)
    assert claim("checkpoint=0s").checkpoint_s == 0.0
    wrong = claim("deadline=+1h requeue=maybe checkpoint=15")
    assert wrong.deadline == SUBMIT + 3600
    assert [(r.key, r.code) for r in wrong.refusals] == [
        ("requeue", "requeue: not yes or no"),
        ("checkpoint", "checkpoint: no unit"),
    ]
    assert [r.code for r in claim("requeue=yes requeue=no").refusals] == ["requeue: two keys"]
    assert not claim("requeue=maybe").holds_key


def test_another_key() -> None:
    found = claim("deadline=+1h DUE-by=+2h", key="due-by")
    assert found.deadline == SUBMIT + 7200
    assert "due-by=" in claim("due-by=5", key="due-by").refusals[0].text


def test_relative_needs_a_submit_time() -> None:
    assert claim("deadline=+1h", first_submit=float("nan")).refusals[0].code == "no submit time"


@pytest.mark.parametrize(
    ("line", "hours"),
    [
        ("sbatch --comment=deadline=+2h run.sh", 2),
        ("sbatch -N 2 --exclusive -p gpu --comment deadline=+2h run.sh", 2),
        ("/usr/bin/srun '--comment=vision deadline=+2h' hostname", 2),
        ('sbatch --comment="vision deadline=+2h" --wrap="x --comment=deadline=+9h"', 2),
        ("sbatch --comment=deadline=+1h --comment=deadline=+2h run.sh", 2),
        ("sbatch --comment=deadline=+2h run.sh it's", 2),
        ("sbatch run.sh --comment=deadline=+2h", None),
        ("sbatch -J x run.sh --comment deadline=+2h", None),
        ("sbatch --deadline=now+2hours run.sh", None),
        ("sbatch --admin-comment=deadline=+2h run.sh", None),
        ("sbatch --comment", None),
        # quotes are not kept
        ("sbatch --comment requeue=yes deadline=+2h --gpus 4 run.sh deadline=+9h", 2),
        ("sbatch --comment vision run.sh deadline=+2h", None),
        ("sbatch --time 1 --wrap sleep 30 && true --gpus 4 --comment=deadline=+2h", 2),
        ("sbatch --comment=deadline=+2h --wrap srun --comment=deadline=+9h x", 2),
        ("", None),
    ],
)
def test_submit_lines(line: str, hours: int | None) -> None:
    found = read_submit_line(line, first_submit=SUBMIT, zone=BERLIN)
    assert found.deadline == (None if hours is None else SUBMIT + hours * 3600)


def test_a_date_torn_off_in_a_submit_line_is_refused() -> None:
    found = read_submit_line(
        "sbatch --comment=deadline=2026-12-01 18:00 run.sh", first_submit=SUBMIT, zone=BERLIN
    )
    assert [r.code for r in found.refusals] == ["date and time apart"]


def test_admit() -> None:
    limits = Limits(
        accounts=frozenset({"ml"}), partitions=frozenset({"a", "b"}), min_window_s=60, max_window_s=3600
    )
    who = {"account": "ml", "partition": "a,b", "user": "eve", "qos": "normal", "first_submit": 100.0}

    def verdict(deadline: float, **changed: object) -> str | None:
        found = admit(deadline, limits=limits, **{**who, **changed})  # type: ignore[arg-type]
        return found and found.code

    assert verdict(1000.0) is None
    assert verdict(100.0) == verdict(50.0) == verdict(float("nan")) == "already past"
    assert verdict(150.0) == "too near"
    assert verdict(160.0) is None
    assert verdict(3700.0) is None
    assert verdict(3701.0) == "too far"
    assert verdict(1000.0, account="bio") == "account may not"
    assert verdict(1000.0, partition="a,c") == "partition may not"
    assert admit(1000.0, first_submit=0.0, limits=Limits(users=frozenset({"ann"})), user="eve") is not None
    assert admit(1000.0, first_submit=0.0, limits=Limits(qos=frozenset({"high"})), qos="high") is None


ZONES = st.sampled_from(
    [BERLIN, ZoneInfo("UTC"), ZoneInfo("Australia/Lord_Howe"), ZoneInfo("America/St_Johns")]
)
PIECES = st.lists(
    st.sampled_from(
        [
            "deadline=",
            "requeue=",
            "checkpoint=",
            "requeue_signal=",
            "@",
            "+",
            "now",
            "36",
            "h",
            "2026-12-01",
            "T18:00",
        ]
    )
    | st.sampled_from([" ", ",", "{", '"', ":", "}", "=", "\0", "-", "yes", "Z", "+01:00"])
    | st.text(max_size=4),
    max_size=12,
).map("".join)


@given(st.text() | PIECES, ZONES)
@example('{"deadline":' * 2000, BERLIN)
@example("deadline=0001-01-01T00:00+14:00", BERLIN)
@example("deadline=0001-01-01", BERLIN)
def test_no_text_raises(text: str, zone: ZoneInfo) -> None:
    for found in (
        claim(text, zone=zone),
        read_submit_line("s --comment=" + text, first_submit=0.0, zone=zone),
    ):
        assert found.deadline is None or 0 <= found.deadline < 253_402_300_800
        keys = [r.key for r in found.refusals]
        assert len(keys) == len(set(keys))
        assert (found.deadline is None) or "deadline" not in keys


@given(st.integers(0, 253_402_214_400 - 1), ZONES)
def test_a_time_as_isoformat_writes_it_is_read_back(epoch: int, zone: ZoneInfo) -> None:
    when = datetime.fromtimestamp(epoch, zone)
    if (when.utcoffset() or timedelta()).total_seconds() % 60:  # local mean time of the 19th century
        when = when.astimezone(UTC)
    assert claim("deadline=" + when.isoformat(), zone=BERLIN).deadline == epoch


@given(st.floats(0, 2e9), st.integers(0, 10_000), st.sampled_from([("w", 604800), ("hours", 3600), ("s", 1)]))
def test_relative_counts_from_the_first_submit(submit: float, count: int, unit: tuple[str, int]) -> None:
    found = claim(f"deadline=+{count}{unit[0]}", first_submit=submit)
    assert found.deadline == submit + count * unit[1]


@given(st.lists(st.from_regex(r"[a-z_]{1,8}(=[a-z0-9./]{0,8})?", fullmatch=True), max_size=5))
def test_other_tokens_change_nothing(others: list[str]) -> None:
    others = [o for o in others if o.partition("=")[0] not in {"deadline", *OTHER_KEYS}]
    found = claim(" ".join(["requeue=yes", *others, "deadline=@1796148000", "zz"]))
    assert found == Claim(1_796_148_000.0, False, True)
