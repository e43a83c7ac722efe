"""`njit` of what replays: to import this has all loops compiled, where numba can be had. See jit.py."""

from tias_slurm import jit
from tias_slurm.jit import njit as njit

jit.compile_all()
