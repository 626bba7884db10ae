"""Online or offline: decided once, before any cell starts, and said in one line."""

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
from urllib.request import getproxies

from capsweep.config import places
from capsweep.config.cell import Cell
from capsweep.errors import ConfigError

PROBE_SECONDS = 3.0


def settle(config: Mapping[str, Any]) -> tuple[str, str]:
    """("online" | "offline" | "none", the reason in one line) for a configuration's logger.

    mode=auto is online only if a login is there and the host answers within 3 s.
    Raises ConfigError when the chosen logger is not installed, or mode=online has no login.
    """
    logger = config["logger"]
    if logger["name"] != "wandb":
        return "none", "W&B: off (logger=csv); metrics are in the ledger"
    _check_installed()
    url = server_url() if _is_configured() else None
    where = (
        f"{places.folder_of(config['places']['storage'])}/wandb; upload later with make wandb-sync"
    )
    if logger["mode"] == "offline" or os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        return "offline", f"W&B: offline, as asked; runs go to {where}"
    if url is None or not has_login(url):
        if logger["mode"] == "online":
            raise ConfigError(
                "logger.mode=online needs a login; run `wandb login`, or set mode=auto"
            )
        return "offline", f"W&B: offline, nobody is logged in; runs go to {where}"
    if logger["mode"] == "auto" and not _is_answering(url):
        return "offline", f"W&B: offline, {url} does not answer; runs go to {where}"
    return "online", f"W&B: online at {url}"


def settled(cell: Cell, mode: str) -> Cell:
    """The cell with its mode fixed, for a worker that must not decide again."""
    logger = cell.config["logger"] | ({} if mode == "none" else {"mode": mode})
    return Cell({**cell.config, "logger": logger}, cell.overrides)


def _check_installed() -> None:
    if importlib.util.find_spec("wandb") is None:
        raise ConfigError("logger=wandb: wandb is not installed; install it or set logger=csv")


def _is_configured() -> bool:
    """Whether there is a login, or a setting in the environment, for W&B to use."""
    return _read_netrc() is not None or any(name.startswith("WANDB_") for name in os.environ)


def server_url() -> str:
    """The URL of the W&B server that is configured."""
    import wandb  # it takes half a second

    settings = wandb.Settings()
    try:
        settings.update_from_system_settings()  # what `wandb login --host` wrote
        settings.update_from_env_vars(dict(os.environ))  # WANDB_BASE_URL
    except ValueError as error:  # pydantic's, which names the setting in its second line
        setting, _, reason = str(error).partition("\n")[2].partition("\n")
        message = " ".join(reason.split()) or " ".join(str(error).split())
        raise ConfigError(
            f"WANDB_{setting.upper()}: {message}; correct it, unset it, or set logger=csv"
        ) from error
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
    if (known := _read_netrc()) is None:
        return False
    from wandb.sdk.lib.urls import forge_upstream_url

    addresses = (url, forge_upstream_url(url))
    return any(known.authenticators(urlsplit(address).netloc) for address in addresses)


def without_keys(text: str) -> str:
    """The text without any login that W&B may be using: it may be printed and kept."""
    known = _read_netrc()
    logins = [] if known is None else known.hosts.values()
    keys = [os.environ.get("WANDB_API_KEY"), *(password for _, _, password in logins)]
    for key in filter(None, keys):
        text = text.replace(key, "(key)")
    return text


def _read_netrc() -> netrc.netrc | None:
    """None where there is none that can be read."""
    try:
        return netrc.netrc(Path(os.environ.get("NETRC", "~/.netrc")).expanduser())
    except (OSError, netrc.NetrcParseError):
        return None


def is_unreachable(url: str) -> bool:
    """Whether nobody listens there; False behind a proxy, where this machine cannot know."""
    return not getproxies() and not _is_answering(url)


def _is_answering(url: str) -> bool:
    """Whether somebody listens there; in a thread, since DNS has no time limit."""
    answers: list[bool] = []
    look = threading.Thread(
        target=lambda: answers.append(_is_listening(_connected_url(url))), daemon=True
    )
    look.start()
    look.join(PROBE_SECONDS)
    return answers == [True]


def _connected_url(url: str) -> str:
    """The URL to connect to: the server's, or that of the proxy on the way there."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = request.getproxies().get(parts.scheme)
    is_near = host == "localhost" or host.startswith("127.")  # as W&B's client has it
    if proxy is None or is_near or request.proxy_bypass(host):
        return url
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_listening(url: str) -> bool:
    parts = urlsplit(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        with socket.create_connection((parts.hostname, port), timeout=PROBE_SECONDS):
            return True
    except OSError:
        return False
