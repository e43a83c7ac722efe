"""The JSON document and the terminal: stable keys, no NaN, plain sentences that follow the numbers."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from dryrun_sample import NASTY, make_run
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tias_slurm.replay import wording
from tias_slurm.replay.document import POLICY_KEYS, dumps, plain, to_document
from tias_slurm.replay.results import DryRun
from tias_slurm.replay.table import print_tables

COLOURS = {False: "auto", True: "truecolor"}
STABLE = {
    "input": {"files", "rows", "jobs", "refused"},
    "deadlines": {"found", "refused", "assumed"},
    "cluster": {"nodes", "gpus", "inferred"},
    "replayed_vs_recorded": {"start_tau", "start_error_median_s"},
}


@pytest.fixture(scope="module")
def run() -> DryRun:
    return make_run()[0]


def with_metrics(run: DryRun, name: str, **changed: float | int | None) -> DryRun:
    """The run with some measures of one policy changed."""
    p = run.policies[name]
    new = replace(p, metrics={**p.metrics, **changed})
    return replace(run, policies={**run.policies, name: new})


def shown(run: DryRun, width: int = 110, terminal: bool = False) -> str:
    out = io.StringIO()
    print_tables(run, Console(file=out, width=width, force_terminal=terminal, color_system=COLOURS[terminal]))
    return out.getvalue()


def test_the_documented_keys_are_there(run: DryRun) -> None:
    doc = json.loads(dumps(to_document(run)))
    for part, keys in STABLE.items():
        assert keys <= set(doc[part])
    assert list(doc["policies"]) == list(run.policies)
    for p in doc["policies"].values():
        assert set(POLICY_KEYS) <= set(p)
    assert doc["elapsed_s"] == 1.25
    assert doc["deadlines"]["refused_by_reason"] == {"deadline before submit": 4}
    assert doc["refused_examples"][0]["detail"] == NASTY


def test_counts_are_integers_whatever_they_were(run: DryRun) -> None:
    doc = to_document(with_metrics(run, "tias@on", missed=np.float64(7.0), unfinished=np.int32(2)))
    for key in ("deadline_jobs", "missed", "non_deadline_jobs", "requeues", "writes", "unfinished"):
        assert type(doc["policies"]["tias@on"][key]) is int
    assert doc["policies"]["tias@on"]["missed"] == 7
    assert all(type(doc["input"][k]) is int for k in STABLE["input"])


def test_nan_and_infinity_become_null(run: DryRun) -> None:
    bad = with_metrics(run, "fifo", deadline_miss_rate=math.nan, jct_mean_s=np.float64("nan"))
    bad = replace(bad, replayed_vs_recorded={"start_tau": math.nan, "start_error_median_s": None})
    text = dumps(to_document(bad))
    doc = json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    assert doc["policies"]["fifo"]["deadline_miss_rate"] is None
    assert doc["policies"]["fifo"]["jct_mean_s"] is None
    assert doc["replayed_vs_recorded"]["start_tau"] is None
    assert doc["settings"]["cap"] is None


def test_the_same_run_gives_the_same_text(run: DryRun) -> None:
    again = make_run()[0]
    again.elapsed_s = 99.0
    a, b = (to_document(r) for r in (run, again))
    assert a.pop("elapsed_s") != b.pop("elapsed_s")
    assert dumps(a) == dumps(b)
    assert dumps(a).endswith("}\n")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    )
)
def test_anything_becomes_json_that_reads_back(value: object) -> None:
    text = dumps({"settings": value})
    assert json.loads(text) == plain({"settings": value})
    text.encode("ascii")


def test_a_missing_measure_is_an_error_not_a_null(run: DryRun) -> None:
    p = run.policies["fifo"]
    short = {k: v for k, v in p.metrics.items() if k != "wait_mean_s"}
    with pytest.raises(KeyError, match="wait_mean_s"):
        to_document(replace(run, policies={"fifo": replace(p, metrics=short)}))


def test_the_table_fits_and_marks_what_nobody_can_run(run: DryRun) -> None:
    text = shown(run)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 120
    assert "…" not in text
    for name, p in run.policies.items():
        row = next(x for x in text.splitlines() if x.split()[:1] == [name])
        assert ("†" in row) is (not p.realisable)
        assert f"{p.metrics['missed']}/{p.metrics['deadline_jobs']}" in row
    assert "† knows the future" in text


def test_a_narrow_terminal_loses_columns_and_says_which(run: DryRun) -> None:
    text = shown(run, width=76, terminal=True)
    assert "No room for: writes" in " ".join(text.split())
    assert "…" not in text


def test_no_colour_where_the_output_is_no_terminal(run: DryRun) -> None:
    assert "\x1b" not in shown(run, width=80)
    assert "\x1b[2m" in shown(run, terminal=True)


def test_what_was_read_is_said_first(run: DryRun) -> None:
    text = " ".join(shown(run).split())
    assert "300 jobs from 415 rows in 1 file" in text
    assert "15 rows: 12 time that cannot be read; 3 cut line" in text
    assert "64 GPUs on 8 nodes, inferred from the history" in text
    assert "Kendall's tau 0.91, median start error 13 min" in text
    assert "ASSUMED" not in text
    assert "deadlines are ASSUMED (77 jobs)" in " ".join(shown(make_run(60, assumed=77)[0]).split())


def test_markup_in_the_input_is_text(run: DryRun) -> None:
    nasty = replace(run, input={**run.input, "refused_by_reason": {NASTY: 15}}, notes=["[/red] [link=x]"])
    text = shown(nasty)
    assert NASTY in text
    assert "[/red] [link=x]" in text


def test_findings_say_better_and_worse(run: DryRun) -> None:
    made = {"deadline_jobs": 100, "missed": 40, "deadline_miss_rate": 0.4, "jct_mean_s": 7200.0}
    made |= {"deadline_miss_rate_gpu_weighted": 0.2, "jct_p95_s": 1e4, "deadline_jct_mean_s": 100.0}
    made |= {"unfinished": 0}
    run = with_metrics(run, "multifactor", **made)
    good = with_metrics(run, "tias@on", **made | {"missed": 4, "deadline_miss_rate": 0.04})
    line = next(x for x in wording.findings(good) if x.startswith("tias@on"))
    assert "misses 4 of 100 deadlines (4.0%) where multifactor misses 40 (40.0%; 90% fewer)" in line
    assert not [x for x in wording.findings(good) if x.startswith(f"{wording.WORSE}tias@on")]
    worse = made | {"missed": 41, "deadline_miss_rate": 0.41, "jct_mean_s": 9000.0, "unfinished": 1}
    worse |= {"deadline_miss_rate_gpu_weighted": 0.3, "jct_p95_s": 2e4, "deadline_jct_mean_s": 200.0}
    both = wording.findings(with_metrics(run, "tias@on", **worse))
    line = next(x for x in both if x.startswith("tias@on"))
    assert "misses 41 of 100 deadlines (41.0%) where multifactor misses 40 (40.0%; 2% more)" in line
    assert "2.50 h instead of 2.00 h (25% more)" in line
    line = next(x for x in both if x.startswith("Worse under tias@on"))
    for text in ("more deadlines are missed", "take longer on average", "from 20.0% to 30.0%"):
        assert text in line
    assert "2.0 times as long" in line
    assert "1 job never ended" in line


def test_findings_without_deadlines_or_without_tias() -> None:
    none = make_run(40, ("multifactor", "tias@on"), share=0.0)[0]
    lines = wording.findings(none)
    assert lines[0].startswith("No job that ran has a deadline")
    assert "misses" not in " ".join(lines)
    assert "no pair" in wording.findings(make_run(40, ("fifo", "las"))[0])[0]
    empty = make_run(0, ("multifactor", "tias@on"))[0]
    assert "cannot be compared" in " ".join(wording.findings(empty))
    assert "policy" in shown(empty)


def test_consent_is_priced(run: DryRun) -> None:
    line = wording.findings(run)[-1]
    assert line.startswith("What consent to requeue by 40.0% of the jobs buys (tias@on beside tias@off)")
    assert f"{run.policies['tias@on'].metrics['requeues']} requeues" in line
    idle = with_metrics(run, "tias@on", requeues=0)
    assert "add it as @all" in wording.findings(idle)[-1]
    full = replace(run.policies["tias@on"], name="tias@all")
    both = replace(run, policies={**run.policies, "tias@all": full})
    assert wording.findings(both)[-2] == line
    assert "by every job buys (tias@all beside tias@off)" in wording.findings(both)[-1]


@pytest.mark.parametrize(
    ("tau", "word"),
    [(0.97, "very closely"), (0.9, "well"), (0.7, "roughly"), (0.1, "badly"), (None, "cannot")],
)
def test_fidelity_in_words(run: DryRun, tau: float | None, word: str) -> None:
    r = {"start_tau": tau, "start_error_median_s": 60.0}
    assert word in wording.fidelity_line(replace(run, replayed_vs_recorded=r))


@given(st.floats(allow_nan=True, allow_infinity=True) | st.none())
def test_numbers_for_people_are_short(x: float | None) -> None:
    for form in (wording.duration, wording.percent, wording.count, wording.amount):
        text = form(x)
        assert text
        assert "nan" not in text
        if x is None or (x == x and abs(x) < 1e6):
            assert len(text) <= 14


def test_numbers_for_people() -> None:
    seconds = (0, 5.25, 45, 90, 540, 3600, 5400, 20_232, 86_400, 9e5, 1e8)
    assert [wording.duration(s) for s in seconds] == (
        [
            "0 s",
            "5.2 s",
            "45 s",
            "1.5 min",
            "9.0 min",
            "60 min",
            "1.50 h",
            "5.62 h",
            "24.0 h",
            "10.4 d",
            "1,157 d",
        ]
    )
    fractions = (0.0, 1e-6, 0.0062, 0.051, 0.999, 1.0, None)
    assert [wording.percent(x) for x in fractions] == ["0%", "<0.01%", "0.62%", "5.1%", "99.9%", "100%", "–"]
    assert wording.change(3.0, 1.0) == "3.0 times as much"
    assert wording.change(1.0, 0.0) == ""
