"""The options by which a sweep is chosen, shared by every door that takes one."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capsweep.sweep.expand import Point
    from capsweep.sweep.spec import Sweep


def add(door: argparse.ArgumentParser) -> None:
    """Add the options to a door."""
    door.add_argument("sweep", help="a file of sweeps/ (ablation), or a path ending in .yaml")
    door.add_argument(
        "overrides", nargs="*", help="Hydra overrides for every arm; a=1,3 is an axis"
    )
    door.add_argument("--routing", help="routing iterations (1,3) or variants (dynamic)")
    door.add_argument("--seeds", help="how many seeds, or which: 0,1,7")
    door.add_argument("--dataset", help="digits, mnist, fashion_mnist")
    door.add_argument("--epochs", help="epochs of every cell")
    door.add_argument("--data-dir", help="where the data sets are")
    door.add_argument("--storage", help="where results go")


def chosen(parsed: argparse.Namespace) -> "tuple[Sweep, list[Point]]":
    """The sweep as chosen, and its points."""
    from capsweep.config.overrides import render
    from capsweep.sweep import choices, expand, spec

    named = {"dataset": parsed.dataset, "epochs": parsed.epochs}
    quoted = {"places.data": parsed.data_dir, "places.storage": parsed.storage}
    overrides = [f"{key}={value}" for key, value in named.items() if value is not None]
    overrides += [render(key, value) for key, value in quoted.items() if value is not None]
    if getattr(parsed, "address", None) is not None:
        overrides += ["cluster=address", render("cluster.address", parsed.address)]
    chosen = choices.Choices(parsed.routing, parsed.seeds, [*overrides, *parsed.overrides])
    sweep, variants = choices.apply(spec.load(parsed.sweep), chosen)
    return sweep, expand.points(sweep, variants)
