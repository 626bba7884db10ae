"""Experiment sweeps for capsule networks."""

import gc

__version__ = "0.1.0"

# Python looks through all objects for garbage whenever there are a quarter more of them: a fourth
# of the time in which a worker imports five thousand modules. Here it does so a hundred times less
# often; new objects it looks through as before.
gc.set_threshold(*gc.get_threshold()[:2], 1000)
