"""Experiment sweeps for capsule networks."""

import gc

__version__ = "0.1.0"

# Python's full garbage collection took a fourth of the time in which a worker imports five thousand
# modules. It now runs a hundred times less often; new objects are collected as often as before.
gc.set_threshold(*gc.get_threshold()[:2], 1000)
