"""The job server of a cluster: where it is, and whether it answers, found out without Ray."""

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from capsweep.errors import ConfigError

if TYPE_CHECKING:
    from capsweep.cluster.client import Jobs

CONNECT_SECONDS = 5.0
PORTS = {"http": 80, "https": 443}
NO_SERVER = (
    "cluster.jobs: no job server of Ray answers at {address}; open the tunnel (ray dashboard "
    "FILE), or start the head with ray[default] and its dashboard"
)


def open_jobs(cluster: Mapping[str, Any], address: str | None = None) -> "Jobs":
    """The jobs at an address, or of a cluster as configured.

    Raises ConfigError where there is no job server, the URL is none, or Ray is not installed.
    """
    key, url = ("cluster.jobs", cluster["jobs"]) if address is None else ("--address", address)
    if url is None:
        raise ConfigError(
            f"cluster={cluster['name']} has no job server; set CLUSTER to a file of conf/cluster "
            "that has one, or cluster.jobs=http://127.0.0.1:8265"
        )
    _check_server(key, url)
    try:
        from capsweep.cluster.client import Jobs
    except ImportError as error:
        raise ConfigError(f"jobs of a cluster: {error}; install 'capsweep[ray]'") from error
    return Jobs(url)


def _check_server(key: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError) as error:  # half of an IPv6 address, or no URL at all
        raise ConfigError(
            f"{key} {url}: must be where Ray takes jobs, a URL such as http://127.0.0.1:8265"
        ) from error
    if parts.username or parts.password:
        raise ConfigError(
            f"{key}: credentials in the URL of {parts.hostname} would be printed and recorded; "
            "leave them out, and set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        )
    from urllib.request import getproxies  # slow to load, and not used by most commands

    if parts.scheme in getproxies():  # the proxy knows whether somebody listens there
        return
    try:
        socket.create_connection((parts.hostname or "", port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ConfigError(NO_SERVER.format(address=url)) from error
