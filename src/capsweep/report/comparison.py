"""Two cells compared on the same test examples, and the error of one."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from capsweep.config.cell import get
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.ledger.stored_files import DATA
from capsweep.statistics import examples
from capsweep.statistics.examples import (
    Disagreement,
    bootstrap_interval,
    count_disagreement,
    mcnemar_p,
    wilson_interval,
)

TEST_KEYS = ("dataset.reader", "dataset.test")  # what the test images of a cell are


@dataclass(frozen=True)
class Comparison:
    """counts of examples; p: McNemar's; difference of error rates, first minus second, and its
    interval by the paired bootstrap.
    """

    counts: Disagreement
    p: float
    difference: float
    interval: tuple[float, float]


def check_same_examples(ledger: Ledger, first: str, second: str) -> None:
    """Raise UserError when two cells were tested on different images; their labels may be equal:
    affine transformations of digits keep the digits' labels and their order.
    """
    ours, theirs = (_describe_test(ledger, signature) for signature in (first, second))
    for key in sorted(ours.keys() & theirs.keys()):
        if ours[key] != theirs[key]:
            raise UserError(
                f"{first} and {second} were tested on different examples ({key} differs); compare "
                "like with like"
            )


def _describe_test(ledger: Ledger, signature: str) -> dict[str, Any]:
    """What the test images of a cell are, as far as the ledger knows, by key."""
    science, result = ledger.read_science(signature), ledger.read_result(signature)
    parts = {} if science is None else {k: get(science, k) for k in TEST_KEYS}
    if result is None:
        return parts
    composed, read = result.get("test_sha256"), result.get(DATA, {}).get("test")
    if composed is None and read is not None:
        parts[f"{DATA}.test"] = read
    return parts | {"test_sha256": composed}


def _find_wrong(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """As in `examples`; raises UserError for scores that are no predictions of the labels."""
    try:
        return examples.find_wrong(scores, labels)
    except ValueError as error:
        raise UserError(f"predictions.npz: {error}; run the cell again") from error


def format_error(wrong: int, total: int) -> str:
    """Return `0.83 % (3 of 360) [0.28, 2.43]`, with Wilson's interval."""
    low, high = wilson_interval(wrong, total)
    return f"{100 * wrong / total:.2f} % ({wrong} of {total}) [{100 * low:.2f}, {100 * high:.2f}]"


def describe_error(scores: np.ndarray, labels: np.ndarray) -> str:
    """The error of one cell over its test examples."""
    error = format_error(int(_find_wrong(scores, labels).sum()), len(labels))
    return f"test error {error}, with Wilson's 95 % interval"


def compare_predictions(
    first_scores: np.ndarray,
    first_labels: np.ndarray,
    second_scores: np.ndarray,
    second_labels: np.ndarray,
) -> Comparison:
    """McNemar's test and the paired bootstrap. Raises UserError for different test examples, or
    for scores that are no predictions of them.
    """
    if not np.array_equal(first_labels, second_labels):
        raise UserError("the two cells were tested on different examples; compare like with like")
    counts = count_disagreement(
        _find_wrong(first_scores, first_labels), _find_wrong(second_scores, second_labels)
    )
    difference = (counts.first_only - counts.second_only) / counts.total
    return Comparison(counts, mcnemar_p(counts), difference, bootstrap_interval(counts))


def describe_comparison(comparison: Comparison, first: str, second: str) -> str:
    """The comparison for a person."""
    counts, (low, high) = comparison.counts, comparison.interval
    return (
        f"{counts.total} test examples: wrong only in {first}: {counts.first_only}, only in "
        f"{second}: {counts.second_only}, in both: {counts.both}\n"
        f"difference of error {100 * comparison.difference:+.2f} points, 95 % interval "
        f"[{100 * low:.2f}, {100 * high:.2f}] (paired bootstrap)\n"
        f"p = {comparison.p:.3g} (McNemar, exact)"
    )
