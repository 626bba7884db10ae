"""The page of a sweep: one file that answers its question, and says of every number where it comes
from.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from capsweep.config.cell import flat
from capsweep.ledger.ledger import Ledger
from capsweep.report import cell_provenance, cells, figures, formatted_table
from capsweep.report.cells import FieldCells, KnownCell, PictureKind
from capsweep.report.figures import ReportFigure
from capsweep.report.formatted_table import FormattedTable
from capsweep.report.table import ResultTable
from capsweep.storage.files import write_atomically, write_json, write_text
from capsweep.sweep.expand import Point

TEMPLATES = Path(__file__).with_name("templates")
OURS = re.compile(rf"({'|'.join(figures.KINDS)})(-.+-\d+)?\.(svg|png)")
PAGE, NUMBERS, FIGURES = "index.html", "provenance.json", "figures"


def write_page(
    table: ResultTable, points: Sequence[Point], ledger: Ledger, folder: Path
) -> list[Path]:
    """Write index.html, figures/ and provenance.json into a report's folder; all that was written,
    the page first.

    points: those that the table was built from.
    """
    fields = cells.cells_behind(table, cells.read_cells(points, ledger))
    drawn, making = list(figures.make_figures(table, fields)), cell_provenance.describe_making()
    formatted = formatted_table.format_table(table)
    provenance = cell_provenance.report_provenance(table, formatted, fields, ledger, making)
    write_json(folder / NUMBERS, provenance)
    paths = list(_write_figures(folder / FIGURES, drawn))
    shown = cells.read_pictures(fields, ledger)
    write_text(folder / PAGE, render_page(table, formatted, fields, drawn, shown, making))
    return [folder / PAGE, folder / NUMBERS, *paths]


def render_page(
    table: ResultTable,
    formatted: FormattedTable,
    fields: Sequence[FieldCells],
    drawn: Sequence[ReportFigure],
    shown: Sequence[PictureKind],
    making: Mapping[str, Any],
) -> str:
    """The page as text. All that is not ours is escaped, and its one script is named by a hash."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "base64": lambda content: base64.b64encode(content).decode(),
        "config": _list_config,
        "duration": cell_provenance.format_duration,
        "metrics": cell_provenance.format_metrics,
        "section": cell_provenance.format_section,
        "sizes": cell_provenance.format_sizes,
    }
    script = environment.get_template("open.js").render()
    names = [cells.column_name(table, column) for column in range(len(table.columns))]
    return environment.get_template("index.html.j2").render(
        sweep=table.sweep,
        table=formatted,
        measure=table.measure,
        counts=cell_provenance.describe_counts,
        every=cells.distinct_cells(fields),
        row_note=figures.describe_rows(table),
        figures=drawn,
        pictures=shown,
        fields=fields,
        columns=names if len(names) > 1 else [""],
        statuses=cell_provenance.STATUS,
        origin=cell_provenance.collect_origin,
        making=making,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _list_config(cell: KnownCell) -> str:
    """All but the seed, a line for each key as overrides name it: YAML takes ten times as long."""
    science = {key: value for key, value in cell.point.cell.science.items() if key != "seed"}
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in flat(science).items())


def _write_figures(folder: Path, drawn: Sequence[ReportFigure]) -> Iterator[Path]:
    """Write the figures that are there; those of an earlier report that are not any more go."""
    written = set()
    for figure in drawn:
        if figure.image is not None:
            for ending, content in (("svg", figure.image.svg), ("png", figure.image.png)):
                path = folder / f"{figure.stem}.{ending}"
                write_atomically(path, lambda file, content=content: file.write(content))
                written.add(path)
                yield path
    for path in sorted(set(folder.glob("*")) - written):
        if OURS.fullmatch(path.name):
            path.unlink()
