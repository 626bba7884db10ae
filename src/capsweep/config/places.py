"""Places: where data and results are on this node. Resolved where the cell runs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsweep.config.validation import check_resolved
from capsweep.errors import ConfigError
from capsweep.storage.files import user_cache_folder
from capsweep.storage.stores import Disk, check_folder, is_url, join, prove_writable

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
    storage = places["storage"]
    return {name: absolute(_move_below(p, storage, storage)) for name, p in places.items()}


def _move_below(place: str, storage: str, other: str) -> str:
    """A place, moved from below `storage` to below another one; a query of that stays last."""
    if place == storage:
        return other
    below = place.removeprefix(f"{storage.rstrip('/')}/")
    return place if below == place else join(other, below)


def ledger_of(storage: str, ledger: str | None) -> str:
    """Where a ledger is, by the options of a command: `ledger`, else below `storage`.

    Raises ConfigError for an interpolation.
    """
    place = ledger or join(storage, "ledger")
    check_resolved("LEDGER", place)
    return absolute(place)


def folder_of(storage: str) -> Path:
    """The folder for what must be in one, where a command is typed.

    For an object store that is `outputs` of the current folder.
    """
    return Path(absolute(OUTPUTS if is_url(storage) else storage))


def resolve(places: Mapping[str, str]) -> Places:
    """Absolute places where a command is typed; nothing is made. Raises ConfigError: no folder."""
    absolute_places = make_absolute(places)
    storage = absolute_places["storage"]
    check_folder(storage, "places.storage")
    return Places(folder_of(storage), absolute_places["data"], absolute_places["ledger"], storage)


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
        seen_by_node = _read_node_path(node["storage"], "cluster.node.storage")
        if not is_url(storage):
            data, ledger = (_move_below(place, storage, seen_by_node) for place in (data, ledger))
            kept = seen_by_node
        storage = seen_by_node
    if node["data"] is not None:
        data = _read_node_path(node["data"], "cluster.node.data")
    scratch = user_cache_folder() / OUTPUTS if is_url(storage) else Path(storage)
    return Places(scratch, data, ledger, kept)


def _read_node_path(place: str, key: str) -> str:
    expanded = place if is_url(place) else os.path.expanduser(os.path.expandvars(place))
    if not is_url(expanded) and ("$" in expanded or not os.path.isabs(expanded)):
        raise ConfigError(
            f"{key}={place}: this is no absolute path on this node; write one, or set the "
            "variable in the environment of every node"
        )
    return expanded


def prepare(places: Places) -> None:
    """Make the folder of the storage, and prove that it can be written.

    Raises UserError naming `places.storage` when it cannot.
    """
    prove_writable(Disk(places.storage), word="STORAGE")
    if not is_url(places.data) and Path(places.data).is_relative_to(places.storage):
        Path(places.data).mkdir(parents=True, exist_ok=True)
