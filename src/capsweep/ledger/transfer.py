"""Exports of a ledger, which travel.

An export is one tar file, for hosts without a network: train there, export there, import here. An
import is verified; the first complete result of a cell stands, so importing twice, or what is there
already, changes nothing. Of a failed cell the cause travels. The cells behind a published table are
kept in a packed export.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from capsweep.errors import DataError, UserError
from capsweep.ledger import archive, stored_files
from capsweep.ledger.ledger import (
    EVALUATIONS,
    METRICS,
    POINTS,
    Entry,
    Ledger,
    folder_of,
    is_damaged,
)
from capsweep.ledger.stored_files import CONFIG, DIGESTS, FAILURE, RESULT
from capsweep.storage.files import hash_bytes
from capsweep.storage.stores import join

WEIGHTS = "weights.ckpt"
FAILED = {CONFIG, FAILURE, "provenance.json"}  # of a failed cell: all that travels
RESULTS = {*FAILED, RESULT, METRICS}  # of a cell: what tables need
OPTIONAL = {WEIGHTS, "predictions.npz", POINTS, "metrics.csv"}  # files that an export may leave out
FOLDER = re.compile(rb"(?<![\w./:<~-])/(?:[\w.-]+/)+([\w.-]*)")  # of a machine, in a text
# Of a file in a cell's folder: shorter than a file system allows, which has a longer one meanwhile.
NAME = rf"({EVALUATIONS}/)?(?!{EVALUATIONS}$)[A-Za-z0-9][A-Za-z0-9_.-]{{0,199}}"
MEMBER = re.compile(rf"[0-9a-f]{{16}}/{NAME}")

# The result of each cell of an export, by its signature; None: it failed.
Results: TypeAlias = "dict[str, dict[str, Any] | None]"


def list_ended_cells(entries: Mapping[str, Entry]) -> list[str]:
    """The cells that ended, in a result or a failure of their own: only such travel."""
    return [
        signature
        for signature, entry in entries.items()
        if entry.result is not None or (entry.status == "failed" and not is_damaged(entry))
    ]


def is_result(name: str) -> bool:
    """Whether a file of a cell is small and says how the cell ended: what tables need."""
    return name in RESULTS or (name.startswith(f"{EVALUATIONS}/") and name.endswith(".json"))


def export_cells(
    ledger: Ledger,
    signatures: Sequence[str],
    file: Path,
    choose: Callable[[str], bool] = lambda name: True,
) -> int:
    """Write cells that ended to a tar file with a manifest of hashes; returns how many bytes.

    choose: which files of a cell. Raises UserError as `archive.write_archive` does.
    """
    names = [
        f"{signature}/{name}"
        for signature in signatures
        for name in _list_names(ledger, signature)
        if choose(name)
    ]
    return archive.write_archive(file, names, lambda path: _read_content(ledger, path))


def _list_names(ledger: Ledger, signature: str) -> list[str]:
    """Names of the files of a cell that travel: plain, and those of its evaluations."""
    paths = (path.split("/") for path, _ in ledger.store.list_files(folder_of(signature)))
    names = dict.fromkeys("/".join(parts[-1 - (parts[-2] == EVALUATIONS) :]) for parts in paths)
    if RESULT not in names:
        return [name for name in names if name in FAILED]
    visible = (n for n in names if not n.removeprefix(f"{EVALUATIONS}/").startswith("."))
    return [name for name in visible if name != FAILURE]


def _read_content(ledger: Ledger, path: str) -> bytes:
    signature, _, name = path.partition("/")
    if MEMBER.fullmatch(path) is None:
        raise UserError(
            f"{path}: an export takes names of letters, digits, '_', '-' and '.'; rename it"
        )
    content = ledger.read(signature, name)
    if content is None:
        raise DataError(f"{path} went away during the export; export again")
    where = join(ledger.store.root, f"{folder_of(signature)}/{name}")
    stored_files.check_content(name, content, where, signature, stored_files.REMOVE)
    # A traceback and folders are of that machine alone.
    return FOLDER.sub(rb"\1", content.partition(b"\n")[0]) if name == FAILURE else content


def import_cells(ledger: Ledger, file: Path) -> tuple[int, int]:
    """Add the cells of an export that the ledger lacks; how a cell ended is written last. A failure
    is added where nothing is known of its cell.

    Returns how many were new, and how many were there already. Raises DataError naming the file
    when a hash is wrong, a file is missing, or a configuration does not have the signature of its
    folder, and UserError for a cell that is being run here; then nothing is written.
    """
    results = verify_export(file)
    entries = ledger.entries(results)
    # Of each new cell the file that says how it ended.
    ends = {
        signature: FAILURE if result is None else RESULT
        for signature, result in results.items()
        if _is_new(entries[signature], result)
    }
    for signature in ends:
        if (entry := entries[signature]).status == "running":
            raise UserError(f"{signature} is being run by {entry.owner}; import when it has ended")
    attempt, written, contents = secrets.token_hex(8), set[str](), dict[str, bytes]()
    for path, content in archive.read_members(file):
        signature, _, name = path.partition("/")
        if name == ends.get(signature):
            contents[signature] = content
        elif signature in ends and name != FAILURE:
            is_apart = ledger.disk is None and results[signature] is not None
            folder = folder_of(signature) + (f"/{attempt}" if is_apart else "")
            ledger.store.write(f"{folder}/{name}", content)
            written.add(f"{folder}/{name}")
    for signature, name in ends.items():
        content, result = contents[signature], results[signature]
        if result is not None:
            if ledger.disk is None:  # the attempt says where its files are
                content = json.dumps(result | {"attempt": attempt}, indent=2).encode()
            _remove_unfinished(ledger, signature, written)
        ledger.store.write(f"{folder_of(signature)}/{name}", content)
    return len(ends), len(results) - len(ends)


def _is_new(entry: Entry, result: Mapping[str, Any] | None) -> bool:
    """Whether a cell that came with this result, or as failed, changes what is known of it."""
    return entry.status == "missing" if result is None else entry.result is None


def _remove_unfinished(ledger: Ledger, signature: str, written: set[str]) -> None:
    """Remove all but the files `written`; in an object store, other attempts stay."""
    folder = folder_of(signature)
    unfinished = {f"{folder}/{name}" for name in (FAILURE, "stopped.json", "resume.ckpt")}
    for path, _ in list(ledger.store.list_files(folder)):
        if path not in written and (ledger.disk is not None or path in unfinished):
            ledger.store.remove(path)


def verify_export(file: Path) -> Results:
    """Return how each cell ended, once all files are as the manifest says. Raises DataError as
    `import_cells` does.
    """
    cells: dict[str, dict[str, str]] = {}
    results: Results = {}
    for path, content in archive.read_members(file):
        signature, _, name = path.partition("/")
        if MEMBER.fullmatch(path) is None:
            raise DataError(f"{file}: {path[:80]!r} leads out of its folder, or is no name")
        cells.setdefault(signature, {})[name] = hash_bytes(content)
        where = f"{file}: {name} of cell {signature}"
        if name == RESULT:
            results[signature] = stored_files.read_result(content, where, signature, archive.AGAIN)
        else:
            stored_files.check_content(name, content, where, signature, archive.AGAIN)
    for signature, found in cells.items():
        if FAILURE in found:
            results.setdefault(signature, None)
        result = results.get(signature, {})
        known = {} if result is None else result.get(DIGESTS, {})
        needed = {FAILURE} if result is None else {CONFIG, RESULT, *known} - OPTIONAL
        if absent := needed - found.keys():
            raise DataError(f"{file}: {signature}/{min(absent)} is absent; {archive.AGAIN}")
        for name in sorted((found.keys() & known) - {RESULT}):  # a result has a digest of itself
            if found[name] != known[name]:
                why = f"is not the file that the cell's {RESULT} names"
                raise DataError(f"{file}: {signature}/{name} {why}; {archive.AGAIN}")
    return results
