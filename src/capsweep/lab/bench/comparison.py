"""What makes numbers of candidates honest: each has a process of its own, they compute the same
there, and they are timed in turns.

The error of a tensor is its largest difference from the reference, in units of the reference's
largest number. Candidates are timed A B A B, so that whatever else the machine does slows them all.
What a process keeps of the memory that it freed makes its next call faster, and its peak is that of
all that it ever did: candidates that shared one could not be told apart.
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
from capsweep.lab.bench import BenchReport
from capsweep.training import devices
from capsweep.training.graphs import CHECKED

Results = Mapping[str, Any]  # tensors, or arrays that came from another process
Seconds = dict[str, list[float]]
BEFORE, MEMORY = "before", "memory over before"
BASELINES = ("textbook", "bmm", "fast", BEFORE, "direct", "dynamic")  # what tables compare with
PAUSE = 0.03  # seconds; threads of OpenMP wait busily for 10 ms after they have computed
GPU_REPEATS = 10  # calls timed as one, since the clock errs


@dataclass(frozen=True)
class Candidate:
    """Describes what is measured in a process of its own, to which all of this is sent.

    Attributes:
        prepare: returns there what is timed when it is called, and whose `compute_results` must
            give what the reference gives.
        expected: returns the results of the reference, here.
        tolerance: the error that its results may have.
        keeps_memory: whether its process keeps freed memory, as that of a cell on a processor.
    """

    prepare: Callable[[], Any]
    expected: Callable[[], Results]
    tolerance: float
    keeps_memory: bool = False


def compare(
    report: BenchReport,
    case: str,
    images: int,
    candidates: Mapping[str, Candidate],
    budget: float,
    threads: int = bench.THREADS,
) -> None:
    """Add a row for each candidate that computes what its reference does, and why others do not.

    case, images: of the rows; images of one call. budget: the least seconds of the rounds. threads:
    of each process. In the rows, `peak MB` is the largest memory, resident in the process or
    reserved on a GPU, and `extra MB` by how much it grew in calls after the first ones.
    """
    errors: dict[str, float] = {}
    with ExitStack() as stack, devices.using_threads(bench.THREADS):
        spawn = multiprocessing.get_context("spawn")
        pools = {n: stack.enter_context(ProcessPoolExecutor(1, spawn)) for n in candidates}
        answers = {}
        for name, each in candidates.items():
            answers[name] = pools[name].submit(_begin, each, threads)
            if not bench.is_gpu():  # whose processes would wait for one another's threads
                wait([answers[name]])
        for name, each in candidates.items():
            with report.catching(f"{case}, {name}, B = {images}"):
                error = check_parity(each.expected(), answers[name].result(), each.tolerance)
                pools[name].submit(_warm_up).result()
                errors[name] = error
        calls = {name: lambda pool=pools[name]: pool.submit(_time).result() for name in errors}
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
    """Return the largest error of results. Raises ValueError where it is above a tolerance."""
    name, error = find_largest_error(expected, results)
    if error > tolerance:
        raise ValueError(f"{name} differs by {error:.1e}, at most {tolerance:.0e} is allowed")
    return error


def find_largest_error(expected: Results, results: Results) -> tuple[str, float]:
    """Return the tensor with the largest error, and the error; infinite where it is no number.

    Raises KeyError for a tensor that is missing, and ValueError for one of another shape.
    """
    errors = {name: _find_error(tensor, results[name]) for name, tensor in expected.items()}
    largest = max(errors, key=lambda name: errors[name])
    return largest, errors[largest]


def _find_error(expected: Any, actual: Any) -> float:
    wanted, given = (torch.as_tensor(each).detach().double().cpu() for each in (expected, actual))
    if wanted.shape != given.shape:
        raise ValueError(f"has the shape {list(given.shape)}, not {list(wanted.shape)}")
    difference = (wanted - given).abs().nan_to_num(math.inf).max().item()
    return difference / (wanted.abs().max().item() or 1.0)


def time_in_turns(
    candidates: Mapping[str, Callable[[], float]], budget: float, least: int = 5
) -> Seconds:
    """Return the seconds that each candidate says, one call of each in every round.

    Rounds go on for `budget` seconds, and there are at least `least`; before them comes one call of
    each that does not count.
    """
    for call in candidates.values():
        call()
    seconds: Seconds = {name: [] for name in candidates}
    started, rounds = time.perf_counter(), 0
    while candidates and (rounds < least or time.perf_counter() - started < budget):
        for name, call in candidates.items():
            seconds[name].append(call())
        rounds += 1
    return seconds


def median_ratio(seconds: Seconds, slow: str, fast: str) -> float:
    """Return how many times longer `slow` takes: the median over rounds, in each of which both ran
    at almost the same moment.
    """
    return median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


_prepared: list[Any] = []  # in a candidate's process: what is timed, and the memory before


def _begin(candidate: Candidate, threads: int) -> Results:
    """Return the results, as arrays."""
    torch.set_num_threads(threads)
    if candidate.keeps_memory and not bench.is_gpu():
        devices.keep_freed_memory()
    _prepared.append(candidate.prepare())
    results = _prepared[0].compute_results()
    return {name: tensor.detach().double().cpu().numpy() for name, tensor in results.items()}


def _warm_up() -> None:
    """Make all that is made once, captured steps, too; peaks of memory begin then."""
    for _ in range(1 + CHECKED):
        _prepared[0]()
    devices.start_memory_peak()
    _prepared.append(_read_peak())


def _time() -> float:
    """Return the seconds of one call."""
    time.sleep(PAUSE)
    repeats = GPU_REPEATS if bench.is_gpu() else 1
    return bench.time_call(lambda: [_prepared[0]() for _ in range(repeats)]) / repeats


def _read_memory() -> tuple[int, int]:
    """Return the peak of all timed calls in bytes, and by how much they grew to it."""
    return _read_peak(), _read_peak() - _prepared[1]


def _read_peak() -> int:
    return devices.read_memory_peak()["gpu" if bench.is_gpu() else "process"] or 0
