"""Places: the folders and URLs of data and results, as this machine or a node sees them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsweep.config.validation import check_resolved
from capsweep.errors import ConfigError
from capsweep.storage.files import user_cache_folder
from capsweep.storage.stores import Disk, check_folder, is_url, join, prove_writable

OUTPUTS = "outputs"  # the local folder for files if places.storage is an object store


@dataclass(frozen=True)
class Places:
    """The places of data and results on one machine, as absolute paths or URLs."""

    storage: Path  # local folder for scratch files, reports and W&B's files
    data: str  # folder of the data sets, or URL of an object store
    ledger: str  # folder of the ledger, or URL of an object store
    shared: str  # places.storage (folder or URL), for files that other machines need too


def resolve_path(place: str) -> str:
    """Return a path as an absolute path, with `~` expanded; return a URL unchanged."""
    return place if is_url(place) else os.path.abspath(os.path.expanduser(place))


def make_absolute(places: Mapping[str, str]) -> dict[str, str]:
    """Return configured places as absolute paths; return URLs unchanged.

    Places below `places.storage` stay below `places.storage`.
    """
    storage = places["storage"]
    return {name: resolve_path(_move_below(p, storage, storage)) for name, p in places.items()}


def _move_below(place: str, storage: str, other: str) -> str:
    """Replace `storage` at the start of `place` by `other`; if it is not there, change nothing.

    If `other` is a URL with a query, the query stays at the end.
    """
    if place == storage:
        return other
    below = place.removeprefix(f"{storage.rstrip('/')}/")
    return place if below == place else join(other, below)


def locate_ledger(storage: str, ledger: str | None) -> str:
    """Return the absolute path or the URL of the ledger that the options of a command name.

    Args:
        storage: The value of STORAGE.
        ledger: The value of LEDGER; None or empty: the folder `ledger` in the storage.

    Raises:
        ConfigError: If the path or URL contains `${`.
    """
    place = ledger or join(storage, "ledger")
    check_resolved("LEDGER", place)
    return resolve_path(place)


def locate_folder(storage: str) -> Path:
    """Return the local folder for the files of a command; `outputs` if the storage is a URL."""
    return Path(resolve_path(OUTPUTS if is_url(storage) else storage))


def resolve(places: Mapping[str, str]) -> Places:
    """Return the absolute places on the machine where a command is typed; no folder is made.

    Raises:
        ConfigError: If places.storage is a path that cannot be a folder.
    """
    resolved = make_absolute(places)
    storage = resolved["storage"]
    check_folder(storage, "places.storage")
    return Places(locate_folder(storage), resolved["data"], resolved["ledger"], storage)


def resolve_on_node(config: Mapping[str, Any]) -> Places:
    """Return the absolute places on this machine, which is a node of a cluster.

    `cluster.node.storage` is the path at which the node sees `places.storage`. If `places.storage`
    is a folder, the places below this folder are below `cluster.node.storage` on the node. If
    `places.storage` is a URL, `cluster.node.storage` is used only for local files. If
    `cluster.node.data` is set, it replaces `places.data`. In `cluster.node`, `~` and `$NAME` have
    the values of the node. If the node's storage is an object store, local files are in the user's
    cache on the node.

    Raises:
        ConfigError: If a path of `cluster.node` is not absolute on the node; the message names the
            key.
    """
    places, node = make_absolute(config["places"]), config["cluster"]["node"]
    typed = local = places["storage"]
    if node["storage"] is not None:
        local = _read_node_path(node["storage"], "cluster.node.storage")
        if not is_url(typed):
            places = {name: _move_below(place, typed, local) for name, place in places.items()}
    if node["data"] is not None:
        places["data"] = _read_node_path(node["data"], "cluster.node.data")
    scratch = user_cache_folder() / OUTPUTS if is_url(local) else Path(local)
    return Places(scratch, places["data"], places["ledger"], shared=places["storage"])


def _read_node_path(place: str, key: str) -> str:
    """Expand `~` and `$NAME` in a path; raise ConfigError if the result is not absolute."""
    expanded = place if is_url(place) else os.path.expanduser(os.path.expandvars(place))
    if not is_url(expanded) and ("$" in expanded or not os.path.isabs(expanded)):
        raise ConfigError(
            f"{key}={place}: this is not an absolute path on this node; write one, or set the "
            "variable in the environment of every node"
        )
    return expanded


def prepare(places: Places) -> None:
    """Make the storage folder, and check that files can be written there.

    If the data folder is below the storage folder, the data folder is made too.

    Raises:
        UserError: If files cannot be written; the message names `places.storage`.
    """
    prove_writable(Disk(places.storage), word="STORAGE")
    if not is_url(places.data) and Path(places.data).is_relative_to(places.storage):
        Path(places.data).mkdir(parents=True, exist_ok=True)
