"""What a user gains by gaming his claims stays within the bounds that docs/policy.md states."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from gaming import CHEATS, compare, config, honest_jobs

SEEDS = (0, 1)
# his mean JCT as a ratio to that of his honest twin, at least; the others' JCT, and percentage points of
# deadlines that they miss more, at most
HIS, OTHERS, MISSES = 0.65, 1.10, 1.5


def test_the_twin_has_the_same_jobs() -> None:
    honest = honest_jobs(0)
    his = honest[honest["user"] == 0]
    assert len(his) > 20
    for cheat in CHEATS.values():
        jobs = cheat.jobs(his)
        assert set(jobs["job"]) == set(his["job"])
        assert jobs.groupby("job")["work"].sum().to_numpy() == pytest.approx(his["work"].to_numpy(), abs=4)


@pytest.mark.parametrize("name", sorted(set(CHEATS) - {"split"}))
def test_false_claims_gain_little(name: str) -> None:
    gain = compare(SEEDS, CHEATS[name], config("jct-first", interval_s=300.0))
    assert gain.jct >= HIS
    assert gain.others_jct <= OTHERS
    assert gain.others_miss <= MISSES


def test_a_split_gains_what_any_policy_gives_for_it() -> None:
    """Parts that run side by side end sooner whoever orders them: against a policy blind to claims."""
    settings = config("jct-first", interval_s=300.0)
    ours, blind = (compare(SEEDS, CHEATS["split"], settings, p) for p in ("tias@all", "las@all"))
    assert ours.jct >= blind.jct - 0.1
    assert ours.others_miss <= MISSES


def test_a_quota_takes_most_of_the_gain() -> None:
    plain = config("jct-first", interval_s=300.0)
    quota = config("jct-first", interval_s=300.0, quota_rate=0.7)
    without, held = (compare(SEEDS, CHEATS["plausible"], c) for c in (plain, quota))
    assert without.jct < held.jct
    assert held.others_miss <= MISSES
