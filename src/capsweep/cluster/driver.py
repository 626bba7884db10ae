"""A sweep that is driven by a process inside a cluster: its command line, its name, its end."""

import argparse
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

# Options that are replaced, or are of this machine alone: --here says where to drive, and places
# are passed as absolute ones.
OMITTED = ("sweep", "overrides", "detach", "dry_run", "here", "address")
PLACES = {"storage": "storage", "data_dir": "data", "ledger": "ledger"}
REPLACED = ("cluster.address", "cluster.jobs", "cluster.submit", "places")


def name_command(sweep: str, words: Sequence[str]) -> str:
    """`capsweep-SWEEP-CHOICES`, the same for the same words after `capsweep`.

    With the number of the run, `-1` and so on, it is the id of a job, which Ray gives once.
    """
    choices = hashlib.sha256(json.dumps(list(words)).encode()).hexdigest()[:8]
    return f"capsweep-{quote_sweep(sweep)}-{choices}"


def quote_sweep(sweep: str) -> str:
    """The name of a sweep as it stands in an id: a part of a URL and of file names."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", sweep)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does: its trials are stopped, and it says how far it is.

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


def add_here_option(sweep: argparse.ArgumentParser) -> None:
    """Add the option of a command inside; the parser itself is kept, to know every option."""
    sweep.add_argument("--here", action="store_true", help="drive the cluster that this node is of")
    sweep.set_defaults(parser=sweep)


def make_inner_command(
    parsed: argparse.Namespace, config: Mapping[str, Any], staged: bool = True
) -> list[str]:
    """The words after `capsweep` of the same sweep, driven by a process that is on a cluster.

    Every option as parsed, in the parser's order, so that one choice is one command; then overrides
    as typed, and absolute places. config: of the first cell. staged: a sweep file of elsewhere is
    in the package that travels, by its name; otherwise it is named by its absolute path.
    """
    from capsweep.config.overrides import render

    if parsed.address is not None and parsed.cluster is None:
        parsed = argparse.Namespace(**{**vars(parsed), "cluster": "address"})
    sweep = parsed.sweep
    if sweep.endswith(".yaml"):
        sweep = Path(sweep).stem if staged else os.path.abspath(sweep)
    words = ["sweep", sweep, "--here", *_list_options(parsed)]
    words += [text for text in parsed.overrides if not _is_replaced(text)]
    return [
        *words,
        *(render(f"places.{name}", config["places"][name]) for name in PLACES.values()),
    ]


def with_node_places(
    parsed: argparse.Namespace, config: Mapping[str, Any]
) -> argparse.Namespace | None:
    """What a driver on a node was given, with places as that node sees them (`cluster.node`); None
    where they are the same.
    """
    from capsweep.config import places
    from capsweep.config.overrides import render

    if not any(config["cluster"]["node"].values()):
        return None
    node = places.on_node(config)
    places_there = {"storage": node.kept, "data": node.data, "ledger": node.ledger}
    overrides = [text for text in parsed.overrides if not text.startswith("places.")]
    overrides += [render(f"places.{name}", place) for name, place in places_there.items()]
    return argparse.Namespace(**{**vars(parsed), **dict.fromkeys(PLACES), "overrides": overrides})


def _list_options(parsed: argparse.Namespace) -> Iterator[str]:
    for action in parsed.parser._actions:
        value = getattr(parsed, action.dest, action.default)
        is_given = action.option_strings and value != action.default
        if not is_given or action.dest in (*OMITTED, *PLACES):
            continue
        option = action.option_strings[-1]
        if action.nargs == 0:
            yield option
        else:
            yield from (f"{option}={v}" for v in (value if isinstance(value, list) else [value]))


def _is_replaced(text: str) -> bool:
    return any(f"{text}.".startswith((f"{key}.", f"{key}=")) for key in REPLACED)
