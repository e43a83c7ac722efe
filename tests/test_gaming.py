"""What a user gains by gaming his claims stays close to what docs/policy.md states, and each rule that limits
cheats is worth something."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from cheats import CHEAT, CHEATS, Size, honest_jobs
from gaming import LEARNED, PRESETS, RULES, Gain, compare, config, luck, play, twins

SMALL = Size(8, 250)
SEED = 0
# his mean JCT as a ratio to that of his honest twins, at least: over all presets as measured less MARGIN,
# and ONE under any single one, where an honest twin may be luckier by as much; SPLIT: against a blind policy
LEAST = {
    "absurd": 1.88, "plausible": 1.06, "accurate": 0.96, "minute": 1.55, "wide": 1.25, "late": 1.13,
    "removed": 1.21, "moved": 0.95, "hourly": 1.15, "running": 1.12,
}  # fmt: skip
MARGIN, ONE, SPLIT = 0.08, 0.8, 0.1
# the others' JCT, and percentage points of deadlines that they miss more, at most
OTHERS, MISSES = 1.05, 1.0


@functools.cache
def gain(name: str, preset: str, without: str = "", seeds: tuple[int, ...] = (SEED,)) -> Gain:
    return compare(seeds, CHEATS[name], config(preset, interval_s=300.0), size=SMALL, without=without)


def mean(gains: list[Gain]) -> float:
    return float(np.exp(np.mean([np.log(g.mean) for g in gains])))


def test_the_twins_have_the_same_jobs() -> None:
    honest, twin = honest_jobs(0), honest_jobs(0, twin=1)
    his = honest["user"] == CHEAT
    assert his.sum() > 50
    assert twin.drop(columns="deadline").equals(honest.drop(columns="deadline"))
    assert twin["deadline"][~his].equals(honest["deadline"][~his])
    assert not twin["deadline"][his].equals(honest["deadline"][his])
    for cheat in CHEATS.values():
        jobs = cheat.jobs(honest[his])
        jobs = jobs[jobs["job"] >= 0]
        work = jobs.groupby("job")["work"].sum()
        assert set(work.index) == set(honest["job"][his])
        assert work.to_numpy() == pytest.approx(honest["work"][his].to_numpy(), abs=4)


@pytest.mark.parametrize("name", sorted(set(CHEATS) - {"split", "teach"}))
def test_false_claims_gain_little(name: str) -> None:
    gains = [gain(name, preset) for preset in PRESETS]
    assert mean(gains) >= LEAST[name] - MARGIN
    assert min(g.jct.min() for g in gains) >= ONE
    assert mean([Gain(g.others_jct, g.others_jct, g.others_miss) for g in gains]) <= OTHERS
    assert np.mean([g.others_miss.mean() for g in gains]) <= MISSES


def test_changing_each_minute_with_a_cycle_each_minute_gains_nothing() -> None:
    found = []
    for preset in PRESETS:
        now = play(SEED, CHEATS["minute"], config(preset, interval_s=60.0), size=SMALL)
        # of the honest twins the cycle makes no difference that matters here
        a, b = twins(SEED, config(preset, interval_s=300.0).model_dump_json(), "tias@all", SMALL)
        found.append(2 * now.jct / (a.jct + b.jct))
    assert np.exp(np.mean(np.log(found))) >= LEAST["minute"] - MARGIN
    assert min(found) >= 1.0


# the rule, and what the cheat it is for has less of with the rule than without, at least
@pytest.mark.parametrize(("rule", "worth"), [("max_changes", 0.06), ("lost", 0.04), ("late", 0.05)])
def test_each_rule_costs_its_cheat_something(rule: str, worth: float) -> None:
    """So that the rule cannot be taken away unseen: with and without it would be the same."""
    name = RULES[rule]
    presets = ("jct-first", "guard", "slots")
    with_it = mean([gain(name, preset, "", (0, 1, 2)) for preset in presets])
    without = mean([gain(name, preset, rule, (0, 1, 2)) for preset in presets])
    assert with_it - without >= worth


def test_nobody_can_teach_that_the_others_are_hopeless() -> None:
    for preset in LEARNED:
        with_it, without = (gain(RULES["teachers"], preset, rule, (0, 3)) for rule in ("", "teachers"))
        assert with_it.others_miss.mean() <= 0.5
        assert without.others_miss.mean() >= 3.0


def test_a_split_gains_what_any_policy_gives_for_it() -> None:
    """Parts that run side by side end sooner whoever orders them: against a policy blind to claims."""
    for preset in PRESETS:
        settings = config(preset, interval_s=300.0)
        ours, blind = (
            compare((0,), CHEATS["split"], settings, p, size=SMALL) for p in ("tias@all", "las@all")
        )
        assert ours.mean >= blind.mean - SPLIT
        assert ours.others_miss.mean() <= MISSES


def test_a_quota_takes_from_a_claim_on_every_job() -> None:
    settings = [config("jct-first", interval_s=300.0, **q) for q in ({}, {"quota_rate": 0.7})]
    without, held = (compare((0, 1), CHEATS["accurate"], c, size=SMALL) for c in settings)
    assert without.mean < held.mean
    assert held.others_miss.mean() <= MISSES


def test_luck_is_what_a_single_replay_may_show() -> None:
    """The spread of honest twins, against which all of this has to be seen."""
    spread = [luck(range(3), config(p, interval_s=300.0), size=SMALL) for p in ("jct-first", "slots")]
    assert 0.9 <= mean(spread) <= 1.1
