"""Whole training steps: of the CapsNet of the paper, of all networks with large convolutions, and
of the matrix capsule network with EM routing.

Each candidate has a process of its own, and one of them computes at a time. EM routing is compared
with its reference.
"""

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from capsweep.lab.bench import comparison, gpu_step, machine, networks
from capsweep.lab.bench.processes import RemoteCall, ask_each, start_calls
from capsweep.lab.bench.results import BenchReport, Measured, add_faults
from capsweep.lab.bench.training import (
    BATCH,
    CAPSNET,
    MATRIX_CAPSNET,
    StepCandidate,
    StepTraining,
    check_step,
    compute_expected,
    find_faults,
    list_baselines,
    prepare_step,
)
from capsweep.training.devices import using_threads

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch's profiler prints that it starts
EM_FASTEST = {2: 60.0, 3: 45.0}  # images a second, by routing iterations
PARTS = {  # of a step, by words in what torch's profiler records; the first that fits
    "transformed convolutions": ("TransformedConvolution",),
    "direct convolutions": ("aten::conv2d", "ConvolutionBackward"),
    "routing": ("Routing",),
    "ReLU": ("aten::relu", "ReluBackward"),
    "optimiser": ("Optimizer",),
}
OTHER_PARTS = "decoder and the rest"
PROFILED_STEPS = 3
BUDGET = 60.0  # seconds of rounds
QUICK = {"step": {"budget": 0.0, "images": 2, "others": ()}, "em": {"steps": 1, "images": 2}}


def list_candidates() -> dict[str, StepCandidate]:
    """Return the ways to train the CapsNet on a processor, by name."""
    ours = networks.list_candidates(*CAPSNET)
    return {**list_baselines(), **ours, "bf16": StepCandidate("fast", "bf16-mixed")}


def try_out(candidates: Mapping[str, StepCandidate], images: int) -> dict[str, str]:
    """Return why candidates of the CapsNet cannot be measured. Each is tried in a process of its
    own, one after another.
    """
    prepared = {name: (prepare_step, each, images) for name, each in candidates.items()}
    with start_calls(prepared, is_awaited=False) as calls:
        answers = {name: ask_each([call], StepTraining.try_out)[0] for name, call in calls.items()}
    return find_faults(compute_expected(CAPSNET, images), candidates, answers)


def measure_step(
    budget: float | None = None,
    images: int = BATCH,
    others: Iterable[str] = tuple(networks.NETWORKS),
) -> BenchReport:
    """Return the speeds of all candidates of the CapsNet without faults, and of other networks; on
    a GPU, those of `gpu_step`.

    budget: the least seconds of the CapsNet's rounds; the others take less. Raises ParityError for
    another network, before anything is timed.
    """
    if machine.is_gpu():
        return gpu_step.measure_steps(budget, images)
    budget = BUDGET if budget is None else budget
    with using_threads(machine.THREADS):
        faults = try_out(list_candidates(), images)
        sound = {n: each for n, each in list_candidates().items() if n not in faults}
        checked = networks.check_networks(others, images)
        with start_calls({n: (prepare_step, each, images) for n, each in sound.items()}) as calls:
            seconds = comparison.time_in_turns(calls, budget, time_call=RemoteCall.__call__)
            rows = [
                comparison.make_row(seconds, name, images) | {"peak MB": call.peak / 1e6}
                for name, call in calls.items()
            ]
            measured = judge_steps(seconds)
            network_rows = []
            if {networks.BEFORE, networks.DIRECT, networks.NOW} <= calls.keys():
                network_rows = [networks.make_row("capsnet", "digits", seconds, calls)]
                ways = networks.BEFORE, networks.NOW
                rows += list_parts(*(calls[way].ask(profile_step) for way in ways))
        network_rows += networks.measure_networks(checked, images, budget / 6)
    measured += networks.judge_networks(network_rows)
    return add_faults(BenchReport(measured, rows + network_rows), "step", faults)


def profile_step(step: StepTraining) -> dict[str, float]:
    """Milliseconds of each of its parts, by torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED_STEPS):
            step()
    parts = dict.fromkeys([*PARTS, OTHER_PARTS], 0.0)
    for event in profiler.events() or ():
        if event.cpu_parent is None:
            fitting = (part for part, words in PARTS.items() if any(w in event.name for w in words))
            parts[next(fitting, OTHER_PARTS)] += event.cpu_time_total / 1e3 / PROFILED_STEPS
    return parts


def list_parts(before: Mapping[str, float], now: Mapping[str, float]) -> list[dict[str, Any]]:
    """A row for each part of a step of the CapsNet."""
    return [
        {
            "part": part,
            "before: ms": before[part],
            "before: share": f"{before[part] / sum(before.values()):.0%}",
            "ms": now[part],
            "share": f"{now[part] / sum(now.values()):.0%}",
        }
        for part in now
    ]


def judge_steps(seconds: comparison.Seconds) -> list[Measured]:
    """Return the bars of the CapsNet's step on a processor, and those of a GPU, which is not there.

    That of bfloat16 applies where Linux says that the processor multiplies matrices of it itself.
    """
    cpuinfo = Path("/proc/cpuinfo")
    has_amx = cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text(encoding="utf-8").split()
    no_bf16 = None if has_amx else "no AMX in this processor"
    bf16, fp32 = (
        comparison.median_ratio(seconds, "textbook", way) for way in ("bf16", networks.NOW)
    )
    return [
        Measured("step: bf16 over textbook fp32", bf16, "x", 3.5, True, no_bf16),
        Measured("step: fp32 over textbook fp32", fp32, "x", 5, True),
        *gpu_step.judge_steps([]),
    ]


def measure_em(steps: int = 30, images: int = gpu_step.EM_BATCH) -> BenchReport:
    """Return the speed of the fastest eager step at two and three iterations."""
    measured: list[Measured] = []
    attempts = {
        f"fast, T = {num_iters}": partial(_add_em, measured, steps, images, num_iters)
        for num_iters in EM_FASTEST
    }
    with using_threads(machine.THREADS):
        faults = comparison.find_faults(attempts)
    return add_faults(BenchReport(measured), "em", faults)


def _add_em(measured: list[Measured], steps: int, images: int, num_iters: int) -> None:
    """Measure one number of iterations. Raises ParityError where both do not compute the same."""
    overrides = (*MATRIX_CAPSNET, f"routing.num_iters={num_iters}")
    candidate = StepCandidate("fast", overrides=overrides)
    check_step("fast", candidate, images)
    fast = StepTraining(candidate, images)
    seconds = comparison.time_in_turns({"fast": fast}, budget=0, least=steps)
    speed, bar = images / min(seconds["fast"]), EM_FASTEST[num_iters]
    what, skipped = f"EM routing, T = {num_iters}: training", machine.reason_to_skip()
    measured.append(Measured(what, speed, "images/s", bar, True, skipped))
