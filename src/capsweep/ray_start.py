"""Ray, started in one way by all that use it: quiet, and its ports closed to strangers.

Import this module before Ray, which reads some of its environment when it is imported.
"""

import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new output prints a table even when silent
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
# Else a worker that ends kills what it started before that could tidy up. All that a cell starts
# ends by itself when its process is gone: after a SIGKILL nobody else does it.
os.environ.setdefault("RAY_kill_child_processes_on_worker_exit", "false")
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray's ports listen on all interfaces

import ray as ray
from ray import exceptions as exceptions

from capsweep.errors import ConfigError

VERSIONS_CURE = "use the cluster's Ray and Python here, or start the cluster with these"
ANSWERS = 10.0  # seconds, within which a host that is there does


@contextmanager
def connected(
    address: str | None,
    cpus: int | None = None,
    gpus: int | None = None,
    package: Path | None = None,
) -> Iterator[None]:
    """A Ray to work with: the cluster at `address`, None: one of this machine, that ends with it.

    cpus, gpus: what a Ray of this machine is told that it has, None: what it finds. package: is
    sent to the cluster's workers, which need have no other.
    Raises ConfigError naming RAY_ADDRESS where there is no cluster that can be joined.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        _init(address, cpus, gpus, package)
        if callable(before):  # Ray has put its own in the place of the caller's
            signal.signal(signal.SIGTERM, before)
        yield
    finally:
        ray.shutdown()


def _init(address: str | None, cpus: int | None, gpus: int | None, package: Path | None) -> None:
    try:
        if address is not None:
            _knock(address)
            # Seconds for which Ray tries again, whatever went wrong, a wrong token as well.
            os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")
        _start(address, cpus, gpus, package)
    except (OSError, ValueError, RuntimeError, exceptions.RayError) as error:
        if address is None:
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        if _is_of_the_token(error):
            raise ConfigError(f"RAY_ADDRESS={address}: {token_refused()}") from error
        if "Version mismatch" in said:
            raise ConfigError(f"RAY_ADDRESS={address}: {said}; {VERSIONS_CURE}") from error
        raise ConfigError(
            f"RAY_ADDRESS={address}: no cluster of Ray can be joined there ({said}); start one "
            "(ray start --head), correct the address, or leave it out for a Ray of this machine"
        ) from error


def _knock(address: str) -> None:
    """Raise OSError where nobody listens, which Ray would try again for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "://" not in address and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS).close()


def _is_of_the_token(error: BaseException) -> bool:
    found: BaseException | None = error
    while found is not None:
        # Ray makes other errors of it, which quote it.
        if isinstance(found, exceptions.AuthenticationError) or "InvalidAuthToken" in str(found):
            return True
        found = found.__cause__ or found.__context__
    return False


def token_refused() -> str:
    """What is wrong with the token that Ray took, in the order in which it looks for one."""
    path = None
    if os.environ.get("RAY_AUTH_TOKEN"):
        where = "RAY_AUTH_TOKEN"
    elif path := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        where = f"RAY_AUTH_TOKEN_PATH={path}"
    else:
        path, where = (
            "~/.ray/auth_token",
            "~/.ray/auth_token, since neither RAY_AUTH_TOKEN nor RAY_AUTH_TOKEN_PATH is set",
        )
    is_there = path is None or Path(path).expanduser().is_file()
    what = "does not accept the token of" if is_there else "asks for a token, and there is none in"
    return (
        f"the cluster {what} {where}; give the token that its head was "
        "started with in RAY_AUTH_TOKEN, or in a file that RAY_AUTH_TOKEN_PATH names"
    )


def _runtime_env(package: Path | None) -> dict[str, Any] | None:
    """A driver that is a job of the cluster itself came with its package, which its workers get."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    if package is None or (job.get("runtime_env") or {}).get("py_modules"):
        return None
    return {"py_modules": [str(package)]}


def _start(address: str | None, cpus: int | None, gpus: int | None, package: Path | None) -> None:
    ray.init(
        # Without an address Ray would join whatever cluster this machine, or RAY_ADDRESS, last had,
        # and wait for it when it is gone; the caller decides.
        address=address or "local",
        include_dashboard=None if address else False,
        num_cpus=cpus,
        num_gpus=gpus,
        runtime_env=_runtime_env(package),
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
