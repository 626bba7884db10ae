"""The page of a sweep: one file that answers its question, and says of every number where it comes
from.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from capsweep.ledger.ledger import Ledger
from capsweep.report import cell_provenance, cells, figures, formatted_table, pictures, provenance
from capsweep.report.cells import FieldCells
from capsweep.report.charts import Drawn, NotDrawn
from capsweep.report.formatted_table import FormattedField, FormattedRow, FormattedTable
from capsweep.report.grid import MISSING
from capsweep.report.pictures import PictureKind
from capsweep.report.table import ResultTable
from capsweep.storage.files import write_atomically, write_json, write_text
from capsweep.sweep.expand import Point

TEMPLATES = Path(__file__).with_name("templates")
SECTIONS = {"curves": "Curves", "cost": "Cost", "schedules": "Schedules"}
OURS = re.compile(rf"({'|'.join(figures.KINDS)})(-.+-\d+)?\.(svg|png)")
PAGE, NUMBERS, FIGURES = "index.html", "provenance.json", "figures"


@dataclass(frozen=True)
class LinkedField:
    """A field of the table: its number, what stands smaller beside it, and where its cells are."""

    field: FormattedField
    number: str
    beside: str
    anchor: str | None


def write_page(
    table: ResultTable, points: Sequence[Point], ledger: Ledger, folder: Path
) -> list[Path]:
    """Write index.html, figures/ and provenance.json into a report's folder; all that was written,
    the page first.

    points: those that the table was built from.
    """
    fields = cells.cells_behind(table, cells.read_cells(points, ledger))
    drawn, now = figures.draw_figures(table, fields), provenance.describe_making()
    written = formatted_table.format_table(table)
    write_json(folder / NUMBERS, provenance.report_provenance(table, written, fields, ledger, now))
    paths = list(_write_figures(folder / FIGURES, drawn))
    text = render_page(table, written, fields, drawn, pictures.read(fields, ledger), now)
    write_text(folder / PAGE, text)
    return [folder / PAGE, folder / NUMBERS, *paths]


def render_page(
    table: ResultTable,
    written: FormattedTable,
    fields: Sequence[FieldCells],
    drawn: Sequence[Drawn | NotDrawn],
    shown: Sequence[PictureKind],
    now: Mapping[str, Any],
) -> str:
    """The page as text. All that is not ours is escaped, and its one script is named by a hash."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
    script = environment.get_template("open.js").render()
    texts = {
        (line.row, field.column): field.text
        for line in written.lines
        for field in line.fields
        if field.kind == "value"
    }
    return environment.get_template("index.html.j2").render(
        sweep=table.sweep,
        header=written.header,
        lines=[list(_link_fields(line)) for line in written.lines],
        notes=written.notes,
        counts=cell_provenance.describe_counts(cells.distinct_cells(fields)),
        on_rows=figures.on_rows(table),
        sections=_group_sections(drawn),
        pictures=shown,
        fields=[
            cell_provenance.field_details(table, field, texts[field.row, field.column])
            for field in fields
        ],
        anchor=cell_provenance.make_anchor,
        column=partial(cell_provenance.column_heading, table),
        now=now,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _link_fields(line: FormattedRow) -> Iterator[LinkedField]:
    """A field that is not missing has cells, and leads to them."""
    for field in line.fields:
        anchor = None
        if field.column is not None and field.text != MISSING:
            anchor = cell_provenance.make_anchor(line.row, field.column)
        yield LinkedField(field, *field.halves, anchor)


def _group_sections(
    drawn: Sequence[Drawn | NotDrawn],
) -> list[tuple[str, str, list[Drawn], list[NotDrawn]]]:
    """Name, title, figures and missing figures of each."""
    return [
        (
            section,
            title,
            [one for one in drawn if one.section == section and isinstance(one, Drawn)],
            [one for one in drawn if one.section == section and isinstance(one, NotDrawn)],
        )
        for section, title in SECTIONS.items()
    ]


def _write_figures(folder: Path, drawn: Sequence[Drawn | NotDrawn]) -> Iterator[Path]:
    """Write the figures that are there; those of an earlier report that are not any more go."""
    written = set()
    for figure in drawn:
        if isinstance(figure, Drawn):
            for ending, content in (("svg", figure.files.svg), ("png", figure.files.png)):
                path = folder / f"{figure.stem}.{ending}"
                write_atomically(path, lambda file, content=content: file.write(content))
                written.add(path)
                yield path
    for path in sorted(set(folder.glob("*")) - written):
        if OURS.fullmatch(path.name):
            path.unlink()
