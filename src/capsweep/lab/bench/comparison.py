"""A fair comparison of candidates: separate processes, equal results, and timing in turns.

Each candidate has its own process, because candidates would disturb each other in a common process.
Memory that one candidate has freed can make the next candidate faster, and a process has only one
memory peak. Before a candidate is timed, its results must agree with a reference. The error of a
tensor x with the reference r is max |x - r| / max |r|. Candidates are timed alternately (A B A B),
so that other programs on the machine slow down all candidates equally.
"""

import math
import multiprocessing
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from capsweep.lab import bench
from capsweep.training import devices
from capsweep.training.graphs import CHECKED

Results = Mapping[str, Any]  # by name: tensors, or arrays from another process
Seconds = dict[str, list[float]]  # by candidate, one number for each round
BEFORE, MEMORY = "before", "memory / before"
# The column `over NAME` has (time of the baseline NAME) / (time of the candidate).
BASELINES = ("textbook", "bmm", "fast", BEFORE, "direct", "dynamic")
PAUSE = 0.03  # seconds before a timed call; OpenMP's threads stay busy for 10 ms after their work
LEAST = 5  # rounds
GPU_REPEATS = 10  # calls that are timed together, because a single call is too short


@dataclass(frozen=True)
class Candidate:
    """A computation that is measured in its own process. This object is sent to that process.

    Attributes:
        prepare: Function that is called in the candidate's process. It returns the callable that is
            timed. The callable also has a method `compute_results`. The results of this method
            must agree with those of the reference.
        expected: Function that returns the results of the reference. It is called in the parent
            process.
        tolerance: Largest allowed error of the results.
        keeps_memory: Whether a process that computes on a CPU keeps freed memory for later use.
            The processes of cells do so.
    """

    prepare: Callable[[], Any]
    expected: Callable[[], Results]
    tolerance: float
    keeps_memory: bool = False


def compare(
    report: bench.BenchReport,
    case: str,
    images: int,
    candidates: Mapping[str, Candidate],
    budget: float,
    threads: int = bench.THREADS,
) -> None:
    """Measure candidates, and add a row to the report for each candidate.

    If the results of a candidate differ from the reference, or if its first calls raise an
    exception, the report gets a fault instead of a row.

    In the rows, `peak MB` is the largest memory in use since the warm-up: on a CPU the resident
    memory of the process, on a GPU the memory that torch has reserved. `extra MB` is `peak MB`
    minus the memory in use right after the warm-up.

    Args:
        report: Report to which rows and faults are added.
        case: Name of the comparison, for the rows.
        images: Number of images in one call.
        candidates: Candidates by name.
        budget: Minimum duration of all timed rounds together, in seconds.
        threads: Number of threads of each candidate's process.
    """
    errors: dict[str, float] = {}
    with ExitStack() as stack, devices.using_threads(bench.THREADS):
        spawn = multiprocessing.get_context("spawn")
        pools = {n: stack.enter_context(ProcessPoolExecutor(1, spawn)) for n in candidates}
        answers = {}
        for name, each in candidates.items():
            answers[name] = pools[name].submit(_prepare_candidate, each, threads)
            if not bench.is_gpu():  # on a CPU, processes would compete for cores
                wait([answers[name]])
        for name, each in candidates.items():
            with report.catching(f"{case}, {name}, B = {images}"):
                error = check_parity(each.expected(), answers[name].result(), each.tolerance)
                pools[name].submit(_warm_up).result()
                errors[name] = error
        calls = {name: lambda pool=pools[name]: pool.submit(_time_once).result() for name in errors}
        seconds = time_in_turns(calls, budget)
        memory = {name: pools[name].submit(_read_memory).result() for name in errors}
    for name, error in errors.items():
        typical, (peak, extra) = median(seconds[name]), memory[name]
        row = {"case": case, "B": images, "candidate": name}
        row |= {"ms": typical * 1e3, "images/s": images / typical}
        row |= {f"over {b}": median_ratio(seconds, b, name) for b in BASELINES if b in seconds}
        row |= {"peak MB": peak / 1e6, "extra MB": extra / 1e6, "error": error}
        if BEFORE in memory:
            row[MEMORY] = peak / memory[BEFORE][0] if candidates[name].keeps_memory else None
        report.rows.append(row)


def check_parity(expected: Results, results: Results, tolerance: float) -> float:
    """Check that results agree with the expected results, and return the largest error.

    Raises:
        KeyError: A tensor is missing in the results.
        ValueError: The largest error is above the tolerance, or a tensor has another shape than
            expected.
    """
    error, name = find_largest_error(expected, results)
    if error > tolerance:
        raise ValueError(f"{name} differs by {error:.1e}, at most {tolerance:.0e} is allowed")
    return error


def find_largest_error(expected: Results, results: Results) -> tuple[float, str]:
    """Return the largest error, and the name of the tensor that has it.

    The error of a tensor x with the expected tensor e is max |x - e| / max |e|, or max |x - e| if
    all expected values are 0. The error is infinite if x has a NaN.

    Raises:
        KeyError: A tensor is missing in the results.
        ValueError: A tensor has another shape than expected.
    """
    errors = []
    for name in expected:
        wanted, given = (
            torch.as_tensor(each[name]).detach().double().cpu() for each in (expected, results)
        )
        if wanted.shape != given.shape:
            raise ValueError(f"a tensor has shape {list(given.shape)}, not {list(wanted.shape)}")
        difference = (wanted - given).abs().nan_to_num(math.inf).max().item()
        errors.append((difference / (wanted.abs().max().item() or 1.0), name))
    return max(errors)


def time_in_turns(candidates: Mapping[str, Callable[[], float]], budget: float) -> Seconds:
    """Time candidates in turns: each round calls every candidate once.

    Args:
        candidates: Functions by name; each returns the seconds that it measured.
        budget: Minimum duration of all rounds together, in seconds.

    Returns:
        The seconds of each candidate, round by round; at least LEAST rounds. An extra first round
        is not counted.
    """
    for call in candidates.values():
        call()
    seconds: Seconds = {name: [] for name in candidates}
    started, rounds = time.perf_counter(), 0
    while candidates and (rounds < LEAST or time.perf_counter() - started < budget):
        for name, call in candidates.items():
            seconds[name].append(call())
        rounds += 1
    return seconds


def median_ratio(seconds: Seconds, slow: str, fast: str) -> float:
    """Return the median over rounds of (seconds of `slow`) / (seconds of `fast`).

    The two calls of a round ran at almost the same time.
    """
    return median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


_prepared: list[Any] = []  # in a candidate's process: the callable, and the first memory peak


def _prepare_candidate(candidate: Candidate, threads: int) -> Results:
    """Prepare a candidate in its process, and return its results as arrays."""
    torch.set_num_threads(threads)
    if candidate.keeps_memory and not bench.is_gpu():
        devices.keep_freed_memory()
    _prepared.append(candidate.prepare())
    results = _prepared[0].compute_results()
    return {name: tensor.detach().double().cpu().numpy() for name, tensor in results.items()}


def _warm_up() -> None:
    """Call the candidate often enough to capture CUDA graphs; then start to measure memory."""
    for _ in range(1 + CHECKED):
        _prepared[0]()
    devices.start_memory_peak()
    _prepared.append(_read_peak())


def _time_once() -> float:
    """Return the seconds of one call of the prepared candidate; on a GPU, the mean of 10 calls."""
    time.sleep(PAUSE)
    repeats = GPU_REPEATS if bench.is_gpu() else 1
    return bench.time_call(lambda: [_prepared[0]() for _ in range(repeats)]) / repeats


def _read_memory() -> tuple[int, int]:
    """Return the peak memory of the timed calls, and its growth since the warm-up, in bytes."""
    return _read_peak(), _read_peak() - _prepared[1]


def _read_peak() -> int:
    return devices.read_memory_peak()["gpu" if bench.is_gpu() else "process"] or 0
