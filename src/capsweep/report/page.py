"""The page of a sweep: one file that answers its question, and says of every number where it comes
from.
"""

import base64
import hashlib
import json
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2

from capsweep.config import package_files
from capsweep.config.cell import flat
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.report import figures, formatted_table, grid
from capsweep.report.cells import TableCell
from capsweep.report.figures import ReportFigure
from capsweep.report.table import CellGroup, ResultTable
from capsweep.storage.files import write_atomically, write_text

TEMPLATES = Path(__file__).with_name("templates")
PAGE, FIGURES = "index.html", "figures"
MOST_BYTES = 6_000_000  # of the pictures of a page: one of a thousand cells shall open
# Of a cell's files: the configuration has a place of its own, digests are for `ledger verify`.
NOT_SHOWN = ("signature", "science", "overrides", "logistics", "sha256", "first_activations")


@dataclass(frozen=True)
class Picture:
    """A picture of the cell of a field and a seed.

    Attributes:
        name: of its file.
        field: of the table.
        seed: of the cell.
        content: the PNG.
        caption: what the file of its numbers says of it; empty where nothing does.
    """

    name: str
    field: CellGroup
    seed: int
    content: bytes
    caption: str


def write_page(table: ResultTable, ledger: Ledger, folder: Path) -> Path:
    """Write index.html and figures/ into a report's folder, and return the page's path.

    The pictures of an earlier report in figures/ are removed.
    """
    charts = list(figures.make_figures(table))
    pictures = read_pictures(table.groups, ledger)
    write_text(folder / PAGE, render_page(table, charts, pictures))
    for old in (folder / FIGURES).glob("*.png"):
        old.unlink()
    for figure in charts:
        if (image := figure.image) is not None:
            path = folder / FIGURES / f"{figure.stem}.png"
            write_atomically(path, lambda file, image=image: file.write(image))
    return folder / PAGE


def render_page(
    table: ResultTable,
    charts: Sequence[ReportFigure],
    pictures: Sequence[Picture],
) -> str:
    """Return the page as text. Whatever was read is escaped, and the one script is named by its
    hash.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "base64": lambda content: base64.b64encode(content).decode(),
        # Width and height, from the head of a PNG.
        "pixels": lambda content: struct.unpack(">II", content[16:24].ljust(8, b"\0")),
        "config": _list_config,
        "facts": list_facts,
    }
    script = environment.get_template("open.js").render()
    names = [table.name_column(column) for column in range(len(table.columns))]
    return environment.get_template("index.html.j2").render(
        sweep=table.sweep,
        table=formatted_table.format_table(table),
        measure=table.measure,
        counts=describe_counts,
        every=table.cells,
        row_note=figures.describe_rows(table),
        figures=charts,
        pictures=pictures,
        fields=table.groups,
        columns=names if len(names) > 1 else [""],
        code=package_files.describe_code(),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _list_config(cell: TableCell) -> str:
    """Return all but the seed, a line for each key: YAML takes ten times as long."""
    science = {key: value for key, value in cell.point.cell.science.items() if key != "seed"}
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in flat(science).items())


def describe_counts(cells: Iterable[TableCell]) -> str:
    """Return `9 done, 6 missing`."""
    counts = Counter(cell.entry.status for cell in cells)
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def list_facts(cell: TableCell) -> dict[str, str]:
    """Return what was written down of a cell's making and result, by dotted key."""
    known: dict[str, Any] = {
        "status": cell.entry.status,
        "cause": cell.entry.cause,
        "cell": cell.signature,
        "folder": cell.where,
        **{key: value for key, value in cell.result.items() if key not in NOT_SHOWN},
        **{f"made.{key}": v for key, v in cell.provenance.items() if key not in NOT_SHOWN},
        "evals": ", ".join(cell.evaluations),
    }
    leaves = flat(known).items()
    return {key: grid.format_value(value) for key, value in leaves if value not in (None, "", [])}


def read_pictures(fields: Sequence[CellGroup], ledger: Ledger) -> list[Picture]:
    """Return the pictures of the first seed of every field that has some, as many as a page has
    room for.
    """
    pictures, room = [], MOST_BYTES
    for field in fields:
        drawn = (
            (cell, names)
            for _, cell in sorted(field.cells.items())
            if (names := [name for name in cell.evaluations if name.endswith(".png")])
        )
        for cell, names in islice(drawn, 1):
            for name in names:
                content = ledger.read(cell.signature, f"{EVALUATIONS}/{name}")
                if content is not None and len(content) <= room:
                    caption = _read_caption(cell, name, ledger)
                    pictures.append(Picture(name, field, cell.point.seed, content, caption))
                    room -= len(content)
    return pictures


def _read_caption(cell: TableCell, name: str, ledger: Ledger) -> str:
    """Return what the file of a picture's numbers says of it; empty where nothing sound does."""
    numbers = f"{EVALUATIONS}/{PurePosixPath(name).stem}.npz"
    stored = ledger.read(cell.signature, numbers)
    read = partial(stored_files.read_arrays, stored or b"", numbers, "draw it again")
    arrays = (stored and stored_files.read_if_sound(read)) or {}
    return str(arrays.get("caption", ""))
