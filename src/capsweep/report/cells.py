"""The cells of a table, as the ledger knows them, and what is not the same for all of them.

Rounding follows hardware and torch, and numbers follow the code too; so a note names in what cells
differ that stand together. Cells of one data set that saw other data are refused.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from capsweep.errors import UserError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import READERS, Entry, Ledger
from capsweep.ledger.listing import describe_circumstances, read_hardware
from capsweep.ledger.stored_files import DATA
from capsweep.runtime.terminal import describe_seeds
from capsweep.sweep.expand import Point

NAMED = 3  # cells of a digest
READ_BY = ("reader", "test", "shards")  # sections of a data set that decide what is read


@dataclass(frozen=True)
class TableCell:
    """A cell and what its folder holds.

    Attributes:
        point: its place in the sweep.
        entry: what the ledger says of it.
        provenance: empty where nothing sound is there.
        rows: one per epoch.
        evaluations: names below evals/.
        where: the folder.
    """

    point: Point
    entry: Entry
    provenance: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    evaluations: Sequence[str]
    where: str

    @property
    def signature(self) -> str:
        """The cell's signature."""
        return self.point.cell.signature

    @property
    def is_finished(self) -> bool:
        """Whether tables and curves count it: one that a search stopped early is never averaged."""
        return self.entry.result is not None

    @property
    def result(self) -> Mapping[str, Any]:
        """Its result; empty where there is none."""
        return self.entry.result or {}

    @property
    def hardware(self) -> str:
        """What decided its speed: its GPUs, else its processor."""
        return read_hardware(self.provenance) or "unknown hardware"


def read_cells(points: Sequence[Point], ledger: Ledger) -> dict[str, TableCell]:
    """Return the cells of some places, by signature; a damaged file is printed and left out."""
    places = {point.cell.signature: point for point in points}
    entries = ledger.read_cell_entries(point.cell for point in places.values())

    def read_cell(signature: str) -> TableCell:
        result = entries[signature].result
        return TableCell(
            places[signature],
            entries[signature],
            stored_files.read_if_sound(partial(ledger.read_provenance, signature, result)) or {},
            stored_files.read_if_sound(partial(ledger.read_rows, signature)) or (),
            ledger.list_evaluations(signature),
            ledger.locate_files(signature, result),
        )

    with ThreadPoolExecutor(READERS) as pool:  # an object store answers slowly, but many at once
        return dict(zip(places, pool.map(read_cell, places), strict=True))


def compare_data(cells: Sequence[TableCell]) -> dict[str, str]:
    """Compare the digests of the data that finished cells used.

    Returns a note, by "data", where results of earlier code have none. Raises UserError where cells
    that declare the same data did not use the same.
    """
    used: dict[tuple[str, str], dict[str, list[TableCell]]] = {}
    for cell in cells:
        dataset = cell.point.cell.science["dataset"]
        declared = json.dumps([dataset.get(key) for key in READ_BY], sort_keys=True)
        for split, digest in cell.result.get(DATA, {}).items():
            used.setdefault((declared, split), {}).setdefault(digest, []).append(cell)
    for (_, split), by_digest in used.items():
        if len(by_digest) > 1:
            raise _refuse_mixture(split, by_digest)
    lacking = sum(not cell.result.get(DATA) for cell in cells)
    text = f"{lacking} of {len(cells)} results have no digest of their data and were not compared"
    return {"data": text} if lacking else {}


def _refuse_mixture(split: str, by_digest: Mapping[str, Sequence[TableCell]]) -> UserError:
    texts = [
        f"{digest} ({', '.join(cell.signature for cell in cells[:NAMED])}"
        f"{', ...' * (len(cells) > NAMED)})"
        for digest, cells in by_digest.items()
    ]
    dataset = next(iter(by_digest.values()))[0].point.cell.science["dataset"]
    return UserError(
        f"dataset={dataset['name']}: the {split} data were not the same in all cells: sha256 "
        f"{', '.join(texts)}; restore the data that are meant, remove the cells that used others "
        "(capsweep ledger rm) and run them again"
    )


# What the files of finished cells say of their making, by kind; by field in words and seed.
Making = Mapping[tuple[str, int], Mapping[str, str]]


def list_differences(fields: Mapping[str, Sequence[TableCell]]) -> dict[str, str]:
    """Return which finished cells were made by what, by the name of each kind that differs.

    fields: those cells, by the name of their field. Hardware and torch are compared over all, code
    over the seeds of a field: other networks run other code.
    """
    cells = {
        (name, cell.point.seed): describe_circumstances(cell.provenance, cell.result)
        for name, field in fields.items()
        for cell in field
    }
    codes: dict[str, set[str]] = {}
    for (field, _), made_by in cells.items():
        codes.setdefault(field, set()).add(made_by["code"])
    mixed = {key: made_by for key, made_by in cells.items() if len(codes[key[0]]) > 1}
    differences = _name_difference("hardware", cells) | _name_difference("torch", cells)
    return differences | _name_difference("code", mixed)


def _name_difference(kind: str, cells: Making) -> dict[str, str]:
    """Return `{"torch differs": "2.12.0 in seed 0 of cnn; 2.13.0 in seed 1 of cnn, capsnet"}`;
    empty where all is the same.
    """
    values = dict.fromkeys(made_by[kind] for made_by in cells.values())
    if len(values) < 2:
        return {}
    texts = (f"{value} in {', and '.join(_name_cells(kind, value, cells))}" for value in values)
    return {f"{kind} differs": "; ".join(texts)}


def _name_cells(kind: str, value: str, cells: Making) -> Iterator[str]:
    """Yield the fields that have a value, with their seeds where others of them have another."""
    seeds: dict[str, list[int]] = {}
    for (field, seed), made_by in cells.items():
        if made_by[kind] == value:
            seeds.setdefault(field, []).append(seed)
    sizes = Counter(field for field, _ in cells)
    parts: dict[str, list[str]] = {}
    for field, own in seeds.items():
        noun = "seed" if len(own) == 1 else "seeds"
        of = "" if len(own) == sizes[field] else f"{noun} {describe_seeds(own)} of "
        parts.setdefault(of, []).append(field)
    for of, fields in parts.items():
        yield f"{of}{'every row' if len(fields) == len(sizes) > 1 else ', '.join(fields)}"
