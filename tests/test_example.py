"""The bundled example is what its generator makes, keeps the laws, and holds what its README promises."""

import gzip
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from laws import Stay, check_capacity, check_not_before, check_one_at_a_time

from tias_slurm.deadlines import read_comment

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import comments  # noqa: E402
import make_export  # noqa: E402
import virtual_site as site  # noqa: E402
import virtual_slurm  # noqa: E402

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(scope="module")
def bundled():
    return gzip.decompress((EXAMPLES / "cluster-export.txt.gz").read_bytes())


@pytest.fixture(scope="module")
def jobs():
    return virtual_slurm.history(make_export.SEED)


@pytest.fixture(scope="module")
def rows(bundled):
    """Records that no one broke, as dicts, steps left out."""
    lines = [line.decode("utf-8", "replace").split("|") for line in bundled.split(b"\n")[1:]]
    whole = (f for f in lines if len(f) == len(make_export.COLUMNS))
    records = (dict(zip(make_export.COLUMNS, f, strict=True)) for f in whole)
    return [r for r in records if "." not in r["JobID"]]


def test_the_generator_makes_the_bundled_files(bundled):
    # the text and not the packed bytes: zlib's vary with its version
    assert make_export.export_text() == bundled
    assert (EXAMPLES / "nodes.txt").read_text(encoding="utf-8") == make_export.nodes_text()


def test_another_seed_makes_another_history(jobs):
    other = virtual_slurm.history(make_export.SEED + 1, submissions=300)
    assert [j.submit for j in other[:50]] != [j.submit for j in jobs[:50]]


def test_the_true_history_keeps_the_laws(jobs):
    stays, eligible = [], {}
    for job in jobs:
        for number, run in enumerate(job.runs):
            if run.start is None:
                continue
            share = {
                "gpus": job.gpus // job.nodes,
                "cpus": job.cpus // job.nodes,
                "mem_mb": job.mem_mb // job.nodes,
            }
            assert len(run.nodes) == job.nodes
            end = site.FINISH if run.end is None else run.end
            stays.append(Stay(id(job), run.start, end, dict.fromkeys(run.nodes, share)))
            eligible[id(job), number] = run.eligible
            check_not_before([Stay(0, run.start, end)], {0: run.eligible})
    for name, down, up in site.FAILURES:  # a node that is down does not run anything
        stays.append(Stay(name, down, up, {name: {"gpus": 8}}))
    nodes = {n.name: {"gpus": n.gpus, "cpus": n.cpus, "mem_mb": n.mem_mb} for n in site.make_nodes()}
    check_capacity(stays, nodes)
    check_one_at_a_time(stays)


def test_it_is_of_realistic_size_and_load(jobs):
    assert 5_000 < len(jobs) < 7_000
    assert len({j.user for j in jobs}) == 25
    assert len({j.account for j in jobs}) == 6
    busy = [0] * 4
    for job in jobs:
        for run in job.runs:
            if run.start is not None:
                for week in range(4):
                    a, b = site.BEGIN + week * 7 * site.DAY, site.BEGIN + (week + 1) * 7 * site.DAY
                    end = min(b, site.FINISH if run.end is None else run.end)
                    busy[week] += job.gpus * max(0, end - max(a, run.start))
    use = [b / (80 * 7 * site.DAY) for b in busy]
    assert all(0.6 < u <= 1 for u in use)
    assert max(use) > 0.88  # a phase in which policies differ
    waits = sorted(
        j.runs[0].start - j.runs[0].eligible for j in jobs if j.gpus and j.runs[0].start is not None
    )
    assert waits[len(waits) * 9 // 10] > 4 * site.HOUR


def test_every_kind_of_record_is_there(jobs, rows):
    states = Counter(r["State"].split(" by ")[0] for r in rows)
    for state in (
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"),
        *("REQUEUED", "PREEMPTED", "RUNNING", "PENDING"),
    ):
        assert states[state] > 0, state
    labels = [r["JobID"] for r in rows]
    assert any("_[" in x and r["State"] == "PENDING" for x, r in zip(labels, rows, strict=True))
    assert any("_[" in x and r["State"].startswith("CANCELLED") for x, r in zip(labels, rows, strict=True))
    assert sum("+" in x for x in labels) >= 4
    assert sum("_" in x for x in labels) > 1000
    assert {r["Partition"] for r in rows} >= {"gpu", "debug", "cpu"}
    assert any(r["State"].startswith("CANCELLED") and r["Start"] == "None" for r in rows)
    assert any(r["Eligible"] == "Unknown" for r in rows)
    assert any(r["Suspended"] != "00:00:00" and r["Suspended"].count(":") == 2 for r in rows)
    assert {"UNLIMITED"} <= {r["TimelimitRaw"] for r in rows}
    assert any(r["AllocTRES"].count("gres/gpu") == 1 and "a100" in r["AllocTRES"] for r in rows)
    ids = Counter(j.raw_id for j in jobs if j.raw_id)
    assert sum(n > 1 for n in ids.values()) == 25


def test_local_times_are_berlin_times(jobs):
    times = {t for j in jobs for r in j.runs for t in (r.submit, r.eligible, r.start, r.end) if t is not None}
    for time in times:
        want = datetime.fromtimestamp(time, BERLIN).replace(tzinfo=None).isoformat(timespec="seconds")
        assert comments.stamp(time) == want


def test_the_doubled_hour_is_used(jobs):
    doubled = [
        r
        for j in jobs
        for r in j.runs
        if r.start is not None and r.end is not None and comments.stamp(r.end) < comments.stamp(r.start)
    ]
    inside = [r for j in jobs for r in j.runs if r.end and abs(r.end - site.SUMMER_TIME_ENDS) < site.HOUR]
    assert inside
    assert all(abs(r.end - site.SUMMER_TIME_ENDS) < 2 * site.HOUR for r in doubled)


@pytest.mark.parametrize("form", comments.FORMS)
def test_a_deadline_means_what_its_writer_meant(form):
    dice = site.Dice(3)
    for _ in range(60):
        submit = dice.between(site.BEGIN, site.FINISH)
        time = submit + dice.between(600, 9 * site.DAY)
        text, means = comments.deadline_text(dice, submit, time, form)
        claim = read_comment(comments.dress(dice, text), first_submit=submit, zone=BERLIN)
        assert claim.refusals == ()
        near = abs(means - site.SUMMER_TIME_ENDS) <= site.HOUR  # a doubled hour is read as its first
        assert claim.deadline == means or (near and claim.deadline == means - site.HOUR)
        assert means >= time or form == "day"


def test_calendar_deadlines_are_on_the_hour_and_not_too_early():
    dice = site.Dice(4)
    for _ in range(200):
        earliest = dice.between(site.BEGIN, site.FINISH)
        clock = comments.local(time := comments.calendar_deadline(dice, earliest))
        assert (clock.hour, clock.minute, clock.second) in ((9, 0, 0), (18, 0, 0))
        assert earliest <= time <= earliest + 8 * site.DAY


@pytest.mark.parametrize(("kind", "text"), comments.REFUSED)
def test_what_should_be_refused_is_refused(kind, text, rows):
    submit = site.BEGIN + 10 * site.DAY
    filled = text.replace("{day}", "2026-10-16").replace("{past}", "2026-10-12")
    claim = read_comment(filled, first_submit=submit, zone=BERLIN)
    assert claim.refusals or (kind == "before the submit" and claim.deadline < submit)
    start = text.split("{")[0] or text
    assert any(r["Comment"].startswith(start) for r in rows), f"no row with {text}"


@pytest.mark.parametrize("text", comments.INNOCENT)
def test_innocent_comments_claim_nothing(text):
    claim = read_comment(text, first_submit=site.BEGIN, zone=BERLIN)
    assert claim.deadline is None
    assert not claim.holds_key


def test_about_a_third_of_the_gpu_jobs_have_a_deadline(rows):
    gpu = [r for r in rows if "gres/gpu" in r["ReqTRES"]]
    both = [r["Comment"] + " " + r["SubmitLine"] for r in gpu]
    share = sum("deadline=" in b.lower() or '"deadline"' in b for b in both) / len(gpu)
    assert 0.3 < share < 0.42


def test_the_dirt_that_the_readme_lists(bundled):
    lines = bundled.split(b"\n")
    header = lines[0]
    assert lines.count(header) == 2
    assert lines.count(b"") == 1
    assert sum(line.startswith(b"sacct: error") for line in lines) == 1
    assert sum("größe".encode("latin-1") in line for line in lines) == 3
    assert sum(b"|train|lr=0.1|bs=64|" in line for line in lines) == 3
    assert sum(line.endswith(b"|two") for line in lines) == 2
    assert sum(line.count(b"|") == 8 for line in lines) == 2
    assert sum(b"|INVALID|" in line for line in lines) == 2
    assert sum(b"gres/gpu=four" in line for line in lines) == 2
    assert sum(b"|COMPLETELY|" in line for line in lines) == 1
    assert sum(b"2026-13-45T99:00:00" in line for line in lines) == 1
    assert not bundled.endswith(b".sh")
    assert sum(n - 1 for line, n in Counter(lines).items() if line != header and n > 1) == 4
