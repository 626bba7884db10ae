"""Ray, started in one way by all that use it: quiet, and its ports closed to strangers.

Import this module before Ray, which reads some of its environment when it is imported.
"""

import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new output prints a table even when silent
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray's ports listen on all interfaces

import ray as ray
from ray import exceptions as exceptions

from capsweep.errors import ConfigError

ANSWERS = 10.0  # seconds, within which a host that is there does


@contextmanager
def connected(
    address: str | None, cpus: int | None = None, gpus: int | None = None
) -> Iterator[None]:
    """A Ray to work with: the cluster at `address`, None: one of this machine, that ends with it.

    cpus, gpus: what a Ray of this machine is told that it has, None: what it finds.
    Raises ConfigError naming RAY_ADDRESS where there is no cluster that can be joined.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        _init(address, cpus, gpus)
        if callable(before):  # Ray has put its own in the place of the caller's
            signal.signal(signal.SIGTERM, before)
        yield
    finally:
        ray.shutdown()


def _init(address: str | None, cpus: int | None, gpus: int | None) -> None:
    try:
        if address is not None:
            _knock(address)
        _start(address, cpus, gpus)
    except (OSError, ValueError, RuntimeError, exceptions.RayError) as error:
        if address is None:
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"RAY_ADDRESS={address}: no cluster of Ray can be joined there ({said}); start one "
            "(ray start --head), correct the address, or leave it out for a Ray of this machine"
        ) from error


def _knock(address: str) -> None:
    """Raise OSError where nobody listens, which Ray would try again for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "://" not in address and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS).close()


def _start(address: str | None, cpus: int | None, gpus: int | None) -> None:
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
