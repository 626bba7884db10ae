"""Two trainings on one device: how fast both are together, and the memory that they take.

A sweep lets cells share a GPU, as many as it expects to fit into the memory. Each process here
trains the CapsNet of the paper; one is timed alone, then both at the same time.
"""

from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any

import torch

from capsweep.bench import machine
from capsweep.bench.processes import RemoteCall, ask_together, start_calls
from capsweep.bench.results import BenchReport, Measured
from capsweep.bench.training import BATCH, StepCandidate, StepTraining, prepare_step
from capsweep.sweep.job import HEADROOM
from capsweep.training import devices

SLOWEST = 0.9  # of the images of one alone that two give together
QUICK = {"sharing": {"seconds": 0.0, "images": 2, "steps": 1}}


def measure_sharing(seconds: float = 6.0, images: int = BATCH, steps: int = 10) -> BenchReport:
    """On a GPU, also against the memory that a sweep sets aside, which has measured one alone; on a
    processor without bars.

    seconds: of each timing, the first of which does not count. steps: between looks at the clock.
    """
    before, train = _read_used(), partial(train_for, seconds, steps)
    prepared = {"call": (prepare_step, StepCandidate("auto", captured=machine.is_gpu()), images)}
    with start_calls(prepared) as first:
        one = first["call"]
        one.ask(train)
        alone, taken = [one.ask(train)], [_measure_taken(before, [one])]
        with start_calls(prepared) as second:
            both = [one, second["call"]]
            ask_together(both, train)
            together = sum(ask_together(both, train))
            taken.append(_measure_taken(before, both))
            alone.append(both[1].ask(train))
    speeds = [images * mean(alone), images * together]
    rows = [
        {
            "processes": count,
            "images/s": speeds[count - 1],
            "MB": taken[count - 1] / 1e6,
            "expected MB": count * taken[0] / (1 - HEADROOM) / 1e6 if machine.is_gpu() else None,
        }
        for count in (1, 2)
    ]
    return BenchReport(judge_sharing(rows), rows)


def train_for(seconds: float, steps: int, step: StepTraining) -> float:
    """Steps a second, of so many or a multiple."""
    rounds: list[float] = []
    while not rounds or sum(rounds) < seconds:
        rounds.append(machine.time_call(lambda: [step() for _ in range(steps)]))
    return steps * len(rounds) / sum(rounds)


def read_resident(_: StepTraining) -> int:
    """Bytes of the process."""
    return devices.read_memory()["process"] or 0


def _read_used() -> int:
    """Bytes that are taken of a GPU, whoever has them."""
    if not machine.is_gpu():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def _measure_taken(before: int, processes: Sequence[RemoteCall]) -> int:
    """Bytes of a GPU that are taken since then, or that are resident in the processes."""
    if machine.is_gpu():
        return _read_used() - before
    return sum(each.ask(read_resident) for each in processes)


def judge_sharing(rows: Sequence[dict[str, Any]]) -> list[Measured]:
    """The bars of two processes on a GPU. rows: of one process, and of two."""
    one, two = rows
    skipped, expected = None if machine.is_gpu() else "no GPU", two["expected MB"]
    share = None if expected is None else two["MB"] / expected
    return [
        Measured(
            "two trainings on one device, over one alone: images a second",
            two["images/s"] / one["images/s"],
            "x",
            SLOWEST,
            True,
            skipped,
        ),
        Measured("their memory, over what a sweep expects", share, "x", 1, False, skipped),
    ]
