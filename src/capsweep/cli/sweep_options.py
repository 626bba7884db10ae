"""The sweep that the words of a command choose, and the overrides that words stand for."""

import argparse
import os
import shlex
from dataclasses import replace

from capsweep.config import words
from capsweep.config.overrides import expand_word, parse, render
from capsweep.errors import ConfigError
from capsweep.sweep import choices, expand, trials
from capsweep.sweep.choices import is_logistics
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep


def load_points(parsed: argparse.Namespace) -> tuple[Sweep, list[Point]]:
    """Return the sweep as chosen, and its points. Raises ConfigError for a search."""
    sweep = load_sweep(parsed)
    return sweep, expand.set_accuracies(sweep, expand.expand_sweep(sweep))


def list_points(sweep: Sweep) -> list[Point]:
    """Return the points of a sweep; of a search those that it is checked by.

    Raises ConfigError naming the key.
    """
    return expand.expand_sweep(sweep) if sweep.search is None else trials.check_search(sweep)


def load_sweep(parsed: argparse.Namespace) -> Sweep:
    """Return the sweep as chosen."""
    values = {n: v for n, v in parsed.words.items() if words.BY_NAME[n].is_choice}
    overrides = [*parsed.overrides, *choose_cluster(parsed)]
    if getattr(parsed, "here", False):
        # Ray tells its jobs where they are; elsewhere on a node Ray finds it.
        overrides.append(render("cluster.address", os.environ.get("RAY_ADDRESS", "auto")))
    sweep = choices.load_sweep(parsed.sweep, values, overrides)
    return replace(sweep, command=_format_make_command(parsed, sweep))


def choose_cluster(parsed: argparse.Namespace) -> list[str]:
    """Return the words of a cluster as overrides: an address is that of `cluster=address`, or of a
    file like it. Raises ConfigError for the address of a cluster that has none.
    """
    name, address = parsed.words.get("CLUSTER"), parsed.words.get("RAY_ADDRESS")
    if address is None:
        return [] if name is None else [f"cluster={name}"]
    if name in ("local", "slurm"):
        raise ConfigError(
            f"CLUSTER={name} with RAY_ADDRESS={address}: an address is that of CLUSTER=address; "
            "leave one of them out"
        )
    typed = render("cluster.address", address)
    return [f"cluster={name or 'address'}", typed, "cluster.jobs=null"]  # not the environment's


def choose_places(parsed: argparse.Namespace) -> list[str]:
    """Return the words of places as overrides of a run."""
    return [expand_word(n, v) for n, v in parsed.words.items() if words.BY_NAME[n].is_place]


def _format_make_command(parsed: argparse.Namespace, sweep: Sweep) -> str:
    """Return the command that prints the same table on any machine: no folder is named in it. A
    sweep file elsewhere is named as from its own folder.
    """
    file = sweep.path.name if parsed.sweep.endswith(".yaml") else parsed.sweep
    shown = (w for w in words.WORDS if w in words.GRID or (w.key and not is_logistics(w.key)))
    typed = [f"{w.name}={parsed.words[w.name]}" for w in shown if w.name in parsed.words]
    keys = [text for text in parsed.overrides if not is_logistics(parse(text).key)]
    return shlex.join(["make", "report", f"SWEEP={file}", *typed, *keys])
