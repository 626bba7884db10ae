"""Online or offline: decided once, before any cell starts, and said in one line."""

import contextlib
import importlib.util
import netrc
import os
import threading
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

from capsweep.config import places
from capsweep.errors import ConfigError

PROBE_SECONDS = 3.0
# What W&B is told of its variables: server and login, places, connection, who, and what is not to
# be sent. Others, as of an agent, a notebook or a job, say which run this is: ours is its cell's.
KEPT = {
    *("API_KEY", "IDENTITY_TOKEN_FILE", "CREDENTIALS_FILE", "BASE_URL", "APP_URL", "ENTITY"),
    *("CONFIG_DIR", "DATA_DIR", "CACHE_DIR", "ARTIFACT_DIR", "ORGANIZATION", "USERNAME"),
    *("USER_EMAIL", "HOST", "HTTP_TIMEOUT", "FILE_PUSHER_TIMEOUT", "HTTP_PROXY", "HTTPS_PROXY"),
    *("INSECURE_DISABLE_SSL", "X_EXTRA_HTTP_HEADERS", "X_EXECUTABLE", "ERROR_REPORTING", "DEBUG"),
    *("CORE_DEBUG", "DISABLE_CODE", "DISABLE_GIT", "SAVE_CODE"),
}


def decide_mode(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return ("online" | "offline" | "none", the reason in one line) for a configuration's logger.

    mode=auto is online only if a login is there and the host answers within 3 s.
    Raises ConfigError when the chosen logger is not installed, or mode=online has no login.
    """
    logger = config["logger"]
    if logger["name"] != "wandb":
        return "none", f"W&B: off (logger={logger['name']}); metrics are in the ledger"
    if importlib.util.find_spec("wandb") is None:
        raise ConfigError("logger=wandb: wandb is not installed; install it or set logger=csv")
    # To import W&B for its settings takes half a second, which a user without any need not pay.
    files = (_find_system_settings(), Path("wandb/settings"))
    has_settings = _read_netrc() or any(name.startswith("WANDB_") for name in os.environ)
    settings = _read_settings() if has_settings or any(map(Path.exists, files)) else None
    url = None if settings is None else without_login(settings.base_url)
    if settings is not None and settings.mode == "disabled":
        return "none", "W&B: off (wandb disabled); metrics are in the ledger"
    if logger["mode"] == "offline" or (settings and settings.mode in ("offline", "dryrun")):
        reason = "as asked"
    elif url is None or not has_login(url):
        if logger["mode"] == "online":
            cure = "run `wandb login`, or set mode=auto"
            raise ConfigError(f"logger.mode=online needs a login; {cure}")
        reason = "nobody is logged in"
    elif logger["mode"] == "auto" and not _is_answering(url):
        reason = f"{url} does not answer"
    else:
        return "online", f"W&B: online at {url}, project {logger['project']}"
    folder = f"{places.folder_of(config['places']['storage'])}/wandb"
    cure = "upload later with make wandb-sync"
    return "offline", f"W&B: offline, {reason}; runs go to {folder}; {cure}"


def server_url() -> str:
    """Return the URL of the W&B server that is configured. Raises ConfigError naming a wrong
    setting.
    """
    return without_login(_read_settings().base_url)


def clean_environment() -> dict[str, str]:
    """Return this process's environment for one of W&B's: of its variables those that say where and
    how, without the newline that a secret from a file ends with.
    """
    kept = {f"WANDB_{name}" for name in KEPT}
    variables = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") or k in kept}
    return variables | {name: variables[name].strip() for name in kept & variables.keys()}


def _find_system_settings() -> Path:
    """Return the file that W&B's commands write, as `wandb login --host` and `wandb disabled`."""
    folder = os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")
    return Path(folder).expanduser() / "settings"


def _read_settings() -> Any:
    """Return W&B's settings, of its files and then of variables. Raises ConfigError naming a wrong
    one.
    """
    import wandb
    from pydantic import ValidationError

    variables = clean_environment()
    if mode := os.environ.get("WANDB_MODE", "").strip():
        variables["WANDB_MODE"] = mode
    try:
        settings = wandb.Settings(settings_system=str(_find_system_settings()), silent=True)
        settings.update_from_system_settings()
        settings.update_from_env_vars(variables)
    except (ValueError, wandb.Error) as error:
        text = " ".join(str(error).split())
        if isinstance(error, ValidationError):  # whose text quotes a value, which may be a password
            faults = error.errors(include_input=False)
            text = ", ".join(f"WANDB_{e['loc'][0]}".upper() + f": {e['msg']}" for e in faults)
        raise ConfigError(f"W&B's settings: {text}; correct them, or set logger=csv") from error
    return settings


def without_login(url: str) -> str:
    """The URL without a user's name and password: it may be printed and kept."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def has_login(url: str) -> bool:
    """Return whether an API key or identity token for the server is where W&B looks for one; the
    server is not asked.
    """
    import wandb
    from wandb.sdk.lib import wbauth

    variables = clean_environment()
    if variables.get("WANDB_API_KEY") or variables.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        return wbauth.read_netrc_auth(host=url) is not None
    except wandb.Error:  # it is no key, which W&B says where it is used
        return True


def without_keys(text: str) -> str:
    """Return the text without any login that W&B may be using: it may be printed and kept."""
    logins = netrc_file.hosts.values() if (netrc_file := _read_netrc()) else ()
    for key in (clean_environment().get("WANDB_API_KEY"), *(password for *_, password in logins)):
        text = text.replace(key, "(key)") if key else text
    return text


def _read_netrc() -> netrc.netrc | None:
    """None where there is none that can be read."""
    try:
        return netrc.netrc(Path(os.environ.get("NETRC", "~/.netrc")).expanduser())
    except (OSError, netrc.NetrcParseError):
        return None


def _is_answering(url: str) -> bool:
    """Return whether a server answers, be it with a refusal, within 3 s; through a proxy where the
    environment names one.

    In a thread, since a look-up of a name has no time limit.
    """
    answered = threading.Event()

    def ask() -> None:
        with contextlib.suppress(OSError, ValueError, HTTPException):  # a proxy may be no host
            try:
                request.build_opener().open(url, timeout=PROBE_SECONDS).close()
            except HTTPError as refusal:
                refusal.close()
            answered.set()

    threading.Thread(target=ask, daemon=True).start()
    return answered.wait(PROBE_SECONDS)
