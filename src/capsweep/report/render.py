r"""A table for people and for programs: Markdown, terminal, LaTeX with booktabs, CSV and JSON."""

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from rich.console import RenderableType
from rich.styled import Styled
from rich.table import Table as RichTable

from capsweep.report import grid
from capsweep.report.formatted_table import FormattedField, FormattedTable, format_table
from capsweep.report.table import CellGroup, ResultTable
from capsweep.report.trained import PublishedNumber

Record = dict[str, Any]
TRAINED = ("dataset", "model", "epochs", "batch_size", "limit_batches")
TEMPLATE = Path(__file__).with_name("templates") / "table.tex"
# What LaTeX does not set as it stands. [ and * in braces: after \\ and \midrule LaTeX would take
# them as an argument of those.
SPECIAL = str.maketrans(
    {
        **{letter: rf"\{letter}" for letter in "{}&%$#_"},
        **{letter: f"{{{letter}}}" for letter in "[]*`"},
        **{letter: f"${letter}$" for letter in "<>|"},
        **{"≤": r"$\leq$", "≥": r"$\geq$", "±": r"$\pm$", "·": r"$\cdot$"},
        "≠": r"$\neq$",
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        '"': r"\char34{}",
    }
)
DASH = re.compile("-(?=-)")  # LaTeX makes a dash of two hyphens
MINUS = re.compile(r"(?<![\w.)-])-(?=\.?\d)")  # before a number; a hyphen is between words


def render_markdown(table: ResultTable, formatted: FormattedTable | None = None) -> str:
    """Return a Markdown table, best mean of a column in bold, the question above, notes below.

    One table, however wide: who reads Markdown can scroll, and a row stays one line of a diff.
    """
    sweep = table.sweep
    parts = list_paragraphs(formatted or format_table(table))
    parts += [f"`{sweep.command}` prints this."] if sweep.command else []
    return "\n\n".join([f"# {sweep.name}", sweep.question, *parts]) + "\n"


def list_paragraphs(formatted: FormattedTable) -> list[str]:
    """Warnings, table and notes in Markdown; published numbers are slanted, they are not ours."""
    header = [*formatted.header]
    if formatted.has_published:
        header[-1] = f"*{header[-1]}*"
    rows = [[_mark_field(field) for field in row] for row in formatted.rows]
    warnings = [f"**{warning}**" for warning in formatted.warnings]
    return [*warnings, grid.pipe_table(header, rows), *formatted.notes]


def _mark_field(field: FormattedField) -> str:
    is_published = field.kind == "published" and field.text != grid.MISSING
    mark = "**" if field.best else "*" if is_published else ""
    return f"{mark}{field.text}{mark}"


def render_terminal(formatted: FormattedTable) -> RichTable:
    """Return the table without question and notes, the published numbers dim."""
    rows = [[_style_field(field) for field in row] for row in formatted.rows]
    return grid.grid_terminal(None, formatted.header, rows)


def _style_field(field: FormattedField) -> RenderableType:
    if field.kind == "published":
        return Styled(field.text, "dim italic")
    return Styled(field.text, "bold") if field.best else field.text


def render_latex(table: ResultTable, formatted: FormattedTable) -> str:
    """Return a table environment: the question as its caption, notes below in small print.

    Best means are bold, ± and minus signs are set as mathematics.
    """
    sweep = table.sweep
    warnings = [rf"\textbf{{{escape_latex(warning)}}}" for warning in formatted.warnings]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        caption=" ".join([*warnings, escape_latex(sweep.question)]),
        label=re.sub("[^A-Za-z0-9]+", "-", sweep.report_name),
        columns="l" * len(formatted.header),
        header=_latex_line(map(escape_latex, formatted.header)),
        body="\n".join(_latex_line(map(_latex_field, row)) for row in formatted.rows),
        notes="\n".join(rf"  \par\smallskip {escape_latex(note)}" for note in formatted.notes),
    )


def escape_latex(text: str) -> str:
    """Return a text as LaTeX sets it, on one line."""
    line = " ".join(text.split()).replace("<=", "≤").replace(">=", "≥")
    line = MINUS.sub("$-$", line.translate(SPECIAL))
    return DASH.sub("-{}", line).replace("–", "{--}")


def _latex_line(fields: Iterable[str]) -> str:
    return f"    {' & '.join(fields)} \\\\"


def _latex_field(field: FormattedField) -> str:
    """Return the number, and its interval in small print."""
    number, beside = map(escape_latex, field.halves)
    number = rf"\textbf{{{number}}}" if field.best else number
    return rf"{number} {{\scriptsize {beside}}}" if beside else number


def table_records(table: ResultTable) -> list[Record]:
    """Return a record for each row and column that has cells, numbers in full precision: its
    coordinates by key, then its numbers. Fractions are fractions, not percent. What a table does
    not show as a number (a mean of some of the seeds) is none here; `values` has what is there.
    """
    keys = (*table.sweep.rows, *table.sweep.columns)
    return [
        dict(zip(keys, group.coordinates, strict=True))
        | _group_record(group, table.rows[group.row].published)
        for group in table.groups
    ]


def _group_record(group: CellGroup, published: Sequence[PublishedNumber]) -> Record:
    summary, difference = group.full_summary, group.difference
    point = next(iter(group.cells.values())).point
    low, high = (summary and summary.interval) or (None, None)
    difference_low, difference_high = (difference and difference.interval) or (None, None)
    return {
        **{key: point.coordinate(key) for key in TRAINED},
        "seeds": sorted(group.cells),
        "n": len(group.by_seed),
        "wanted": len(group.cells),
        "mean": summary and summary.mean,
        "std": summary and summary.std,
        "interval_low": low,
        "interval_high": high,
        "difference": difference and difference.mean,
        "difference_n": difference and difference.n,
        "difference_low": difference_low,
        "difference_high": difference_high,
        "p": group.p,
        "best": group.is_best,
        "published": [
            {"value": number.value, **number.of, "differs": ",".join(number.differs)}
            for number in published
        ],
        "values": group.by_seed,
        "causes": group.causes,
        "stale": group.stale,
        "cells": {seed: cell.signature for seed, cell in group.cells.items()},
    }


def render_csv(table: ResultTable) -> str:
    """Return the records with a header. Nothing is an empty field; numbers are as Python writes
    them, which loses nothing; what is no text or number is JSON.
    """
    records = table_records(table)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        words = {k: json.dumps(v) for k, v in record.items() if isinstance(v, bool | list | dict)}
        writer.writerow(record | words)
    return file.getvalue()


def render_json(table: ResultTable, formatted: FormattedTable) -> str:
    """Return what the table is about, and its records; notes: as below the table."""
    sweep = table.sweep
    baseline = None if table.baseline is None else table.rows[table.baseline].coordinates
    content = {
        "sweep": sweep.name,
        **{key: getattr(sweep, key) for key in ("question", "metric", "rows", "columns")},
        "higher_is_better": table.measure.higher_is_better,
        "baseline": baseline and dict(zip(sweep.rows, baseline, strict=True)),
        "published_source": sweep.published.source or None,
        "warnings": formatted.warnings,
        "notes": formatted.notes,
        "fields": table_records(table),
    }
    return json.dumps(content, indent=1, allow_nan=False)
