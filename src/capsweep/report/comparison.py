"""Two cells on the same test examples, from the predictions they stored."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from capsweep.config.cell import get
from capsweep.errors import UserError
from capsweep.ledger.ledger import Ledger
from capsweep.statistics import examples
from capsweep.statistics.examples import (
    Disagreement,
    bootstrap_interval,
    count_disagreement,
    mcnemar_p,
    wilson_interval,
)


@dataclass(frozen=True)
class Comparison:
    """counts of examples; p: McNemar's; difference of error rates, first minus second."""

    counts: Disagreement
    p: float
    difference: float
    interval: tuple[float, float]


def check_same_examples(ledger: Ledger, first: str, second: str) -> None:
    """Raise UserError when two cells were tested on different images; their labels may be equal:
    affine transformations of digits keep the digits' labels and their order.
    """
    one, other = (_tested_on(ledger, signature) for signature in (first, second))
    for key in sorted(one.keys() & other.keys()):
        if one[key] != other[key]:
            raise UserError(
                f"{first} and {second} were tested on different examples ({key} differs); compare "
                "like with like"
            )


def _tested_on(ledger: Ledger, signature: str) -> dict[str, Any]:
    """What the test images of a cell are, as far as the ledger knows, by key."""
    science, result = ledger.read_science(signature), ledger.read_result(signature)
    found: dict[str, Any] = {}
    if science is not None:
        found |= {f"dataset.{part}": get(science, f"dataset.{part}") for part in ("reader", "test")}
    if result is not None:
        found["test_sha256"] = result.get("test_sha256")
    return found


def find_wrong(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """As in `examples`; raises UserError for scores that are no predictions of the labels."""
    try:
        return examples.find_wrong(scores, labels)
    except ValueError as error:
        raise UserError(f"predictions.npz: {error}; run the cell again") from error


def describe_error(scores: np.ndarray, labels: np.ndarray) -> str:
    """The error of one cell over its test examples, with Wilson's 95 % interval."""
    count, total = int(find_wrong(scores, labels).sum()), len(labels)
    low, high = wilson_interval(count, total)
    return (
        f"test error {100 * count / total:.2f} % ({count} of {total} examples), "
        f"95 % interval [{100 * low:.2f}, {100 * high:.2f}] (Wilson)"
    )


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
        find_wrong(first_scores, first_labels), find_wrong(second_scores, second_labels)
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
