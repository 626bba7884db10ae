"""A sweep that is driven by a process inside a cluster: its command line, its name, its end."""

import hashlib
import json
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from capsweep.config import places

PLACES = ("STORAGE", "DATA_DIR", "LEDGER")
# Words that say where to drive, which `--here` does inside.
OF_HERE = (
    *("CLUSTER", "RAY_ADDRESS"),
    *("cluster", "cluster.address", "cluster.jobs", "cluster.submit"),
)


def name_command(sweep: str, words: Sequence[str]) -> str:
    """Return `capsweep-SWEEP-CHOICES`, the same for the same words after `capsweep` in any order.

    With the number of the run, `-1` and so on, it is the id of a job, which Ray gives once.
    """
    choices = hashlib.sha256(json.dumps(sorted(words)).encode()).hexdigest()[:8]
    return f"capsweep-{quote_sweep(sweep)}-{choices}"


def quote_sweep(sweep: str) -> str:
    """Return the name of a sweep as it stands in an id: a part of a URL and of file names."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", sweep)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """End a sweep at SIGTERM as at Ctrl-C: its trials are stopped, and it says how far it is.

    Ray's jobs inherit SIGINT blocked, and a shell's background jobs ignore it: it is let in.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)  # to whoever handles that now: Ray Tune, while it runs


def make_inner_command(
    sweep: str, words: Sequence[str], config: Mapping[str, Any], staged: bool = True
) -> list[str]:
    """Return the words after `capsweep` of the same sweep, driven by a process on a cluster: as
    typed, less what is of this machine, with its cluster and with absolute places.

    words: typed behind the sweep. config: of the first cell. staged: a sweep file of elsewhere is
    in the package that travels, by its name; otherwise it is named by its absolute path.
    """
    if sweep.endswith(".yaml"):
        sweep = Path(sweep).stem if staged else os.path.abspath(sweep)
    typed = _without(words, (*OF_HERE, *PLACES))
    there = (config["places"][name] for name in ("storage", "data", "ledger"))
    cluster = f"CLUSTER={config['cluster']['name']}"
    return ["sweep", sweep, "--here", *typed, cluster, *_name_places(*there)]


def with_node_places(words: Sequence[str], config: Mapping[str, Any]) -> list[str] | None:
    """Return the words of a driver on a node, with places as that node sees them (`cluster.node`);
    None where they are the same.
    """
    if not any(config["cluster"]["node"].values()):
        return None
    node = places.on_node(config)
    return [*_without(words, PLACES), *_name_places(node.kept, node.data, node.ledger)]


def _name_places(*places_there: str) -> list[str]:
    return [f"{name}={place}" for name, place in zip(PLACES, places_there, strict=True)]


def _without(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the words that set none of these names, and no key of `places`."""
    named = [(word.partition("=")[0], word) for word in words]
    return [word for name, word in named if name not in names and not name.startswith("places")]
