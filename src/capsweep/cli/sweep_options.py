"""The sweep that the options of a command choose."""

import argparse
import os
import shlex
from dataclasses import replace
from pathlib import Path

from capsweep.cli.parser import KEYS, PLACES
from capsweep.config.overrides import parse, render
from capsweep.errors import ConfigError
from capsweep.sweep import choices, expand, trials
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

# Options that decide what is in a table, and what make calls them: no place of this machine.
MAKE = (
    *("routing", "recon", "dataset", "model", "arms", "baseline", "seeds", "epochs", "batch"),
    "metric",
)


def load_points(parsed: argparse.Namespace) -> tuple[Sweep, list[Point]]:
    """The sweep as chosen, and its points. Raises ConfigError for a search, which has no grid."""
    sweep = load_sweep(parsed)
    return sweep, expand.set_accuracies(sweep, expand.expand_sweep(sweep))


def list_points(sweep: Sweep) -> list[Point]:
    """Return the points of a sweep; of a search those that it is checked by.

    Raises ConfigError naming the key.
    """
    return expand.expand_sweep(sweep) if sweep.search is None else trials.check_search(sweep)


def load_sweep(parsed: argparse.Namespace) -> Sweep:
    """The sweep as chosen."""
    names = ("routing", "recon", "seeds", "model", "arms", "baseline", "metric")
    typed = choices.Choices(
        zips=parsed.zip,
        excludes=parsed.exclude,
        overrides=[*_read_overrides(parsed), *parsed.overrides],
        **{name: getattr(parsed, name) for name in names},
    )
    sweep = choices.load_sweep(parsed.sweep, typed)
    return replace(sweep, command=_format_make_command(parsed))


def _read_overrides(parsed: argparse.Namespace) -> list[str]:
    """The options that set keys of every cell, as overrides."""
    overrides = []
    for name, (key, _) in (KEYS | PLACES).items():
        value = getattr(parsed, name.removeprefix("--").replace("-", "_"))
        if value is not None:
            overrides.append(f"{key}={value}" if name in KEYS else render(key, value))
    overrides += choose_cluster(parsed) if hasattr(parsed, "cluster") else []
    if getattr(parsed, "here", False):
        # Ray tells its jobs where they are; elsewhere on a node Ray finds it.
        overrides.append(render("cluster.address", os.environ.get("RAY_ADDRESS", "auto")))
    return overrides


def choose_cluster(parsed: argparse.Namespace) -> list[str]:
    """The options of a cluster as overrides: an address is that of `cluster=address`, or of a file
    like it. Raises ConfigError for the address of a cluster that has none.
    """
    name, address = parsed.cluster, parsed.address
    if address is None:
        return [] if name is None else [f"cluster={name}"]
    if name in ("local", "slurm"):
        raise ConfigError(
            f"CLUSTER={name} with RAY_ADDRESS={address}: an address is that of CLUSTER=address; "
            "leave one of them out"
        )
    typed = render("cluster.address", address)
    return [f"cluster={name or 'address'}", typed, "cluster.jobs=null"]  # not the environment's


def _format_make_command(parsed: argparse.Namespace) -> str:
    """The command that prints the same table on any machine: no folder is named in it. A sweep file
    elsewhere is named as from its own folder.
    """
    sweep = Path(parsed.sweep).name if parsed.sweep.endswith(".yaml") else parsed.sweep
    variables = {"SWEEP": sweep} | {
        name.upper(): value for name in MAKE if (value := getattr(parsed, name)) is not None
    }
    rest = [text for text in parsed.overrides if not choices.is_logistics(parse(text).key)]
    for name in ("zip", "exclude"):
        rest += [word for value in getattr(parsed, name) for word in (f"--{name}", value)]
    if rest:
        variables["ARGS"] = shlex.join(rest)
    return " ".join(["make", "report", *(f"{k}={shlex.quote(v)}" for k, v in variables.items())])
