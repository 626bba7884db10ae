"""The parity gate: nothing is measured of candidates that do not compute the same.

Compared are lists of tensors, by name, outputs and gradients alike. The error of a tensor is its
largest difference from the reference, in units of the reference's largest number.
"""

import math
from collections.abc import Mapping

from torch import Tensor

Results = Mapping[str, Tensor]


class ParityError(RuntimeError):
    """Candidates that do not compute what the reference does; the message says which and what."""


def check(reference: Results, candidates: Mapping[str, Results], tolerance: float) -> None:
    """Raise ParityError unless all candidates give all that the reference gives."""
    check_each(reference, {name: (found, tolerance) for name, found in candidates.items()})


def check_each(reference: Results, candidates: Mapping[str, tuple[Results, float]]) -> None:
    """The same, with a tolerance for each candidate."""
    told = [
        f"{name}: {fault}"
        for name, (found, tolerance) in candidates.items()
        for fault in _faults(reference, found, tolerance)
    ]
    if told:
        raise ParityError("; ".join(told))


def _faults(reference: Results, found: Results, tolerance: float) -> list[str]:
    if reference.keys() != found.keys():
        return [f"gives {sorted(found)}, not {sorted(reference)}"]
    errors = {name: error(expected, found[name]) for name, expected in reference.items()}
    return [
        f"{name} differs by {value:.1e}, at most {tolerance:.0e} is allowed"
        for name, value in errors.items()
        if not value <= tolerance
    ]


def error(expected: Tensor, found: Tensor) -> float:
    """The largest difference over the largest expected number; infinite for another shape."""
    if expected.shape != found.shape:
        return math.inf
    expected, found = expected.detach().double(), found.detach().double()
    largest = expected.abs().max().item()
    difference = (expected - found).abs().max().item()  # NaN stays NaN, and is no parity
    return difference / largest if largest > 0 else difference
