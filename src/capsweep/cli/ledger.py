"""`capsweep ledger ...`: look at finished and failed cells, and keep the ledger in order."""

import argparse
import json
import os
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import Any

from capsweep.config import places
from capsweep.config.cell import flatten
from capsweep.errors import UserError
from capsweep.ledger import causes, lease, listing, stored_files, transfer, upkeep
from capsweep.ledger.ledger import Entry, Ledger, folder_of, load_predictions
from capsweep.ledger.listing import find_signature
from capsweep.runtime.terminal import count_of
from capsweep.storage.stores import join


def find_storage(parsed: argparse.Namespace) -> str:
    """Return where results are: STORAGE as typed, else the environment's STORAGE."""
    return parsed.storage or os.environ.get("STORAGE", "outputs")


def open_ledger(parsed: argparse.Namespace) -> Ledger:
    """Return the ledger of LEDGER, else of STORAGE, else of the environment's STORAGE."""
    return Ledger(places.ledger_of(find_storage(parsed), parsed.ledger))


def _select_cells(ledger: Ledger, prefixes: list[str]) -> list[str]:
    """Return the signatures that begin so; all where none is given."""
    return [find_signature(ledger, prefix) for prefix in prefixes] or ledger.list_signatures()


def _as_json(signature: str, entry: Entry) -> dict[str, Any]:
    names = ("status", "cause", "owner", "result")
    return {"signature": signature} | {name: getattr(entry, name) for name in names}


def run_ls(parsed: argparse.Namespace) -> None:
    """Print a line per cell, the newest last, or a list of them."""
    ledger = open_ledger(parsed)
    settings = [text for text in parsed.filters if "=" in text]
    prefixes = [text for text in parsed.filters if "=" not in text] or [""]
    names = {name for prefix in prefixes for name in ledger.list_signatures(prefix)}
    listed = listing.list_cells(ledger, sorted(names))
    chosen = listing.select_cells(listed, settings) if settings else listed
    cells = [cell for cell in chosen if parsed.status in (None, cell.entry.status)]
    if parsed.json:
        content = [_as_json(cell.signature, cell.entry) | cell.to_plain() for cell in cells]
        print(json.dumps(content, indent=1))
        return
    if not cells:
        such = "such " if listed or any(prefixes) else ""
        print(f"no {such}cell in {ledger.store.root}", file=sys.stderr)
        return
    cells.sort(key=lambda cell: cell.date.timestamp() if cell.date else 0)
    # One line each, however narrow a terminal is: they are searched, and cut by `head`.
    rows = [listing.COLUMNS, *(cell.fields for cell in cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        fields = (field.ljust(width) for field, width in zip(row, widths, strict=True))
        print(" ".join(fields).rstrip())


def run_show(parsed: argparse.Namespace) -> None:
    """Print all that is known of a cell."""
    ledger = open_ledger(parsed)
    signature = find_signature(ledger, parsed.signature)
    provenance = stored_files.read_if_sound(partial(ledger.read_provenance, signature)) or {}
    science = stored_files.read_if_sound(partial(ledger.read_science, signature))
    entry = listing.list_cells(ledger, [signature])[0].entry
    failure = listing.read_failure(ledger, signature) if entry.status == "failed" else ""
    if parsed.json:
        more = {"science": science, "provenance": provenance or None, "failure": failure or None}
        print(json.dumps(_as_json(signature, entry) | more, indent=1))
        return
    print(f"{signature}: {entry.status}{f' ({entry.cause})' if entry.cause else ''}")
    made = {key: value for key, value in provenance.items() if key != "science"}
    sections = {"science": science, "result": entry.result, "made": made}
    for title, section in sections.items():
        print(f"\n{title}")
        for key, value in flatten(section or {}).items():
            print(f"  {key}: {value}")
    if failure:
        print(f"\nfailure\n{failure}")


def run_why(parsed: argparse.Namespace) -> None:
    """Print the keys in which a cell differs from the nearest finished one."""
    from capsweep.config import compose

    ledger = open_ledger(parsed)
    if len(parsed.cell) == 1 and "=" not in parsed.cell[0]:
        signature = find_signature(ledger, parsed.cell[0])
        science: Mapping[str, Any] = ledger.read_science(signature) or {}
    else:
        cell = compose.cell(parsed.cell)
        signature, science = cell.signature, cell.science
    others = [name for name in ledger.list_signatures() if name != signature]
    finished = [name for name in others if ledger.read_result(name) is not None]
    print(f"cell {signature}: {ledger.read_entry(signature).status}")
    if not finished:
        print("there is no other finished cell")
        return
    changed = {n: causes.find_differences(science, ledger.read_science(n) or {}) for n in finished}
    nearest = min(finished, key=lambda name: len(changed[name]))
    print(f"the nearest finished cell is {nearest}; it differs in")
    for key, (here, there) in changed[nearest].items():
        print(f"  {key}: {json.dumps(here)} here, {json.dumps(there)} there")


def run_compare(parsed: argparse.Namespace) -> None:
    """Two cells on the same test examples."""
    from capsweep.report import comparison

    ledger = open_ledger(parsed)
    cells = [find_signature(ledger, prefix) for prefix in parsed.signature]
    comparison.check_same_examples(ledger, *cells)
    predictions = {cell: load_predictions(ledger, cell) for cell in cells}
    print(comparison.describe_comparison(predictions))


def run_failures(parsed: argparse.Namespace) -> None:
    """Print the failures that a ledger has, of all sweeps or as chosen, grouped by cause."""
    ledger = open_ledger(parsed)
    listed = listing.list_cells(ledger, ledger.list_signatures())
    cells = listing.select_cells(listed, map(_choose_sweep, parsed.filters))
    groups = listing.group_failures(cells)
    for group in groups:
        _print_failure(ledger, group)
    if not groups:
        such = "such " if parsed.filters else ""
        print(f"no {such}failed cell in {ledger.store.root}", file=sys.stderr)


def _choose_sweep(text: str) -> str:
    """Return a setting as it is; the name of a sweep, or its file, as one."""
    from capsweep.config.overrides import render

    return text if "=" in text else render("sweep", PurePath(text.removesuffix(".yaml")).name)


def _print_failure(ledger: Ledger, group: Sequence[listing.ListedCell]) -> None:
    """Print the cells of one cause; what is said of them beyond it is of the first."""
    from capsweep.sweep import reproduce

    first, cause = group[0].signature, str(group[0].entry.cause)
    lines = [cause, *listing.read_failure(ledger, first).splitlines()]
    print(f"{causes.classify_cause(cause)}: {count_of(len(group), 'cell')}: {cause}")
    print(f"  last line: {lines[-1].strip()}")
    for cell in group:
        print(f"  {cell.signature}  {cell}")
    print(f"  why: {listing.format_show(ledger, first)}")
    with suppress(UserError):  # nothing says how it was asked for
        _, again, _ = reproduce.find_recipe(ledger, first)
        print(f"  again: {again} {shlex.quote(f'places.ledger={ledger.store.root}')}")


def run_verify(parsed: argparse.Namespace) -> int:
    """Print a line for each fault of some cells, or of all."""
    ledger = open_ledger(parsed)
    cells = _select_cells(ledger, parsed.signature)
    faults = [fault for cell in cells for fault in upkeep.find_faults(ledger, cell)]
    finished = sum(ledger.read_result(cell) is not None for cell in cells)
    for fault in faults:
        print(fault)
    counts = count_of(len(cells), "cell"), count_of(len(faults), "fault")
    print(f"{counts[0]}, {finished} of them finished: {counts[1]}")
    return 1 if faults else 0


def run_rm(parsed: argparse.Namespace) -> None:
    """Remove cells that nobody runs."""
    ledger = open_ledger(parsed)
    for signature in _select_cells(ledger, parsed.signature):
        entry = ledger.read_entry(signature)
        if entry.status == "running":
            raise UserError(f"{signature} is being run by {entry.owner}; end it first")
        try:
            ledger.store.remove(folder_of(signature))
        except OSError as error:  # it names a file without its folder
            raise UserError(f"{ledger.locate_files(signature)}: {error.strerror}") from error
        print(f"removed {signature} ({entry.status})")


def run_release(parsed: argparse.Namespace) -> None:
    """Forget a claim whose machine is gone."""
    ledger = open_ledger(parsed)
    claims = ledger.read_claims()  # none in an object store
    if (signature := parsed.signature) not in claims:  # a claim may have no folder yet
        signature = find_signature(ledger, signature)
    if (claim := claims.get(signature)) is None:
        raise UserError(f"{signature}: nobody has claimed it")
    if claim.owner.is_alive:
        raise UserError(f"{signature} is being run by {claim.owner}; end it first")
    assert ledger.disk is not None
    lease.remove_claims(ledger.disk, signature)
    print(f"released {signature} from {claim.owner}")


def run_gc(parsed: argparse.Namespace) -> None:
    """Remove leftovers, or say what they are."""
    ledger = open_ledger(parsed)
    items = list(upkeep.find_garbage(ledger, places.folder_of(find_storage(parsed))))
    for item in items:
        print(f"{item.name}: {item.why} ({item.size:,} bytes)")
        if not parsed.dry_run:
            item.remove()
    size = sum(item.size for item in items)
    dry = " (dry run)" if parsed.dry_run else ""
    print(f"{count_of(len(items), 'leftover')}, {size:,} bytes{dry}")


def run_export(parsed: argparse.Namespace) -> None:
    """Write cells that ended to a file."""
    ledger = open_ledger(parsed)
    entries = ledger.read_entries(_select_cells(ledger, parsed.signature))
    ended = transfer.list_ended_cells(entries)
    if not ended:
        cure = "name another ledger with STORAGE=... or LEDGER=..."
        raise UserError(f"{ledger.store.root}: no cell to export has ended; {cure}")
    for signature in entries.keys() - set(ended):
        cause = entries[signature].cause or entries[signature].status
        print(f"left out: {signature}: {cause}", file=sys.stderr)
    left_out = transfer.WEIGHTS if parsed.without_weights else None
    size = transfer.export_cells(ledger, ended, parsed.file, lambda name: name != left_out)
    failed = sum(entries[signature].result is None for signature in ended)
    print(f"{count_of(len(ended), 'cell')}, {failed} of them failed, {size:,} bytes: {parsed.file}")


def run_import(parsed: argparse.Namespace) -> None:
    """Merge a file that export wrote."""
    ledger = open_ledger(parsed)
    new, known = transfer.import_cells(ledger, parsed.file)
    print(f"{count_of(new, 'cell')} merged, {known} were there already")


def run_reproduce(parsed: argparse.Namespace) -> int:
    """Print the command that makes a cell again; with --run, make it and compare."""
    from capsweep.sweep import reproduce

    settings = _list_settings(parsed)
    ledger, storage = open_ledger(parsed), find_storage(parsed)
    signature = find_signature(ledger, parsed.signature)
    cell, command, remarks = reproduce.find_recipe(ledger, signature)
    for remark in remarks:
        print(f"# {' '.join(remark.split())}")  # a second line would be a command
    print(command)
    if not parsed.run:
        return 0
    if cell is None:
        raise UserError(f"{signature}: this code cannot run it; the lines above say why")
    if ledger.read_result(signature) is None:
        raise UserError(
            f"{signature}: it has no result to compare with; the line above runs it, and "
            "`capsweep ledger show` says how it ended"
        )
    name = f"{signature}-{secrets.token_hex(3)}"
    apart = join(places.absolute(storage), f"reproduced/{name}")
    reproduce.run_apart(cell.overrides, storage, apart, settings)
    print(f"# made again in {apart}")
    is_equal, lines = reproduce.compare_results(ledger, Ledger(apart), signature)
    print(*lines, sep="\n")
    return 0 if is_equal else 1


def _list_settings(parsed: argparse.Namespace) -> list[str]:
    """Return the settings of how to run. Raises UserError for one that decides what the cell is."""
    from capsweep.config.overrides import parse, render
    from capsweep.sweep.choices import is_logistics

    for key in (parse(text).key for text in parsed.overrides):
        if key in ("places.storage", "places.ledger") or not is_logistics(key):
            cure = "type STORAGE=... or LEDGER=..., and how to run"
            raise UserError(f"{key} decides what the cell is, or where it is; {cure}")
    data = [] if parsed.data_dir is None else [render("places.data", parsed.data_dir)]
    return [*parsed.overrides, *data]
