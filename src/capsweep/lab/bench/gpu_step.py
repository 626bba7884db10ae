"""Training steps on a GPU, eager and captured, in each precision, beside public code.

The baselines have torch's own settings, which let convolutions be rounded to TF32. Each candidate
has a process of its own. There it is compared with the reference at each size of batch, a captured
step also with eager ones, and then timed in turns with the others.
"""

import gc
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from capsweep.lab.bench import comparison, machine
from capsweep.lab.bench.comparison import BASELINES
from capsweep.lab.bench.processes import RemoteCall, ask_each, start_calls
from capsweep.lab.bench.results import BenchReport, Measured, add_faults
from capsweep.lab.bench.training import (
    BATCH,
    CAPSNET,
    MATRIX_CAPSNET,
    StepCandidate,
    StepTraining,
    compute_expected,
    find_faults,
    list_baselines,
)
from capsweep.training import devices

PRECISIONS = {"fp32": "32", "tf32": "tf32", "bf16": "bf16-mixed"}
CAPTURED, STEP = ", captured", "step on a GPU, B = "
EM, EM_BATCH = "EM routing, T = 3", 8
MATRIX_OF_THREE = (*MATRIX_CAPSNET, "routing.num_iters=3")
SPEEDS = (  # candidate, size of batch, least images a second
    (f"bf16{CAPTURED}", BATCH, 45_000),
    (f"tf32{CAPTURED}", BATCH, 35_000),
    (EM + CAPTURED, EM_BATCH, 2_000),
)
LEAST_RATIO = 4  # of the fastest of ours over public code
BUDGET = 4.0  # seconds of rounds of a size of batch
REPEATS, IMAGES_AT_ONCE = 10, 1280  # steps timed as one, since the clock errs for a short one


def list_candidates() -> dict[str, StepCandidate]:
    """Return the ways to train the CapsNet of the paper, by name."""
    candidates = list_baselines()
    for name, precision in PRECISIONS.items():
        candidates[name] = StepCandidate("auto", precision)
        candidates[name + CAPTURED] = StepCandidate("auto", precision, captured=True)
    return candidates


def list_em_candidates() -> dict[str, StepCandidate]:
    """Return the ways to train the matrix capsule network."""
    return {
        EM + name: StepCandidate("auto", captured=bool(name), overrides=MATRIX_OF_THREE)
        for name in ("", CAPTURED)
    }


def begin_size(images: int, step: StepTraining) -> dict[str, np.ndarray]:
    """Let a candidate begin anew with batches of a size, and return what its first step gives."""
    step.begin(images)
    gc.collect()  # the graphs of another size, before this one's memory is counted
    results = step.try_out()
    devices.start_memory_peak()
    return results


def measure_steps(budget: float | None, images: int) -> BenchReport:
    """Return the speeds of all candidates without faults, at two sizes of batch.

    budget: the least seconds of the rounds of a size; None: `BUDGET`. images: of the smaller batch
    of the CapsNet; the batches of EM routing are smaller in proportion.
    """
    budget, few = BUDGET if budget is None else budget, max(1, images * EM_BATCH // BATCH)
    groups = (
        (CAPSNET, list_candidates(), (images, 4 * images)),
        (MATRIX_OF_THREE, list_em_candidates(), (few, 8 * few)),
    )
    prepared = {n: (StepTraining, each, 1) for _, ways, _ in groups for n, each in ways.items()}
    rows: list[dict[str, Any]] = []
    faults: dict[str, str] = {}
    with start_calls(prepared, is_awaited=False) as calls:
        for network, ways, sizes in groups:
            for size in sizes:
                answers = ask_each([calls[name] for name in ways], partial(begin_size, size))
                by_name = dict(zip(ways, answers, strict=True))
                lost = find_faults(compute_expected(network, size), ways, by_name)
                faults |= {f"{name}, B = {size}": cause for name, cause in lost.items()}
                ways = {name: each for name, each in ways.items() if name not in lost}
                rows += time_size({name: calls[name] for name in ways}, size, budget)
    return add_faults(BenchReport(judge_steps(rows), rows), "step", faults)


def time_size(calls: Mapping[str, RemoteCall], images: int, budget: float) -> list[dict[str, Any]]:
    """Return a row for each candidate, which all train on batches of this size."""
    repeats = max(1, min(REPEATS, IMAGES_AT_ONCE // images))
    time_call = partial(RemoteCall.__call__, repeats=repeats)
    seconds = comparison.time_in_turns(calls, budget, time_call=time_call)
    return [
        {"B": images} | comparison.make_row(seconds, name, images) | {"peak MB": call.peak / 1e6}
        for name, call in calls.items()
    ]


def judge_steps(rows: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """Return the bars of a GPU's steps, without numbers where there is no GPU."""
    skipped = None if machine.is_gpu() else "no GPU"
    speeds = {(row["candidate"], row["B"]): row["images/s"] for row in rows}
    measured = [
        Measured(f"{STEP}{size}: {name}", speeds.get((name, size)), "images/s", bar, True, skipped)
        for name, size, bar in SPEEDS
    ]
    ours = {
        row["candidate"]: row["over textbook"]
        for row in rows
        if row["B"] == BATCH and row["over textbook"] and row["candidate"] not in BASELINES
    }
    fastest = max(ours, key=lambda name: ours[name], default="the fastest of ours")
    what = f"{STEP}{BATCH}: {fastest}, over public code (textbook)"
    ratio = Measured(what, ours.get(fastest), "x", LEAST_RATIO, True, skipped)
    return [*measured, ratio]
