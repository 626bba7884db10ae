"""`capsweep ledger ...`: list, check and remove stored cells."""

import argparse
import json
import os
import secrets
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath

from capsweep.config import places
from capsweep.config.cell import flatten
from capsweep.errors import UserError
from capsweep.ledger import causes, lease, listing, stored_files, transfer, upkeep
from capsweep.ledger.ledger import Ledger, folder_of
from capsweep.ledger.listing import find_signature
from capsweep.runtime.terminal import count_of
from capsweep.storage.stores import join


def find_storage(parsed: argparse.Namespace) -> str:
    """Return the storage: the typed STORAGE, else the environment's STORAGE, else `outputs`."""
    return parsed.storage or os.environ.get("STORAGE", "outputs")


def open_ledger(parsed: argparse.Namespace) -> Ledger:
    """Open the ledger that LEDGER names, or else the ledger in the storage (`find_storage`)."""
    return Ledger(places.locate_ledger(find_storage(parsed), parsed.ledger))


def select_cells(ledger: Ledger, prefixes: list[str]) -> list[str]:
    """Return the signature of each prefix, or all signatures if there is no prefix."""
    return [find_signature(ledger, prefix) for prefix in prefixes] or ledger.list_signatures()


def run_ls(parsed: argparse.Namespace) -> None:
    """Print the chosen cells, one on each line with the newest last; with --json, print JSON."""
    ledger = open_ledger(parsed)
    settings = [text for text in parsed.filters if "=" in text]
    prefixes = [text for text in parsed.filters if "=" not in text] or [""]
    names = {name for prefix in prefixes for name in ledger.list_signatures(prefix)}
    listed = listing.list_cells(ledger, sorted(names))
    cells = listing.select_cells(listed, settings) if settings else listed
    if parsed.json:
        print(json.dumps([cell.to_plain() for cell in cells], indent=1))
        return
    if not cells:
        such = "such " if listed or any(prefixes) else ""
        print(f"there is no {such}cell in {ledger.store.root}", file=sys.stderr)
        return
    cells.sort(key=lambda cell: cell.date.timestamp() if cell.date else 0)
    # Lines are never wrapped, so that `grep` and `head` see one cell on each line.
    rows = [listing.COLUMNS, *(cell.fields for cell in cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        fields = (field.ljust(width) for field, width in zip(row, widths, strict=True))
        print(" ".join(fields).rstrip())


def run_show(parsed: argparse.Namespace) -> None:
    """Print everything that is known of a cell, as text or as JSON."""
    ledger = open_ledger(parsed)
    signature = find_signature(ledger, parsed.signature)
    provenance = stored_files.read_if_sound(ledger.read_provenance, signature) or {}
    science = stored_files.read_if_sound(ledger.read_science, signature)
    (cell,) = listing.list_cells(ledger, [signature])
    entry = cell.entry
    failure = listing.read_failure(ledger, signature) if entry.status == "failed" else ""
    if parsed.json:
        more = {"science": science, "provenance": provenance or None, "failure": failure or None}
        print(json.dumps(cell.to_plain() | more, indent=1))
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


def run_failures(parsed: argparse.Namespace) -> None:
    """Print failed cells by cause: all failed cells, or those that the typed settings choose."""
    ledger = open_ledger(parsed)
    listed = listing.list_cells(ledger, ledger.list_signatures())
    cells = listing.select_cells(listed, map(_choose_sweep, parsed.filters))
    groups = listing.group_failures(cells)
    for group in groups:
        _print_failure(ledger, group)
    if not groups:
        such = "such " if parsed.filters else ""
        print(f"there is no {such}failed cell in {ledger.store.root}", file=sys.stderr)


def _choose_sweep(text: str) -> str:
    """Convert the name or file of a sweep to `sweep=NAME`; return a setting unchanged."""
    from capsweep.config.overrides import render

    return text if "=" in text else render("sweep", PurePath(text.removesuffix(".yaml")).name)


def _print_failure(ledger: Ledger, group: Sequence[listing.ListedCell]) -> None:
    """Print a group of cells that failed for the same reason, and details of the first cell."""
    from capsweep.sweep import reproduce

    first, cause = group[0].signature, str(group[0].entry.cause)
    lines = [cause, *listing.read_failure(ledger, first).splitlines()]
    print(f"{causes.classify_cause(cause)}: {count_of(len(group), 'cell')}: {cause}")
    print(f"  last line: {lines[-1].strip()}")
    for cell in group:
        print(f"  {cell.signature}  {cell}")
    print(f"  why: {listing.format_show(ledger, first)}")
    with suppress(UserError):  # the settings of the cell are unknown
        _, again, _ = reproduce.find_recipe(ledger, first)
        print(f"  again: {again} {shlex.quote(f'places.ledger={ledger.store.root}')}")


def run_verify(parsed: argparse.Namespace) -> int:
    """Print a line for each fault in the files of the chosen cells, or of all cells.

    Returns:
        1 if there is a fault, else 0.
    """
    ledger = open_ledger(parsed)
    cells = select_cells(ledger, parsed.signature)
    faults = [fault for cell in cells for fault in upkeep.find_faults(ledger, cell)]
    finished = sum(ledger.read_result(cell) is not None for cell in cells)
    for fault in faults:
        print(fault)
    counts = count_of(len(cells), "cell"), count_of(len(faults), "fault")
    print(f"{counts[0]}, {finished} of them finished: {counts[1]}")
    return 1 if faults else 0


def run_rm(parsed: argparse.Namespace) -> None:
    """Remove cells; stop with an error at a cell that a process runs."""
    ledger = open_ledger(parsed)
    for signature in select_cells(ledger, parsed.signature):
        entry = ledger.read_entry(signature)
        if entry.status == "running":
            raise UserError(f"{signature} is being run by {entry.owner}; stop that process first")
        try:
            ledger.store.remove(folder_of(signature))
        except OSError as error:  # the message of this error names a file without its folder
            raise UserError(f"{ledger.locate_files(signature)}: {error.strerror}") from error
        print(f"removed {signature} ({entry.status})")


def run_release(parsed: argparse.Namespace) -> None:
    """Remove the claim of a run whose machine is gone; stop with an error if the run continues."""
    ledger = open_ledger(parsed)
    disk = ledger.disk
    claims = {} if disk is None else lease.read_claims(disk)
    if (signature := parsed.signature) not in claims:  # a claimed cell may have no folder yet
        signature = find_signature(ledger, signature)
    if disk is None or (claim := claims.get(signature)) is None:
        raise UserError(f"{signature}: no process has claimed this cell; nothing to release")
    owner = claim.owner
    if not (owner.is_alive or owner.is_dead):
        print(f"waiting {lease.LEASE_SECONDS:.0f} s for a sign of life of {owner}", flush=True)
    try:
        lease.check_dead(disk, claim)
    except lease.ClaimedElsewhereError as error:
        raise UserError(f"{error}; stop that process first") from error
    lease.remove_dead_claim(disk, claim)
    print(f"released {signature} from {owner}")


def run_gc(parsed: argparse.Namespace) -> None:
    """Remove files that nothing needs; with --dry-run, only list these files."""
    ledger = open_ledger(parsed)
    items = list(upkeep.find_garbage(ledger, places.locate_folder(find_storage(parsed))))
    for item in items:
        print(f"{item.name}: {item.why} ({item.size:,} bytes)")
        if not parsed.dry_run:
            item.remove()
    size = sum(item.size for item in items)
    dry = " (dry run)" if parsed.dry_run else ""
    print(f"{count_of(len(items), 'leftover')}, {size:,} bytes{dry}")


def run_export(parsed: argparse.Namespace) -> None:
    """Write finished and failed cells to a file."""
    ledger = open_ledger(parsed)
    entries = ledger.read_entries(select_cells(ledger, parsed.signature))
    ended = transfer.list_ended_cells(entries)
    if not ended:
        cure = "name another ledger with STORAGE=... or LEDGER=..."
        raise UserError(f"{ledger.store.root}: no chosen cell has finished or failed; {cure}")
    for signature in entries.keys() - set(ended):
        cause = entries[signature].cause or entries[signature].status
        print(f"left out: {signature}: {cause}", file=sys.stderr)
    left_out = transfer.WEIGHTS if parsed.without_weights else None
    size = transfer.export_cells(ledger, ended, parsed.file, lambda name: name != left_out)
    failed = sum(entries[signature].result is None for signature in ended)
    print(f"{count_of(len(ended), 'cell')}, {failed} of them failed, {size:,} bytes: {parsed.file}")


def run_import(parsed: argparse.Namespace) -> None:
    """Add the cells of a file that `capsweep ledger export` wrote."""
    ledger = open_ledger(parsed)
    new, known = transfer.import_cells(ledger, parsed.file)
    print(f"{count_of(new, 'cell')} added, {known} were there already")


def run_reproduce(parsed: argparse.Namespace) -> int:
    """Print the command that repeats a cell; with --run, repeat the cell and compare metrics.

    Returns:
        1 if a metric differs, else 0.
    """
    from capsweep.sweep import reproduce

    settings = _list_settings(parsed)
    ledger, storage = open_ledger(parsed), find_storage(parsed)
    signature = find_signature(ledger, parsed.signature)
    cell, command, remarks = reproduce.find_recipe(ledger, signature)
    for remark in remarks:
        print(f"# {' '.join(remark.split())}")  # a shell would run a second line as a command
    print(command)
    if not parsed.run:
        return 0
    if cell is None:
        raise UserError(f"{signature}: this code cannot run the cell; the lines above say why")
    if ledger.read_result(signature) is None:
        raise UserError(
            f"{signature}: the cell has no result to compare with; type the command above to run "
            f"it, or `capsweep ledger show {signature}` to see how it ended"
        )
    name = f"{signature}-{secrets.token_hex(3)}"
    apart = join(places.resolve_path(storage), f"reproduced/{name}")
    reproduce.run_apart(cell.overrides, storage, apart, settings)
    print(f"# repeated in {apart}")
    is_equal, lines = reproduce.compare_results(ledger, Ledger(apart), signature)
    print(*lines, sep="\n")
    return 0 if is_equal else 1


def _list_settings(parsed: argparse.Namespace) -> list[str]:
    """Check that the typed overrides only say how to run the cell, and return the overrides.

    DATA_DIR is returned as one more override.

    Raises:
        UserError: An override would change the cell, or where it is stored.
    """
    from capsweep.config.overrides import parse, render
    from capsweep.sweep.choices import is_logistics

    for key in (parse(text).key for text in parsed.overrides):
        if key in ("places.storage", "places.ledger") or not is_logistics(key):
            cure = "type only keys that say how to run it, and STORAGE=... or LEDGER=..."
            raise UserError(f"{key} would change the cell, or where it is stored; {cure}")
    data = [] if parsed.data_dir is None else [render("places.data", parsed.data_dir)]
    return [*parsed.overrides, *data]
