"""Errors by class: the mark of cells that never predict some class, and figures for the page.

The result of a cell has the counts of `statistics.examples.count_classes`. Cells of earlier
versions do not have the counts; they get no mark and are not drawn. The confusion matrices are
counted from the stored predictions, which an imported ledger may lack.

Shape letters: N classes, R rows and K columns of a figure.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from capsweep.ledger import stored_files
from capsweep.ledger.ledger import READERS, Ledger
from capsweep.ledger.stored_files import PREDICTIONS
from capsweep.report import charts
from capsweep.report.cells import TableCell
from capsweep.report.figures import ReportFigure, choose_rows
from capsweep.report.table import CellGroup, ResultTable
from capsweep.runtime.terminal import count_of
from capsweep.statistics.examples import count_confusions

MOST_CLASSES = 10  # most classes in a figure and in a note
LONGEST = 12  # most characters of the name of a class in a figure
MARK = "†"


def note_never_predicted(table: ResultTable) -> list[str]:
    """Return a note on the cells that never predict some class; empty without such cells."""
    cells = [cell for cell in table.cells if cell.class_counts]
    several = len({cell.point.cell.config["dataset"]["name"] for cell in cells}) > 1
    never = Counter(
        _name_classes(cell, several)[index] for cell in cells for index in cell.never_predicted
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


def _name_classes(cell: TableCell, with_dataset: bool = False) -> list[str]:
    """Return the names of a cell's classes: `class_names` of the data set, or else numbers."""
    dataset = cell.point.cell.config["dataset"]
    names = dataset.get("class_names") or range(dataset["num_classes"])
    return [f"{name} of {dataset['name']}" if with_dataset else str(name) for name in names]


def make_class_figures(table: ResultTable, ledger: Ledger) -> Iterator[ReportFigure]:
    """Yield a figure of the errors by class, then the confusion matrix of each row.

    Each column of the table, and each data set of a column, has its own figures. A figure is left
    out if no cell has what it shows. Images with several classes have no matrix.
    """
    sets: dict[tuple[int, str], list[CellGroup]] = {}
    for group in choose_rows(table):
        if group.finished:
            dataset = next(iter(group.finished.values())).point.cell.config["dataset"]
            sets.setdefault((group.column, dataset["name"]), []).append(group)
    for number, ((_, dataset), groups) in enumerate(sets.items()):
        where = f" of {dataset}" if len(sets) > 1 else ""
        yield from _make_error_figure(groups, where, f"class-error-{number}")
        for group in groups:
            yield from _make_confusion_figure(group, ledger, where)


def _make_error_figure(
    groups: Sequence[CellGroup], where: str, stem: str
) -> Iterator[ReportFigure]:
    """Yield the figure of the errors by class: a row for each row of the table."""
    errors, names, classes = [], [], []
    for group in groups:
        counts = [c for cell in group.finished.values() if (c := cell.class_counts)]
        if counts:
            missed, shown = (np.array([c[name] for c in counts]) for name in ("missed", "examples"))
            errors.append(np.mean(missed / np.maximum(shown, 1), axis=0))
            names.append(group.name)
            classes = _name_classes(next(iter(group.finished.values())))
    if not errors:
        return
    errors_RN = np.array(errors)
    chosen = _choose_worst(errors_RN.mean(axis=0))
    image = _draw(errors_RN[:, chosen], names, [classes[n] for n in chosen], "class", "", False)
    yield ReportFigure(
        f"Error of each class (%){where}: of the test images that show the class, those for which "
        f"the network does not predict it; mean over seeds.{_describe_chosen(chosen, classes)}",
        stem,
        names,
        image,
    )


def _make_confusion_figure(group: CellGroup, ledger: Ledger, where: str) -> Iterator[ReportFigure]:
    """Yield the confusion matrix of a row: the mean over the seeds with stored predictions."""
    cells = list(group.finished.values())
    with ThreadPoolExecutor(READERS) as pool:  # slow object stores are read in parallel
        read = [
            each for each in pool.map(partial(_count_confusions, ledger), cells) if each is not None
        ]
    if not read:
        return
    shares_NN = np.mean(
        [counts / np.maximum(counts.sum(axis=1, keepdims=True), 1) for counts in read], axis=0
    )
    classes = _name_classes(cells[0])
    chosen = _choose_worst(1 - shares_NN.diagonal())
    shares_RK, columns = shares_NN[np.ix_(chosen, chosen)], [classes[n] for n in chosen]
    if len(chosen) < len(classes):
        others_R = shares_NN[chosen].sum(axis=1) - shares_RK.sum(axis=1)
        shares_RK, columns = np.column_stack([shares_RK, others_R]), [*columns, "others"]
    image = _draw(shares_RK, [classes[n] for n in chosen], columns, "predicted", "true class", True)
    yield ReportFigure(
        f"Confusion matrix of {group.name}{where}: of the test images of a class (line), the share "
        f"(%) that is predicted as each class (column); mean over {count_of(len(read), 'seed')}."
        f"{_describe_chosen(chosen, classes)}",
        f"confusion-{group.column}-{group.row}",
        [group.name],
        image,
    )


def _count_confusions(ledger: Ledger, cell: TableCell) -> np.ndarray | None:
    """Count the confusions of a cell, [N, N]; None without predictions of one class per image."""
    content = ledger.read(cell.signature, PREDICTIONS)
    if content is None:
        return None
    where = f"{cell.where}/{PREDICTIONS}"
    stored = stored_files.read_if_sound(partial(stored_files.read_predictions, content, where))
    return None if stored is None or stored[1].ndim > 1 else count_confusions(*stored)


def _choose_worst(error_N: np.ndarray) -> list[int]:
    """Return all classes, or the MOST_CLASSES classes with the largest errors; both sorted."""
    return sorted(np.argsort(-error_N, kind="stable")[:MOST_CLASSES].tolist())


def _describe_chosen(chosen: Sequence[int], classes: Sequence[str]) -> str:
    """Say which of the classes are drawn; empty if all are drawn."""
    if len(chosen) == len(classes):
        return ""
    names = ", ".join(classes[n] for n in chosen)
    return f" Of {len(classes)} classes, the {len(chosen)} with the largest errors: {names}."


def _draw(
    shares_RK: np.ndarray, lines: Sequence[str], columns: Sequence[str], *options: str | bool
) -> bytes:
    """Draw a matrix of shares in percent; see `charts.draw_matrix`."""
    percents = np.round(100 * shares_RK, 6).tolist()
    names = [name[:LONGEST] for name in columns]
    return charts.draw_once(charts.draw_matrix, percents, list(lines), names, *options)
