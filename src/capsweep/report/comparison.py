"""The comparison of two cells on the same test examples, and the error of one cell as text."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from capsweep.config.cell import get
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.ledger.stored_files import DATA
from capsweep.statistics import examples

TEST_KEYS = ("dataset.reader", "dataset.test")  # sections that decide a cell's test images


def check_same_examples(ledger: Ledger, first: str, second: str) -> None:
    """Raise UserError if two cells were tested on different images.

    A comparison of labels is not enough, because transformed digits keep the labels of the
    original digits. Settings and digests that the ledger has for only one cell are not compared.

    Raises:
        UserError: If settings or digests of the test images differ.
    """
    ours, theirs = (_describe_test(ledger, signature) for signature in (first, second))
    for key in sorted(ours.keys() & theirs.keys()):
        if ours[key] != theirs[key]:
            raise UserError(
                f"{first} and {second} were tested on different examples ({key} differs); choose "
                "two cells of the same test set"
            )


def _describe_test(ledger: Ledger, signature: str) -> dict[str, Any]:
    """Return settings and digests of a cell's test images from the ledger, by key."""
    science, result = ledger.read_science(signature), ledger.read_result(signature)
    parts = {} if science is None else {k: get(science, k) for k in TEST_KEYS}
    if result is None:
        return parts
    composed, read = result.get("test_sha256"), result.get(DATA, {}).get("test")
    if composed is None and read is not None:
        parts[f"{DATA}.test"] = read
    return parts | {"test_sha256": composed}


def format_error(wrong: int, total: int) -> str:
    """Write an error with Wilson's 95 % interval, such as `0.83 % (3 of 360) [0.28, 2.43]`."""
    low, high = examples.wilson_interval(wrong, total)
    return f"{100 * wrong / total:.2f} % ({wrong} of {total}) [{100 * low:.2f}, {100 * high:.2f}]"


def describe_comparison(predictions: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """Describe in three lines how the errors of two cells differ on the same test examples.

    1. The numbers of examples that only the first, only the second, or both cells get wrong.
    2. The error of the first cell minus that of the second, with Bonett and Price's interval.
    3. The p value of McNemar's exact test.

    Args:
        predictions: Scores and labels of each of the two cells, by signature. The order of the
            mapping decides which cell is called the first.

    Raises:
        UserError: If the labels differ, or if scores do not fit the labels.
    """
    (first, (ours, labels)), (second, (theirs, others)) = predictions.items()
    if not np.array_equal(labels, others):
        raise UserError(f"{first} and {second} have different test examples; choose one test set")
    try:
        wrong, their_wrong = (examples.find_wrong(scores, labels) for scores in (ours, theirs))
    except ValueError as error:
        raise UserError(f"predictions.npz: {error}; run the cell again") from error
    sides, total = (wrong & ~their_wrong, their_wrong & ~wrong), len(labels)
    here, there = (int(side.sum()) for side in sides)
    low, high = examples.paired_interval(here, there, total)
    return (
        f"{total} test examples: wrong only in {first}: {here}, only in {second}: {there}, in "
        f"both: {(wrong & their_wrong).sum()}\n"
        f"difference of error {100 * (here - there) / total:+.2f} points, 95 % interval "
        f"[{100 * low:.2f}, {100 * high:.2f}] (Bonett and Price)\n"
        f"p = {examples.mcnemar_p(here, there):.3g} (McNemar, exact)"
    )
