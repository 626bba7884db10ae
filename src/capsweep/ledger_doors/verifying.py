"""`capsweep ledger verify`: whether every stored file is what was stored."""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

from capsweep.config.cell import signature
from capsweep.errors import DamageError
from capsweep.ledger import checks, stored_files
from capsweep.ledger.lease import UnknownOwner
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.ledger.stored_files import AGAIN, DIGESTS, REMOVE, RESULT
from capsweep.ledger_doors.opened import opened
from capsweep.report import comparison
from capsweep.storage.object_store import join

WEIGHTS = "weights.ckpt"  # an export may leave them out, and no number of a table is made of them


def verify(parsed: argparse.Namespace) -> int:
    """Print a line for each fault of some cells, or of all and of what is beside them."""
    ledger = opened(parsed)
    cells = [ledger.find(prefix) for prefix in parsed.signature] or ledger.signatures()
    faults = 0
    for fault in _faults(ledger, cells, beside=not parsed.signature):
        print(fault)
        faults += 1
    results = {cell: result for cell in cells if (result := ledger.result(cell)) is not None}
    before = [cell for cell, result in results.items() if not result.get(DIGESTS)]
    bare = [cell for cell in results if WEIGHTS not in ledger.names(cell)]
    told = {"made before there were digests: their files are read, and compared with none": before}
    told[f"without {WEIGHTS}: left out by an export, or removed"] = bare
    for what, which in told.items():
        if which:
            print(f"{len(which)} cells {what}: {' '.join(which[:3])}{' ...' * (len(which) > 3)}")
    print(f"{len(cells)} cells, {len(results)} of them finished: {faults} faults")
    return 1 if faults else 0


def _faults(ledger: Ledger, cells: list[str], beside: bool) -> Iterator[str]:
    for cell in cells:
        yield from _faults_of(ledger, cell)
    for cell, claim in ledger.claims().items():
        if (beside or cell in cells) and isinstance(claim.owner, UnknownOwner):
            yield claim.owner.why
    for name in ledger.store.names("measurements") if beside else ():
        yield from _damage(partial(_read_measurement, ledger, name))


def _faults_of(ledger: Ledger, cell: str) -> Iterator[str]:
    """Each once, though several readers meet it."""
    found = list(_damage(partial(ledger.sound_result, cell)))
    result = ledger.result(cell)
    for name in (result or {}).get(DIGESTS, {}):
        if name != RESULT:
            found += _damage(partial(_read_known, ledger, cell, name))
    for read in (Ledger.provenance, Ledger.rows, _read_science, _read_error, _read_evaluations):
        found += _damage(partial(read, ledger, cell))
    if result is not None:
        found += _damage(partial(_read_predictions, ledger, cell))
    yield from dict.fromkeys(found)


def _damage(read: Callable[[], object]) -> list[str]:
    try:
        read()
    except DamageError as error:
        return [str(error)]
    return []


def _read_known(ledger: Ledger, cell: str, name: str) -> None:
    if ledger.read(cell, name) is None and name != WEIGHTS:
        where = f"{ledger.where(cell)}/{name}"
        raise stored_files.damage(where, "it is absent", REMOVE)


def _read_science(ledger: Ledger, cell: str) -> None:
    science = ledger.science(cell)
    if science is not None and (found := signature(science)) != cell:
        where = f"{ledger.where(cell)}/config.yaml"
        raise stored_files.damage(where, f"its signature is {found}", REMOVE)


def _read_error(ledger: Ledger, cell: str) -> None:
    content = ledger.read(cell, "error.txt")
    if content is not None:
        stored_files.read_text(content, f"{ledger.where(cell)}/error.txt", AGAIN)


def _read_evaluations(ledger: Ledger, cell: str) -> None:
    for name in ledger.evaluations(cell):
        content = ledger.read(cell, f"{EVALUATIONS}/{name}")
        if content is not None and name.endswith(".npz"):
            where = f"{ledger.where(cell)}/{EVALUATIONS}/{name}"
            stored_files.read_arrays(content, where, "evaluate the cell again")


def _read_predictions(ledger: Ledger, cell: str) -> None:
    if ledger.read(cell, "predictions.npz") is not None:
        comparison.read_predictions(ledger, cell)


def _read_measurement(ledger: Ledger, name: str) -> None:
    path = f"measurements/{name}"
    content = ledger.store.read(path)
    if content is not None:
        where = join(ledger.store.root, path)
        stored_files.parse(content, where, "remove it", checks.MEASUREMENT)
