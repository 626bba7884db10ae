"""By what the cells of a table were made: hardware, torch, code and data. Rounding follows the
first two, and numbers follow all of them; so a note names what is not the same for cells that stand
together.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from capsweep.errors import DamageError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import READERS, Entry, Ledger
from capsweep.report.grid import describe_row
from capsweep.storage.files import hash_bytes
from capsweep.sweep.expand import Point
from capsweep.terminal import count_of

UNRECORDED = "what nobody recorded"
DIGITS = 12  # of a fingerprint
Grid = Mapping[tuple[Any, ...], Mapping[tuple[Any, ...], Sequence[Point]]]


@dataclass(frozen=True)
class MadeCell:
    """A finished cell of a table: its field, in words, its seed and data set, and what its files
    say of its making, by kind.
    """

    field: str
    seed: int
    dataset: str
    made_by: Mapping[str, str]


def list_differences(grid: Grid, entries: Mapping[str, Entry], ledger: Ledger) -> dict[str, str]:
    """Return which cells of a table were made by what, by the name of each kind that differs.

    grid: points by row and column. Hardware and torch are compared over the table, fingerprints
    over the cells of a data set, code over the seeds of a field: other networks run other code.
    """
    cells = _read_cells(grid, entries, ledger)
    differences: dict[str, str] = {}
    for kind in ("hardware", "torch"):
        differences |= _name_difference(kind, kind, cells)
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        of_data = [cell for cell in cells if cell.dataset == dataset]
        differences |= _name_difference(f"fingerprint of {dataset}", "fingerprint", of_data)
    codes: dict[str, set[str]] = {}
    for cell in cells:
        codes.setdefault(cell.field, set()).add(cell.made_by["code"])
    mixed = [cell for cell in cells if len(codes[cell.field]) > 1]
    return differences | _name_difference("code", "code", mixed)


def read_circumstances(
    provenance: Mapping[str, Any], result: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return what made a cell, in words: hardware, torch, code and the fingerprint of its data."""
    versions, fingerprint = provenance.get("versions"), provenance.get("fingerprint")
    if fingerprint is not None and not isinstance(fingerprint, str):  # a hash for each file
        fingerprint = hash_bytes(json.dumps(fingerprint, sort_keys=True).encode())
    codes = (source.get("code") for source in (result or {}, provenance))
    values = {
        "hardware": read_hardware(provenance),
        "torch": versions.get("torch") if isinstance(versions, Mapping) else None,
        "code": next(
            (c["numerics"] for c in codes if isinstance(c, Mapping) and "numerics" in c), None
        ),
        "fingerprint": fingerprint and fingerprint[:DIGITS],
    }
    return {kind: UNRECORDED if v is None else str(v) for kind, v in values.items()}


def read_hardware(provenance: Mapping[str, Any]) -> str | None:
    """Return the name of the GPU or processor that trained a cell, as `provenance.json` has it.

    A processor's name includes its vector instructions, because they change the rounding of sums.
    """
    hardware = provenance.get("hardware", {})
    if not isinstance(hardware, Mapping):
        return None
    if gpus := hardware.get("gpus"):
        return gpus[0]
    processor, vectors = hardware.get("processor"), hardware.get("capability")
    return f"{processor} ({vectors})" if processor and vectors else processor


def _read_cells(grid: Grid, entries: Mapping[str, Entry], ledger: Ledger) -> list[MadeCell]:
    """The finished cells; a damaged file is printed, and says nothing of its cell."""
    columns = {column for by_column in grid.values() for column in by_column}
    fields = {
        (describe_row((*row, *column) if len(columns) > 1 else row), point.seed): point
        for row, by_column in grid.items()
        for column, points in by_column.items()
        for point in points
        if entries[point.cell.signature].result is not None
    }

    def read_cell(key: tuple[str, int]) -> MadeCell:
        point = fields[key]
        result = entries[point.cell.signature].result
        try:
            provenance = ledger.read_provenance(point.cell.signature, result)
        except DamageError as error:
            stored_files.print_damage(error)
            provenance = {}
        dataset = str(point.coordinate("dataset"))
        return MadeCell(*key, dataset, read_circumstances(provenance, result))

    with ThreadPoolExecutor(1 if ledger.disk is not None else READERS) as pool:
        return list(pool.map(read_cell, fields))


def _name_difference(name: str, kind: str, cells: Sequence[MadeCell]) -> dict[str, str]:
    """`{"torch differs": "2.12.0 in seed 0 of cnn; 2.13.0 in seed 1 of cnn, capsnet"}`; empty where
    all is the same.
    """
    values = dict.fromkeys(cell.made_by[kind] for cell in cells)
    if len(values) < 2:
        return {}
    texts = (f"{value} in {', and '.join(_name_cells(kind, value, cells))}" for value in values)
    return {f"{name} differs": "; ".join(texts)}


def _name_cells(kind: str, value: str, cells: Sequence[MadeCell]) -> Iterator[str]:
    """The fields that have a value, with their seeds where others of them have another."""
    seeds: dict[str, list[int]] = {}
    for cell in cells:
        if cell.made_by[kind] == value:
            seeds.setdefault(cell.field, []).append(cell.seed)
    sizes = Counter(cell.field for cell in cells)
    parts: dict[str, list[str]] = {}
    for field, own in seeds.items():
        noun = count_of(len(own), "seed").partition(" ")[2]
        is_whole = len(own) == sizes[field]
        of = "" if is_whole else f"{noun} {', '.join(map(str, sorted(own)))} of "
        parts.setdefault(of, []).append(field)
    for of, fields in parts.items():
        yield f"{of}{'every row' if len(fields) == len(sizes) > 1 else ', '.join(fields)}"
