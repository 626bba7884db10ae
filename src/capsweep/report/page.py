"""The web page of a sweep: one HTML file with the sweep's table, figures and pictures.

Each number of the table has a link to the cells from which the number was computed. The page shows
the settings and the origin of each cell.
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
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2

from capsweep.config import package_files
from capsweep.config.cell import flatten
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import EVALUATIONS, Ledger
from capsweep.report import answer, figures, formatted_table, grid
from capsweep.report.cells import TableCell
from capsweep.report.figures import ReportFigure
from capsweep.report.table import CellGroup, ResultTable
from capsweep.storage.files import write_atomically, write_text

TEMPLATES = Path(__file__).with_name("templates")
PAGE, FIGURES = "index.html", "figures"
MOST_BYTES = 6_000_000  # limit for all pictures of a page together, so that browsers can open it
# Keys of a cell's files that `list_facts` leaves out. The page shows the configuration separately,
# and digests are only for `capsweep ledger verify`.
NOT_SHOWN = [
    "signature",
    "science",
    "overrides",
    "logistics",
    "sha256",
    "first_activations",
    "classes",
]


@dataclass(frozen=True)
class Picture:
    """A picture that an evaluation of a cell drew.

    Attributes:
        name: The name of the picture's file in evals/.
        field: The table field of the cell.
        seed: The seed of the cell.
        content: The PNG.
        caption: The caption, read from the .npz file with the numbers of the picture; empty if
            there is no caption.
    """

    name: str
    field: CellGroup
    seed: int
    content: bytes
    caption: str


def write_page(table: ResultTable, ledger: Ledger, folder: Path, is_live: bool = False) -> Path:
    """Write index.html and figures/ into the folder of a report, and return the page's path.

    PNG files that an earlier report has left in figures/ are removed. If `is_live`, the sweep runs:
    the page says so, and reloads itself.
    """
    charts = [*figures.make_figures(table)]
    if not is_live:  # they read all predictions
        charts += figures.make_class_figures(table, ledger)
    pictures = read_pictures(table.groups, ledger)
    write_text(folder / PAGE, render_page(table, charts, pictures, is_live))
    for old in (folder / FIGURES).glob("*.png"):
        old.unlink(missing_ok=True)  # two processes may write the same report
    for figure in charts:
        if (image := figure.image) is not None:
            path = folder / FIGURES / f"{figure.stem}.png"
            write_atomically(path, lambda file, image=image: file.write(image))
    return folder / PAGE


def render_page(
    table: ResultTable, charts: Sequence[ReportFigure], pictures: Sequence[Picture], is_live: bool
) -> str:
    """Return the page as HTML.

    All values are escaped. The content security policy of the page allows only one script, and
    identifies this script by a hash.
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
        # Width and height, from the header of a PNG.
        "pixels": lambda content: struct.unpack(">II", content[16:24].ljust(8, b"\0")),
        "config": _list_config,
        "facts": list_facts,
    }
    script = environment.get_template("open.js").render()
    return environment.get_template("index.html.j2").render(
        results=table,
        table=formatted_table.format_table(table),
        answer=answer.list_sentences(table),
        counts=describe_counts,
        row_note=figures.describe_rows(table),
        figures=charts,
        pictures=pictures,
        is_live=is_live,
        code=package_files.describe_code(),
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _list_config(cell: TableCell) -> str:
    """Return a line `key: value` for each key of a cell's science except the seed.

    Values are JSON, because writing YAML takes ten times as long.
    """
    science = {key: value for key, value in cell.point.cell.science.items() if key != "seed"}
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in flatten(science).items())


def describe_counts(cells: Iterable[TableCell]) -> str:
    """Return the number of cells with each status as text, such as `9 done, 6 missing`."""
    counts = Counter(cell.entry.status for cell in cells)
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def list_facts(cell: TableCell) -> dict[str, str]:
    """Return the recorded facts of a cell, such as status, result and origin, by dotted key."""
    known: dict[str, Any] = {
        "status": cell.entry.status,
        "cause": cell.entry.cause,
        "cell": cell.signature,
        "folder": cell.where,
        **{key: value for key, value in cell.result.items() if key not in NOT_SHOWN},
        **{f"made.{key}": v for key, v in cell.provenance.items() if key not in NOT_SHOWN},
        "evals": ", ".join(cell.evaluations),
    }
    leaves = flatten(known).items()
    return {key: grid.format_value(value) for key, value in leaves if value not in (None, "", [])}


def read_pictures(fields: Sequence[CellGroup], ledger: Ledger) -> list[Picture]:
    """Read, for each field of a table, the pictures of one cell.

    Of the cells that have pictures, the cell with the smallest seed is read. A picture is left out
    if the pictures kept so far and this picture would have more than MOST_BYTES bytes together.
    """
    pictures, room = [], MOST_BYTES
    for field in fields:
        drawn = (cell for _, cell in sorted(field.cells.items()) if cell.pictures)
        if (cell := next(drawn, None)) is None:
            continue
        for name in cell.pictures:
            content = ledger.read(cell.signature, f"{EVALUATIONS}/{name}")
            if content is not None and len(content) <= room:
                caption = _read_caption(cell, name, ledger)
                pictures.append(Picture(name, field, cell.point.seed, content, caption))
                room -= len(content)
    return pictures


def _read_caption(cell: TableCell, name: str, ledger: Ledger) -> str:
    """Read the caption of a picture from the .npz file with the numbers of the picture.

    The caption is empty if this file is absent or damaged, or if it has no caption.
    """
    numbers = f"{EVALUATIONS}/{PurePosixPath(name).stem}.npz"
    stored = ledger.read(cell.signature, numbers)
    read = partial(stored_files.read_arrays, stored or b"", numbers, "draw it again")
    arrays = (stored and stored_files.read_if_sound(read)) or {}
    return str(arrays.get("caption", ""))
