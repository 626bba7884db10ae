"""Whether every file of a cell is as it was stored, and says what the others say.

Shape letters: M test examples, N classes, L classes of one image.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from capsweep.errors import DamageError
from capsweep.ledger import stored_files, transfer
from capsweep.ledger.ledger import EVALUATIONS, Ledger, is_damaged, load_predictions
from capsweep.ledger.stored_files import DIGESTS, POINTS, PREDICTIONS, REMOVE, RESULT
from capsweep.statistics import examples

ROUNDING = 1e-6  # of an error rate; less than one example is of any data set


def find_faults(ledger: Ledger, cell: str) -> Iterator[str]:
    """Yield a line for each fault of a cell, once, though several readers meet it."""
    result = ledger.read_result(cell)
    names = {*ledger.list_files(cell), *(result or {}).get(DIGESTS, {})} - {RESULT, "resume.ckpt"}
    if result is not None:
        names.add(transfer.CONFIG)
    names |= {f"{EVALUATIONS}/{name}" for name in ledger.list_evaluations(cell)}
    readers: list[Callable[[], object]] = [
        partial(ledger.sound_result, cell),
        partial(ledger.read_provenance, cell),
        partial(_check_science, ledger, cell),
        partial(ledger.read_rows, cell),
        partial(ledger.read_rows, cell, POINTS),
        *(partial(_check_file, ledger, cell, name) for name in sorted(names - {EVALUATIONS})),
    ]
    if result is not None and PREDICTIONS in ledger.list_files(cell):
        readers.append(partial(_check_predictions, ledger, cell, result))
    faults: dict[str, None] = {}
    for read in readers:
        try:
            read()
        except DamageError as error:
            faults[str(error)] = None
    yield from faults


def _check_science(ledger: Ledger, cell: str) -> None:
    science = ledger.read_science(cell)
    if science is not None:
        entry = ledger.judge(cell, ledger.entry(cell), science)
        if is_damaged(entry):
            raise DamageError(entry.cause)


def _check_file(ledger: Ledger, cell: str, name: str) -> None:
    content, where = ledger.read(cell, name), f"{ledger.locate_files(cell)}/{name}"
    if content is None and name not in transfer.OPTIONAL:
        raise stored_files.damage_error(where, "it is absent", REMOVE)
    if content is not None and name.startswith(f"{EVALUATIONS}/") and name.endswith(".npz"):
        stored_files.read_arrays(content, where, "remove it, and evaluate the cell again")


def _check_predictions(ledger: Ledger, cell: str, result: Mapping[str, Any]) -> None:
    """Raise DamageError where the result has other error rates than the predictions beside it."""
    scores_MN, labels = load_predictions(ledger, cell)
    where = f"{ledger.locate_files(cell)}/{PREDICTIONS}"
    try:
        measured = measure_errors(scores_MN, labels)
    except ValueError as error:
        raise stored_files.damage_error(where, error, REMOVE) from error
    tolerance = ROUNDING + _count_ties(scores_MN, labels) / len(labels)
    for name, value in measured.items():
        recorded = result["metrics"].get(name, value)
        if abs(recorded - value) > tolerance:
            why = f"{name} is {value:.4f} by it, {recorded:.4f} by {RESULT}"
            raise stored_files.damage_error(where, why, REMOVE)


def measure_errors(scores_MN: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the metrics of a test that its predictions tell: `test/error`, and where images show
    several classes `test/at_least_one`.

    labels: [M] or [M, L]. Raises ValueError for scores that are no predictions of these labels.
    """
    metrics = {"test/error": float(examples.find_wrong(scores_MN, labels).mean())}
    if labels.ndim == 2:
        highest_ML = examples.predict_classes(scores_MN, labels.shape[1])
        is_found_M = (labels[:, :, None] == highest_ML[:, None, :]).any(axis=(1, 2))
        metrics["test/at_least_one"] = float(is_found_M.mean())
    return metrics


def _count_ties(scores_MN: np.ndarray, labels: np.ndarray) -> int:
    """Return how many predictions depend on which of two equal scores comes first."""
    classes = 1 if labels.ndim == 1 else labels.shape[1]
    ordered_MN = -np.sort(-scores_MN, axis=1)
    if scores_MN.shape[1] <= classes:
        return 0
    return int((ordered_MN[:, classes - 1] == ordered_MN[:, classes]).sum())
