"""Whole training steps: of the CapsNet of the paper, of all networks with large convolutions, and
of the matrix capsule network with EM routing.

Each candidate has a process of its own, and one of them computes at a time. EM routing is compared
with its reference.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from capsweep.bench import comparison, machine, networks
from capsweep.bench.processes import RemoteCall, start_calls
from capsweep.bench.results import BenchReport, Measured, add_faults
from capsweep.bench.routing import route_by_bmm, route_by_textbook
from capsweep.bench.training import (
    BATCH,
    CAPSNET,
    MATRIX_CAPSNET,
    TOLERANCE,
    StepCandidate,
    StepTraining,
    make_reference,
    prepare_step,
)
from capsweep.training.devices import using_threads

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch's profiler prints that it starts
EM_BATCH = 8
EM_FASTEST = {2: 60.0, 3: 45.0}  # images a second, by routing iterations
PARTS = {  # of a step, by words in what torch's profiler records; the first that fits
    "transformed convolutions": ("TransformedConvolution",),
    "direct convolutions": ("aten::conv2d", "ConvolutionBackward"),
    "routing": ("Routing",),
    "ReLU": ("aten::relu", "ReluBackward"),
    "optimiser": ("Optimizer",),
}
OTHER_PARTS, GRAPHS = "decoder and the rest", " graphs"
PROFILED_STEPS = 3
BUDGET, GPU_BUDGET = 60.0, 20.0  # seconds of rounds; a step of a GPU takes milliseconds, of which
GPU_REPEATS = 10  # are timed together, since one is not much longer than the clock errs
QUICK = {"step": {"budget": 0.0, "images": 2, "others": ()}, "em": {"steps": 1, "images": 2}}


def list_candidates() -> dict[str, StepCandidate]:
    """Of the CapsNet, by name. On a GPU also Triton's kernel, and a compiled network."""
    candidates = {
        name: StepCandidate("reference", route=route, convolution="direct", keeps_memory=False)
        for name, route in (("textbook", route_by_textbook), ("bmm", route_by_bmm))
    }
    if not machine.is_gpu():
        ours = networks.list_candidates(*CAPSNET)
        return {**candidates, **ours, "bf16": StepCandidate("fast", "bf16-mixed")}
    for impl in ("fast", "triton"):
        for name, precision in (("fp32", "32"), ("bf16", "bf16-mixed")):
            candidates[f"{impl} {name}"] = StepCandidate(impl, precision)
            graphs = StepCandidate(impl, precision, compiled=True)
            candidates[f"{impl} {name}{GRAPHS}"] = graphs
    return candidates


def find_faults(candidates: Mapping[str, StepCandidate], images: int) -> dict[str, str]:
    """Why candidates of the CapsNet cannot be measured: they fail, or give other scores, loss or
    gradients than the reference. Each is tried in a process of its own: what it breaks there on a
    GPU, no other has.
    """
    expected = StepTraining(make_reference(CAPSNET), images).compute_results()
    expected = {name: tensor.cpu() for name, tensor in expected.items()}

    def check(name: str, call: RemoteCall) -> None:
        results = {n: torch.from_numpy(a) for n, a in call.ask(StepTraining.try_out).items()}
        tolerance = TOLERANCE[candidates[name].precision]
        comparison.check_parity(expected, {name: (results, tolerance)})

    prepared = {name: (prepare_step, each, images) for name, each in candidates.items()}
    with start_calls(prepared, is_awaited=False) as calls:
        return comparison.find_faults({n: partial(check, n, call) for n, call in calls.items()})


def measure_step(
    budget: float | None = None,
    images: int = BATCH,
    others: Iterable[str] = tuple(networks.NETWORKS),
) -> BenchReport:
    """All candidates of the CapsNet without faults; on a processor also other networks.

    budget: least seconds of its rounds; the others take less. Raises ParityError for another
    network, before anything is timed.
    """
    if budget is None:
        budget = GPU_BUDGET if machine.is_gpu() else BUDGET
    with using_threads(machine.THREADS):
        faults = find_faults(list_candidates(), images)
        sound = {n: each for n, each in list_candidates().items() if n not in faults}
        checked = networks.check_networks(() if machine.is_gpu() else others, images)
        repeats = GPU_REPEATS if machine.is_gpu() else 1
        time_call = partial(RemoteCall.__call__, repeats=repeats)
        with start_calls({n: (prepare_step, each, images) for n, each in sound.items()}) as calls:
            seconds = comparison.time_in_turns(calls, budget, time_call=time_call)
            rows = [
                comparison.make_row(seconds, name, images) | {"peak MB": call.peak / 1e6}
                for name, call in calls.items()
            ]
            measured = judge_steps(seconds, rows)
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


def judge_steps(seconds: comparison.Seconds, rows: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """The bars of the CapsNet's step; of bfloat16 where a processor multiplies its matrices itself,
    as Linux says.
    """
    what = "step: images a second on a GPU, the fastest of ours"
    if machine.is_gpu():
        speeds = {row["candidate"]: row["images/s"] for row in rows}
        ours = speeds.keys() - {*comparison.BASELINES}
        fastest = max(ours, key=lambda name: speeds[name], default="none")
        eager = fastest.removesuffix(GRAPHS)
        ratio = comparison.median_ratio(seconds, eager, eager + GRAPHS)
        return [
            Measured(what, speeds.get(fastest), "images/s", 60_000, True),
            Measured(f"step: CUDA graphs over eager, {eager}", ratio, "x", 1, True),
        ]
    cpuinfo = Path("/proc/cpuinfo")
    has_amx = cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text(encoding="utf-8").split()
    no_bf16 = None if has_amx else "no AMX in this processor"
    bf16, fp32 = (
        comparison.median_ratio(seconds, "textbook", way) for way in ("bf16", networks.NOW)
    )
    return [
        Measured("step: bf16 over textbook fp32", bf16, "x", 3.5, True, no_bf16),
        Measured("step: fp32 over textbook fp32", fp32, "x", 5, True),
        Measured(what, None, "images/s", 60_000, True, "no GPU"),
    ]


def measure_em(steps: int = 30, images: int = EM_BATCH) -> BenchReport:
    """Speed of the fastest step at two and three iterations; on a GPU also over the reference."""
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
    fast, reference = (
        StepTraining(StepCandidate(impl, overrides=overrides), images)
        for impl in ("fast", "reference")
    )
    results = {"fast": (fast.compute_results(), TOLERANCE["32"])}
    comparison.check_parity(reference.compute_results(), results)
    calls = {"fast": fast} | ({"reference": reference} if machine.is_gpu() else {})
    seconds = comparison.time_in_turns(calls, budget=0, least=steps)
    measured += judge_em(seconds, images, num_iters, EM_FASTEST[num_iters])


def judge_em(
    seconds: comparison.Seconds, images: int, num_iters: int, bar: float
) -> list[Measured]:
    """The bars of EM routing. images: of a step. bar: images a second on two cores."""
    what, speed = f"EM routing, T = {num_iters}", images / min(seconds["fast"])
    skipped = machine.reason_to_skip()
    measured = [Measured(f"{what}: training", speed, "images/s", bar, True, skipped)]
    if machine.is_gpu():
        ratio = comparison.median_ratio(seconds, "reference", "fast")
        measured.append(Measured(f"{what}: fast over reference", ratio, "x", 1, True))
    return measured
