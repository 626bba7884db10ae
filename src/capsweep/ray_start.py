"""Ray, started in one way by all that use it: quiet, and its ports closed to strangers.

Import this module before Ray, which reads some of its environment when it is imported.
"""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new output prints a table even when silent
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray's ports listen on all interfaces

import ray as ray
from ray import exceptions as exceptions


@contextmanager
def connected(
    address: str | None, cpus: int | None = None, gpus: int | None = None
) -> Iterator[None]:
    """A Ray to work with: the cluster at `address`, None: one of this machine, that ends with it.

    cpus, gpus: what a Ray of this machine is told that it has, None: what it finds.
    """
    before = signal.getsignal(signal.SIGTERM)
    ray.init(
        # Without an address Ray would join whatever cluster this machine, or RAY_ADDRESS, last had,
        # and wait for it when it is gone; the caller decides.
        address=address or "local",
        include_dashboard=None if address else False,
        num_cpus=cpus,
        num_gpus=gpus,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        if callable(before):  # Ray has put its own in the place of the caller's
            signal.signal(signal.SIGTERM, before)
        yield
    finally:
        ray.shutdown()
