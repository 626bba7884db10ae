"""The command of a sweep that is driven inside a cluster, from the command that was typed here."""

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Said anew, or of this machine alone: where to drive is settled by --here, and the rest is where
# things are, which is told as absolute places.
ELSEWHERE = ("sweep", "overrides", "detach", "dry_run", "here", "address")
PLACES = {"storage": "storage", "data_dir": "data", "ledger": "ledger"}
OVERRIDDEN = ("cluster.address", "cluster.jobs", "cluster.submit", "places")


def inner_command(
    parsed: argparse.Namespace, config: Mapping[str, Any], staged: bool = True
) -> list[str]:
    """The words after `capsweep` of the same sweep, driven by a process that is on a cluster.

    Every option as parsed, in the parser's order, so that one choice is one command; then overrides
    as typed, and absolute places. config: of the first cell. staged: a sweep file of elsewhere is
    in the package that travels, by its name; otherwise it is named by its absolute path.
    """
    words = ["sweep", _name(parsed.sweep, staged), "--here", *_options(parsed)]
    if parsed.address is not None:
        words.append("--cluster=address")
    words += [text for text in parsed.overrides if not _is_said_anew(text)]
    return [*words, *_places(config["places"])]


def as_seen_here(parsed: argparse.Namespace, config: Mapping[str, Any]) -> argparse.Namespace:
    """What a driver on a node was told, with places as that node sees them (`cluster.node`)."""
    from capsweep.config import places
    from capsweep.config.overrides import render

    if not any(config["cluster"]["node"].values()):
        return parsed
    kept = [text for text in parsed.overrides if not text.startswith("places.")]
    seen = places.on_node(config)
    there = {"storage": seen.kept, "data": seen.data, "ledger": seen.ledger}
    told = [render(f"places.{name}", place) for name, place in there.items()]
    elsewhere = dict.fromkeys(PLACES)
    return argparse.Namespace(**{**vars(parsed), **elsewhere, "overrides": [*kept, *told]})


def add_here(sweep: argparse.ArgumentParser) -> None:
    """Add the option that such a command has; the parser itself is kept, to know every option."""
    sweep.add_argument("--here", action="store_true", help="drive the cluster that this node is of")
    sweep.set_defaults(parser=sweep)


def _name(typed: str, staged: bool) -> str:
    if not typed.endswith(".yaml"):
        return typed
    return Path(typed).stem if staged else os.path.abspath(typed)


def _options(parsed: argparse.Namespace) -> Iterator[str]:
    for action in parsed.parser._actions:
        value = getattr(parsed, action.dest, action.default)
        if not action.option_strings or value == action.default:
            continue
        if action.dest in (*ELSEWHERE, *PLACES):
            continue
        option = action.option_strings[-1]
        if action.nargs == 0:
            yield option
        else:
            yield from (f"{option}={one}" for one in _every(value))


def _every(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_said_anew(text: str) -> bool:
    return any(f"{text}.".startswith((f"{key}.", f"{key}=")) for key in OVERRIDDEN)


def _places(places: Mapping[str, str]) -> Iterator[str]:
    from capsweep.config.overrides import render

    return (render(f"places.{name}", places[name]) for name in PLACES.values())
