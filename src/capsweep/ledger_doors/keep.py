"""`capsweep ledger ...`: make cells again, and keep the ledger in order."""

import argparse
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from capsweep.errors import UserError
from capsweep.ledger_doors.opened import opened
from capsweep.storage.object_store import join

if TYPE_CHECKING:
    from capsweep.ledger.ledger import Ledger


def again(parsed: argparse.Namespace) -> int:
    """Print the command that makes a cell again; with --run, make it and compare."""
    from capsweep.sweep import reproduce

    ledger = opened(parsed)
    signature = ledger.find(parsed.signature)
    recipe = reproduce.recipe(ledger, signature)
    for remark in recipe.remarks:
        print(f"# {' '.join(remark.split())}")  # a second line would be a command
    print(recipe.command)
    if not parsed.run:
        return 0
    if recipe.cell is None:
        raise UserError(f"{signature}: it cannot be run by this code; see above")
    return _run_again(ledger, signature, recipe.cell.overrides, parsed)


def _run_again(
    ledger: "Ledger", signature: str, overrides: tuple[str, ...], parsed: argparse.Namespace
) -> int:
    from capsweep.config import compose, places
    from capsweep.config.overrides import render
    from capsweep.sweep import reproduce
    from capsweep.training.run import run

    storage = parsed.storage or os.environ.get("STORAGE", "outputs")
    apart = join(places.absolute(storage), f"reproduced/{signature}-{secrets.token_hex(3)}")
    kept = [o for o in overrides if o.partition("=")[0] not in ("logger", "rerun")]
    there = [render("places.storage", storage), render("places.ledger", apart)]
    cell = compose.cell([*kept, *there, "logger=csv"])
    again = run(cell, places.resolve(cell.config["places"]))
    recorded = ledger.result(signature)
    print(f"# made again in {apart}")
    if recorded is None:
        print("# the ledger has no result of it to compare with")
        return 0
    for line in reproduce.compare(recorded, again):
        print(line)
    return 0 if recorded["metrics"] == again["metrics"] else 1


@contextmanager
def _written(place: object) -> Iterator[None]:
    """A place that cannot be written is told in a line. Raises UserError naming it."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{place} cannot be written ({error.strerror or error})") from error


def remove(parsed: argparse.Namespace) -> int:
    """Remove cells that nobody runs."""
    from capsweep.ledger.ledger import folder_of

    ledger = opened(parsed)
    for signature in [ledger.find(prefix) for prefix in parsed.signature]:
        entry = ledger.entry(signature)
        if entry.status == "running":
            raise UserError(f"{signature} is being run by {entry.owner}; end it first")
        with _written(ledger.store.root):
            ledger.store.remove(folder_of(signature))
        print(f"removed {signature} ({entry.status})")
    return 0


def release(parsed: argparse.Namespace) -> int:
    """Forget a claim whose machine is gone."""
    from capsweep.ledger import lease

    ledger = opened(parsed)
    claims = {s: c for s, c in ledger.claims().items() if s.startswith(parsed.signature)}
    if len(claims) != 1 or ledger.disk is None:
        raise UserError(f"{parsed.signature}: {len(claims)} claimed cells of {ledger.store.root}")
    ((signature, found),) = claims.items()
    if found.owner.is_alive:
        raise UserError(f"{signature} is being run by {found.owner}; end it first")
    with _written(ledger.store.root):
        lease.forget_claims(ledger.disk, signature)
    print(f"released {signature} from {found.owner}")
    return 0


def gc(parsed: argparse.Namespace) -> int:
    """Remove leftovers, or say what they are."""
    from capsweep.config import places
    from capsweep.ledger import garbage

    ledger = opened(parsed)
    storage = places.folder_of(parsed.storage or os.environ.get("STORAGE", "outputs"))
    with _written(ledger.store.root):  # looking writes, too: it asks the file system for its time
        found = [*garbage.find(ledger), *garbage.find_left(storage, Path(tempfile.gettempdir()))]
    for item in found:
        print(f"{item.name}: {item.why} ({item.size:,} bytes)")
    freed = sum(item.size for item in found)
    if not parsed.dry_run:
        with _written(ledger.store.root):
            garbage.remove(ledger, found)
    print(f"{len(found)} files or folders, {freed:,} bytes{' (dry run)' if parsed.dry_run else ''}")
    return 0


def export(parsed: argparse.Namespace) -> int:
    """Write finished cells to a file."""
    from capsweep.ledger import transfer

    ledger = opened(parsed)
    asked = [ledger.find(prefix) for prefix in parsed.signature] or ledger.signatures()
    finished = [signature for signature in asked if ledger.result(signature) is not None]
    if not finished:
        raise UserError(f"{ledger.store.root}: no finished cell to export")
    with _written(parsed.file):
        size = transfer.export(ledger, finished, parsed.file, weights=not parsed.without_weights)
    print(f"{len(finished)} cells, {size:,} bytes: {parsed.file}")
    return 0


def merge(parsed: argparse.Namespace) -> int:
    """Merge a file that export wrote."""
    from capsweep.ledger import transfer

    ledger = opened(parsed)
    with _written(ledger.store.root):
        found = transfer.merge(ledger, parsed.file)
    print(f"{found.new} cells merged, {found.known} were there already")
    return 0
