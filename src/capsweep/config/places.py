"""Places: where data and results are on this node. Resolved where the cell runs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsweep.errors import ConfigError, UserError
from capsweep.storage.files import user_cache_folder
from capsweep.storage.stores import check_folder, is_url, join

OUTPUTS = "outputs"  # the folder of what needs one, where places.storage is an object store


@dataclass(frozen=True)
class Places:
    """Places of this node, absolute. storage: a folder, for what must be in one (scratch, reports,
    W&B's files). data, ledger, kept: a folder, or the URL of an object store. kept: the storage as
    it was typed, for what a sweep must find again when it is driven from another machine.
    """

    storage: Path
    data: str
    ledger: str
    kept: str


def absolute(place: str) -> str:
    """The place, independent of the current folder; a URL stays as it is."""
    return place if is_url(place) else os.path.abspath(os.path.expanduser(place))


def make_absolute(places: Mapping[str, str]) -> dict[str, str]:
    """Places as they were typed, or drawn from `places.storage`, independent of the folder."""
    return {
        name: absolute(_join_storage(place, places["storage"])) for name, place in places.items()
    }


def _join_storage(place: str, storage: str) -> str:
    """conf/ puts `${places.storage}/ledger` together as text; the query of a URL belongs last."""
    below = place.removeprefix(f"{storage}/")
    return join(storage, below) if is_url(storage) and below != place else place


def ledger_of(storage: str, ledger: str | None) -> str:
    """Where a ledger is, by the options of a door: `ledger`, else below `storage`."""
    return absolute(ledger or join(storage, "ledger"))


def folder_of(storage: str) -> Path:
    """The folder for what must be in one, where a command is typed.

    For an object store that is `outputs` of the current folder.
    """
    return Path(absolute(OUTPUTS if is_url(storage) else storage))


def resolve(places: Mapping[str, str]) -> Places:
    """Absolute places where a command is typed; nothing is made. Raises ConfigError: no folder."""
    whole = make_absolute(places)
    check_folder(whole["storage"], "places.storage")
    return Places(folder_of(whole["storage"]), whole["data"], whole["ledger"], whole["storage"])


def on_node(config: Mapping[str, Any]) -> Places:
    """Absolute places on a node of a cluster that runs the cell of this configuration.

    `cluster.node.storage` is how the node sees `places.storage`: what lies below that lies below
    it there. `~` and `$NAME` are the node's. What needs a folder is in the user's cache of the
    node where the storage is an object store. Raises ConfigError naming the key for what is no
    absolute path on the node.
    """
    places, node = make_absolute(config["places"]), config["cluster"]["node"]
    storage, data, ledger = places["storage"], places["data"], places["ledger"]
    kept = storage
    if node["storage"] is not None:
        here = _read_node_path(node["storage"], "cluster.node.storage")
        if not is_url(storage):
            data, ledger = _move_below(data, storage, here), _move_below(ledger, storage, here)
            kept = here
        storage = here
    if node["data"] is not None:
        data = _read_node_path(node["data"], "cluster.node.data")
    return Places(_find_cache_folder() if is_url(storage) else Path(storage), data, ledger, kept)


def _find_cache_folder() -> Path:
    try:
        return user_cache_folder() / OUTPUTS
    except RuntimeError as error:
        raise ConfigError(
            "cluster.node.storage: this node has no home folder; set it to a folder of the node, "
            "or set HOME or XDG_CACHE_HOME there"
        ) from error


def _read_node_path(place: str, key: str) -> str:
    expanded = place if is_url(place) else os.path.expanduser(os.path.expandvars(place))
    if not is_url(expanded) and ("$" in expanded or not os.path.isabs(expanded)):
        raise ConfigError(
            f"{key}={place}: {expanded} is no absolute path on this node; write one, or set the "
            "variable in the environment of every node"
        )
    return expanded


def _move_below(place: str, storage: str, here: str) -> str:
    """A place below the storage where it was typed, below the storage here."""
    if place == storage:
        return here
    below = place.removeprefix(f"{storage.rstrip('/')}/")
    return place if below == place or is_url(place) else join(here, below)


def prepare(places: Places) -> None:
    """Make the folder of the storage, and prove that it can be written.

    Raises UserError naming `places.storage` when it cannot.
    """
    try:
        places.storage.mkdir(parents=True, exist_ok=True)
        probe = places.storage / ".probe"
        probe.touch()
        probe.unlink(missing_ok=True)  # another sweep may prove the same
    except OSError as error:
        raise UserError(
            f"places.storage: {places.storage} cannot be written ({error.strerror}); "
            "set STORAGE=... (or places.storage=...) to a writable folder"
        ) from error
    if not is_url(places.data) and Path(places.data).is_relative_to(places.storage):
        Path(places.data).mkdir(parents=True, exist_ok=True)
