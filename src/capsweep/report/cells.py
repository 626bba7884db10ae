"""The cells of a table, read from the ledger, and their differences in data and origin.

Results depend slightly on hardware, torch and code, so a note lists such differences between the
cells of one table. A table is refused if its cells name the same data set but read different data.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from capsweep.errors import UserError
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATIONS, READERS, Entry, Ledger
from capsweep.ledger.listing import describe_circumstances, read_hardware
from capsweep.report.grid import SEPARATOR
from capsweep.runtime.terminal import describe_seeds
from capsweep.sweep.expand import Point

MOST_NAMED = 3  # cells that an error message names for each digest
DATA_SECTIONS = ("reader", "test", "shards")  # sections of a data set that decide what is read


@dataclass(frozen=True)
class TableCell:
    """A cell of a sweep and the contents of its folder in the ledger.

    Attributes:
        point: The place of the cell in the sweep.
        entry: The cell's status and result in the ledger.
        provenance: Code, versions, hardware and command; empty if the provenance file is absent or
            damaged.
        rows: The metrics of each epoch; empty if the file of metrics is absent or damaged.
        evaluations: The names of the files in evals/.
        where: The path or URL of the cell's folder in the ledger.
    """

    point: Point
    entry: Entry
    provenance: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    evaluations: Sequence[str]
    where: str

    @property
    def signature(self) -> str:
        """The signature of the cell: the hash that names the cell in the ledger."""
        return self.point.cell.signature

    @property
    def is_finished(self) -> bool:
        """Whether the cell has a result. A cell that a search stopped early has no result."""
        return self.entry.result is not None

    @property
    def result(self) -> Mapping[str, Any]:
        """The result of the cell; empty if the cell has no result."""
        return self.entry.result or {}

    @property
    def pictures(self) -> list[str]:
        """The names of the pictures in evals/."""
        return [name for name in self.evaluations if name.endswith(".png")]

    @property
    def class_counts(self) -> Mapping[str, Sequence[int]]:
        """The counts of `examples.count_classes`; empty if the cell did not store them."""
        return self.result.get("classes", {})

    @property
    def never_predicted(self) -> list[int]:
        """The classes of test images that the network predicts for no test image."""
        shown, predicted = (self.class_counts.get(key, ()) for key in ("examples", "predicted"))
        pairs = enumerate(zip(shown, predicted, strict=True))
        return [index for index, (examples, times) in pairs if examples and not times]

    @property
    def hardware(self) -> str:
        """The name of the GPU or processor that trained the cell, or "unknown hardware"."""
        return read_hardware(self.provenance) or "unknown hardware"


def read_cells(points: Sequence[Point], ledger: Ledger) -> dict[str, TableCell]:
    """Read the cells at the given points of a sweep from the ledger.

    A damaged file is reported on the terminal, and its part of the `TableCell` is left empty.

    Returns:
        The cells by signature.
    """
    places = {point.cell.signature: point for point in points}
    entries = ledger.read_cell_entries(point.cell for point in places.values())

    def read_cell(signature: str) -> TableCell:
        result = entries[signature].result
        return TableCell(
            places[signature],
            entries[signature],
            stored_files.read_if_sound(ledger.read_provenance, signature, result) or {},
            stored_files.read_if_sound(ledger.read_rows, signature) or (),
            ledger.list_files(signature, EVALUATIONS),
            ledger.locate_files(signature, result),
        )

    with ThreadPoolExecutor(READERS) as pool:  # slow object stores are read in parallel
        return dict(zip(places, pool.map(read_cell, places), strict=True))


def compare_data(cells: Sequence[TableCell]) -> dict[str, str]:
    """Check that finished cells of the same data set have read the same data.

    The data are compared by their digests (sha256).

    Returns:
        A note under the key "data" if some results have no digest; else an empty dictionary.

    Raises:
        UserError: If two cells declare the same data but have different digests.
    """
    used: dict[tuple[str, str], dict[str, list[TableCell]]] = {}
    for cell in cells:
        dataset = cell.point.cell.science["dataset"]
        declared = json.dumps([dataset.get(key) for key in DATA_SECTIONS], sort_keys=True)
        for split, digest in cell.result.get(stored_files.DATA, {}).items():
            used.setdefault((declared, split), {}).setdefault(digest, []).append(cell)
    for (_, split), by_digest in used.items():
        if len(by_digest) > 1:
            raise _refuse_mixture(split, by_digest)
    lacking = sum(not cell.result.get(stored_files.DATA) for cell in cells)
    text = f"{lacking} of {len(cells)} results have no digest of their data and were not compared"
    return {"data": text} if lacking else {}


def _refuse_mixture(split: str, by_digest: Mapping[str, Sequence[TableCell]]) -> UserError:
    """Return the error for cells that have read different data.

    For each digest, the message names up to MOST_NAMED cells.
    """
    texts = [
        f"{digest} ({', '.join(cell.signature for cell in cells[:MOST_NAMED])}"
        f"{', ...' * (len(cells) > MOST_NAMED)})"
        for digest, cells in by_digest.items()
    ]
    dataset = next(iter(by_digest.values()))[0].point.cell.science["dataset"]
    return UserError(
        f"dataset={dataset['name']}: the {split} data were not the same in all cells: sha256 "
        f"{', '.join(texts)}; restore the intended data, remove the cells that used other data "
        "(capsweep ledger rm) and run them again"
    )


def list_differences(fields: Mapping[str, Sequence[TableCell]]) -> dict[str, str]:
    """Describe how finished cells differ in hardware, torch or code.

    Different networks run different code, so the versions of code are numbered in each field, by
    the order of its seeds.

    Args:
        fields: The finished cells, by the name of their table field.

    Returns:
        A text for each of hardware, torch and code that differs, under a key such as "torch
        differs". The text names the cells of each value, from the rarest value on, for example
        `2.12.0 in seed 0 of cnn; else 2.13.0`.
    """
    made_by = {
        (name, cell.point.seed): describe_circumstances(cell.provenance, cell.result)
        for name, field in fields.items()
        for cell in field
    }
    versions: dict[str, dict[str, str]] = {}
    for (field, _), made in made_by.items():
        of_field = versions.setdefault(field, {})
        made["code"] = of_field.setdefault(made["code"], f"version {len(of_field) + 1}")
    differences = {}
    for kind in ("hardware", "torch", "code"):
        cells = {place: made[kind] for place, made in made_by.items()}
        counts = Counter(cells.values())
        values = sorted(counts, key=counts.__getitem__)
        texts = [f"{value} in {', and '.join(_name_cells(value, cells))}" for value in values[:-1]]
        if texts:
            differences[f"{kind} differs"] = "; ".join([*texts, f"else {values[-1]}"])
    return differences


def _name_cells(value: str, cells: Mapping[tuple[str, int], str]) -> Iterator[str]:
    """Yield the names of the table fields in which some cell has a value.

    If only some seeds of a field have the value, these seeds are named too: `seed 0 of cnn`.

    Args:
        value: The value.
        cells: The value of each cell, by the name of its table field and its seed.
    """
    seeds: dict[str, list[int]] = {}
    for (field, seed), made_by in cells.items():
        if made_by == value:
            seeds.setdefault(field, []).append(seed)
    sizes = Counter(field for field, _ in cells)
    parts: dict[str, list[str]] = {}
    for field, some in seeds.items():
        noun = "seed" if len(some) == 1 else "seeds"
        prefix = "" if len(some) == sizes[field] else f"{noun} {describe_seeds(some)} of "
        parts.setdefault(prefix, []).append(field)
    for prefix, fields in parts.items():
        # Rows without the named seeds do not count.
        rows = {field for field, seed in cells if seed in seeds[fields[0]]} if prefix else sizes
        named = ["every row"] if len(fields) == len(rows) > 1 else _shorten_rows(fields, rows)
        yield f"{prefix}{', '.join(named)}"


def _shorten_rows(fields: Sequence[str], rows: Collection[str]) -> list[str]:
    """Name the first coordinate instead of each field if all rows that begin with it are named."""
    starts = {row: row.split(SEPARATOR)[0] for row in rows}
    others = {starts[row] for row in rows if row not in fields}
    return list(dict.fromkeys(row if starts[row] in others else starts[row] for row in fields))
