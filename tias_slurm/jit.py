"""`njit`: numba's where it can be had, else a decorator that changes nothing.

The daemon runs without numba and the replay may; TIAS_SLURM_NO_NUMBA=1 turns it off, which tests use to show
that both ways give the same numbers. Decorated functions stay in numba's nopython subset, without fastmath
and without threads, so that results do not depend on the way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])

try:
    if os.environ.get("TIAS_SLURM_NO_NUMBA"):
        raise ImportError("turned off by TIAS_SLURM_NO_NUMBA")
    import numba
except ImportError:
    HAVE_NUMBA = False
else:
    HAVE_NUMBA = True


@overload
def njit(function: F, /) -> F: ...


@overload
def njit(**options: Any) -> Callable[[F], F]: ...


def njit(function: Any = None, /, **options: Any) -> Any:
    """`@njit` or `@njit(...)`: compiled on first call and kept on disk; options as numba.njit takes them.

    Without numba, or with the environment variable TIAS_SLURM_NO_NUMBA set, the function itself.
    """
    if function is None:
        return lambda f: njit(f, **options)
    if not HAVE_NUMBA:
        return function
    try:
        return numba.njit(**{"cache": True, **options})(function)
    except RuntimeError:  # numba found no directory that it may write its cache to
        return numba.njit(**{**options, "cache": False})(function)
