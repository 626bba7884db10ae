"""`capsweep ledger reproduce`: make a cell of the ledger again, and say what differs."""

import argparse
import secrets

from capsweep.cli.ledger import find_storage, open_ledger
from capsweep.config import places
from capsweep.config.overrides import parse, render
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.ledger.listing import find_signature
from capsweep.storage.stores import join
from capsweep.sweep import reproduce
from capsweep.sweep.choices import is_logistics


def run_reproduce(parsed: argparse.Namespace) -> int:
    """Print the command that makes a cell again; with --run, make it and compare."""
    settings = _list_settings(parsed)
    ledger, storage = open_ledger(parsed), find_storage(parsed)
    signature = find_signature(ledger, parsed.signature)
    recipe = reproduce.find_recipe(ledger, signature)
    for remark in recipe.remarks:
        print(f"# {' '.join(remark.split())}")  # a second line would be a command
    print(recipe.command)
    if not parsed.run:
        return 0
    if recipe.cell is None:
        raise UserError(f"{signature}: this code cannot run it; the lines above say why")
    if (recorded := reproduce.read_making(ledger, signature)) is None:
        raise UserError(
            f"{signature}: it has no result to compare with; the line above runs it, and "
            "`capsweep ledger show` says how it ended"
        )
    name = f"{signature}-{secrets.token_hex(3)}"
    apart = join(places.absolute(storage), f"reproduced/{name}")
    reproduce.run_apart(recipe.cell.overrides, storage, apart, settings)
    print(f"# made again in {apart}")
    again = reproduce.read_making(Ledger(apart), signature)
    assert again is not None
    for line in reproduce.compare_metrics(recorded.metrics, again.metrics):
        print(line)
    if recorded.metrics == again.metrics:
        return 0
    for line in reproduce.explain_difference(recorded, again):
        print(line)
    return 1


def _list_settings(parsed: argparse.Namespace) -> list[str]:
    """Return the settings of how to run. Raises UserError for one that decides what the cell is."""
    for key in (parse(text).key for text in parsed.overrides):
        if key in ("places.storage", "places.ledger"):
            raise UserError(f"{key}: type STORAGE=... or LEDGER=... instead")
        if not is_logistics(key):
            raise UserError(f"{key} decides what the cell is; type places and how to run")
    data = [] if parsed.data_dir is None else [render("places.data", parsed.data_dir)]
    return [*parsed.overrides, *data]
