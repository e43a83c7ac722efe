"""The policies that a dry run can compare, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tias_slurm import assemble
from tias_slurm.config import Config
from tias_slurm.errors import InputError, printable
from tias_slurm.jobs import Floats
from tias_slurm.policy import baselines
from tias_slurm.policy.base import Policy
from tias_slurm.policy.tias import PRESETS

Preemption = Literal["off", "on", "all"]
Kind = Literal["recorded", "slurm", "daemon", "textbook"]


@dataclass(frozen=True)
class Entry:
    """One name of --policies."""

    title: str
    kind: Kind
    preempts: bool = False  # whether @on, @off and --preemption mean something
    realisable: bool = True
    build: Callable[[Config, Floats], Policy] | None = None  # settings, true work by job number
    site: bool = False  # ordered by Slurm's multifactor priority


def _tias(name: str | None) -> Callable[[Config, Floats], Policy]:
    return lambda config, work: assemble.tias(config, name)


ENTRIES: dict[str, Entry] = {
    "recorded": Entry("what really happened", "recorded"),
    "fifo": Entry("first come first served, what does not fit is skipped", "slurm"),
    "multifactor": Entry("Slurm's multifactor priority: age and fair share", "slurm", site=True),
    "edf": Entry(
        "deadline jobs first, earliest deadline first, no preemption",
        "daemon",
        build=lambda c, w: baselines.DeadlineFirst(),
    ),
    "deadline-qos": Entry(
        "a deadline QOS: deadline jobs first, preempting the others",
        "daemon",
        preempts=True,
        build=lambda c, w: baselines.DeadlineFirst(),
    ),
    "las": Entry(
        "least attained service (Tiresias), blind to deadlines",
        "daemon",
        preempts=True,
        build=lambda c, w: baselines.Las(),
    ),
    "aemon": Entry("Aemon's two levels on GPU service", "daemon", True, build=lambda c, w: baselines.Aemon()),
    "tias": Entry("TIAS with the configured preset", "daemon", True, build=_tias(None)),
    **{f"tias:{name}": Entry(f"TIAS, preset {name}", "daemon", True, build=_tias(name)) for name in PRESETS},
    "oracle-srtf": Entry(
        "knows run times: shortest remaining time first",
        "daemon",
        preempts=True,
        realisable=False,
        build=lambda c, w: baselines.OracleSrtf(w),
    ),
    "oracle-laxity": Entry(
        "knows run times: deadline jobs just in time, the others shortest first",
        "daemon",
        preempts=True,
        realisable=False,
        build=lambda c, w: baselines.OracleLaxity(w),
    ),
    "fifo-strict": Entry("textbook: first come first served, the head of the line blocks", "textbook"),
    "fifo-fit": Entry("textbook: first come first served, what does not fit is skipped", "textbook"),
    "srtf": Entry("textbook: preemptive, shortest remaining time first", "textbook", realisable=False),
    "srsf": Entry("textbook: preemptive, shortest remaining time x GPUs first", "textbook", realisable=False),
}

_COMMON = ("fifo", "multifactor", "edf", "deadline-qos", "las", "aemon")
_ORACLES = ("oracle-srtf", "oracle-laxity")
DEFAULT_FOR_TRACE = (*_COMMON, "tias", *_ORACLES)
# where --preemption leaves it open, a site sees what its jobs' consent buys and what everybody's would
DEFAULT_FOR_HISTORY = ("recorded", *_COMMON, "tias@off", "tias@on", "tias@all", *_ORACLES)
CHOSEN_FOR_HISTORY = ("recorded", *_COMMON, "tias", *_ORACLES)


@dataclass(frozen=True)
class Wanted:
    """One policy of a run."""

    name: str  # as given
    key: str  # in ENTRIES
    entry: Entry
    preemption: Preemption  # "all": on, and every job consents


def parse(text: str | None, *, is_trace: bool, preemption: Literal["off", "on"] | None) -> list[Wanted]:
    """The policies of a comma list; None: the default set. InputError for a name that is not known."""
    default: Sequence[str] = DEFAULT_FOR_TRACE
    if not is_trace:
        default = DEFAULT_FOR_HISTORY if preemption is None else CHOSEN_FOR_HISTORY
    names: Sequence[str] = default if text is None else [n.strip() for n in text.split(",") if n.strip()]
    if not names:
        raise InputError("--policies: names no policy; leave it out for the default set")
    wanted = [_one(n, preemption or "on") for n in dict.fromkeys(names)]
    for w in wanted:
        if w.key == "recorded" and is_trace:
            raise InputError("--policies: a trace has no recorded schedule; leave 'recorded' out")
    return wanted


def _one(name: str, otherwise: Preemption) -> Wanted:
    key, at, suffix = name.partition("@")
    entry = ENTRIES.get(key)
    if entry is None:
        near = difflib.get_close_matches(key.lower(), ENTRIES, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(ENTRIES)}"
        raise InputError(f"--policies: unknown policy '{printable(name)}'; {hint}")
    if not at:
        return Wanted(name, key, entry, otherwise if entry.preempts else "off")
    if suffix not in ("on", "off", "all"):
        raise InputError(f"--policies: '{printable(name)}': write @on, @off or @all after the name")
    if not entry.preempts:
        raise InputError(f"--policies: '{printable(name)}': {key} has no choice of preemption; leave @ out")
    return Wanted(name, key, entry, suffix)  # type: ignore[arg-type]
