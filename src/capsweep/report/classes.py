"""Errors by class: the mark of cells that never predict some class, and figures for the page.

The result of a cell has the counts of `statistics.examples.count_classes`. Cells of earlier
versions do not have the counts; they get no mark and are not drawn. The confusion matrices are
counted from the stored predictions, which an imported ledger may lack.

Shape letters: N classes, R rows and K columns of a figure.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from capsweep.config.cell import name_classes
from capsweep.ledger import stored_files
from capsweep.ledger.ledger import Ledger
from capsweep.ledger.stored_files import PREDICTIONS
from capsweep.report import charts
from capsweep.report.cells import TableCell
from capsweep.report.figures import ReportFigure, choose_rows
from capsweep.report.table import CellGroup, ResultTable
from capsweep.runtime.terminal import count_of
from capsweep.statistics.examples import count_confusions
from capsweep.sweep.expand import Point

MOST_CLASSES = 10  # most classes in a figure and in a note
LONGEST = 12  # most characters of the name of a class in a figure
MARK = "†"


def note_never_predicted(table: ResultTable) -> list[str]:
    """Return a note on the cells that never predict some class; empty without such cells."""
    cells = [cell for cell in table.cells if cell.class_counts]
    several = len({cell.point.cell.config["dataset"]["name"] for cell in cells}) > 1
    never = Counter(
        _name_classes(cell.point, several)[index]
        for cell in cells
        for index in cell.never_predicted
    )
    if not never:
        return []
    marked = sum(bool(cell.never_predicted) for cell in cells)
    texts = [f"{name} ({count_of(n, 'cell')})" for name, n in never.most_common(MOST_CLASSES)]
    texts += [f"and {len(never) - MOST_CLASSES} more"] * (len(never) > MOST_CLASSES)
    verb = "predicts" if marked == 1 else "predict"
    return [
        f"{MARK}: {marked} of {count_of(len(cells), 'cell')} {verb} some class for no test image: "
        f"class {', '.join(texts)}."
    ]


def _name_classes(point: Point, with_dataset: bool = False) -> list[str]:
    config = point.cell.config
    where = f" of {config['dataset']['name']}" if with_dataset else ""
    return [f"{name}{where}" for name in name_classes(config)]


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
        errors_RN, names = np.array([*errors.values()]), _name_classes(groups[0].point)
        chosen, note = _choose_worst(errors_RN.mean(axis=0), names)
        columns = [names[n] for n in chosen]
        image = _draw(errors_RN[:, chosen], list(errors), columns, False)
        text = "of the test images that show the class, those for which the network does not "
        caption = f"Error of each class (%){where}: {text}predict it; mean over seeds.{note}"
        yield ReportFigure(caption, stem, list(errors), image)


def _make_confusion_figure(group: CellGroup, ledger: Ledger, where: str) -> Iterator[ReportFigure]:
    """Yield the confusion matrix of a row: the mean over the seeds with stored predictions."""
    cells = group.finished.values()
    counts = [c for cell in cells if (c := _count_confusions(ledger, cell)) is not None]
    if counts:
        names = _name_classes(group.point)
        shares_NN = np.mean([_divide(c, c.sum(axis=1, keepdims=True)) for c in counts], axis=0)
        right_N, all_N = shares_NN.diagonal(), shares_NN.sum(axis=1)
        chosen, note = _choose_worst(all_N - right_N, names)
        shares_RK, lines = shares_NN[np.ix_(chosen, chosen)], [names[n] for n in chosen]
        columns = lines
        if note:
            others_R = all_N[chosen] - shares_RK.sum(axis=1)
            shares_RK, columns = np.column_stack([shares_RK, others_R]), [*lines, "others"]
        image = _draw(shares_RK, lines, columns, True)
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
    content = ledger.read(cell.signature, PREDICTIONS)
    read = partial(stored_files.read_predictions, content or b"", f"{cell.where}/{PREDICTIONS}")
    stored = content and stored_files.read_if_sound(read)
    return count_confusions(*stored) if stored and stored[1].ndim == 1 else None


def _choose_worst(error_N: np.ndarray, names: list[str]) -> tuple[list[int], str]:
    """Choose the MOST_CLASSES classes with the largest errors, and say so if there are more."""
    chosen = sorted(np.argsort(-error_N, kind="stable")[:MOST_CLASSES].tolist())
    if len(chosen) == len(names):
        return chosen, ""
    listed = ", ".join(names[n] for n in chosen)
    return chosen, f" Of {len(names)} classes, the {len(chosen)} with the largest errors: {listed}."


def _draw(
    shares_RK: np.ndarray, lines: Sequence[str], columns: Sequence[str], is_confusion: bool
) -> bytes:
    """Draw a matrix of shares in percent; see `charts.draw_matrix`."""
    percents = np.round(100 * shares_RK, 6).tolist()
    names = [n if len(n) <= LONGEST else f"{n[: LONGEST - 1]}…" for n in columns]
    return charts.draw_once(charts.draw_matrix, percents, list(lines), names, is_confusion)
