"""Tables of a cell, made of its files in the ledger alone.

Shape letters: M test examples, N classes, L classes shown in one image, K worst, C H W image.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsweep.errors import DamageError
from capsweep.ledger import stored_files
from capsweep.storage.files import hash_bytes

CONFUSION, WORST = "confusion", "worst-examples"
CONFUSION_COLUMNS = ("Actual", "Predicted", "nPredictions")  # as W&B's own chart names them


@dataclass(frozen=True)
class Table:
    """Rows of plain values; a picture is uint8 [C, H, W]."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def digest(self) -> str:
        """Equal for two tables if and only if they show the same."""
        cells = [value for row in self.rows for value in row]
        pictures = [value for value in cells if isinstance(value, np.ndarray)]
        plain = [[*value.shape] if isinstance(value, np.ndarray) else value for value in cells]
        text = json.dumps([self.name, self.columns, plain])
        return hash_bytes(text.encode() + b"".join(value.tobytes() for value in pictures))


def make_tables(
    predictions: bytes | None, examples: bytes | None, images: bool = True
) -> Iterator[Table]:
    """The tables that predictions.npz and worst-examples.npz give.

    images: with the pictures of the worst examples. Images that show several classes have no
    confusion matrix: a prediction does not say which of the shown classes it stands for.
    """
    if predictions is not None:
        scores_MN, labels = stored_files.read_predictions(predictions, "predictions.npz")
        if labels.ndim == 1:
            yield confusion_table(scores_MN, labels)
    if examples is not None:
        name = f"{WORST}.npz"
        yield worst_table(stored_files.read_arrays(examples, name, stored_files.REMOVE), images)


def table_names(predictions: bytes | None, examples: bytes | None) -> tuple[str, ...]:
    """The names of the tables, without making them: a sync needs them for every cell there is.

    A damaged file counts: `make_tables` raises its error.
    """
    confusion = () if predictions is None or _shows_several(predictions) else (CONFUSION,)
    return (*confusion, *(() if examples is None else (WORST,)))


def _shows_several(predictions: bytes) -> bool:
    try:
        return stored_files.read_arrays(predictions, "", "", ("labels",))["labels"].ndim > 1
    except DamageError:
        return False


def confusion_table(scores_MN: np.ndarray, labels_M: np.ndarray) -> Table:
    """How often examples of each class were taken for each."""
    classes = scores_MN.shape[1]
    places = labels_M.astype(np.int64) * classes + scores_MN.argmax(axis=1)
    counts = np.bincount(places, minlength=classes**2).reshape(classes, classes)
    rows = [(str(i), str(j), int(counts[i, j])) for i in range(classes) for j in range(classes)]
    return Table(CONFUSION, CONFUSION_COLUMNS, tuple(rows))


def worst_table(file: dict[str, np.ndarray], images: bool) -> Table:
    """The examples with the surest wrong class; see `training.worst_examples`."""
    scores_KN = file["scores"]
    names = tuple(f"score {number}" for number in range(scores_KN.shape[1]))
    columns = ("index", "label", "prediction", "margin", *names, *(("picture",) if images else ()))
    rows = []
    for k, scores_N in enumerate(scores_KN):
        label, prediction = (names_of(file[key][k]) for key in ("labels", "predictions"))
        row = (int(file["indices"][k]), label, prediction, float(file["margins"][k]))
        pictures = (file["images"][k],) if images else ()
        rows.append((*row, *map(float, scores_N), *pictures))
    return Table(WORST, columns, tuple(rows))


def names_of(classes_L: np.ndarray) -> str:
    """The classes of one image, in words."""
    return " ".join(map(str, sorted(classes_L.tolist())))
