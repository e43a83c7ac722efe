"""The files of a dry run: complete, self-contained, escaped, the same bytes for the same input."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from dryrun_sample import NASTY, POLICIES, make_jobs, make_result, make_run
from hypothesis import given
from hypothesis import strategies as st

from tias_slurm.errors import InputError
from tias_slurm.replay import figures
from tias_slurm.replay.output import replacing, write_text
from tias_slurm.replay.report import WORST, render, write_report
from tias_slurm.replay.results import DryRun, Series
from tias_slurm.replay.tables import facts, fate, largest, write_jobs
from tias_slurm.replay.workload import Workload

VOID = {"meta", "link", "br", "hr", "img", "input", "use", "path", "col"}


class Page(HTMLParser):
    """Tags, attributes and text of a page, and whether its tags are nested well."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.faults: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.stack or self.stack.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def made() -> tuple[DryRun, Workload]:
    return make_run()


@pytest.fixture(scope="module")
def page(made: tuple[DryRun, Workload]) -> str:
    return render(*made)


def test_the_same_input_gives_the_same_bytes(made: tuple[DryRun, Workload], tmp_path: Path) -> None:
    again, work = make_run()
    again.elapsed_s = 77.0
    write_report(*made, tmp_path / "a")
    write_report(again, work, tmp_path / "b")
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "jobs.parquet",
        "metrics.json",
        "report.html",
    ]
    for name in ("report.html", "jobs.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    a, b = (json.loads((tmp_path / d / "metrics.json").read_text()) for d in "ab")
    assert (a.pop("elapsed_s"), b.pop("elapsed_s")) == (1.25, 77.0)
    assert a == b


def test_the_page_does_not_depend_on_the_process_or_a_matplotlibrc(page: str, tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("font.size: 31\nsvg.fonttype: path\naxes.grid: False\n")
    code = "import sys; from dryrun_sample import make_run; from tias_slurm.replay.report import render\n"
    code += "sys.stdout.buffer.write(render(*make_run()).encode())"
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    env = {**os.environ, "PYTHONHASHSEED": "5", "TZ": "Asia/Tokyo", "PYTHONPATH": paths}
    env["MATPLOTLIBRC"] = str(tmp_path / "matplotlibrc")
    other = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, timeout=60)
    assert other.stdout.decode() == page


def test_the_page_needs_no_network_and_runs_no_script(page: str) -> None:
    tags = Page(page).tags
    assert not {"script", "link", "iframe", "img", "object", "base"} & {t for t, _ in tags}
    for tag, attrs in tags:
        for key in ("src", "href", "xlink:href", "action", "data", "srcset"):
            assert (attrs.get(key) or "#").startswith("#"), (tag, attrs)
        assert not any(k.startswith("on") for k in attrs)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    addresses = set(re.findall(r"https?://[^\"'\s<>]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "default-src 'none'" in page


def test_the_page_is_well_formed_and_accessible(page: str) -> None:
    parsed = Page(page)
    assert parsed.faults == []
    assert parsed.stack == []
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, attrs in parsed.tags:
        if tag == "svg":
            assert attrs["role"] == "img"
            assert len(attrs["aria-label"] or "") > 40
        for key in ("aria-labelledby", "xlink:href", "href"):
            if (value := attrs.get(key)) and not value.startswith("http"):
                assert value.lstrip("#") in ids
    names = [t for t, _ in parsed.tags]
    assert names.count("svg") == 4
    assert names.count("table") == names.count("caption") > 3
    for url in re.findall(r"url\(#([^)]+)\)", page):
        assert url in ids


def test_user_text_is_text(made: tuple[DryRun, Workload]) -> None:
    run, work = made
    jobs = work.jobs.copy()
    jobs["user"] = NASTY
    jobs["job_id"] = pd.Series(["1\x00\u202e<b>\udc80"] * len(jobs), dtype=object)
    sly = replace(run, notes=[NASTY, "a\x1b[31mb"], settings={"command": NASTY, NASTY: {"x": NASTY}})
    text = render(sly, replace(work, jobs=jobs))
    assert "<script" not in text
    assert "<b>" not in text
    for bad in "\x00\x1b\u202e\udc80":
        assert bad not in text
    assert Page(text).faults == []
    assert " ".join(Page(text).words).count('<script>alert("x")') > 20


def test_no_stand_in_colour_is_left_and_text_is_text(page: str) -> None:
    assert not re.search(r"#f[de]00[0-9a-f]{2}\b", page)
    assert "'DejaVu Sans'" not in page
    assert "var(--p-tias)" in page
    declared = set(re.findall(r"(--[\w-]+):", page))
    assert set(re.findall(r"var\((--[\w-]+)\)", page)) <= declared
    assert "deadlines missed (%)" in page


def test_the_sections_are_there(page: str) -> None:
    for part in ("summary", "policies", "plots", "worst", "assumed", "refused", "settings"):
        assert f'<section id="{part}"' in page
    words = " ".join("".join(Page(page).words).split())
    assert "sacct.txt, line 17" in words
    assert "A history holds only the last text of each comment." in words
    assert "1 job asks for more than any set of nodes" in words
    assert "ASSUMED" not in words
    assert "deadlines are ASSUMED (20 jobs)" in render(*make_run(50, POLICIES[:3], assumed=20))


def test_lists_of_jobs_are_bounded(made: tuple[DryRun, Workload], page: str) -> None:
    for table in re.findall(r'<table class="plain">.*?</table>', page, re.S):
        assert table.count("<tr>") <= WORST + 1
    run, work = made
    job = facts(work.jobs)
    on, base = (fate(job, run.policies[n].outcome) for n in ("tias@on", "multifactor"))
    worst = np.nanargmax(np.where(on.ran & base.ran, on.jct - base.jct, np.nan))
    section = page[page.index("Completed later under tias@on") :]
    first = section[section.index("<tbody>") :].split("</tr>")[0]
    assert f">{work.jobs['job_id'][worst]}<" in first


@pytest.mark.parametrize(
    ("n", "policies", "share"),
    [(0, POLICIES, 0.3), (1, POLICIES, 1.0), (30, ("fifo",), 0.0), (30, ("tias@off",), 1.0), (30, (), 0.3)],
)
def test_little_or_nothing_makes_a_page(
    n: int, policies: tuple[str, ...], share: float, tmp_path: Path
) -> None:
    path = write_report(*make_run(n, policies, share), tmp_path)
    assert Page(path.read_text()).faults == []
    assert pq.read_table(tmp_path / "jobs.parquet").num_rows == n * len(policies)


def test_a_large_run_stays_small(tmp_path: Path) -> None:
    jobs = make_jobs(60_000)
    rng = np.random.default_rng(3)
    results = {}
    for name in ("multifactor", "las", "tias@off", "tias@on"):
        start = jobs["first_submit"].to_numpy() + rng.exponential(9000, len(jobs))
        results[name] = make_result(jobs, name, start)
    run, work = make_run(20)
    run.policies = results
    path = write_report(run, replace(work, jobs=jobs), tmp_path)
    assert path.stat().st_size < 500_000


def test_parquet_holds_each_job_under_each_policy(made: tuple[DryRun, Workload], tmp_path: Path) -> None:
    run, work = made
    write_jobs(tmp_path / "jobs.parquet", work.jobs, run.policies)
    table = pq.read_table(tmp_path / "jobs.parquet")
    job = ["job_id", "policy", "user", "partition", "gpus", "weight", "submit", "deadline"]
    assert table.column_names == [*job, "start", "end", "wait", "jct", "missed", "requeues", "lost_gpu_s"]
    assert not table.schema.metadata
    df = table.to_pandas()
    assert list(df["policy"].unique()) == list(run.policies)
    for name, p in run.policies.items():
        part = df[df["policy"] == name].reset_index(drop=True)
        assert list(part["job_id"]) == list(work.jobs["job_id"])
        assert part["missed"].sum() == p.metrics["missed"]
        assert part["missed"].notna().sum() == p.metrics["deadline_jobs"]
        other = part[(part["gpus"] > 0) & part["deadline"].isna()]
        assert other["jct"].mean() == pytest.approx(p.metrics["jct_mean_s"])
        assert other["wait"].mean() == pytest.approx(p.metrics["wait_mean_s"])
        assert part["requeues"].sum() == p.metrics["requeues"]
    cancelled = df[df["job_id"] == work.jobs["job_id"][5]]
    assert cancelled[["start", "jct", "wait"]].isna().all(axis=None)


def test_files_are_private_and_whole(made: tuple[DryRun, Workload], tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        path = write_report(*made, tmp_path / "new" / "out")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()} == {0o640}
    with pytest.raises(ZeroDivisionError), replacing(path) as temp:
        temp.write_text(f"half {1 // 0}")
    assert "<html" in path.read_text()
    assert len(list(path.parent.iterdir())) == 3


def test_an_out_that_cannot_be_written_is_one_line(made: tuple[DryRun, Workload], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "taken" / "report.html").mkdir(parents=True)
    for out in (file, file / "below", tmp_path / "taken", Path("/proc/none"), tmp_path / ("x" * 300)):
        with pytest.raises(InputError) as e:
            write_report(*made, out)
        assert "\n" not in str(e.value)
        assert str(out) in str(e.value)
        assert "--out" in str(e.value)
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "absent" / "x", "x")


@pytest.mark.parametrize("module", ["jinja2", "matplotlib", "pyarrow"])
def test_a_missing_extra_says_what_to_install(
    module: str, made: tuple[DryRun, Workload], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        InputError,
        match=r"tias-slurm\[replay\] brings it, in an environment: .*bin/pip install '\.\[replay\]'",
    ):
        write_report(*made, tmp_path / "out")
    assert not (tmp_path / "out" / "report.html").exists()
    assert not list(tmp_path.glob("out/.*"))


@given(st.lists(st.floats(-1e9, 1e9) | st.just(float("nan")), max_size=600))
def test_a_distribution_is_thin_and_ascends(values: list[float]) -> None:
    x, share = figures.distribution(np.array(values, dtype=np.float64))
    assert len(x) == len(share) <= max(figures.POINTS, 0)
    assert (np.diff(x) >= 0).all()
    assert (np.diff(share) > 0).all()
    finite = [v for v in values if v == v]
    if finite:
        assert (x[0], x[-1]) == (min(finite), max(finite))
        assert share[-1] == 1.0


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=2, max_size=40), st.integers(1, 30)
)
def test_bins_keep_the_area_under_the_series(steps: list[tuple[int, int]], bins: int) -> None:
    time = np.cumsum([s for s, _ in steps]).astype(np.float64)
    values = np.array([v for _, v in steps])
    edges = np.linspace(time[0], time[-1], bins + 1)
    means = figures.binned(Series(time, values, values, values), values, edges)
    area = float((values[:-1] * np.diff(time)).sum())
    assert float((means * np.diff(edges)).sum()) == pytest.approx(area, abs=1e-6)
    assert means.min() >= values.min() - 1e-9
    assert means.max() <= values.max() + 1e-9


@given(st.lists(st.integers(-5, 5).map(float) | st.just(float("nan")), max_size=60), st.integers(1, 10))
def test_largest_is_a_stable_top(values: list[float], keep: int) -> None:
    rows = largest(np.array(values, dtype=np.float64), keep)
    expected = sorted((i for i, v in enumerate(values) if v > 0), key=lambda i: (-values[i], i))[:keep]
    assert list(rows) == expected
