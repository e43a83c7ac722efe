"""`njit`: marks the loops that matter, which numba compiles for the replay and for nothing else.

The daemon and the commands that speak to a running Slurm use some of the same loops and run them as they
stand: they neither import numba nor leave compiled code in anybody's cache directory. What replays imports
`replay.compiled`, which has all of them compiled from then on. TIAS_SLURM_NO_NUMBA=1 turns that off as well,
which tests use to show that both ways give the same numbers. Decorated functions stay in numba's nopython
subset, without fastmath and without threads, so that results do not depend on the way.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# whether loops can be compiled; looking does not import it
HAVE_NUMBA = not os.environ.get("TIAS_SLURM_NO_NUMBA") and importlib.util.find_spec("numba") is not None
_plain: dict[int, Any] = {}  # marked functions that run as they stand, by id
_on = False


def njit(function: F) -> F:
    """The function, or once `compile_all` was called the same compiled on first call and kept on disk."""
    if _on:
        compiled: F = _compiled(function)
        return compiled
    _plain[id(function)] = function
    return function


def compile_all() -> None:
    """Have all marked functions compiled, those that are marked later too. Without numba nothing changes."""
    global _on
    if _on or not HAVE_NUMBA:
        return
    _on = True
    made = {key: _compiled(function) for key, function in _plain.items()}
    # numba looks names up when it compiles, at the first call: by then all stand for what is compiled
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == __name__.partition(".")[0]:
            for key, value in list(vars(module).items()):
                if id(value) in made and value is _plain[id(value)]:
                    setattr(module, key, made[id(value)])
    _plain.clear()


def _compiled(function: Any) -> Any:
    import numba

    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # numba found no directory that it may write its cache to
        return numba.njit(cache=False)(function)
