"""Online or offline: decided once, before any cell starts, and said in one line."""

import contextlib
import importlib.util
import netrc
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib import request
from urllib.parse import urlsplit

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.errors import ConfigError, UserError

PROBE_SECONDS = 3.0


def decide_mode(config: Mapping[str, Any]) -> tuple[str, str]:
    """("online" | "offline" | "none", the reason in one line) for a configuration's logger.

    mode=auto is online only if a login is there and the host answers within 3 s.
    Raises ConfigError when the chosen logger is not installed, or mode=online has no login.
    """
    logger = config["logger"]
    if logger["name"] != "wandb":
        return "none", "W&B: off (logger=csv); metrics are in the ledger"
    if importlib.util.find_spec("wandb") is None:
        raise ConfigError("logger=wandb: wandb is not installed; install it or set logger=csv")
    # To import W&B for its settings takes half a second, which a user without any need not pay.
    has_settings = _read_netrc() or any(name.startswith("WANDB_") for name in os.environ)
    url = server_url() if has_settings else None
    if logger["mode"] == "offline" or os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        reason = "as asked"
    elif url is None or not has_login(url):
        if logger["mode"] == "online":
            cure = "run `wandb login`, or set mode=auto"
            raise ConfigError(f"logger.mode=online needs a login; {cure}")
        reason = "nobody is logged in"
    elif logger["mode"] == "auto" and not _is_answering(url):
        reason = f"{url} does not answer"
    else:
        return "online", f"W&B: online at {url}"
    folder = f"{places.folder_of(config['places']['storage'])}/wandb"
    cure = "upload later with make wandb-sync"
    return "offline", f"W&B: offline, {reason}; runs go to {folder}; {cure}"


def with_mode(cell: Cell, mode: str) -> Cell:
    """The cell with its mode fixed, for a worker that must not decide again."""
    logger = cell.config["logger"] | ({} if mode == "none" else {"mode": mode})
    return Cell({**cell.config, "logger": logger}, cell.overrides)


def server_url() -> str:
    """The URL of the W&B server that is configured."""
    import wandb

    try:
        settings = wandb.Settings()
        settings.update_from_system_settings()  # what `wandb login --host` wrote
        settings.update_from_env_vars(dict(os.environ))  # WANDB_BASE_URL
    except ValueError as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"W&B's settings: {text}; correct them, or set logger=csv") from error
    return without_login(settings.base_url)


def without_login(url: str) -> str:
    """The URL without a user's name and password: it may be printed and kept."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def has_login(url: str) -> bool:
    """Whether an API key or identity token for the server is at hand, without asking the server.

    Where W&B itself looks: a port is part of the machine's name in netrc, and the new address of
    the public server takes the login of the old one.
    """
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    if (netrc_file := _read_netrc()) is None:
        return False
    from wandb.sdk.lib.urls import forge_upstream_url

    addresses = (url, forge_upstream_url(url))
    return any(netrc_file.authenticators(urlsplit(address).netloc) for address in addresses)


def without_keys(text: str) -> str:
    """The text without any login that W&B may be using: it may be printed and kept."""
    logins = netrc_file.hosts.values() if (netrc_file := _read_netrc()) else ()
    for key in (os.environ.get("WANDB_API_KEY"), *(password for *_, password in logins)):
        text = text.replace(key, "(key)") if key else text
    return text


def check_reachable(url: str, waiting: str) -> None:
    """Raise UserError where nobody is logged in, or nobody listens. waiting: what waits for it."""
    if not has_login(url):
        raise UserError(f"W&B: {waiting}, but nobody is logged in at {url}; run `wandb login`")
    if not _is_answering(url):
        cure = "run it again when somebody does"
        raise UserError(f"W&B: {waiting}, but nobody answers at {url}; {cure}")


def _read_netrc() -> netrc.netrc | None:
    """None where there is none that can be read."""
    try:
        return netrc.netrc(Path(os.environ.get("NETRC", "~/.netrc")).expanduser())
    except (OSError, netrc.NetrcParseError):
        return None


def _is_answering(url: str) -> bool:
    """Whether somebody listens at a server, or at the proxy on the way there, within 3 s.

    In a thread, since a look-up of a name has no time limit.
    """
    connected: list[bool] = []

    def connect() -> None:
        parts = urlsplit(_find_next_hop(url))
        address = (parts.hostname, parts.port or (80 if parts.scheme == "http" else 443))
        with contextlib.suppress(OSError):
            socket.create_connection(address, timeout=PROBE_SECONDS).close()
            connected.append(True)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return bool(connected)


def _find_next_hop(url: str) -> str:
    """The URL that is connected to: the server's, or that of a proxy."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = request.getproxies().get(parts.scheme)
    is_near = host == "localhost" or host.startswith("127.")  # as W&B's client has it
    if proxy is None or is_near or request.proxy_bypass(host):
        return url
    return proxy if "://" in proxy else f"http://{proxy}"
