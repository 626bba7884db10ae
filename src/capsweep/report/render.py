"""Writers of a table of results: Markdown, terminal, LaTeX with booktabs, CSV and JSON."""

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Any

from rich.console import RenderableType
from rich.styled import Styled
from rich.table import Table as RichTable

from capsweep.report import answer, grid
from capsweep.report.formatted_table import FormattedField, FormattedTable, format_table
from capsweep.report.table import CellGroup, ResultTable
from capsweep.report.trained import PublishedNumber

Record = dict[str, Any]
TRAINED = ("dataset", "model", "epochs", "batch_size", "limit_batches")
TEMPLATE = Path(__file__).with_name("templates") / "table.tex"
# Characters that must be written differently for LaTeX. [ and * are in braces, because LaTeX would
# read them as arguments after \\ and \midrule.
SPECIAL = str.maketrans(
    {
        **{letter: rf"\{letter}" for letter in "{}&%$#_"},
        **{letter: f"{{{letter}}}" for letter in "[]*`"},
        **{letter: f"${letter}$" for letter in "<>|"},
        **{"≤": r"$\leq$", "≥": r"$\geq$", "≠": r"$\neq$", "±": r"$\pm$", "·": r"$\cdot$"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"†": r"\dag{}", '"': r"\char34{}"},
    }
)
DASH = re.compile("-(?=-)")  # two hyphens, which LaTeX would print as a dash
MINUS = re.compile(r"(?<![\w.)-])-(?=\.?\d)")  # a minus sign before a number, not a hyphen


def render_markdown(table: ResultTable, formatted: FormattedTable | None = None) -> str:
    """Write a Markdown page with the question, the table and the notes of a sweep.

    The best mean of each column is bold. A wide table is not split: a reader can scroll, and in a
    diff each row of the table is one line.
    """
    sweep = table.sweep
    parts = list_paragraphs(formatted or format_table(table))
    parts += [f"`{sweep.command}` prints this."] if sweep.command else []
    return grid.write_markdown(sweep.name, [sweep.question, *parts])


def list_paragraphs(formatted: FormattedTable) -> list[str]:
    """List the Markdown paragraphs of a table: the warnings, the table itself and the notes.

    Published numbers are in italics, because they are not ours.
    """
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
    """Return the header and the rows as a table for a terminal. Published numbers are dim."""
    rows = [[_style_field(field) for field in row] for row in formatted.rows]
    return grid.grid_terminal(None, formatted.header, rows)


def _style_field(field: FormattedField) -> RenderableType:
    if field.kind == "published":
        return Styled(field.text, "dim italic")
    return Styled(field.text, "bold") if field.best else field.text


def render_latex(table: ResultTable, formatted: FormattedTable) -> str:
    """Write a LaTeX table environment, with the question as the caption and the notes below.

    The best mean of each column is bold. The signs ± and minus are in mathematical mode.
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
    """Escape a text for LaTeX, and join its lines."""
    line = " ".join(text.split()).replace("<=", "≤").replace(">=", "≥")
    line = MINUS.sub("$-$", line.translate(SPECIAL))
    return DASH.sub("-{}", line).replace("–", "{--}")


def _latex_line(fields: Iterable[str]) -> str:
    return f"    {' & '.join(fields)} \\\\"


def _latex_field(field: FormattedField) -> str:
    """Write a table field in LaTeX. The details that follow the number are in small print."""
    number, beside = map(escape_latex, field.halves)
    number = rf"\textbf{{{number}}}" if field.best else number
    return rf"{number} {{\scriptsize {beside}}}" if beside else number


def table_records(table: ResultTable) -> list[Record]:
    """Return one record for each table field that has cells.

    A record has first the coordinates, by key, and then the numbers. Numbers have full precision,
    and fractions are not converted to percent. `mean` is None if some seeds are missing, because
    the table then shows no mean. `values` has the metric by seed.
    """
    keys = (*table.sweep.rows, *table.sweep.columns)
    return [
        dict(zip(keys, group.coordinates, strict=True))
        | _group_record(group, table.rows[group.row].published)
        for group in table.groups
    ]


def _group_record(group: CellGroup, published: Sequence[PublishedNumber]) -> Record:
    summary, difference = group.full_summary, group.difference
    low, high = (summary and summary.interval) or (None, None)
    difference_low, difference_high = (difference and difference.interval) or (None, None)
    return {
        **{key: group.point.coordinate(key) for key in TRAINED},
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
    """Write the records of a table as CSV with a header.

    None is written as an empty field. Numbers have full precision. Lists, mappings and booleans are
    written as JSON.
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
    """Write the table as JSON: question, settings, answer, warnings, notes and records."""
    sweep = table.sweep
    baseline = None if table.baseline is None else table.rows[table.baseline].coordinates
    content = {
        "sweep": sweep.name,
        **{key: getattr(sweep, key) for key in ("question", "metric", "rows", "columns")},
        "higher_is_better": table.measure.higher_is_better,
        "baseline": baseline and dict(zip(sweep.rows, baseline, strict=True)),
        "published_source": sweep.published.source or None,
        "warnings": formatted.warnings,
        "answer": answer.list_sentences(table),
        "comparisons": [asdict(each) for each in answer.list_comparisons(table)],
        "notes": formatted.notes,
        "fields": table_records(table),
    }
    return json.dumps(content, indent=1, allow_nan=False)
