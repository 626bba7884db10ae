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

from capsweep.config import places, words

PLACES = {"STORAGE": "storage", "DATA_DIR": "data", "LEDGER": "ledger"}
OMITTED = ("SWEEP", "RAY_ADDRESS", *PLACES)  # --here says where to drive, places become absolute
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


def make_inner_command(
    parsed: argparse.Namespace, config: Mapping[str, Any], staged: bool = True
) -> list[str]:
    """Return the words after `capsweep` of the same sweep, driven by a process on a cluster.

    They are those that were typed, in the order of the table of words, so that one choice is one
    command, with absolute places. config: of the first cell. staged: a sweep file of elsewhere is
    in the package that travels, by its name; otherwise it is named by its absolute path.
    """
    sweep, typed = parsed.sweep, dict(parsed.words)
    if sweep.endswith(".yaml"):
        sweep = Path(sweep).stem if staged else os.path.abspath(sweep)
    if "RAY_ADDRESS" in typed:
        typed.setdefault("CLUSTER", "address")
    typed = {name: text for name, text in typed.items() if name not in OMITTED}
    typed |= {name: config["places"][key] for name, key in PLACES.items()}
    named = [f"{word.name}={typed[word.name]}" for word in words.WORDS if word.name in typed]
    keys = [text for text in parsed.overrides if not _is_replaced(text)]
    return ["sweep", sweep, "--here", *named, *keys]


def with_node_places(
    parsed: argparse.Namespace, config: Mapping[str, Any]
) -> argparse.Namespace | None:
    """Return what a driver on a node was given, with places as that node sees them
    (`cluster.node`); None where they are the same.
    """
    if not any(config["cluster"]["node"].values()):
        return None
    node = places.on_node(config)
    there = {"STORAGE": node.kept, "DATA_DIR": node.data, "LEDGER": node.ledger}
    keys = [text for text in parsed.overrides if not text.startswith("places.")]
    changed = {"words": parsed.words | there, "overrides": keys}
    return argparse.Namespace(**{**vars(parsed), **changed})


def _is_replaced(text: str) -> bool:
    return any(f"{text}.".startswith((f"{key}.", f"{key}=")) for key in REPLACED)
