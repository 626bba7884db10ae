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
LOCAL_SERVER = "http://127.0.0.1:8265"  # Ray's own choice; a tunnel ends there too
KEY = "RAY_ADDRESS or cluster.jobs"
NO_SERVER = (
    "no job server of Ray answers at {address}; start the head with ray[default] and its "
    "dashboard, open the tunnel (ssh -L 8265:127.0.0.1:8265 HEAD), or name another place: "
    "RAY_ADDRESS=http://HOST:PORT, RAY_API_SERVER_ADDRESS or cluster.jobs"
)
NO_HEAD = (
    "RAY_ADDRESS={address}: no head of Ray answers there ({error}); correct it, or give where it "
    "takes jobs, such as RAY_ADDRESS=http://127.0.0.1:8265"
)


def is_url(address: str | None) -> bool:
    """Whether an address is where jobs are taken, and not that of Ray itself."""
    return address is not None and address.startswith(("http://", "https://"))


def open_jobs(cluster: Mapping[str, Any]) -> "Jobs":
    """The jobs of a cluster: at `cluster.jobs`, else where its head says that it takes them.

    Raises ConfigError where there is no job server, the URL is none, or Ray is not installed.
    """
    url, head = cluster["jobs"], cluster["address"]
    if cluster.get("launcher") is not None or url is head is None:
        raise ConfigError(
            f"cluster={cluster['name']} has no job server; set CLUSTER=address, or RAY_ADDRESS to "
            "that of a cluster"
        )
    if is_url(head):
        url = head
    elif url is None and head == "auto":
        url = LOCAL_SERVER
    elif url is None:
        _check_head(head)
        url = _import_client().find_server(head)
    _check_server(url)
    return _import_client().Jobs(url)


def _import_client() -> Any:
    try:
        from capsweep.cluster import client
    except ImportError as error:
        raise ConfigError(f"jobs of a cluster: {error}; install 'capsweep[ray]'") from error
    return client


def _check_head(address: str) -> None:
    """Ray itself would try again for long."""
    try:
        parts = urlsplit(f"//{address}")
        _connect(parts.hostname, parts.port or 0)
    except (OSError, ValueError) as error:
        raise ConfigError(NO_HEAD.format(address=address, error=error)) from error


def _check_server(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError) as error:  # half of an IPv6 address, or no URL at all
        raise ConfigError(
            f"{KEY}={url}: must be where Ray takes jobs, a URL such as http://127.0.0.1:8265"
        ) from error
    if parts.username or parts.password:
        raise ConfigError(
            f"{KEY}: credentials in the URL of {parts.hostname} would be printed and "
            "recorded; leave them out, and set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        )
    from urllib.request import getproxies  # slow to load, and not used by most commands

    if parts.scheme in getproxies():  # the proxy knows whether somebody listens there
        return
    try:
        _connect(parts.hostname, port)
    except OSError as error:
        raise ConfigError(NO_SERVER.format(address=url)) from error


def _connect(host: str | None, port: int) -> None:
    socket.create_connection((host or "", port), timeout=CONNECT_SECONDS).close()
