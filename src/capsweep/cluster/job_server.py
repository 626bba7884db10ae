"""Which cluster a command is about, and the jobs that it has."""

import argparse
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from capsweep.errors import ConfigError

if TYPE_CHECKING:
    from capsweep.cluster.client import Jobs

ANSWERS = 5.0  # seconds, to connect
NO_SERVER = (
    "cluster.jobs: no job server of Ray answers at {address}; open the tunnel (ray dashboard "
    "FILE), or start the head with ray[default] and its dashboard"
)


def add(command: argparse.ArgumentParser) -> None:
    """Add the options of a command that looks for jobs."""
    command.add_argument("--cluster", default="address", help="a file of conf/cluster: address")
    command.add_argument(
        "--address", help="where Ray takes jobs; default: cluster.jobs, http://127.0.0.1:8265"
    )


def jobs_of(parsed: argparse.Namespace) -> "Jobs":
    """The jobs of the cluster that was named."""
    from capsweep.config import compose

    if parsed.address is not None:
        if not parsed.address.startswith(("http://", "https://")):
            raise _no_url(f"--address {parsed.address}")
        return _opened(parsed.address, "--address")
    return jobs_at(compose.cell([f"cluster={parsed.cluster}"]).config["cluster"])


def jobs_at(cluster: Mapping[str, Any]) -> "Jobs":
    """The jobs of a cluster as configured. Raises ConfigError where it takes none."""
    if cluster["jobs"] is None:
        raise ConfigError(
            f"cluster={cluster['name']} has no job server; set CLUSTER to a file of conf/cluster "
            "that has one, or cluster.jobs=http://127.0.0.1:8265"
        )
    return _opened(cluster["jobs"], "cluster.jobs")


def _opened(address: str, key: str) -> "Jobs":
    from urllib.request import getproxies  # slow to load, and not used by most commands

    try:
        split = urlsplit(address)
        port = split.port or (443 if split.scheme == "https" else 80)
    except ValueError as error:  # half of an IPv6 address, or a port that is no number
        raise _no_url(f"{key} {address}") from error
    if split.username or split.password:
        raise ConfigError(
            f"cluster.jobs: credentials in the URL of {split.hostname} would be printed and "
            "recorded; leave them out, and set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        )
    if split.scheme not in getproxies():  # else it is the proxy that knows whether there is one
        _knock(split.hostname or "", port, address)
    try:
        from capsweep.cluster.client import Jobs
    except ImportError as error:
        raise ConfigError(f"jobs of a cluster: {error}; install 'capsweep[ray]'") from error
    return Jobs(address)


def _knock(host: str, port: int, address: str) -> None:
    """Raise ConfigError where nobody listens, before a second goes into Ray's client."""
    try:
        socket.create_connection((host, port), timeout=ANSWERS).close()
    except OSError as error:
        raise ConfigError(NO_SERVER.format(address=address)) from error


def _no_url(given: str) -> ConfigError:
    return ConfigError(
        f"{given}: must be where Ray takes jobs, a URL such as http://127.0.0.1:8265"
    )
