"""The command from its arguments to what it prints and writes."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import T0, Cli, export, row
from reference_simulators import simulate

COMMAND = [sys.executable, "-c", "from tias_slurm.cli import main; main()"]
POLICY_KEYS = {
    *("deadline_jobs", "missed", "deadline_miss_rate", "deadline_miss_rate_gpu_weighted"),
    *("deadline_jct_mean_s", "non_deadline_jobs", "jct_mean_s", "jct_median_s", "jct_p95_s", "wait_mean_s"),
    *("gpu_utilisation", "requeues", "gpu_hours_lost", "writes", "unfinished"),
}


# --- what it prints


def test_json_is_one_document_and_nothing_else(cli: Cli, history: Path) -> None:
    done = cli(
        "dry-run", history, "--gpus", 8, "--json", "--policies", "recorded,fifo,tias@on,tias:guard@off"
    )
    assert (done.code, done.err) == (0, "")
    doc = json.loads(done.out)
    assert list(doc["policies"]) == ["recorded", "fifo", "tias@on", "tias:guard@off"]  # the names as given
    assert {k: doc["input"][k] for k in ("files", "rows", "jobs", "refused")} == {
        "files": 1,
        "rows": 60,
        "jobs": 60,
        "refused": 0,
    }
    assert {k: doc["deadlines"][k] for k in ("found", "refused", "assumed")} == {
        "found": 20,
        "refused": 0,
        "assumed": 0,
    }
    assert {k: doc["cluster"][k] for k in ("nodes", "gpus", "inferred")} == {
        "nodes": 1,
        "gpus": 8,
        "inferred": False,
    }
    assert doc["replayed_vs_recorded"]["start_tau"] == pytest.approx(0.9, abs=0.1)
    assert doc["elapsed_s"] > 0
    for measures in doc["policies"].values():
        assert set(measures) >= POLICY_KEYS
        assert measures["deadline_jobs"] == 20
        assert measures["non_deadline_jobs"] == 40
        assert isinstance(measures["missed"], int)
        assert measures["deadline_miss_rate"] == measures["missed"] / 20


def test_nothing_to_measure_is_null(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("job_id,submit_time,duration,num_gpu\na,0,10,1\n", encoding="utf-8")
    doc = json.loads(cli("dry-run", path, "--gpus", 1, "--json", "--policies", "fifo").out)
    assert doc["policies"]["fifo"]["deadline_miss_rate"] is None
    assert doc["policies"]["fifo"]["deadline_jct_mean_s"] is None
    assert doc["replayed_vs_recorded"]["start_tau"] is None
    assert doc["policies"]["fifo"]["jct_mean_s"] == 10.0


def test_tables_by_default(cli: Cli, history: Path, tmp_path: Path) -> None:
    done = cli("dry-run", history, "--out", "report")
    assert (done.code, done.err) == (0, "")  # no progress bar where nobody looks
    assert "60 jobs from 60 rows in 1 file" in done.out
    for name in ("recorded", "multifactor", "deadline-qos", "tias@off", "tias@on", "oracle-srtf †"):
        assert f"\n {name} " in done.out
    assert done.out.endswith("Report: report/report.html\n")
    assert done.out.count("inferred from the history") == 1
    assert sorted(os.listdir(tmp_path / "report")) == [
        "decisions.jsonl",
        "jobs.parquet",
        "metrics.json",
        "report.html",
    ]
    assert list(json.loads((tmp_path / "report/metrics.json").read_text(encoding="utf-8"))["policies"]) == [
        *("recorded", "fifo", "multifactor", "edf", "deadline-qos", "las", "aemon"),
        *("tias@off", "tias@on", "tias@all", "oracle-srtf", "oracle-laxity"),
    ]


def test_how_to_export(cli: Cli) -> None:
    done = cli("dry-run", "--how-to-export")
    assert done.code == 0
    assert done.out.count("\n") == 1
    assert "sacct" in done.out
    assert "AllocTRES" in done.out


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version").out.startswith("tias-slurm ")
    assert "dry-run" in cli("--help").out
    done = cli("dry-run", "--help")
    assert done.code == 0
    assert "--assume-deadlines" in done.out


# --- what it takes


@pytest.mark.parametrize(
    "fold", [gzip.compress, lzma.compress, lambda b: __import__("zstandard").compress(b)]
)
def test_packed_and_several_files(cli: Cli, tmp_path: Path, fold: Callable[[bytes], bytes]) -> None:
    for part in range(2):
        rows = (row(i, Comment="deadline=+2h") for i in range(20 * part, 20 * part + 25))  # 5 in both
        plain = export(tmp_path / f"{part}.txt", *rows).read_bytes()
        (tmp_path / f"{part}.packed").write_bytes(fold(plain))
    options = ("--gpus", 8, "--json", "--policies", "fifo")
    doc = json.loads(cli("dry-run", "0.packed", "1.packed", *options).out)
    assert (doc["input"]["files"], doc["input"]["rows"], doc["input"]["jobs"]) == (2, 50, 45)
    assert doc["input"]["left_out"] == {"duplicate rows": 5}
    turned = json.loads(cli("dry-run", "1.packed", "0.packed", *options).out)
    assert turned["policies"] == doc["policies"]


def test_where_deadlines_stand(cli: Cli, tmp_path: Path) -> None:
    path = export(
        tmp_path / "x",
        row(1, Comment="deadline=+2h"),
        row(2, SubmitLine="sbatch --comment=deadline=+3h x"),
        row(3, Deadline=T0 + 9000),
        row(4, Comment="deadline=18:00", Deadline=T0 + 9000),  # refused, and then no other is looked for
        row(5, Comment="done", SubmitLine="sbatch --comment 'deadline=+1h, requeue=yes' x"),
        row(6),
    )
    doc = json.loads(cli("dry-run", path, "--gpus", 8, "--json", "--policies", "fifo").out)
    assert doc["deadlines"]["by_source"] == {"submit_line": 2, "comment": 1, "native": 1}
    assert (doc["deadlines"]["found"], doc["deadlines"]["refused"]) == (4, 1)
    assert sum(doc["deadlines"]["refused_by_reason"].values()) == 1
    assert any("last text" in note for note in doc["notes"])


def test_assumed_deadlines_are_called_so_everywhere(cli: Cli, tmp_path: Path) -> None:
    path = export(tmp_path / "x", *(row(i) for i in range(40)))
    options = ("--assume-deadlines", "share=0.5,slack=0.5..2,seed=1", "--policies", "fifo,tias")
    done = cli("dry-run", path, "--gpus", 8, "--out", "o", *options)
    assert "ASSUMED" in done.out
    assert "ASSUMED" in (tmp_path / "o/report.html").read_text(encoding="utf-8")
    doc = json.loads((tmp_path / "o/metrics.json").read_text(encoding="utf-8"))
    assert doc["deadlines"]["found"] == 0
    assert doc["deadlines"]["assumed"] == doc["policies"]["fifo"]["deadline_jobs"] > 0
    assert any("assumed" in note for note in doc["notes"])


def test_relative_deadlines_of_a_trace(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,at,len,num_gpu,allowed\na,0,10,1,10\nb,0,10,1,19.5\nc,0,1,1,\n", encoding="utf-8")
    columns = "job_id=id,submit_time=at,duration=len,deadline=+allowed"
    options = ("--columns", columns, "--time-unit", "min", "--gpus", 1, "--policies", "fifo", "--json")
    fifo = json.loads(cli("dry-run", path, *options).out)["policies"]["fifo"]
    assert (fifo["deadline_jobs"], fifo["missed"]) == (2, 1)  # b ends after 20 minutes
    assert fifo["jct_mean_s"] == 21 * 60


@pytest.mark.parametrize(("option", "stops"), [("on", True), ("off", False)])
def test_preemption_decides_where_the_name_does_not(cli: Cli, trace: Path, option: str, stops: bool) -> None:
    names = "fifo,las,tias,tias@on,tias@off,tias@all"
    done = cli("dry-run", trace, "--gpus", 4, "--json", "--preemption", option, "--policies", names)
    policies = json.loads(done.out)["policies"]
    assert {n: p["preemption"] for n, p in policies.items()} == {
        "fifo": False,
        "las": stops,
        "tias": stops,
        "tias@on": True,
        "tias@off": False,
        "tias@all": True,
    }
    same = policies["tias@on" if stops else "tias@off"]
    assert {k: policies["tias"][k] for k in POLICY_KEYS} == {k: same[k] for k in POLICY_KEYS}
    assert policies["tias@off"]["requeues"] == 0


@pytest.mark.parametrize("seed", range(6))
def test_textbook_policies_agree_with_a_plain_simulator(cli: Cli, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    n, capacity = dice.choice((1, 20, 60)), dice.choice((1, 4, 8))
    submit = [dice.randrange(n) for _ in range(n)]  # many at once, in no order
    work = [dice.randrange(12) for _ in range(n)]  # some without any
    gpus = [dice.choice((1, 1, 2, 4, 16)) for _ in range(n)]  # some that never fit
    gpus[0] = 1
    path = tmp_path / "t.csv"
    lines = [f"j{i},{s},{w},{g}" for i, (s, w, g) in enumerate(zip(submit, work, gpus, strict=True))]
    path.write_text("\n".join(("job_id,submit_time,duration,num_gpu", *lines)) + "\n", encoding="utf-8")
    names = ("fifo-strict", "fifo-fit", "srtf", "srsf")
    options = ("--gpus", capacity, "--placement", "count", "--json", "--policies", ",".join(names))
    doc = json.loads(cli("dry-run", path, *options).out)
    for name in names:
        _, ends, stopped = simulate(name, submit, work, gpus, capacity)
        jct = np.array([float(e - s) for e, s in zip(ends, submit, strict=True) if e is not None])
        wait = [float(e - s - w) for e, s, w in zip(ends, submit, work, strict=True) if e is not None]
        measures = doc["policies"][name]
        assert measures["non_deadline_jobs"] == len(jct)
        assert measures["jct_mean_s"] == pytest.approx(jct.mean(), rel=1e-12)
        assert measures["jct_median_s"] == np.median(jct)
        assert measures["jct_p95_s"] == pytest.approx(np.percentile(jct, 95), rel=1e-12)
        assert measures["wait_mean_s"] == pytest.approx(np.mean(wait), rel=1e-12, abs=1e-12)
        assert measures["requeues"] == sum(stopped)


def test_the_same_input_gives_the_same_bytes(history: Path, tmp_path: Path) -> None:
    outputs, files = [], []
    for seed in ("1", "2"):  # of Python's own hashes, which order sets
        arguments = ["dry-run", "export.txt", "--gpus", "8", "--out", seed, "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [*COMMAND, *arguments], cwd=tmp_path, capture_output=True, check=True, env=environment
        )
        assert done.stderr == b""
        document = json.loads(done.stdout)
        written = json.loads((tmp_path / seed / "metrics.json").read_text(encoding="utf-8"))
        assert [written.pop("elapsed_s")] == [document.pop("elapsed_s")]
        assert written == document
        outputs.append(json.dumps(document))
        files.append(
            {p.name: p.read_bytes() for p in (tmp_path / seed).iterdir() if p.name != "metrics.json"}
        )
    assert outputs[0] == outputs[1]
    assert files[0] == files[1]
    assert len(files[0]) == 3
