"""Whole training steps: of the CapsNet of the paper beside public code, of all networks with large
convolutions, of EM routing, and of every routing variant.

Each candidate has a process of its own. There it is compared with the reference at each size of
batch, a captured step also with eager ones, and then timed in turns with the others. On a GPU the
baselines have torch's own settings, which let convolutions be rounded to TF32.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measured
from capsweep.lab.bench.comparison import (
    Worker,
    check_parity,
    find_faults,
    make_row,
    median_ratio,
    start_workers,
    time_in_turns,
)
from capsweep.lab.bench.training import (
    BATCH,
    CAPSNET,
    MATRIX_CAPSNET,
    StepCandidate,
    StepTraining,
    check_step,
    compute_expected,
    list_baselines,
    list_variants,
    prepare_step,
)
from capsweep.model.routing import describe_routing
from capsweep.training.devices import using_threads

BEFORE, DIRECT, NOW = "before", "direct", "transformed"
NETWORKS = {  # with a kernel of 4 or more behind their first layer, and their data sets
    "capsnet_small": "mnist",
    "capsnet_tiny": "multimnist",
    "capsnet_svhn": "svhn",
    "baseline_mnist": "mnist",
    "baseline_multimnist": "multimnist",
    "baseline_affnist": "affnist",
    "baseline_smallnorb": "smallnorb",
    "cnn_matched": "mnist",
    "cnn_small": "mnist",
    "cnn_tiny": "multimnist",
}
PRECISIONS = {"fp32": "32", "tf32": "tf32", "bf16": "bf16-mixed"}
CAPTURED, EM_BATCH = ", captured", 8
# Network, candidate, column and what it must at least be, at the smallest size of batch.
CORE_BARS = (
    ("capsnet", "bf16", "over textbook", 3.5),
    ("capsnet", NOW, "over textbook", 5.0),
    ("capsnet", NOW, "over before", 2.0),
    ("baseline_mnist", NOW, "over direct", 1.5),
    ("capsnet_small", NOW, "over direct", 1.3),
    ("capsnet_tiny", NOW, "over direct", 1.3),
    ("EM routing, T = 2", "fast", "images/s", 60.0),
    ("EM routing, T = 3", "fast", "images/s", 45.0),
)
GPU_BARS = (
    ("capsnet", f"bf16{CAPTURED}", "images/s", 45_000.0),
    ("capsnet", f"tf32{CAPTURED}", "images/s", 35_000.0),
    ("capsnet", f"bf16{CAPTURED}", "over textbook", 4.0),
    ("EM routing, T = 3", f"fast{CAPTURED}", "images/s", 2_000.0),
)
MEMORY_BAR = 1.3  # of what a step took before
SLOWEST_VARIANT = 2.0  # times dynamic routing: a slower variant deserves a fast path
BUDGET, GPU_BUDGET = 60.0, 4.0  # seconds of rounds of the CapsNet; the others take less
REPEATS, IMAGES_AT_ONCE = 10, 1280  # steps of a GPU timed as one, since the clock errs
QUICK = {"step": {"budget": 0.0, "images": 2, "others": (), "variants": ("dynamic", "em")}}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class StepGroup:
    """Candidates that are timed together.

    Attributes:
        network: its name in tables.
        candidates: by name.
        sizes: of batches.
        is_exact: whether the network is compared in float64, for float32 jumps in it.
    """

    network: str
    candidates: Mapping[str, StepCandidate]
    sizes: Sequence[int]
    is_exact: bool = False


def list_ways(*overrides: str) -> dict[str, StepCandidate]:
    """Return three ways to train a network on a processor.

    BEFORE: what a cell did until it kept freed memory and transformed convolutions; NOW: what it
    does.
    """
    now = StepCandidate("fast", overrides=overrides)
    direct = replace(now, convolution="direct")
    return {BEFORE: replace(direct, keeps_memory=False), DIRECT: direct, NOW: now}


def list_groups(images: int, others: Iterable[str]) -> list[StepGroup]:
    """Return what is measured on a processor."""
    capsnet = {**list_baselines(), **list_ways(*CAPSNET)}
    capsnet["bf16"] = StepCandidate("fast", "bf16-mixed")
    groups = [StepGroup("capsnet", capsnet, (images,))]
    for name in others:
        ways = list_ways(f"model={name}", f"dataset={NETWORKS[name]}")
        groups.append(StepGroup(name, ways, (images,), is_exact=True))
    return [*groups, *(_list_em(number, images, ("",)) for number in (2, 3))]


def list_gpu_groups(images: int) -> list[StepGroup]:
    """Return what is measured on a GPU, eager and captured, at two sizes of batch."""
    capsnet = list_baselines()
    for name, precision in PRECISIONS.items():
        capsnet[name] = StepCandidate("auto", precision)
        capsnet[name + CAPTURED] = StepCandidate("auto", precision, captured=True)
    return [
        StepGroup("capsnet", capsnet, (images, 4 * images)),
        _list_em(3, images, ("", CAPTURED), (1, 8)),
    ]


def _list_em(
    number: int, images: int, names: Sequence[str], times: Sequence[int] = (1,)
) -> StepGroup:
    """Return the matrix capsule network; its batches are smaller, in proportion."""
    overrides = (*MATRIX_CAPSNET, f"routing.num_iters={number}")
    few = max(1, images * EM_BATCH // BATCH)
    candidates = {
        f"fast{name}": StepCandidate(
            "auto" if bench.is_gpu() else "fast", captured=bool(name), overrides=overrides
        )
        for name in names
    }
    return StepGroup(f"EM routing, T = {number}", candidates, [few * each for each in times])


def measure_step(
    budget: float | None = None,
    images: int = BATCH,
    others: Iterable[str] = tuple(NETWORKS),
    variants: Iterable[str] | None = None,
) -> BenchReport:
    """Return the speeds of all candidates without faults.

    budget: the least seconds of the CapsNet's rounds; None: as usual. images: of a batch of the
    CapsNet. others, variants: other networks, and routings, on a processor; None: all.
    """
    groups = list_gpu_groups(images) if bench.is_gpu() else list_groups(images, others)
    budget = (GPU_BUDGET if bench.is_gpu() else BUDGET) if budget is None else budget
    rows: Rows = []
    faults: dict[str, str] = {}
    with using_threads(bench.THREADS):
        for group in groups:
            is_first = bench.is_gpu() or group.network == "capsnet"
            more, lost = measure_group(group, budget if is_first else budget / 6)
            rows, faults = rows + more, faults | lost
    if bench.is_gpu():
        return BenchReport(judge_steps(rows, GPU_BARS), rows, faults)
    slowest, more, lost = measure_variants(budget, variants)
    measured = [*judge_steps(rows, CORE_BARS), *judge_memory(rows), *slowest]
    return BenchReport(measured, rows + more, faults | lost)


def measure_group(group: StepGroup, budget: float) -> tuple[Rows, dict[str, str]]:
    """Return a row for each candidate and size, and why some could not be measured."""
    rows: Rows = []
    faults: dict[str, str] = {}
    prepared = {name: (prepare_step, each) for name, each in group.candidates.items()}
    with start_workers(prepared) as workers:
        for size in group.sizes:
            lost = try_out(group, workers, size)
            faults |= {f"{group.network}, {n}, B = {size}": cause for n, cause in lost.items()}
            sound = {name: worker for name, worker in workers.items() if name not in lost}
            repeats = max(1, min(REPEATS, IMAGES_AT_ONCE // size)) if bench.is_gpu() else 1
            calls = {name: partial(worker, repeats) for name, worker in sound.items()}
            seconds = time_in_turns(calls, budget)
            for name, worker in sound.items():
                row = {"network": group.network, "B": size, **make_row(seconds, name, size)}
                rows.append(row | {"peak MB": worker.peak / 1e6})
    return rows, faults


def try_out(group: StepGroup, workers: Mapping[str, Worker], size: int) -> dict[str, str]:
    """Return why candidates cannot be measured: they fail, or do not give the reference's results
    as precisely as they compute. On a GPU all are tried at the same time.
    """
    question = partial(StepTraining.try_out, images=size)
    answers = {
        name: worker.start(question) if bench.is_gpu() else partial(worker.ask, question)
        for name, worker in workers.items()
    }
    (overrides,) = {each.overrides for each in group.candidates.values()}
    expected = None if group.is_exact else compute_expected(overrides, size)

    def check(name: str) -> None:
        candidate, results = group.candidates[name], answers[name]()
        if expected is not None:
            given = {key: torch.from_numpy(array) for key, array in results.items()}
            check_parity(expected, given, candidate.tolerance)
        elif name == NOW:
            check_step(candidate, size, torch.float64)

    return find_faults({name: partial(check, name) for name in workers})


def judge_steps(
    rows: Sequence[Mapping[str, Any]], bars: Sequence[tuple[str, str, str, float]]
) -> list[Measured]:
    """Return the bars of steps, without numbers where there are none.

    That of bfloat16 applies where Linux says that the processor multiplies matrices of it itself.
    """
    has_amx = "amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    measured = []
    for network, name, column, bar in bars:
        here = [r for r in rows if (r["network"], r["candidate"]) == (network, name)]
        unit = "x" if column.startswith("over") else column
        what = f"step of {network}, {name}{'' if unit == column else f': {column}'}"
        skipped = "no AMX in this processor" if name == "bf16" and not has_amx else None
        value = here[0].get(column) if here else None
        measured.append(Measured(what, value, unit, bar, True, skipped))
    return measured


def judge_memory(rows: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """Return the bar of memory: the largest of all networks that were measured both ways."""
    peaks = {(row["network"], row["candidate"]): row["peak MB"] for row in rows}
    ratios = {
        network: peak / peaks[network, BEFORE]
        for (network, name), peak in peaks.items()
        if name == NOW and (network, BEFORE) in peaks
    }
    if not ratios:
        return []
    largest = max(ratios, key=lambda network: ratios[network])
    what = f"peak memory of a step, over before: the largest, of {largest}"
    return [Measured(what, ratios[largest], "x", MEMORY_BAR)]


def measure_variants(
    budget: float, names: Iterable[str] | None
) -> tuple[list[Measured], Rows, dict[str, str]]:
    """Return the time of a step of `capsnet_tiny` with each routing, on one thread of this process,
    over dynamic routing: the bar of the slowest, a row for each, and why some are left out.
    """
    candidates = {n: c for n, c in list_variants().items() if names is None or n in names}
    with using_threads(1):
        lost = find_faults({n: partial(check_step, c, 4) for n, c in candidates.items()})
        steps = {n: StepTraining(c, BATCH // 2) for n, c in candidates.items() if n not in lost}
        calls = {name: partial(bench.time_call, step) for name, step in steps.items()}
        seconds = time_in_turns(calls, budget)
    rows: Rows = [
        {
            "routing": name,
            "implementation": describe_routing(step.network),
            "parameters": sum(each.numel() for each in step.network.parameters()),
            "ms": make_row(seconds, name, 1)["ms"],
            "over dynamic": median_ratio(seconds, name, "dynamic") or 0.0,
        }
        for name, step in steps.items()
    ]
    slowest = max(rows, key=lambda row: row["over dynamic"])
    what = f"step of capsnet_tiny, over dynamic routing: the slowest, {slowest['routing']}"
    return [Measured(what, slowest["over dynamic"], "x", SLOWEST_VARIANT)], rows, lost
