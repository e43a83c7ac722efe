"""Dashboard and alert rules: they ask for metrics that are there, and fire when they should."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import daemon_desk
import metrics_reader
import pytest
from metrics_reader import metrics
from raw_queue import waiting

from tias_slurm.observe.metrics import Metrics

desk = daemon_desk.desk
shown = metrics_reader.shown

ROOT = Path(__file__).parents[1]
RULES = ROOT / "contrib/prometheus/tias-slurm.rules.yml"
DASHBOARD = ROOT / "contrib/grafana/tias-slurm.json"


def known():
    """Names of all series."""
    made = Metrics()
    names = {family.name for family in made.registry.collect()}
    kinds = {family.name: family.type for family in made.registry.collect()}
    for name, kind in kinds.items():
        if kind == "counter":
            names.add(f"{name}_total")
        if kind == "histogram":
            names |= {f"{name}_{end}" for end in ("bucket", "sum", "count")}
    return names


@pytest.mark.parametrize("path", [RULES, DASHBOARD], ids=["rules", "dashboard"])
def test_what_they_ask_for_is_there(path):
    used = set(re.findall(r"\btias_slurm_\w+", path.read_text()))
    assert used
    assert used <= known()


def test_every_metric_is_documented():
    text = (ROOT / "docs/operate.md").read_text()
    bare = {family.name for family in Metrics().registry.collect()}
    assert {name for name in bare if name.removeprefix("tias_slurm_") not in text} == set()


def test_the_dashboard_is_one():
    board = json.loads(DASHBOARD.read_text())
    assert board["uid"] == "tias-slurm"
    titles = [panel["title"] for panel in board["panels"]]
    assert len(titles) == len(set(titles)) >= 10
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["targets"], panel["title"]


def promtool():
    found = shutil.which("promtool")
    if found is None and os.environ.get("TIAS_SLURM_NO_SKIP"):
        pytest.fail("promtool is missing: apt install prometheus")
    if found is None:
        pytest.skip("promtool is missing: apt install prometheus")
    return found


def test_promtool_likes_the_rules():
    done = subprocess.run(
        [promtool(), "check", "rules", str(RULES)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_rules_fire_when_they_should():
    done = subprocess.run(
        [promtool(), "test", "rules", "tias-slurm.test.yml"],
        capture_output=True, text=True, check=False, timeout=60, cwd=RULES.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_likes_the_metrics(shown):
    daemon = shown(waiting(2))
    daemon.cycle()
    done = subprocess.run(
        [promtool(), "check", "metrics"], input=metrics(daemon), capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
