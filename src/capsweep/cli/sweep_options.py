"""The options by which a sweep is chosen, shared by every command that takes one."""

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from capsweep.cli import command

if TYPE_CHECKING:
    from capsweep.sweep.expand import Point
    from capsweep.sweep.spec import Sweep

CLUSTER = "a file of conf/cluster: local (default), address, slurm"
# Options that are of the sweep engine.
CHOICES = {
    "--routing": "routing iterations (1,3), variants (em,dynamic) or control (no routing)",
    "--recon": "reconstruction: on, off, or weights",
    "--seeds": "how many seeds, or which: 0,1,7",
    "--model": "the model of every arm but a baseline of another network",
    "--arms": "keep these arms; the baseline stays",
    "--metric": "of the table, instead of the sweep file's: test/loss",
}
# Options that set a key of every cell; a value with commas is an axis.
KEYS = {
    "--dataset": ("dataset", "a file of conf/dataset (mnist), or several"),
    "--epochs": ("epochs", "epochs of every cell"),
    "--batch": ("batch_size", "batch size of every cell"),
    "--rerun": ("rerun", "never, stale or always: which finished cells do not count"),
}
# Options that say where things are: a text, whatever characters it has.
PLACES = {
    "--data-dir": ("places.data", "where the data sets are"),
    "--storage": ("places.storage", "where results go"),
    "--ledger": ("places.ledger", "where finished cells are: a folder, or s3://bucket/folder"),
}
LISTS = {
    "--zip": "KEY,KEY: axes that move together",
    "--exclude": "'a=1 b=2': leave these places out",
}
# Options that decide what is in a table, and what make calls them: no place of this machine.
MAKE = ("routing", "recon", "dataset", "model", "arms", "seeds", "epochs", "batch", "metric")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of a command."""
    parser.add_argument("sweep", help="a file of sweeps/ (ablation), or a path ending in .yaml")
    text = "Hydra overrides for every arm; a=1,3 is an axis"
    parser.add_argument("overrides", nargs="*", help=text)
    texts = {name: text for name, (_, text) in (KEYS | PLACES).items()}
    command.add_options(parser, CHOICES | texts)
    for name, text in LISTS.items():
        parser.add_argument(name, action="append", default=[], help=text)


def load_points(parsed: argparse.Namespace) -> "tuple[Sweep, list[Point]]":
    """The sweep as chosen, and its points. Raises ConfigError for a search, which has no grid."""
    from capsweep.sweep import expand

    sweep = load_sweep(parsed)
    return sweep, expand.set_accuracies(sweep, expand.expand_sweep(sweep))


def load_sweep(parsed: argparse.Namespace) -> "Sweep":
    """The sweep as chosen."""
    from capsweep.sweep import choices

    names = ("routing", "recon", "seeds", "model", "arms", "metric")
    typed = choices.Choices(
        zips=parsed.zip,
        excludes=parsed.exclude,
        overrides=[*_read_overrides(parsed), *parsed.overrides],
        **{name: getattr(parsed, name) for name in names},
    )
    return choices.load_sweep(parsed.sweep, typed)


def _read_overrides(parsed: argparse.Namespace) -> list[str]:
    """The options that set keys of every cell, as overrides."""
    from capsweep.config.overrides import render

    overrides = []
    for name, (key, _) in (KEYS | PLACES).items():
        value = getattr(parsed, name.removeprefix("--").replace("-", "_"))
        if value is not None:
            overrides.append(f"{key}={value}" if name in KEYS else render(key, value))
    if getattr(parsed, "cluster", None) is not None:
        overrides.append(f"cluster={parsed.cluster}")
    if getattr(parsed, "address", None) is not None:
        overrides += ["cluster=address", render("cluster.address", parsed.address)]
    if getattr(parsed, "here", False):
        # Ray tells its jobs where they are; elsewhere on a node Ray finds it.
        overrides.append(render("cluster.address", os.environ.get("RAY_ADDRESS", "auto")))
    return overrides


def format_make_command(parsed: argparse.Namespace, target: str) -> str:
    """The make command of the same choices on any machine: no folder is named in it. A sweep file
    elsewhere is named as from its own folder.
    """
    from capsweep.config import cell

    sweep = Path(parsed.sweep).name if parsed.sweep.endswith(".yaml") else parsed.sweep
    variables = {"SWEEP": sweep} | {
        name.upper(): value for name in MAKE if (value := getattr(parsed, name)) is not None
    }
    logistics = {*cell.LOGISTICS, *cell.LOGISTICS_INSIDE} - {"dataset.source"}
    rest = [
        text
        for text in parsed.overrides
        if not any(f"{text.lstrip('+~')}.".startswith((f"{k}.", f"{k}=")) for k in logistics)
    ]
    for name in ("zip", "exclude"):
        first, *others = getattr(parsed, name) or [None]
        variables |= {name.upper(): first} if first else {}
        rest += [word for value in others for word in (f"--{name}", value)]
    if rest:
        variables["ARGS"] = shlex.join(rest)
    return " ".join(["make", target, *(f"{k}={shlex.quote(v)}" for k, v in variables.items())])
