"""The measures of the bundled export stay what they are, until somebody changes them on purpose.

After such a change: `.venv/bin/python tests/test_golden.py` writes golden.json anew, and the commit says why.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from command import run

EXAMPLES = Path(__file__).parents[1] / "examples"
GOLDEN = Path(__file__).with_name("golden.json")
TEXTBOOK = "fifo-strict,fifo-fit,srtf,srsf"
# not all: the whole export takes seconds for each; the others have schedules worked out on paper
POLICIES = "recorded,fifo,multifactor,deadline-qos,tias@off,tias@on"


def measured(directory: Path) -> dict[str, Any]:
    """What the dry run of the bundled export says, under POLICIES and then under the textbook ones."""
    arguments = (
        *("dry-run", EXAMPLES / "cluster-export.txt.gz", "--nodes", EXAMPLES / "nodes.txt"),
        *("--timezone", "Europe/Berlin", "--json"),
    )
    documents = []
    for more in (("--policies", POLICIES), ("--policies", TEXTBOOK, "--placement", "count")):
        done = run(directory, *arguments, *more)
        assert done.code == 0, done.err
        documents.append(json.loads(done.out))
    kept = ("input", "deadlines", "cluster", "replayed_vs_recorded")
    golden: dict[str, Any] = {key: documents[0][key] for key in kept}
    del golden["cluster"]["source"]  # holds a path
    golden["policies"] = {
        name: {k: v for k, v in measures.items() if isinstance(v, int | float | None)}
        for document in documents
        for name, measures in document["policies"].items()
    }
    return golden


def test_measures_of_the_bundled_export(tmp_path: Path) -> None:
    found, golden = measured(tmp_path), json.loads(GOLDEN.read_text(encoding="utf-8"))
    for key in ("input", "deadlines", "cluster"):
        assert found[key] == golden[key]
    # means of floats: the last digits may differ between versions of numpy and processors
    assert found["replayed_vs_recorded"] == pytest.approx(golden["replayed_vs_recorded"], rel=1e-9)
    assert list(found["policies"]) == list(golden["policies"])
    for name, measures in golden["policies"].items():
        assert found["policies"][name] == pytest.approx(measures, rel=1e-9), name


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        GOLDEN.write_text(json.dumps(measured(Path(directory)), indent=1) + "\n", encoding="ascii")
    sys.stdout.write(f"{GOLDEN} written\n")
