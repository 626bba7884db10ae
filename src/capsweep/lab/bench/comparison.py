"""What makes numbers of candidates honest: they compute the same, they are timed in turns, and each
has a process of its own where memory matters.

The error of a tensor is its largest difference from the reference, in units of the reference's
largest number. Candidates are timed A B A B, so that whatever else the machine does slows them all.
What a process keeps of the memory that it freed makes its next call faster, and its peak is that of
all that it ever did: candidates that shared one could not be told apart.
"""

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor

from capsweep.lab import bench
from capsweep.training import devices

Results = Mapping[str, Tensor]
Seconds = dict[str, list[float]]
Answer = TypeVar("Answer")
BASELINES = ("textbook", "bmm", "before", "direct")  # what tables compare with
LONGEST = 120  # characters of what an exception says
PAUSE = 0.03  # seconds; threads of OpenMP wait busily for 10 ms after they have computed


class CandidateError(RuntimeError):
    """What is wrong with a candidate; the message alone says it."""


def describe_error(error: Exception) -> str:
    """Return what an exception says, in one line."""
    text = " ".join(str(error).split())[:LONGEST]
    return text if isinstance(error, CandidateError) else f"{type(error).__name__}: {text}"


def find_faults(attempts: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Try each candidate; return the causes of those that raise."""
    faults = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except Exception as error:  # whatever it is, the other candidates are tried
            faults[name] = describe_error(error)
    return faults


def check_parity(expected: Results, results: Results, tolerance: float) -> None:
    """Raise CandidateError unless results are those of the reference, within a tolerance."""
    if expected.keys() != results.keys():
        raise CandidateError(f"gives {sorted(results)}, not {sorted(expected)}")
    errors = {name: relative_error(tensor, results[name]) for name, tensor in expected.items()}
    faults = [
        f"{name} differs by {error:.1e}, at most {tolerance:.0e} is allowed"
        for name, error in errors.items()
        if not error <= tolerance
    ]
    if faults:
        raise CandidateError("; ".join(faults))


def relative_error(expected: Tensor, actual: Tensor) -> float:
    """Return the error of a tensor: infinite for another shape; NaN stays NaN, and is no parity."""
    if expected.shape != actual.shape:
        return math.inf
    expected, actual = expected.detach().double(), actual.detach().double()
    largest = expected.abs().max().item()
    difference = (expected - actual).abs().max().item()
    return difference / largest if largest > 0 else difference


def time_in_turns(
    candidates: Mapping[str, Callable[[], float]], budget: float = 4.0, least: int = 5
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


def median_ratio(seconds: Seconds, slow: str, fast: str) -> float | None:
    """Return how many times longer `slow` takes: the median over rounds, in each of which both ran
    at almost the same moment. None where one of them was not timed.
    """
    if not {slow, fast} <= seconds.keys():
        return None
    return median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


def make_row(seconds: Seconds, name: str, images: int) -> dict[str, Any]:
    """Return the columns of a candidate in a table of timings, but for its memory."""
    typical = median(seconds[name])
    ratios = {f"over {b}": median_ratio(seconds, b, name) for b in BASELINES if b in seconds}
    return {"candidate": name, "ms": typical * 1e3, "images/s": images / typical, **ratios}


class Worker:
    """A call in a process of its own, made there by `prepare(*arguments)`; the process computes
    only while it is asked.

    Attributes:
        peak: the largest number of bytes so far, resident in the process, or reserved on a GPU.
    """

    def __init__(self, prepare: Callable[..., Any], *arguments: Any) -> None:
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.prepared = self.pool.submit(_prepare, prepare, arguments)
        self.peak = 0

    def __call__(self, repeats: int = 1) -> float:
        """Return the seconds of one call, the mean of so many, as the process measures them."""
        seconds, self.peak = self.ask(partial(_time_call, repeats))
        return seconds

    def ask(self, question: Callable[[Any], Answer]) -> Answer:
        """Return what `question`, a function of a module, answers there when given the call.

        Raises CandidateError with the cause where it fails there.
        """
        return self.start(question)()

    def start(self, question: Callable[[Any], Answer]) -> Callable[[], Answer]:
        """Ask, and return what waits for the answer."""

        def wait() -> Any:
            try:
                self.prepared.result()
                return asked.result()
            except Exception as error:  # a worker raises whatever its candidate does
                raise _explain(error) from error

        try:
            asked = self.pool.submit(_answer, question)
        except BrokenProcessPool as error:
            raise _explain(error) from error
        return wait


@contextmanager
def start_workers(prepared: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Worker]]:
    """Start a process for each candidate, `prepare` and its arguments; they end here, always."""
    with ExitStack() as stack:
        workers = {name: Worker(*each) for name, each in prepared.items()}
        for worker in workers.values():
            stack.enter_context(worker.pool)
        yield workers


def measure_extra_memory(prepare: Callable[..., Any], *arguments: Any) -> int:
    """Return by how many bytes a fresh process grows at the peak of a call.

    `prepare` returns the call for these arguments. On a GPU what is allocated there counts.
    """
    with start_workers({"call": (prepare, *arguments)}) as workers:
        return workers["call"].ask(_measure_growth)


def _explain(error: Exception) -> CandidateError:
    is_lost = isinstance(error, BrokenProcessPool)
    return CandidateError("its process ended, see above" if is_lost else describe_error(error))


_calls: list[Any] = []  # that of this process, where it is a worker's


def _prepare(prepare: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(bench.THREADS)
    _calls.append(prepare(*arguments))


def _answer(question: Callable[[Any], Answer]) -> Answer:
    return question(_calls[0])


def _time_call(repeats: int, call: Callable[[], object]) -> tuple[float, int]:
    time.sleep(PAUSE)
    seconds = bench.time_call(lambda: [call() for _ in range(repeats)]) / repeats
    return seconds, devices.read_memory_peak()["gpu" if bench.is_gpu() else "process"] or 0


def _measure_growth(call: Callable[[], object]) -> int:
    devices.start_memory_peak()
    if bench.is_gpu():  # what is reserved grows by blocks, which would hide how much was needed
        before = torch.cuda.memory_allocated()
        bench.time_call(call)
        return torch.cuda.max_memory_allocated() - before
    before = devices.read_resident() or 0
    bench.time_call(call)
    return max(0, (devices.read_memory_peak()["process"] or 0) - before)
