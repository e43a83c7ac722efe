"""A small cut of the evaluation: the program that makes the tables, on a made-up trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
import evaluation
from tables import sections


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as DATA: 250 jobs of hours, up to a node wide."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(5)
    n = 250
    submits = np.sort(rng.integers(0, 4 * 86_400, n))
    lines = ["job_id,submission_time,duration,num_gpu"]
    for i, at in enumerate(submits.tolist()):
        hours, gpus = rng.lognormal(0.3, 1.0), rng.choice([1, 2, 4, 8])
        lines.append(f"j{i},{at},{int(3600 * hours) + 60},{gpus}")
    (root / "traces/elasticflow").mkdir(parents=True)
    (root / "traces/elasticflow/cluster02.csv").write_text("\n".join(lines) + "\n")
    return root


def test_every_policy_on_a_small_trace(data: Path, tmp_path: Path) -> None:
    cases = [c for c in evaluation.cases(True, ("cluster02",)) if c.deadlines == "proportional"]
    assert {c.policy for c in cases} == {*evaluation.BLIND, *evaluation.ALL}
    assert len({c.key() for c in cases}) == len(cases)
    rows = [evaluation.run(data, case) for case in cases]
    found = {(r["policy"], r["consent"]): r for r in rows}
    assert all(r["unfinished"] == 0 and r["jobs"] == 250 for r in rows)
    assert all(0 <= r["miss"] <= 1 and 0 <= r["miss_gpu"] <= 1 for r in rows)
    assert all(r["requeues"] == 0 for r in rows if r["consent"] == 0)
    # the presets miss far less than an order that knows no deadlines, with requeues and without
    for consent in (1.0, 0.0):
        assert found["tias:jct-first", consent]["miss"] < 0.7 * found["fifo", 0.0]["miss"]
    # nobody waits for the thirty days of the bound here
    assert found["tias", 1.0]["miss"] == found["tias:jct-first", 1.0]["miss"]
    # results that are kept are known again
    kept = tmp_path / "results.jsonl"
    kept.write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert set(evaluation.known(kept)) == {c.key() for c in cases}
    text = "\n".join(sections(rows))
    assert "### cluster02, proportional deadlines" in text
    assert "Consent 100%" in text
    assert "Consent 0%" in text
    for policy in (*evaluation.BLIND, *evaluation.ALL):
        assert f"| {policy}" in text


def test_tables_of_a_run_that_was_stopped(data: Path) -> None:
    cases = [c for c in evaluation.cases(True, ("cluster02",)) if c.deadlines == "calendar"]
    rows = [evaluation.run(data, case) for case in cases[:2]]
    assert "las" not in {r["policy"] for r in rows}
    assert "cluster02, calendar deadlines" in "\n".join(sections(rows))
