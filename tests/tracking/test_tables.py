"""Tables of W&B are made of the files of a cell alone."""

import io
from typing import Any

import numpy as np

from capsweep.tracking import tables


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


SCORES = np.eye(3)[[0, 1, 1, 2]]
EXAMPLES = npz(
    indices=np.array([7]),
    labels=np.array([[2, 1]]),
    predictions=np.array([[0, 2]]),
    margins=np.array([0.5]),
    scores=np.array([[0.75, 0.25, 0.5]]),
    images=np.full((1, 1, 4, 4), 9, np.uint8),
)


def test_a_confusion_matrix_counts_every_pair_of_classes() -> None:
    (table,) = tables.make_tables(npz(scores=SCORES, labels=np.array([0, 1, 2, 2])), None)
    assert (table.name, table.columns) == (tables.CONFUSION, tables.CONFUSION_COLUMNS)
    counts = {(true, found): count for true, found, count in table.rows}
    assert len(counts) == 9
    assert {pair: n for pair, n in counts.items() if n} == {
        ("0", "0"): 1,
        ("1", "1"): 1,
        ("2", "1"): 1,
        ("2", "2"): 1,
    }


def test_images_of_several_classes_have_no_confusion_matrix() -> None:
    labels = np.array([[0, 1], [1, 2], [2, 1], [2, 0]])
    assert list(tables.make_tables(npz(scores=SCORES, labels=labels), None)) == []


def test_worst_examples_say_what_was_taken_for_what() -> None:
    (table,) = tables.make_tables(None, EXAMPLES)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["index"], row["label"], row["prediction"], row["margin"]) == (7, "1 2", "0 2", 0.5)
    assert [row[f"score {n}"] for n in range(3)] == [0.75, 0.25, 0.5]
    assert row["picture"].shape == (1, 4, 4)


def test_pictures_may_be_left_out() -> None:
    (table,) = tables.make_tables(None, EXAMPLES, images=False)
    assert "picture" not in table.columns
    assert {len(row) for row in table.rows} == {len(table.columns)}


def test_names_are_those_of_the_tables() -> None:
    one, several = (
        npz(scores=SCORES, labels=np.array(labels))
        for labels in ([0, 1, 2, 2], [[0, 1], [1, 2], [2, 1], [2, 0]])
    )
    for files in ((one, EXAMPLES), (several, EXAMPLES), (one, None), (None, None)):
        assert tables.table_names(*files) == tuple(
            table.name for table in tables.make_tables(*files)
        )
