"""What makes numbers of candidates honest: they compute the same, and they are timed in turns.

The parity gate compares tensors by name, outputs and gradients alike. The error of a tensor is its
largest difference from the reference, in units of the reference's largest number. Candidates are
timed A B A B, so that whatever else the machine does slows them all.
"""

import math
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from torch import Tensor

from capsweep.lab.bench import machine

Results = Mapping[str, Tensor]
Seconds = dict[str, list[float]]
BASELINES = ("textbook", "bmm")
LONGEST = 120  # characters of what an exception says


class CandidateError(RuntimeError):
    """What is wrong with a candidate; the message alone says it."""


class ParityError(CandidateError):
    """Candidates that do not compute what the reference does; the message says which and what."""


def describe_error(error: Exception) -> str:
    """In one line."""
    text = " ".join(str(error).split())[:LONGEST]
    return text if isinstance(error, CandidateError) else f"{type(error).__name__}: {text}"


def find_faults(attempts: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Try each candidate; the causes of those that raise."""
    faults = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except Exception as error:  # whatever it is, the other candidates are tried
            faults[name] = describe_error(error).removeprefix(f"{name}: ")
    return faults


def check_parity(reference: Results, candidates: Mapping[str, tuple[Results, float]]) -> None:
    """Raise ParityError unless each candidate, within its tolerance, gives all that the reference
    gives.
    """
    faults = [
        f"{name}: {fault}"
        for name, (results, tolerance) in candidates.items()
        for fault in _find_faults(reference, results, tolerance)
    ]
    if faults:
        raise ParityError("; ".join(faults))


def _find_faults(reference: Results, results: Results, tolerance: float) -> list[str]:
    if reference.keys() != results.keys():
        return [f"gives {sorted(results)}, not {sorted(reference)}"]
    errors = {name: relative_error(tensor, results[name]) for name, tensor in reference.items()}
    return [
        f"{name} differs by {error:.1e}, at most {tolerance:.0e} is allowed"
        for name, error in errors.items()
        if not error <= tolerance
    ]


def relative_error(expected: Tensor, actual: Tensor) -> float:
    """The error of a tensor. Infinite for another shape; NaN stays NaN, and is no parity."""
    if expected.shape != actual.shape:
        return math.inf
    expected, actual = expected.detach().double(), actual.detach().double()
    largest = expected.abs().max().item()
    difference = (expected - actual).abs().max().item()
    return difference / largest if largest > 0 else difference


def time_in_turns(
    candidates: Mapping[str, Callable[[], object]],
    budget: float = 4.0,
    least: int = 5,
    time_call: Callable[[Any], float] = machine.time_call,
) -> Seconds:
    """Seconds of each call of each candidate, one call of each in every round.

    Rounds go on for `budget` seconds, and there are at least `least`; before them comes one call of
    each that does not count.
    """
    for call in candidates.values():
        time_call(call)
    seconds: Seconds = {name: [] for name in candidates}
    started = time.perf_counter()
    while candidates and (
        len(next(iter(seconds.values()))) < least or time.perf_counter() - started < budget
    ):
        for name, call in candidates.items():
            seconds[name].append(time_call(call))
    return seconds


def median_ratio(seconds: Seconds, slow: str, fast: str) -> float | None:
    """How many times longer `slow` takes: the median over rounds, in each of which both ran at
    almost the same moment. None where one of them was not timed.
    """
    if not {slow, fast} <= seconds.keys():
        return None
    return median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


def make_row(seconds: Seconds, name: str, images: int) -> dict[str, Any]:
    """The columns of a candidate in a table of timings, but for its memory."""
    typical = median(seconds[name])
    return {
        "candidate": name,
        "ms": typical * 1e3,
        "images/s": images / typical,
        **{f"over {slow}": median_ratio(seconds, slow, name) for slow in BASELINES},
    }
