"""`tias-slurm report`: figures that agree with what a week in the virtual cluster is known to have been."""

import importlib.util
import json
import os
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from lived_week import T0, live
from worlds import HOUR, replay

from tias_slurm.cli.report import moment
from tias_slurm.errors import InputError
from tias_slurm.ledger.remembered import Learned, Memory, take_claims, take_times
from tias_slurm.ledger.table import COLUMNS
from tias_slurm.replay.workload import Refusals, Workload
from tias_slurm.slurm.nodes import uniform
from tias_slurm.worth import as_they_stood, ended

NODES = "[[nodes]]\nname = 'n[1-2]'\ngpus = 8\n"


def iso(epoch):
    return datetime.fromtimestamp(epoch, UTC).isoformat()


@pytest.fixture(scope="module")
def weeks(tmp_path_factory):
    """Weeks that were lived once and are read by many tests."""
    made = {}

    def get(**options):
        key = tuple(sorted(options.items()))
        if key not in made:
            home = tmp_path_factory.mktemp("week")
            (home / "nodes.toml").write_text(NODES)
            made[key] = live(home, **options)
        return made[key]

    return get


def asked(cli, week, since, until, *more, code=0):
    done = cli(
        "report", "--config", week.config, "--export", week.export, "--nodes", week.home / "nodes.toml",
        "--since", iso(since), "--until", iso(until), *more,
    )  # fmt: skip
    assert done.code == code, done
    assert "Traceback" not in done.err
    return done


def document(cli, week, since, until, *more, code=0):
    return json.loads(asked(cli, week, since, until, "--json", *more, code=code).out)


def whole(week):
    return T0 - HOUR, float(np.ceil(week.end.max())) + 1


def test_what_was_done(cli, weeks):
    week = weeks()
    done = document(cli, week, *whole(week))["done"]
    assert week.requeues, "a week without a requeue shows nothing"
    assert done["writes"] == {"nice": {"ok": week.writes}}
    assert done["requeues"] == {"ok": len(week.requeues)}
    assert done["cycles"] == {"ok": week.cycles}
    assert done["most_at_once"]["overridden"] == 2
    assert done["requeued_jobs"] == len({job for _, job, _ in week.requeues})
    assert done["lost_gpu_hours"] == pytest.approx(sum(week.lost_gpu_s.values()) / 3600)
    assert done["lost_gpu_hours"] > 0
    told = [(m["time"], m["job_id"], m["for"]["job_id"]) for m in done["requeue_list"]]
    assert sorted(told) == sorted(week.requeues)
    for m in done["requeue_list"]:
        other = week.jobs[m["for"]["job_id"]]
        assert m["job"] == f"900_{m['job_id']}"
        assert m["user"] == week.jobs[m["job_id"]]["user"]
        assert m["for"]["deadline"] == bool(np.isfinite(other["deadline"]))
    due = sum(np.isfinite(week.jobs[o]["deadline"]) for *_, o in week.requeues)
    assert done["for_whom"]["deadline"] == due


def test_how_it_came_out(cli, weeks):
    week = weeks()
    out = document(cli, week, *whole(week))["outcome"]
    due = np.array([job["deadline"] for job in week.jobs])
    work = np.array([job["work"] for job in week.jobs])
    submit = np.array([job["submit"] for job in week.jobs])
    gpus = np.array([job["gpus"] for job in week.jobs])
    claims, late = np.isfinite(due), week.end > due
    assert (out["deadline_jobs"], out["missed"]) == (claims.sum(), late.sum())
    assert out["met"] == claims.sum() - late.sum()
    assert out["missed"] > 0
    assert out["jct_mean_s"] == pytest.approx((week.end - submit)[~claims].mean(), abs=1)
    # what requeued jobs had saved counts as their work, but for the time that restarts took
    assert out["deadline_miss_rate_gpu_weighted"] == pytest.approx(
        (work * gpus)[late].sum() / (work * gpus)[claims].sum(), abs=0.02
    )
    impossible = {f"900_{j}" for j in np.flatnonzero(claims & (submit + work > due))}
    assert impossible
    assert set(out["impossible_jobs"]) >= impossible
    assert out["impossible"] <= out["missed"]


def test_only_what_ended_in_that_time_counts(cli, weeks):
    week = weeks()
    since, until = T0 + 20 * HOUR, T0 + 40 * HOUR
    told = document(cli, week, since, until)
    inside = np.flatnonzero((week.end > since) & (week.end <= until))
    due = [j for j in inside if np.isfinite(week.jobs[j]["deadline"])]
    assert 5 < len(due) < len(week.jobs) / 2
    out, worth = told["outcome"], told["worth"]
    assert out["deadline_jobs"] == len(due)
    assert out["missed"] == len(week.missed(due))
    assert out["non_deadline_jobs"] == len(inside) - len(due)
    done = told["done"]
    assert sum(done["requeues"].values()) == sum(since <= t <= until for t, *_ in week.requeues)
    assert {m["deadline_jobs"] for m in worth["policies"].values()} == {len(due)}


def test_the_replay_without_the_daemon_is_that_of_a_dry_run(cli, weeks):
    """And which deadlines it would have missed is told by name."""
    week = weeks(requeue="off", seed=3)
    told = document(cli, week, *whole(week))["worth"]
    alone = replay(week.jobs, uniform(16, 8), "multifactor", trace=False).outcome
    due = {j for j, job in enumerate(week.jobs) if np.isfinite(job["deadline"])}
    late = {j for j in due if alone.end[j] > week.jobs[j]["deadline"]}
    saved = late - week.missed()
    assert saved, "a week in which the daemon did not help shows nothing"
    assert set(told["without"]["jobs_met_only_in_life"]) == {f"900_{j}" for j in saved}
    assert set(told["without"]["jobs_met_only_in_replay"]) == {f"900_{j}" for j in week.missed() - late}
    assert told["policies"]["multifactor"]["missed"] == len(late)


def test_a_life_that_was_the_model_shows_no_error_of_the_model(cli, weeks):
    week = weeks(requeue="off", seed=3)
    told = document(cli, week, *whole(week))["worth"]
    model = told["model"]
    assert model["policy"] == told["ours"] == "tias@off"
    assert (model["met_only_in_life"], model["met_only_in_replay"]) == (0, 0)
    assert model["deadline_jobs"] == model["met_in_both"] + model["missed_in_both"] > 20
    assert model["start_error_median_s"] == 0
    a, b = told["policies"]["recorded"], told["policies"]["tias@off"]
    assert a["jct_mean_s"] == pytest.approx(b["jct_mean_s"], abs=1)


def test_claims_that_the_comments_do_not_tell_are_known_to_the_ledger(cli, weeks, tmp_path):
    week = weeks()
    text = week.export.read_text().splitlines()
    # the epilog of every second job put its own text there
    bare = [line if i % 2 else line.replace("|deadline=", "|epilog=") for i, line in enumerate(text)]
    (tmp_path / "export.txt").write_text("\n".join(bare) + "\n")
    plain = document(cli, week, *whole(week))
    other = type(week)(week.home, week.config, tmp_path / "export.txt", week.jobs, week.start, week.end)
    told = document(cli, other, *whole(week))
    assert told["history"]["from_ledger"]["claims"] > 10
    assert told["outcome"] == plain["outcome"]


def test_first_submits_over_requeues_are_known_to_the_ledger(cli, weeks, tmp_path):
    """An export that no longer has the first runs, as sacct of a week."""
    week = weeks()
    cut = tmp_path / "cut.txt"
    cut.write_text("\n".join(x for x in week.export.read_text().splitlines() if "|REQUEUED|" not in x) + "\n")
    plain = document(cli, week, *whole(week))
    other = type(week)(week.home, week.config, cut, week.jobs, week.start, week.end)
    told = document(cli, other, *whole(week))
    assert told["history"]["from_ledger"]["first_submits"] == len({job for _, job, _ in week.requeues})
    for key in ("deadline_jobs", "missed", "jct_mean_s", "impossible"):
        assert told["outcome"][key] == plain["outcome"][key]


def test_another_job_of_the_same_number_is_not_taken_for_it(cli, weeks, tmp_path):
    """Ids come again: what the ledger has of number 5 is of a year ago."""
    week = weeks()
    later, rows = tmp_path / "later.txt", week.export.read_text().splitlines()
    shift = 400 * 24 * HOUR - 370 * 24 * HOUR
    made = [rows[0]]
    for text in rows[1:]:
        cells = text.split("|")
        for at in (8, 9, 10, 11):
            cells[at] = f"{float(cells[at]) + shift:.0f}"
        made.append("|".join(cells))
    later.write_text("\n".join(made) + "\n")
    other = type(week)(week.home, week.config, later, week.jobs, week.start, week.end)
    told = document(cli, other, T0 - HOUR + shift, float(week.end.max()) + shift + 2, code=3)
    assert told["history"]["from_ledger"]["jobs"] == 0
    assert told["outcome"] is not None


@pytest.mark.parametrize(("a", "b"), [(10, 50), (20, 60), (40, 90)])
def test_in_the_midst_of_a_life_the_replay_finds_what_there_was(cli, weeks, a, b):
    """Without requeues, and with a life that was the model, it goes on as life did."""
    week = weeks(requeue="off", seed=3)
    told = document(cli, week, T0 + a * HOUR, T0 + b * HOUR)
    model = told["worth"]["model"]
    assert model["deadline_jobs"] > 15
    assert model["met_only_in_life"] + model["met_only_in_replay"] <= 1
    life, ours = (told["worth"]["policies"][name]["jct_mean_s"] for name in ("recorded", "tias@off"))
    # on which nodes jobs stood the replay does not know, and so not how the free GPUs lay
    assert ours == pytest.approx(life, rel=0.2)


def table(**columns):
    n = len(next(iter(columns.values())))
    usual = {"runs": 1, "gpus": 1, "state": "COMPLETED", "lost_work": 0.0, "deadline": np.nan}
    made = pd.DataFrame({k: np.broadcast_to(v, n).copy() for k, v in {**usual, **columns}.items()})
    made["job_id"] = [str(i) for i in range(n)]
    return made


def test_jobs_as_they_stood():
    """Ran; ran, was requeued later; waited, had run before; waited; came later."""
    jobs = table(
        first_submit=[0.0, 0, 0, 0, 150],
        eligible=[0.0, 0, 0, 0, 160],
        first_start=[50.0, 60, 120, 130, 170],
        start=[50.0, 200, 120, 130, 170],
        work=[500.0, 500, 500, 500, 500],
        last_work=[400.0, 300, 350, 500, 500],
        kept_work=[0.0, 40, 0, 0, 0],
    )
    stood = as_they_stood(Workload(jobs, False, 1, 5, Refusals()), 100.0).jobs
    assert stood["eligible"].tolist() == [50, 60, 100, 100, 160]
    assert stood["work"].tolist() == [400, 340, 350, 500, 500]
    assert jobs["work"].tolist() == [500] * 5


def test_who_was_requeued_last_has_not_ended():
    jobs = table(end=[10.0, 10, 20, 20.5, np.nan, 15], state=["COMPLETED"] * 5 + ["REQUEUED"])
    assert ended(jobs, 10, 20).tolist() == [False, False, True, False, False, False]


def memory(jobs, **columns):
    rows = np.full((len(jobs), len(COLUMNS)), np.nan)
    for name in ("attained", "kept", "lost"):
        rows[:, COLUMNS.index(name)] = 0
    rows[:, COLUMNS.index("counts")] = 1
    for name, values in columns.items():
        rows[:, COLUMNS.index(name)] = values
    return Memory(np.ones(len(jobs), dtype=bool), rows)


def test_what_the_ledger_knows_better():
    jobs = table(first_submit=[100.0] * 3, work=[50.0] * 3, lost_work=[0.0, 30, 0], gpus=2)
    known = memory(jobs, first_submit=[10.0, 100, 100], kept=[70, 20, 0], attained=[2 * 90.0, 2 * 30, 0])
    known.known[2] = False
    told = take_times(jobs, known)
    assert (told.jobs, told.first_submits, told.kept) == (2, 1, 2)
    assert jobs["first_submit"].tolist() == [10, 100, 100]
    assert jobs["work"].tolist() == [120, 70, 50]
    # what was lost before the history began is known from the service
    assert jobs["lost_work"].tolist() == [20, 10, 0]
    assert (jobs["last_work"].tolist(), jobs["kept_work"].tolist()) == ([50] * 3, [0, 20, 0])


def test_claims_as_they_held():
    jobs = table(deadline=[np.nan, 50.0, 60.0, 70.0, np.nan, 80.0])
    known = memory(jobs, claim=[40.0, 55, np.nan, 70, np.nan, np.nan], counts=[1, 1, 1, 0, 1, 1],
                   lost=[0, 0, 0, 0, 1, 0])  # fmt: skip
    known.known[5] = False
    told = take_claims(jobs, known, Learned())
    assert np.array_equal(jobs["deadline"], [40, 55, np.nan, np.nan, np.nan, 80], equal_nan=True)
    assert (told.claims, told.moved, told.not_held, told.over_quota, told.withdrawn) == (1, 1, 1, 1, 1)


# ---- the page, and what there may not be


def test_the_page(cli, weeks):
    week = weeks()
    out = asked(cli, week, *whole(week)).out
    for words in (
        "What was done",
        "How it came out",
        "What it was worth",
        "replay without it",
        "The replay is a model",
    ):
        assert words in out
    assert f"{week.writes} ok" in out


def test_files_of_the_replays(cli, weeks, tmp_path):
    week = weeks()
    asked(cli, week, *whole(week), "--out", tmp_path / "out")
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["decisions.jsonl", "jobs.parquet", "metrics.json", "report.html"]
    assert set(json.loads((tmp_path / "out" / "metrics.json").read_text())["policies"]) == {
        "recorded", "multifactor", "tias@on",
    }  # fmt: skip


def test_a_dry_run_says_so(cli, weeks):
    week = weeks(mode="dry-run", requeue="off", n=40)
    told = document(cli, week, *whole(week))
    assert told["dry_run"]
    assert told["done"]["writes"] == {"nice": {"dry run": week.writes}}
    out = asked(cli, week, *whole(week)).out
    assert "What would have been done" in out
    assert "sent nothing" in out


def test_a_time_without_a_record(cli, weeks):
    week = weeks()
    later = float(week.end.max()) + 30 * 24 * HOUR
    done = asked(cli, week, later, later + HOUR, code=3)
    assert "the ledger has no record of that time" in done.out
    assert "not there in that time" in done.out


def test_no_ledger(cli, tmp_path, weeks):
    week = weeks()
    (tmp_path / "c.toml").write_text(f'[daemon]\nstate_dir = "{tmp_path}"\n')
    done = cli("report", "--config", tmp_path / "c.toml", "--export", week.export)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no ledger; has the daemon run?" in done.err
    assert not list(tmp_path.glob("*.sqlite"))


def fake_sacct(directory, monkeypatch, script):
    """A command of that name whose words are known: what it says when it fails."""
    path = directory / "sacct"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_sacct_that_does_not_answer(cli, weeks, tmp_path, monkeypatch):
    week = weeks()
    words = ("report", "--config", week.config, "--since", "7d")
    fake_sacct(tmp_path, monkeypatch, "echo 'sacct: error: slurmdbd: Connection refused' >&2; exit 1")
    done = cli(*words)
    assert done.code == 1
    assert "sacct: sacct: error: slurmdbd: Connection refused; --export FILE" in done.err
    assert done.err.count("\n") == 1
    fake_sacct(tmp_path, monkeypatch, "echo 'Cluster|JobID'")
    done = cli(*words)
    assert done.code == 3
    assert "sacct knows of no job in that time" in done.out
    (tmp_path / "sacct").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    done = cli(*words)
    assert (done.code, "sacct: not found in PATH" in done.err) == (1, True)


def test_without_the_replay_extra(cli, weeks, monkeypatch, tmp_path):
    """The daemon's machine seldom has it: only the page is not to be had there."""
    week = weeks()
    plain = document(cli, week, *whole(week))
    absent = ("scipy", "scipy.stats", "jinja2", "matplotlib", "pyarrow")
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda m, *a: None if m in absent else there(m, *a))
    told = document(cli, week, *whole(week))
    assert told["worth"]["model"]["start_tau"] is None
    for part in ("without", "model"):
        assert plain["worth"][part].pop("start_tau") is not None
        told["worth"][part].pop("start_tau")
    assert told["worth"].pop("elapsed_s") > 0
    plain["worth"].pop("elapsed_s")
    assert told == plain
    done = asked(cli, week, *whole(week), "--out", tmp_path / "out", code=2)
    assert (done.out, done.err.count("\n")) == ("", 1)
    assert "tias-slurm[replay]" in done.err


@pytest.mark.parametrize(
    ("text", "back"),
    [("7d", 7 * 86400), ("36h", 36 * 3600), ("2w", 14 * 86400), ("90M", 5400), (" 1d ", 86400)],
)
def test_spans_count_back(text, back):
    assert moment("--since", text, ZoneInfo("UTC"), 1e9) == 1e9 - back


def test_times_are_of_the_sites_zone():
    berlin = ZoneInfo("Europe/Berlin")
    assert moment("--since", "2026-11-23", berlin, 0) == datetime(2026, 11, 22, 23, tzinfo=UTC).timestamp()
    assert (
        moment("--since", "2026-11-23T08:00Z", berlin, 0) == datetime(2026, 11, 23, 8, tzinfo=UTC).timestamp()
    )


@pytest.mark.parametrize(
    "text", ["", "7", "yesterday", "7d7", "-7d", "9999999d", "0001-01-01", "\x1b[2J", "2026-02-30"]
)
def test_times_that_are_none(cli, weeks, text):
    week = weeks()
    done = cli("report", "--config", week.config, "--export", week.export, f"--since={text}")
    assert (done.code, done.err.count("\n")) == (2, 1), done
    assert "\x1b" not in done.err


def test_moment_raises_nothing_else():
    for text in ("99999-01-01", "2026-01-01T00:00+99:00", "٧d"):
        with pytest.raises(InputError):
            moment("--since", text, ZoneInfo("UTC"), 1e9)


def test_the_ledger_is_read_and_not_written(cli, weeks):
    week = weeks()
    before = {p.name: p.read_bytes() for p in (week.home / "state").iterdir() if p.suffix == ".sqlite"}
    asked(cli, week, *whole(week))
    after = {p.name: p.read_bytes() for p in (week.home / "state").iterdir() if p.suffix == ".sqlite"}
    assert before == after
