"""The parsers of single values, and that the columns read the same as they do."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tias_slurm.slurm import times, values
from tias_slurm.slurm.cells import Cells
from tias_slurm.slurm.values import Memo

BERLIN = ZoneInfo("Europe/Berlin")


def cells(texts: list[str]) -> Cells:
    return Cells.of_rows([[t] for t in texts], range(len(texts)), {"x": 0})


def clock(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


@given(st.integers(0, 10**9))
def test_duration_round_trip(seconds: int) -> None:
    assert values.parse_duration(clock(seconds)) == seconds
    assert values.parse_duration(str(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93784), ("22:53.824", 1373.824), ("00:00:00", 0), ("01:00", 60), ("2-12", 216000),
        ("1-00:30", 88200), ("UNLIMITED", math.inf), ("Partition_Limit", math.nan),
        ("Partition_limit", math.nan),
        ("", math.nan), ("INVALID", math.nan), ("Unknown", math.nan), ("4294967294", math.nan),
        ("706-08:54:56", 61030496),
    ],
)  # fmt: skip
def test_duration_forms(text: str, seconds: float) -> None:
    assert values.parse_duration(text) == pytest.approx(seconds, nan_ok=True)


@pytest.mark.parametrize("text", ["-00:10:00", "ten", "1:2:3:4", "1-2-3", "::", "1e5", "９", "9" * 40])
def test_duration_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        values.parse_duration(text)


def test_bare_number_of_minutes() -> None:
    assert values.parse_duration("90", 60) == 5400


@given(st.datetimes(datetime(1990, 1, 1), datetime(2099, 1, 1)))
def test_stamp_round_trip(moment: datetime) -> None:
    moment = moment.replace(microsecond=0)
    seconds = (moment - datetime(1970, 1, 1)).total_seconds()
    stamp = moment.strftime("%Y-%m-%dT%H:%M:%S").zfill(19)
    assert times.parse_time(stamp) == (seconds, True)
    assert times.parse_time(stamp + "Z") == (seconds, False)
    assert times.parse_time(stamp + "+01:00") == (seconds - 3600, False)
    assert times.parse_time(stamp + "-0530") == (seconds + 19800, False)
    column = cells([stamp, stamp + "Z", str(int(seconds))]).times("x", ZoneInfo("UTC"))
    assert column.early.tolist() == [seconds] * 3
    assert not column.problem.any()


@pytest.mark.parametrize("text", ["", "Unknown", "None", "N/A", "0", "4294967295", "18446744073709551614"])
def test_no_time(text: str) -> None:
    assert math.isnan(times.parse_time(text)[0])
    assert cells([text]).times("x", BERLIN).problem.tolist() == [times.OK]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-5", "negative time"), ("1960-01-01T00:00:00", "negative time"), ("yesterday", "not a time"),
        ("2025-02-30T00:00:00", "not a time"), ("2025-13-01T00:00:00", "not a time"),
        ("12:30:00", "not a time"),
        ("2025-01-01T24:00:00", "not a time"), ("1748000000000", "not a time"),
        ("9999-01-01T00:00:00", "not a time"),
        ("2025-01-01T00:00:0x", "not a time"), ("2025-03-30T02:30:00", "time skipped by a DST change"),
    ],
)  # fmt: skip
def test_time_refused(text: str, reason: str) -> None:
    assert times.TIME_PROBLEM[int(cells([text]).times("x", BERLIN).problem[0])] == reason


@given(st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC",
    "Africa/Casablanca"]),
       st.integers(0, 4 * 10**9))  # fmt: skip
def test_local_time_reads_back(name: str, seconds: int) -> None:
    """A moment written on the wall clock of a zone is among the readings of what was written."""
    zone = ZoneInfo(name)
    wall = (
        (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).astimezone(zone).replace(tzinfo=None)
    )
    local = np.array([(wall - datetime(1970, 1, 1)).total_seconds()])
    early, late, exists = times.local_to_utc(local, zone)
    assert exists.all()
    assert seconds in (early[0], late[0])
    both = times.local_to_utc(np.array([local[0], local[0] + 3e7]), zone)  # over a change: the slow way
    assert (both[0][0], both[1][0]) == (early[0], late[0])


def test_doubled_hour_has_two_readings() -> None:
    column = cells(["2025-10-26T02:30:00", "2025-10-26T03:30:00"]).times("x", BERLIN)
    assert (column.late - column.early).tolist() == [3600, 0]
    assert column.early[0] == datetime(2025, 10, 26, 0, 30, tzinfo=UTC).timestamp()


TEXTS = st.lists(
    st.one_of(
        st.text(max_size=30).filter(lambda t: "\0" not in t),
        st.integers(-5, 10**12).map(str),
        st.integers(0, 10**7).map(clock),
        st.datetimes(datetime(1969, 1, 1),
            datetime(2101, 1, 1)).map(lambda d: d.strftime("%Y-%m-%dT%H:%M:%S")),
        st.sampled_from(["", "None", "Unknown", "UNLIMITED", "Partition_Limit", "22:53.824",
            "2025-03-30T02:30:00"]),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(TEXTS)
def test_columns_read_as_the_parsers_do(texts: list[str]) -> None:
    column = cells(texts)
    assert column.texts("x") == texts
    assert column.objects("x").tolist() == texts
    assert column.ids("x").tolist() == texts
    said, row = column.distinct("x")
    assert [said[i] for i in row] == texts
    found, unread = column.durations("x", Memo(values.parse_duration))
    stamps = column.times("x", ZoneInfo("UTC"))
    for i, text in enumerate(texts):
        try:
            assert found[i] == pytest.approx(values.parse_duration(text), nan_ok=True)
            assert not unread[i]
        except ValueError:
            assert unread[i]
        try:
            assert stamps.early[i] == pytest.approx(times.parse_time(text)[0], nan_ok=True)
            assert stamps.problem[i] == times.OK
        except ValueError as e:
            reason = e.args[0]
        else:
            reason = None
        assert times.TIME_PROBLEM.get(int(stamps.problem[i])) == reason


COUNT = st.integers(0, 10**6)


@given(st.none() | COUNT, st.dictionaries(st.sampled_from(["a100", "h100", "1g.5gb"]), COUNT, max_size=3),
    COUNT,
       st.integers(0, 2**30), st.permutations(range(5)))  # fmt: skip
def test_tres_round_trip(
    untyped: int | None, typed: dict[str, int], cpus: int, mem: int, order: list[int]
) -> None:
    parts = [f"cpu={cpus}", f"mem={mem}M", "node=3", "billing=7", "gres/gpumem=9G,gres/gpuutil=5,energy=4"]
    parts = [parts[i] for i in order] + [f"gres/gpu:{k}={v}" for k, v in typed.items()]
    parts += [] if untyped is None else [f"gres/gpu={untyped}"]
    tres = values.parse_tres(",".join(parts))
    assert (tres.cpus, tres.mem_mb, tres.nodes) == (cpus, mem, 3)
    gpus = untyped if untyped is not None else sum(typed.values()) if typed else math.nan
    assert tres.gpus == pytest.approx(gpus, nan_ok=True)
    given = {k: v for k, v in typed.items() if v}
    if len(given) == 1 and tres.gpus <= sum(given.values()):
        assert [tres.gpu_type] == list(given)
    else:
        assert tres.gpu_type == ",".join(f"{k}={given[k]}" for k in sorted(given))


@pytest.mark.parametrize(
    ("text", "gpus", "kind"),
    [
        ("billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G", 4, "a100"),
        ("gres/gpu:a100=2,gres/gpu:v100=2", 4, "a100=2,v100=2"),
        ("cpu=8,mem=0", math.nan, ""),
        ("", math.nan, ""),
    ],
)
def test_typed_and_untyped_gpus_are_not_added(text: str, gpus: float, kind: str) -> None:
    tres = values.parse_tres(text)
    assert tres.gpus == pytest.approx(gpus, nan_ok=True)
    assert tres.gpu_type == kind


@pytest.mark.parametrize(
    "text", ["cpu", "gres/gpu=many", "gres/gpu=-1", "gres/gpu=0.5", "gres/gpu=1P", "=3", "a|b"]
)
def test_tres_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        values.parse_tres(text)


@pytest.mark.parametrize(
    ("text", "amount", "per"),
    [
        ("64G", 65536, ""), ("4Gn", 4096, "n"), ("2000Mc", 2000, "c"), ("512000K", 500, ""),
        ("1T", 1048576, ""),
        ("65536", 65536, ""), ("0", 0, ""), ("1.50G", 1536, ""), ("", math.nan, ""), ("400Gn", 409600, "n"),
    ],
)  # fmt: skip
def test_memory_forms(text: str, amount: float, per: str) -> None:
    found = values.parse_memory(text)
    assert found[0] == pytest.approx(amount, nan_ok=True)
    assert found[1] == per


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:2", (2, "", True)), ("gpu:a100:2", (2, "a100", True)), ("PER_NODE:gpu:8", (8, "", True)),
        ("PER_JOB:gpu:a100:16", (16, "a100", False)), ("gpu", (1, "", True)),
        ("craynetwork:1", (0, "", True)),
        ("gpu:h100:2(IDX:0-1)", (2, "h100", True)), ("gpu:a100:2(S:0,1),lustre:1", (2, "a100", True)),
        ("gres/gpu:h100:1,gres/gpu:h200:1", (2, "h100=1,h200=1", True)), ("gres:gpu:4", (4, "", True)),
        ("gres/gpu:1g.5gb", (1, "1g.5gb", True)), ("gpu:a100_1g.5gb:2(IDX:0-1)", (2, "a100_1g.5gb", True)),
        ("gpu:1g.10gb+me:1,shard:h100:3(3/4,0/4)", (1, "1g.10gb+me", True)), ("shard:2", (0, "", True)),
    ],
)  # fmt: skip
def test_gres_forms(text: str, expected: tuple[float, str, bool]) -> None:
    assert values.parse_gres(text) == expected


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("CANCELLED by 1000", "CANCELLED"), ("CANCELLED+", "CANCELLED"), ("OUT_OF_MEMORY", "OUT_OF_MEMORY"),
        ("CD", "COMPLETED"), ("completed", "COMPLETED"), ("COMPLETING", "RUNNING"),
        ("REQUEUE_HOLD", "PENDING"),
        ("DEADLINE", "DEADLINE"), ("RESIZING", "RESIZING"),
    ],
)  # fmt: skip
def test_states(text: str, word: str) -> None:
    assert values.parse_state(text) == word


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["CANCELLED"], "CANCELLED"), (["RUNNING", "COMPLETING"], "RUNNING"),
        (["PENDING", "REQUEUED"], "PENDING"),
        (["REQUEUED"], "REQUEUED"), (["COMPLETING"], "RUNNING"), (["REQUEUE_HOLD", "PENDING"], "PENDING"),
    ],
)  # fmt: skip
def test_state_lists(words: list[str], word: str) -> None:
    assert values.parse_states(words) == word


@pytest.mark.parametrize("text", ["", "DONE", "4711", "COMPLETED,FAILED"])
def test_state_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a job state"):
        values.parse_state(text)


def test_a_count_beyond_all_clusters_is_none():
    with pytest.raises(ValueError, match="not a count"):
        values.parse_count("99999999999999999999")
    assert values.as_ints(np.array([3.0, np.nan, np.inf, 1e25])).tolist() == [3, 0, 0, 10**15]
