"""The figures of a sweep's report: the table, the time of its cells, curves, errors by class.

This module decides which rows are drawn and writes the captions; `charts` draws.

The result of a cell has the counts of `statistics.examples.count_classes`. Cells of earlier
versions do not have the counts and are not in the figures of classes. The confusion matrices are
counted from the stored predictions, which an imported ledger may lack.

Shape letters: N classes, R rows and K columns of a figure.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from capsweep.config.cell import name_classes
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger
from capsweep.report import charts, grid
from capsweep.report.cells import TableCell
from capsweep.report.charts import Curve, Panel, PanelRow
from capsweep.report.table import CellGroup, ResultTable
from capsweep.runtime.terminal import count_of
from capsweep.statistics import metric_format
from capsweep.statistics.examples import count_confusions
from capsweep.statistics.seeds import list_common_keys, summarise_values

MOST_ROWS = 14  # most rows in a figure; readers cannot distinguish more curves
MOST_TABLE_ROWS = 40  # most rows in the figure of a table
MOST_ACROSS = 3  # most panels side by side in the figure of a table
MOST_CLASSES = 10  # most classes in a figure
EPOCHS = "epochs"  # the key of columns whose values stand on the horizontal axis
LONGEST = 12  # most characters of the name of a class in a figure
Series = Mapping[int, float]  # a number per epoch


@dataclass(frozen=True)
class ReportFigure:
    """A figure of a report's page."""

    caption: str  # what is shown and how it was computed, or why there is no image
    stem: str  # name of the figure's file, without the ending
    names: Sequence[str] = ()  # names of the drawn rows
    image: bytes | None = None  # the PNG; None if nothing can be drawn
    narrow: bytes | None = None  # a PNG for narrow screens; None if `image` fits them


def make_figures(table: ResultTable) -> Iterator[ReportFigure]:
    """Yield the figures of the table and of time, then loss and error of each column by epoch."""
    whole = make_table_figure(table)
    is_broad = len(table.columns) > 1
    yield replace(whole, narrow=make_table_figure(table, 1).image) if is_broad else whole
    yield _make_cost_figure(table)
    groups = choose_rows(table)
    for number, name in enumerate(table.titles):
        ending, where = "", ""
        if name:
            slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "column"
            ending, where = f"-{slug}-{number}", f" ({name})"
        column = [group for group in groups if group.column == number]
        for figure in _make_curve_figures(column, where):
            yield replace(figure, stem=f"{figure.stem}{ending}")


def make_table_figure(table: ResultTable, most_across: int = MOST_ACROSS) -> ReportFigure:
    """Draw the metric of each row, with a panel for each column, and published numbers.

    If the columns differ in their epochs, curves of the metric are drawn instead.

    Args:
        table: The table.
        most_across: The largest number of panels side by side; 1 for narrow screens.
    """
    columns = range(len(table.columns))
    if len({table.column_values(column).get(EPOCHS) for column in columns}) > 1:
        return _draw_epochs(table, most_across)
    return _draw_rows(table, "table", table.sweep.metric, lambda g: g.by_seed, most_across)


def _draw_epochs(table: ResultTable, most_across: int) -> ReportFigure:
    """Draw the metric after training for several numbers of epochs: a curve for each row.

    Each combination of the other keys of the columns has a panel. A curve has the numbers of epochs
    for which all its seeds are finished.
    """
    factor = table.measure.factor
    values: dict[str, dict[tuple[str, int], dict[int, list[float]]]] = {}
    for group in choose_rows(table):
        if group.full_summary:
            column = table.column_values(group.column)
            epochs, title = column.pop(EPOCHS), grid.describe_column(column)
            of_row = values.setdefault(title, {}).setdefault((group.name, group.row), {})
            of_row[epochs] = [factor * value for value in group.by_seed.values()]
    panels = {
        title: [_make_curve(*row, dict(sorted(each.items()))) for row, each in rows.items()]
        for title, rows in values.items()
    }
    label = charts.name_with_unit(table.sweep.metric)
    caption = f"{label} by epochs of training: mean over seeds"
    if not panels:
        return ReportFigure(f"{caption}: no row is finished.", "table")
    names = list(dict.fromkeys(curve.name for curves in panels.values() for curve in curves))
    image = charts.draw_once(charts.draw_curves, label, panels, most_across)
    text = f"{caption}; the band reaches from the lowest seed to the highest."
    return ReportFigure(text, "table", names, image)


def _make_cost_figure(table: ResultTable) -> ReportFigure:
    """Draw the time of a cell of each row, with a panel for each column.

    The time is device time if every finished cell recorded GPU hours, else wall time.
    """
    cells = [cell for cell in table.cells if cell.is_finished]
    on_gpus = bool(cells) and all(cell.result.get("gpu_hours") for cell in cells)

    def read_minutes(group: CellGroup) -> dict[int, float]:
        results = {seed: cell.result for seed, cell in group.finished.items()}
        if on_gpus:
            return {seed: 60 * result["gpu_hours"] for seed, result in results.items()}
        totals = {seed: result.get("seconds", {}).get("total") for seed, result in results.items()}
        return {seed: total / 60 for seed, total in totals.items() if total is not None}

    label = f"{'device' if on_gpus else 'wall'} minutes of a cell"
    drawn = _draw_rows(table, "cost-time", label, read_minutes, 1)
    hardware = ", ".join(sorted({cell.hardware for cell in cells})) or "no hardware"
    return replace(drawn, caption=f"{drawn.caption} Training and test, on {hardware}.")


def _draw_rows(
    table: ResultTable, stem: str, label: str, read: Callable[[CellGroup], Series], most_across: int
) -> ReportFigure:
    """Draw a number of each row: a mark for each seed, the mean and its interval.

    The mean is drawn if all seeds have the number. If no row has a number, or if more than
    MOST_TABLE_ROWS rows have one, the figure has no image.

    Args:
        table: The table.
        stem: The name of the figure's file, without the ending.
        label: What the number is.
        read: A function that returns the number by seed, for a field of the table.
        most_across: The largest number of panels side by side.
    """
    drawn = [(group, values) for group in table.groups if (values := read(group))]
    names = {group.row: group.name for group, _ in drawn}
    caption = f"{label}: mean over seeds and its 95 % interval"
    if not 0 < len(names) <= MOST_TABLE_ROWS:
        room = f"{len(names)} rows have results, and a figure has room for {MOST_TABLE_ROWS}"
        return ReportFigure(f"{caption}: {room}.", stem)
    if table.baseline in names:
        caption += f"; the dotted line is the mean of {names[table.baseline]}"
    places = {row: place for place, row in enumerate(names)}
    rows: dict[int, dict[int, PanelRow]] = {}
    for group, values in drawn:
        row = _make_row(table, group, label, list(values.values()))
        rows.setdefault(group.column, {})[places[group.row]] = row
    baseline = None if table.baseline is None else places.get(table.baseline)
    panels = [Panel(table.titles[n], rows[n], baseline) for n in sorted(rows)]
    labels, keys = [*names.values()], " · ".join(table.sweep.rows)
    image = charts.draw_once(charts.draw_panels, label, keys, labels, panels, most_across)
    return ReportFigure(f"{caption}.", stem, labels, image)


def _make_row(
    table: ResultTable, group: CellGroup, label: str, values: Sequence[float]
) -> PanelRow:
    """Make the row of a field in a panel; the row of a metric has published numbers."""
    measure, mean = metric_format.measure_of(label), None
    if len(values) == len(group.cells):
        summary = summarise_values(values, measure.low, measure.high)
        mean = (summary.mean, *(summary.interval or (summary.mean, summary.mean)))
    at = table.column_values(group.column)
    marks = {charts.SEED: values}
    for number in table.rows[group.row].published if label == table.sweep.metric else ():
        place = [str(value) for key, value in at.items() if key in number.of]
        if number.place in ([], place):
            kind = charts.OTHER if number.differs else charts.PUBLISHED
            marks[kind] = [*marks.get(kind, ()), number.value]
    return PanelRow(mean, marks)


def choose_rows(table: ResultTable) -> list[CellGroup]:
    """Choose the rows to draw: all, or the baseline and the best rows if there are too many.

    Returns:
        The fields of the chosen rows, in the order of the table. The `row` of each field is changed
        to the index of its row among the chosen rows.
    """
    sign = -1 if table.measure.higher_is_better else 1

    def rank_row(row: int) -> tuple[bool, float]:
        means = [sign * g.summary.mean for g in table.rows[row].values if g.summary]
        return row != table.baseline, min(means, default=math.inf)

    drawn = sorted(sorted(range(len(table.rows)), key=rank_row)[:MOST_ROWS])
    return [replace(g, row=drawn.index(g.row)) for g in table.groups if g.row in drawn]


def describe_rows(table: ResultTable) -> str:
    """Return a note on the names of rows in the figures, and on rows that are not drawn."""
    text = f"Rows are named {' · '.join(table.sweep.rows)}. Time includes validation."
    if len(table.rows) > MOST_ROWS:
        best = "the best" if table.baseline is None else "the baseline and the best"
        text += f" {MOST_ROWS} of the {len(table.rows)} rows are drawn: {best} by "
        text += f"{table.sweep.metric}. For other rows: make report with ARMS=... or single values."
    return text


def choose_split(name: str, fields: Sequence[CellGroup]) -> str:
    """Return `val/NAME` if all epochs of the finished cells have this metric, else `train/NAME`."""
    rows = [row for field in fields for cell in field.finished.values() for row in cell.rows]
    is_validated = bool(rows) and all(f"val/{name}" in row for row in rows)
    return f"{'val' if is_validated else 'train'}/{name}"


def read_rows(cell: TableCell, key: str, factor: float = 1) -> Series:
    """Return a metric of a cell by epoch (counted from 0); each value is multiplied by `factor`."""
    values = {row["epoch"]: row.get(key) for row in cell.rows}
    return {epoch: factor * v for epoch, v in values.items() if isinstance(v, (int, float))}


def average_seeds(name: str, row: int, seeds: Sequence[Series]) -> list[Curve]:
    """Compute, for each epoch, the mean, the lowest and the highest value of some seeds.

    An epoch is used only if every seed has a finite value for this epoch.

    Args:
        name: The name of the curve.
        row: The index of the curve's row. The index decides the style of the curve.
        seeds: The metric by epoch, for each seed.

    Returns:
        A list with one curve; an empty list if no epoch can be used.
    """
    values = {e: [series[e] for series in seeds] for e in list_common_keys(seeds)}
    values = {e + 1: numbers for e, numbers in values.items() if all(map(math.isfinite, numbers))}
    return [_make_curve(name, row, values)] if values else []


def _make_curve(name: str, row: int, values: Mapping[int, Sequence[float]]) -> Curve:
    """Make a curve from the values of all seeds, by epoch."""
    means, lows, highs = (tuple(map(each, values.values())) for each in (fmean, min, max))
    return Curve(name, row, tuple(values), means, lows, highs)


def _make_curve_figures(fields: Sequence[CellGroup], where: str) -> Iterator[ReportFigure]:
    """Yield the figures of loss and error by epoch; `where` names the column in the captions."""
    for stem, factor, unit in (("loss", 1, ""), ("error", 100, " (%)")):
        key = choose_split(stem, fields)
        curves: list[Curve] = []
        for field in fields:
            seeds = [s for cell in field.finished.values() if (s := read_rows(cell, key, factor))]
            curves += average_seeds(field.name, field.row, seeds)
        if not curves:
            yield ReportFigure(f"{key}{unit}{where}: no finished cell recorded it by epoch.", stem)
            continue
        yield ReportFigure(
            f"{key}{unit} by epoch{where}: mean over seeds, in the epochs that all of them have; "
            "the band reaches from the lowest seed to the highest.",
            stem,
            [curve.name for curve in curves],
            charts.draw_once(charts.draw_curves, f"{key}{unit}", {"": curves}),
        )


def make_class_figures(table: ResultTable, ledger: Ledger) -> Iterator[ReportFigure]:
    """Yield a figure of the errors by class, then the confusion matrix of each row.

    Each column of the table, and each data set of a column, has its own figures. A figure is left
    out if no cell has what it shows. Images with several classes have no matrix.
    """
    sets: dict[tuple[int, str], list[CellGroup]] = {}
    for group in choose_rows(table):
        if group.finished:
            dataset = group.point.cell.config["dataset"]["name"]
            sets.setdefault((group.column, dataset), []).append(group)
    for number, ((_, dataset), groups) in enumerate(sets.items()):
        where = f" of {dataset}" if len(sets) > 1 else ""
        yield from _make_error_figure(groups, where, f"class-error-{number}")
        for group in groups:
            yield from _make_confusion_figure(group, ledger, where)


def _make_error_figure(
    groups: Sequence[CellGroup], where: str, stem: str
) -> Iterator[ReportFigure]:
    """Yield the figure of the errors by class: a line for each row of the table."""
    errors: dict[str, np.ndarray] = {}
    for group in groups:
        if counts := [cell.class_counts for cell in group.finished.values() if cell.class_counts]:
            shares = [_divide(each["missed"], each["examples"]) for each in counts]
            errors[group.name] = np.mean(shares, axis=0)
    if errors:
        errors_RN, names = np.array([*errors.values()]), name_classes(groups[0].point.cell.config)
        chosen, note = _choose_worst(errors_RN.mean(axis=0), names)
        columns = [names[n] for n in chosen]
        image = _draw_matrix(errors_RN[:, chosen], list(errors), columns, False)
        text = "of the test images that show the class, those for which the network does not "
        caption = f"Error of each class (%){where}: {text}predict it; mean over seeds.{note}"
        yield ReportFigure(caption, stem, list(errors), image)


def _make_confusion_figure(group: CellGroup, ledger: Ledger, where: str) -> Iterator[ReportFigure]:
    """Yield the confusion matrix of a row: the mean over the seeds with stored predictions."""
    cells = group.finished.values()
    counts = [c for cell in cells if (c := _count_confusions(ledger, cell)) is not None]
    if counts:
        names = name_classes(group.point.cell.config)
        shares_NN = np.mean([_divide(c, c.sum(axis=1, keepdims=True)) for c in counts], axis=0)
        right_N, all_N = shares_NN.diagonal(), shares_NN.sum(axis=1)
        chosen, note = _choose_worst(all_N - right_N, names)
        shares_RK, lines = shares_NN[np.ix_(chosen, chosen)], [names[n] for n in chosen]
        columns = lines
        if note:
            others_R = all_N[chosen] - shares_RK.sum(axis=1)
            shares_RK, columns = np.column_stack([shares_RK, others_R]), [*lines, "others"]
        image = _draw_matrix(shares_RK, lines, columns, True)
        caption = (
            f"Confusion matrix of {group.name}{where}: of the test images of a class (line), the "
            f"share (%) predicted as each class (column); mean over {count_of(len(counts), 'seed')}"
        )
        stem = f"confusion-{group.column}-{group.row}"
        yield ReportFigure(f"{caption}.{note}", stem, [group.name], image)


def _divide(counts: Any, totals: Any) -> np.ndarray:
    """Divide counts by totals; a share of nothing is 0."""
    return np.asarray(counts) / np.maximum(totals, 1)


def _count_confusions(ledger: Ledger, cell: TableCell) -> np.ndarray | None:
    """Count the confusions of a cell, [N, N]; None without predictions of one class per image."""
    name = stored_files.PREDICTIONS
    content = ledger.read(cell.signature, name)
    arguments = content or b"", f"{cell.where}/{name}"
    stored = content and stored_files.read_if_sound(stored_files.read_predictions, *arguments)
    return count_confusions(*stored) if stored and stored[1].ndim == 1 else None


def _choose_worst(error_N: np.ndarray, names: list[str]) -> tuple[list[int], str]:
    """Choose the MOST_CLASSES classes with the largest errors, and say so if there are more."""
    chosen = sorted(np.argsort(-error_N, kind="stable")[:MOST_CLASSES].tolist())
    if len(chosen) == len(names):
        return chosen, ""
    listed = ", ".join(names[n] for n in chosen)
    return chosen, f" Of {len(names)} classes, the {len(chosen)} with the largest errors: {listed}."


def _draw_matrix(
    shares_RK: np.ndarray, lines: Sequence[str], columns: Sequence[str], is_confusion: bool
) -> bytes:
    """Draw a matrix of shares in percent; see `charts.draw_matrix`."""
    percents = np.round(100 * shares_RK, 6).tolist()
    names = [n if len(n) <= LONGEST else f"{n[: LONGEST - 1]}…" for n in columns]
    return charts.draw_once(charts.draw_matrix, percents, list(lines), names, is_confusion)
