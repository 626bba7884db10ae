"""`capsweep ledger ...`: verify cells, make them again, remove and move them."""

import argparse
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from functools import partial

from capsweep.cli.ledger import open_ledger
from capsweep.config import places
from capsweep.config.cell import signature as signature_of
from capsweep.errors import DamageError, UserError
from capsweep.ledger import lease, stored_files, upkeep
from capsweep.ledger.ledger import EVALUATIONS, Ledger, folder_of, load_predictions
from capsweep.ledger.stored_files import DIGESTS, REMOVE, RESULT
from capsweep.ledger.upkeep import WEIGHTS
from capsweep.storage.stores import join


def _select_cells(ledger: Ledger, prefixes: list[str]) -> list[str]:
    """The signatures that begin so; all where none is given."""
    return [ledger.find_signature(prefix) for prefix in prefixes] or ledger.list_signatures()


def verify_cells(parsed: argparse.Namespace) -> int:
    """Print a line for each fault of some cells, or of all and of what is beside them."""
    ledger = open_ledger(parsed)
    cells = _select_cells(ledger, parsed.signature)
    # Each once, though several readers meet it.
    faults = [fault for cell in cells for fault in dict.fromkeys(_find_faults(ledger, cell))]
    if not parsed.signature:
        names = ledger.store.list_names("measurements")
        faults += _list_damage([partial(_check_measurement, ledger, name) for name in names])
    results = {cell: result for cell in cells if (result := ledger.read_result(cell)) is not None}
    undigested = [cell for cell, result in results.items() if not result.get(DIGESTS)]
    for fault in faults:
        print(fault)
    if undigested:
        print(
            f"{len(undigested)} cells made before there were digests: their files are read, and "
            f"compared with none: {' '.join(undigested[:3])}{' ...' * (len(undigested) > 3)}"
        )
    print(f"{len(cells)} cells, {len(results)} of them finished: {len(faults)} faults")
    return 1 if faults else 0


def _find_faults(ledger: Ledger, cell: str) -> list[str]:
    """Of every file of a cell."""
    result = ledger.read_result(cell)
    names = {*ledger.list_files(cell), *(result or {}).get(DIGESTS, {})} - {RESULT, "resume.ckpt"}
    names |= {f"{EVALUATIONS}/{name}" for name in ledger.list_evaluations(cell)}
    readers = [
        partial(ledger.sound_result, cell),
        partial(ledger.read_provenance, cell),
        partial(_check_science, ledger, cell),
        *(partial(_check_file, ledger, cell, name) for name in sorted(names - {EVALUATIONS})),
    ]
    if result is not None and "predictions.npz" in names:
        readers.append(partial(load_predictions, ledger, cell))
    return _list_damage(readers)


def _list_damage(readers: Sequence[Callable[[], object]]) -> list[str]:
    faults = []
    for read in readers:
        try:
            read()
        except DamageError as error:
            faults.append(str(error))
    return faults


def _check_science(ledger: Ledger, cell: str) -> None:
    science = ledger.read_science(cell)
    if science is not None and (actual := signature_of(science)) != cell:
        where = f"{ledger.where(cell)}/config.yaml"
        raise stored_files.damage_error(where, f"its signature is {actual}", REMOVE)


def _check_file(ledger: Ledger, cell: str, name: str) -> None:
    content, where = ledger.read(cell, name), f"{ledger.where(cell)}/{name}"
    if content is None:
        if name != WEIGHTS:  # an export may leave it out
            raise stored_files.damage_error(where, "it is absent", REMOVE)
    elif name.endswith(".npz"):
        is_evaluation = name.startswith(EVALUATIONS)
        stored_files.read_arrays(
            content, where, "evaluate the cell again" if is_evaluation else REMOVE
        )


def _check_measurement(ledger: Ledger, name: str) -> None:
    if (content := ledger.store.read(f"measurements/{name}")) is not None:
        where = join(ledger.store.root, f"measurements/{name}")
        stored_files.parse_json(content, where, "remove it", "seconds_per_step")


def reproduce_cell(parsed: argparse.Namespace) -> int:
    """Print the command that makes a cell again; with --run, make it and compare."""
    from capsweep.sweep import reproduce

    ledger = open_ledger(parsed)
    signature = ledger.find_signature(parsed.signature)
    recipe = reproduce.find_recipe(ledger, signature)
    for remark in recipe.remarks:
        print(f"# {' '.join(remark.split())}")  # a second line would be a command
    print(recipe.command)
    if not parsed.run:
        return 0
    if recipe.cell is None:
        raise UserError(f"{signature}: it cannot be run by this code; see above")
    return _run_again(ledger, signature, recipe.cell.overrides, parsed)


def _run_again(
    ledger: Ledger, signature: str, overrides: tuple[str, ...], parsed: argparse.Namespace
) -> int:
    from capsweep.config import compose
    from capsweep.config.overrides import render
    from capsweep.sweep import reproduce
    from capsweep.training.run import run

    storage = parsed.storage or os.environ.get("STORAGE", "outputs")
    apart = join(places.absolute(storage), f"reproduced/{signature}-{secrets.token_hex(3)}")
    kept = [o for o in overrides if o.partition("=")[0] not in ("logger", "rerun")]
    moved = [render("places.storage", storage), render("places.ledger", apart)]
    cell = compose.cell([*kept, *moved, "logger=csv"])
    again = run(cell, places.resolve(cell.config["places"]))
    recorded = ledger.read_result(signature)
    print(f"# made again in {apart}")
    if recorded is None:
        print("# the ledger has no result of it to compare with")
        return 0
    for line in reproduce.compare_metrics(recorded, again):
        print(line)
    return 0 if recorded["metrics"] == again["metrics"] else 1


def remove_cells(parsed: argparse.Namespace) -> int:
    """Remove cells that nobody runs."""
    ledger = open_ledger(parsed)
    for signature in _select_cells(ledger, parsed.signature):
        entry = ledger.entry(signature)
        if entry.status == "running":
            raise UserError(f"{signature} is being run by {entry.owner}; end it first")
        ledger.store.remove(folder_of(signature))
        print(f"removed {signature} ({entry.status})")
    return 0


def release_claim(parsed: argparse.Namespace) -> int:
    """Forget a claim whose machine is gone."""
    ledger = open_ledger(parsed)
    claims = {s: c for s, c in ledger.read_claims().items() if s.startswith(parsed.signature)}
    if len(claims) != 1 or ledger.disk is None:
        raise UserError(f"{parsed.signature}: {len(claims)} claimed cells of {ledger.store.root}")
    ((signature, claim),) = claims.items()
    if claim.owner.is_alive:
        raise UserError(f"{signature} is being run by {claim.owner}; end it first")
    lease.forget_claims(ledger.disk, signature)
    print(f"released {signature} from {claim.owner}")
    return 0


def collect_garbage(parsed: argparse.Namespace) -> int:
    """Remove leftovers, or say what they are."""
    ledger = open_ledger(parsed)
    items = upkeep.find_garbage(ledger)
    for item in items:
        print(f"{item.name}: {item.why} ({item.size:,} bytes)")
    if not parsed.dry_run:
        upkeep.remove_garbage(ledger, items)
    size = sum(item.size for item in items)
    print(f"{len(items)} files or folders, {size:,} bytes{' (dry run)' if parsed.dry_run else ''}")
    return 0


def export_cells(parsed: argparse.Namespace) -> int:
    """Write finished cells to a file."""
    ledger = open_ledger(parsed)
    entries = ledger.entries(_select_cells(ledger, parsed.signature))
    finished = [signature for signature, entry in entries.items() if entry.result is not None]
    if not finished:
        raise UserError(f"{ledger.store.root}: no finished cell to export")
    for signature in entries.keys() - set(finished):
        cause = entries[signature].cause or entries[signature].status
        print(f"left out: {signature}: {cause}", file=sys.stderr)
    size = upkeep.export_cells(ledger, finished, parsed.file, not parsed.without_weights)
    print(f"{len(finished)} cells, {size:,} bytes: {parsed.file}")
    return 0


def import_cells(parsed: argparse.Namespace) -> int:
    """Merge a file that export wrote."""
    ledger = open_ledger(parsed)
    new, known = upkeep.import_cells(ledger, parsed.file)
    print(f"{new} cells merged, {known} were there already")
    return 0
