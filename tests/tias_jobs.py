"""Jobs in few words as TIAS ranks them: the ten of docs/policy.md, and any."""

import numpy as np
from hypothesis import strategies as st
from worlds import DAY, HOUR, rank_input

from tias_slurm.policy.learning import Learner
from tias_slurm.policy.tias import PRESETS, Tias, preset

NOW = 1_790_000_000.0
PRIOR = Learner().survival()
THREE = ("jct-first", "wide-fair", "guard")


def claim(window, gpus, *, waited=0.0, ran=0.0, running=False):
    """A deadline job: its window, GPUs, and what happened since its submit."""
    submit = NOW - waited - ran
    return {
        "first_submit": submit,
        "deadline": submit + window,
        "gpus": gpus,
        "executed": ran,
        "running": running,
    }


def rank(name, *jobs, survival=PRIOR, **overrides):
    policy = Tias(preset(name, **overrides))
    columns = {key: np.array([j[key] for j in jobs]) for key in jobs[0]}
    return policy.rank(NOW, rank_input(**columns), survival)


TEN = {
    "no deadline, 8 GPUs, new": ({"first_submit": NOW, "gpus": 8, "deadline": np.nan}, (1, 1, 1)),
    "12 h x 1, new": (claim(12 * HOUR, 1), (0, 0, 0)),
    "24 h x 1, new": (claim(24 * HOUR, 1), (0, 4, 0)),
    "24 h x 1, waited 20 h": (claim(24 * HOUR, 1, waited=20 * HOUR), (0, 4, 0)),
    "24 h x 1, waited 21 h": (claim(24 * HOUR, 1, waited=21 * HOUR), (11, 11, 0)),
    "72 h x 8, new": (claim(72 * HOUR, 8), (8, 8, 8)),
    "72 h x 8, running for 60 h": (claim(72 * HOUR, 8, ran=60 * HOUR, running=True), (6, 10, 6)),
    "7 d x 32, new": (claim(7 * DAY, 32), (10, 10, 10)),
    "72 h x 8, running for 70 h": (claim(72 * HOUR, 8, ran=70 * HOUR, running=True), (6, 6, 6)),
    "past its deadline": (claim(24 * HOUR, 1, waited=25 * HOUR), (11, 11, 13)),
}


@st.composite
def any_jobs(draw):
    n = draw(st.integers(1, 12))
    seconds = st.floats(0, 40 * DAY, allow_nan=False)
    rows = []
    for _ in range(n):
        age = draw(seconds)
        rows.append(
            {
                "first_submit": NOW - age,
                "gpus": draw(st.sampled_from([1, 2, 4, 8, 16, 64, 512])),
                "executed": age * draw(st.sampled_from([0.0, 0.0, 0.3, 0.9999, 1.0])),
                "deadline": draw(
                    st.one_of(
                        st.just(np.nan),
                        st.floats(1.0, 80 * DAY).map(lambda w, age=age: NOW - age + w),
                        st.just(NOW),
                        st.just(NOW + 1e-6),
                    )
                ),
                "running": draw(st.booleans()),
                "claim_lost": draw(st.booleans()),
            }
        )
    return rank_input(**{key: np.array([r[key] for r in rows]) for key in rows[0]})


SURVIVALS = [PRIOR]
for _seed in range(3):
    _rng, _learner = np.random.default_rng(_seed), Learner()
    _windows = _rng.lognormal(10, 1.5, 300)
    _learner.learn(_windows, _windows * _rng.choice([0.01, 0.3, 0.99, 1.5], 300))
    SURVIVALS.append(_learner.survival())

anyone = {
    "jobs": any_jobs(),
    "name": st.sampled_from(sorted(PRESETS)),
    "kind": st.sampled_from(["u", "edf", "laxity", "elapsed"]),
    "survival": st.sampled_from(SURVIVALS),
}


def flagged(jobs, **columns):
    """The same RankInput with columns replaced."""
    n = len(jobs)
    kept = {k: getattr(jobs, k) for k in jobs.__dataclass_fields__}
    return type(jobs)(**{**kept, **{k: np.broadcast_to(v, n).copy() for k, v in columns.items()}})
