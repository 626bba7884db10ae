"""By what the cells of a table were made: hardware, torch and code. Rounding follows the first two,
and numbers follow all of them; so a note names what is not the same for cells that stand together.
Cells of one data set that saw other data are refused.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from capsweep.config.cell import Cell
from capsweep.errors import UserError
from capsweep.ledger.ledger import READERS, Entry, Ledger
from capsweep.ledger.listing import read_circumstances
from capsweep.ledger.stored_files import DATA
from capsweep.report.grid import describe_row, describe_seeds
from capsweep.sweep.expand import Point

NAMED = 3  # cells of a digest
READ_BY = ("reader", "test", "shards")  # sections of a data set that decide what is read
SHARDS_DIFFER = "; shards made with another SHARDS or ARGS are other files, and cannot be compared"
Grid = Mapping[tuple[Any, ...], Mapping[tuple[Any, ...], Sequence[Point]]]


# What the files of finished cells say of their making, by kind; by field in words and seed.
Cells = Mapping[tuple[str, int], Mapping[str, str]]


def list_differences(grid: Grid, entries: Mapping[str, Entry], ledger: Ledger) -> dict[str, str]:
    """Return which cells of a table were made by what, by the name of each kind that differs.

    grid: points by row and column. Hardware and torch are compared over the table, code over the
    seeds of a field: other networks run other code.
    """
    cells = _read_cells(grid, entries, ledger)
    codes: dict[str, set[str]] = {}
    for (field, _), made_by in cells.items():
        codes.setdefault(field, set()).add(made_by["code"])
    mixed = {key: made_by for key, made_by in cells.items() if len(codes[key[0]]) > 1}
    differences = _name_difference("hardware", cells) | _name_difference("torch", cells)
    return differences | _name_difference("code", mixed)


def compare_data(points: Sequence[Point], entries: Mapping[str, Entry]) -> dict[str, str]:
    """Compare the digests of the data that finished cells used.

    Returns a note, by "data", where results of earlier code have none. Raises UserError where cells
    that declare the same data did not use the same.
    """
    cells = {point.cell.signature: point.cell for point in points}
    results = {name: result for name in cells if (result := entries[name].result) is not None}
    used: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for name, result in results.items():
        dataset = cells[name].science["dataset"]
        declared = json.dumps([dataset.get(key) for key in READ_BY], sort_keys=True)
        for split, digest in result.get(DATA, {}).items():
            used.setdefault((declared, split), {}).setdefault(digest, []).append(cells[name])
    for (_, split), by_digest in used.items():
        if len(by_digest) > 1:
            raise _refuse_mixture(split, by_digest)
    lacking = sum(not result.get(DATA) for result in results.values())
    text = f"{lacking} of {len(results)} results have no digest of their data and were not compared"
    return {"data": text} if lacking else {}


def _refuse_mixture(split: str, by_digest: Mapping[str, Sequence[Cell]]) -> UserError:
    texts = [
        f"{digest} ({', '.join(cell.signature for cell in cells[:NAMED])}"
        f"{', ...' * (len(cells) > NAMED)})"
        for digest, cells in by_digest.items()
    ]
    dataset = next(iter(by_digest.values()))[0].science["dataset"]
    layout = SHARDS_DIFFER if "shards" in dataset else ""
    return UserError(
        f"dataset={dataset['name']}: the {split} data were not the same in all cells: sha256 "
        f"{', '.join(texts)}{layout}; restore the data that are meant, remove the cells that used "
        "others (capsweep ledger rm) and run them again"
    )


def _read_cells(grid: Grid, entries: Mapping[str, Entry], ledger: Ledger) -> Cells:
    """Return the finished cells, one of each field and seed."""
    columns = {column for by_column in grid.values() for column in by_column}
    fields = {
        (describe_row((*row, *column) if len(columns) > 1 else row), point.seed): (
            signature,
            result,
        )
        for row, by_column in grid.items()
        for column, points in by_column.items()
        for point in points
        if (result := entries[(signature := point.cell.signature)].result) is not None
    }

    with ThreadPoolExecutor(1 if ledger.disk is not None else READERS) as pool:
        made = pool.map(lambda cell: read_circumstances(ledger, *cell), fields.values())
        return dict(zip(fields, made, strict=True))


def _name_difference(kind: str, cells: Cells) -> dict[str, str]:
    """Return `{"torch differs": "2.12.0 in seed 0 of cnn; 2.13.0 in seed 1 of cnn, capsnet"}`;
    empty where all is the same.
    """
    values = dict.fromkeys(made_by[kind] for made_by in cells.values())
    if len(values) < 2:
        return {}
    texts = (f"{value} in {', and '.join(_name_cells(kind, value, cells))}" for value in values)
    return {f"{kind} differs": "; ".join(texts)}


def _name_cells(kind: str, value: str, cells: Cells) -> Iterator[str]:
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
