"""The options by which a sweep is chosen, shared by every door that takes one."""

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capsweep.sweep.choices import Choices
    from capsweep.sweep.expand import Point
    from capsweep.sweep.spec import Sweep


def add(door: argparse.ArgumentParser) -> None:
    """Add the options to a door."""
    door.add_argument("sweep", help="a file of sweeps/ (ablation), or a path ending in .yaml")
    door.add_argument(
        "overrides", nargs="*", help="Hydra overrides for every arm; a=1,3 is an axis"
    )
    door.add_argument(
        "--routing", help="routing iterations (1,3), variants (em,dynamic) or control (no routing)"
    )
    door.add_argument("--recon", help="reconstruction: on, off, or weights")
    door.add_argument("--seeds", help="how many seeds, or which: 0,1,7")
    door.add_argument("--dataset", help="a file of conf/dataset (mnist), or several")
    door.add_argument("--model", help="the model of every arm but a baseline of another network")
    door.add_argument("--arms", help="keep these arms; the baseline stays")
    door.add_argument("--epochs", help="epochs of every cell")
    door.add_argument("--batch", help="batch size of every cell")
    door.add_argument("--rerun", help="never, stale or always: which finished cells do not count")
    door.add_argument("--zip", action="append", default=[], help="KEY,KEY: axes that move together")
    door.add_argument(
        "--exclude", action="append", default=[], help="'a=1 b=2': leave these places out"
    )
    door.add_argument("--metric", help="of the table, instead of the sweep file's: test/loss")
    door.add_argument("--data-dir", help="where the data sets are")
    door.add_argument("--storage", help="where results go")
    door.add_argument("--ledger", help="where finished cells are: a folder, or s3://bucket/folder")


def chosen(parsed: argparse.Namespace) -> "tuple[Sweep, list[Point]]":
    """The sweep as chosen, and its points. Raises ConfigError for a search, which has no grid."""
    from capsweep.sweep import expand, matched

    sweep, variants = loaded(parsed)
    return sweep, matched.settle(sweep, expand.points(sweep, variants))


def loaded(parsed: argparse.Namespace) -> "tuple[Sweep, frozenset[str]]":
    """The sweep as chosen, and the routing variants to keep."""
    from capsweep.sweep import choices, spec

    return choices.apply(spec.load(parsed.sweep), as_choices(parsed))


def as_choices(parsed: argparse.Namespace) -> "Choices":
    """The options as the sweep engine takes them."""
    from capsweep.config.overrides import render
    from capsweep.sweep.choices import Choices

    named = {
        "dataset": parsed.dataset,
        "epochs": parsed.epochs,
        "batch_size": parsed.batch,
        "rerun": parsed.rerun,
    }
    quoted = {
        "places.data": parsed.data_dir,
        "places.storage": parsed.storage,
        "places.ledger": parsed.ledger,
    }
    overrides = [f"{key}={value}" for key, value in named.items() if value is not None]
    overrides += [render(key, value) for key, value in quoted.items() if value is not None]
    if getattr(parsed, "cluster", None) is not None:
        overrides.append(f"cluster={parsed.cluster}")
    if getattr(parsed, "address", None) is not None:
        overrides += ["cluster=address", render("cluster.address", parsed.address)]
    if getattr(parsed, "here", False):
        # Ray tells its jobs where they are; elsewhere on a node Ray finds it.
        overrides.append(render("cluster.address", os.environ.get("RAY_ADDRESS", "auto")))
    return Choices(
        routing=parsed.routing,
        recon=parsed.recon,
        seeds=parsed.seeds,
        model=parsed.model,
        arms=parsed.arms,
        zips=parsed.zip,
        excludes=parsed.exclude,
        metric=parsed.metric,
        overrides=[*overrides, *parsed.overrides],
    )


# Options that decide what is in a table, and what make calls them: no place of this machine.
MAKE = ("routing", "recon", "dataset", "model", "arms", "seeds", "epochs", "batch", "metric")


def command(parsed: argparse.Namespace, target: str) -> str:
    """The make command of the same choices on any machine: no folder is named in it. A sweep file
    elsewhere is named as from its own folder.
    """
    from capsweep.config import cell

    sweep = Path(parsed.sweep).name if parsed.sweep.endswith(".yaml") else parsed.sweep
    words = {"SWEEP": sweep} | {
        name.upper(): value for name in MAKE if (value := getattr(parsed, name)) is not None
    }
    here = tuple(
        key for key in (*cell.LOGISTICS, *cell.LOGISTICS_INSIDE) if key != "dataset.source"
    )
    rest = [
        text
        for text in parsed.overrides
        if not any(f"{text.lstrip('+~')}.".startswith((f"{key}.", f"{key}=")) for key in here)
    ]
    for name in ("zip", "exclude"):
        first, *others = getattr(parsed, name) or [None]
        words |= {name.upper(): first} if first else {}
        rest += [word for value in others for word in (f"--{name}", value)]
    if rest:
        words["ARGS"] = shlex.join(rest)
    return " ".join(["make", target, *(f"{key}={shlex.quote(v)}" for key, v in words.items())])
