"""The mode of W&B: online, offline or none, decided once before any cell starts."""

import contextlib
import importlib.util
import netrc
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from capsweep.config import places
from capsweep.errors import ConfigError

PROBE_SECONDS = 3.0
PACKAGES = {"wandb": ("wandb",), "tensorboard": ("tensorboard", "tensorboardX")}  # any one will do
# Of the variables with the prefix WANDB_, W&B's process gets only these; the prefix is left out
# here. They concern the server, the login, folders, the connection, the user, and what W&B may
# send. Other variables of W&B, such as those of agents, notebooks and jobs, would make W&B write
# into another run.
PASSED_VARIABLES = {
    *("API_KEY", "IDENTITY_TOKEN_FILE", "CREDENTIALS_FILE", "BASE_URL", "APP_URL", "ENTITY"),
    *("CONFIG_DIR", "DATA_DIR", "CACHE_DIR", "ARTIFACT_DIR", "ORGANIZATION", "USERNAME"),
    *("USER_EMAIL", "HOST", "HTTP_TIMEOUT", "FILE_PUSHER_TIMEOUT", "HTTP_PROXY", "HTTPS_PROXY"),
    *("INSECURE_DISABLE_SSL", "X_EXTRA_HTTP_HEADERS", "X_EXECUTABLE", "ERROR_REPORTING", "DEBUG"),
    *("CORE_DEBUG", "DISABLE_CODE", "DISABLE_GIT", "SAVE_CODE"),
}


def decide_mode(config: Mapping[str, Any]) -> tuple[str, str]:
    """Decide the mode of W&B for a configuration.

    The first case that applies decides:

    1. If `logger.name` is not `wandb`, or if W&B's own settings switch W&B off: none.
    2. If logger.mode=offline, or if W&B's own settings make W&B offline: offline.
    3. If nobody is logged in: offline; with logger.mode=online, an error.
    4. If logger.mode=auto and the server does not answer within 3 s: offline.
    5. Else: online.

    Returns:
        Two strings: the mode ("online", "offline" or "none"), and a line for the user that states
        the mode and the reason.

    Raises:
        ConfigError: In case 3 with logger.mode=online, or if the package of the logger is not
            installed, or if W&B's settings are wrong.
    """
    logger, storage = config["logger"], places.locate_folder(config["places"]["storage"])
    name, packages = logger["name"], PACKAGES.get(logger["name"], ())
    if packages and not any(map(importlib.util.find_spec, packages)):
        cure = f"type `pip install {name}`, or set logger=csv"
        raise ConfigError(f"logger={name}: {name} is not installed; {cure}")
    if name == "tensorboard":
        look = f"tensorboard --logdir {storage}/tensorboard"
        return "none", f"TensorBoard: `pip install tensorboard`, then `{look}` shows the runs"
    if name != "wandb":
        return "none", f"W&B: off (logger={name}); metrics are in the ledger"
    # W&B is imported only if there are settings of W&B or a .netrc file, because the import takes
    # half a second.
    files = (_find_system_settings(), Path("wandb/settings"))
    has_settings = _read_netrc() or any(name.startswith("WANDB_") for name in os.environ)
    settings = _read_settings() if has_settings or any(map(Path.exists, files)) else None
    url = None if settings is None else remove_login(settings.base_url)
    if settings is not None and settings.mode == "disabled":
        return "none", "W&B: off (wandb disabled); metrics are in the ledger"
    if logger["mode"] == "offline" or (settings and settings.mode in ("offline", "dryrun")):
        reason = "as configured"
    elif url is None or not has_login(url):
        if logger["mode"] == "online":
            cure = "run `wandb login`, or set mode=auto"
            raise ConfigError(f"logger.mode=online needs a login; {cure}")
        reason = "nobody is logged in"
    elif logger["mode"] == "auto" and not _is_answering(url):
        reason = f"{url} does not answer"
    else:
        return "online", f"W&B: online at {url}, project {logger['project']}"
    cure = "upload later with make wandb-sync"
    return "offline", f"W&B: offline, {reason}; runs go to {storage}/wandb; {cure}"


def read_server_url() -> str:
    """Return the URL of the configured W&B server, without user name and password.

    Raises:
        ConfigError: If a setting of W&B is wrong.
    """
    return remove_login(_read_settings().base_url)


def clean_environment() -> dict[str, str]:
    """Return the environment for W&B's process.

    All variables without the prefix WANDB_ are included. Of the variables with this prefix, only
    the PASSED_VARIABLES are included. White space at both ends of the values of PASSED_VARIABLES is
    removed, because a secret from a file may end with a newline.
    """
    kept = {f"WANDB_{name}" for name in PASSED_VARIABLES}
    variables = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") or k in kept}
    return variables | {name: variables[name].strip() for name in kept & variables.keys()}


def _find_system_settings() -> Path:
    """Return the path of the settings file that commands such as `wandb login --host` write."""
    folder = os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")
    return Path(folder).expanduser() / "settings"


def _read_settings() -> Any:
    """Read W&B's settings from files and from environment variables; a variable overrides a file.

    Raises:
        ConfigError: If a setting is wrong. The message contains the name of the setting, but not
            the value, which may be a password.
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
        if isinstance(error, ValidationError):  # its text quotes values, such as a password
            faults = error.errors(include_input=False)
            text = ", ".join(f"WANDB_{e['loc'][0]}".upper() + f": {e['msg']}" for e in faults)
        raise ConfigError(f"W&B's settings: {text}; correct them, or set logger=csv") from error
    return settings


def remove_login(url: str) -> str:
    """Return a URL without user name and password, so that it can be printed and stored."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def has_login(url: str) -> bool:
    """Return whether W&B would find an API key or an identity token for the server at `url`.

    The server is not asked, so the key may be invalid.
    """
    import wandb
    from wandb.sdk.lib import wbauth

    variables = clean_environment()
    if variables.get("WANDB_API_KEY") or variables.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        return wbauth.read_netrc_auth(host=url) is not None
    except wandb.Error:  # the key has a wrong form; W&B reports this when W&B uses the key
        return True


def remove_keys(text: str) -> str:
    """Replace each secret in a text with "(key)".

    The secrets are the value of WANDB_API_KEY and all passwords in the user's .netrc file.
    """
    logins = netrc_file.hosts.values() if (netrc_file := _read_netrc()) else ()
    for key in (clean_environment().get("WANDB_API_KEY"), *(password for *_, password in logins)):
        text = text.replace(key, "(key)") if key else text
    return text


def _read_netrc() -> netrc.netrc | None:
    """Read the user's .netrc file; None if the file is absent or cannot be read."""
    try:
        return netrc.netrc(Path(os.environ.get("NETRC", "~/.netrc")).expanduser())
    except (OSError, netrc.NetrcParseError):
        return None


def _is_answering(url: str) -> bool:
    """Return whether a server answers within 3 s; an error status counts as an answer.

    The request uses the proxy that environment variables name. The request runs in a thread,
    because the look-up of a host name has no time limit.
    """
    import requests  # W&B brings it

    answered = threading.Event()

    def ask() -> None:
        with contextlib.suppress(OSError, ValueError):  # no answer, or e.g. a wrong proxy
            requests.head(url, timeout=PROBE_SECONDS)
            answered.set()

    threading.Thread(target=ask, daemon=True).start()
    return answered.wait(PROBE_SECONDS)
