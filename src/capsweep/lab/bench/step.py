"""Speed of training steps: our code against public code, and routing variants side by side.

The networks are the CapsNet of the paper, and matrix capsules with EM routing. On a CPU, all
networks with large convolutions are measured too, and a small CapsNet with each routing variant. On
a GPU, steps are captured as CUDA graphs, unless the name of the candidate contains `eager`. Steps
of baselines are never captured. Baselines use torch's default settings, so a GPU rounds their
convolutions to TF32.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measurement
from capsweep.lab.bench.comparison import BEFORE, MEMORY, Candidate, compare
from capsweep.lab.bench.routing import route_by_bmm, route_by_textbook
from capsweep.lab.bench.training import (
    BF16,
    CAPSNET,
    DIRECT,
    MATRIX_CAPSNET,
    REFERENCE,
    TF32,
    StepTraining,
    Way,
    compute_expected,
    list_variants,
)

NETWORKS = {  # by data set; each network has a kernel of 4x4 or more in a layer after the first
    "mnist": ("capsnet_small", "baseline_mnist", "cnn_matched", "cnn_small"),
    "multimnist": ("capsnet_tiny", "baseline_multimnist", "cnn_tiny"),
    "svhn": ("capsnet_svhn",),
    "affnist": ("baseline_affnist",),
    "smallnorb": ("baseline_smallnorb",),
}
NOW = "transformed"
STEP, ROUTINGS = "capsnet", "capsnet_tiny by routing"
CORE_BARS = (
    (STEP, "bf16", "over textbook", 3.5),
    (STEP, NOW, "over textbook", 5.0),
    (STEP, NOW, "over before", 2.0),
    ("baseline_mnist", NOW, "over direct", 1.5),
    ("capsnet_small", NOW, "over direct", 1.3),
    ("capsnet_tiny", NOW, "over direct", 1.3),
    ("EM routing, T = 2", "now", "images/s", 60.0),
    ("EM routing, T = 3", "now", "images/s", 45.0),
)
GPU_BARS = (
    (STEP, "bf16", "images/s", 45_000.0),
    (STEP, "tf32", "images/s", 35_000.0),
    (STEP, "bf16", "over textbook", 4.0),
    ("EM routing, T = 3", "now", "images/s", 2_000.0),
)
MEMORY_BAR = 1.3  # largest allowed (peak memory) / (peak memory of BEFORE)
# Lowest allowed (speed of a variant) / (speed of dynamic routing). If a variant is slower, its
# code must be made faster.
SLOWEST_VARIANT = 0.5
# Case, number of images, ways to train, and the minimum duration of all rounds in seconds.
Group = tuple[str, int, Mapping[str, Way], float]


def list_baselines() -> dict[str, Way]:
    """Return the two baselines, which train the CapsNet as public code does.

    Their routing functions are `route_by_textbook` and `route_by_bmm`.
    """
    routes = {"textbook": route_by_textbook, "bmm": route_by_bmm}
    return {name: Way(CAPSNET, REFERENCE, route, False) for name, route in routes.items()}


def list_ways(*network: str) -> dict[str, Way]:
    """Return three ways to train a network on a CPU.

    - BEFORE: Convolutions are direct. Freed memory is returned to the system. Cells of earlier
      versions trained like this.
    - "direct": Convolutions are direct. The process keeps freed memory.
    - NOW: Convolutions are transformed if that is expected to be faster. The process keeps freed
      memory. Cells train like this today.
    """
    direct = Way(network, (DIRECT,))
    return {BEFORE: replace(direct, keeps_memory=False), "direct": direct, NOW: Way(network)}


def list_core_groups(is_quick: bool) -> Iterator[Group]:
    """Yield the comparisons that run on a CPU.

    The last comparison has all routing variants; with `is_quick`, it has only two of them.
    `measure_step` runs the last comparison with one thread, because a cell of a sweep also has one
    thread.
    """
    images, seconds = (2, 0.0) if is_quick else (128, 60.0)
    ways = list_baselines() | list_ways(*CAPSNET) | {"bf16": Way(CAPSNET, (BF16,))}
    yield STEP, images, ways, seconds
    for dataset, name in ((d, n) for d, names in NETWORKS.items() for n in names):
        if not is_quick:
            ways = list_ways(f"model={name}", f"dataset={dataset}")
            yield name, images, ways, seconds / 6
    for number in (2, 3):
        network = *MATRIX_CAPSNET, f"routing.num_iters={number}"
        yield f"EM routing, T = {number}", max(1, images // 16), {"now": Way(network)}, seconds / 6
    variants = list_variants()
    few = {name: variants[name] for name in ("dynamic", "em")}
    yield ROUTINGS, max(1, images // 2), few if is_quick else variants, seconds


def list_groups(is_quick: bool) -> Iterator[Group]:
    """Yield the comparisons to run on this machine.

    On a GPU, our code trains each network with eager and with captured steps, at two batch sizes.
    """
    if not bench.is_gpu():
        yield from list_core_groups(is_quick)
        return
    images, seconds = (2, 0.0) if is_quick else (128, 4.0)
    eager = "trainer.graphs=off"
    capsnet, em = list_baselines(), (*MATRIX_CAPSNET, "routing.num_iters=3")
    for name, words in {"fp32": (), "tf32": (TF32,), "bf16": (BF16,)}.items():
        capsnet |= {f"{name}, eager": Way(CAPSNET, (*words, eager)), name: Way(CAPSNET, words)}
    for size in (images, 4 * images):
        yield STEP, size, capsnet, seconds
    for size in (max(1, images // 16), images // 2):
        ways = {"eager": Way(em, (eager,)), "now": Way(em)}
        yield "EM routing, T = 3", size, ways, seconds


def measure_step(is_quick: bool = False) -> BenchReport:
    """Measure the speed of each way to train; a way with wrong results is reported as a fault."""
    report = BenchReport()
    for case, images, ways, seconds in list_groups(is_quick):
        threads = 1 if case == ROUTINGS else bench.THREADS
        compare(report, case, images, list_candidates(ways, images), seconds, threads)
    if bench.is_gpu():
        report.judge(GPU_BARS)
        return report
    # The bar for bfloat16 only applies to a CPU with instructions for bfloat16 matrix products.
    has_amx = "amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    report.judge(bar for bar in CORE_BARS if has_amx or bar[1] != "bf16")
    variants = list_variants()
    report.judge((ROUTINGS, name, "over dynamic", SLOWEST_VARIANT) for name in variants)
    memory = max((row.get(MEMORY) or 0.0 for row in report.rows), default=0.0)
    report.numbers.append(Measurement(f"{MEMORY}, worst case", memory, "x", MEMORY_BAR))
    return report


def list_candidates(ways: Mapping[str, Way], images: int) -> dict[str, Candidate]:
    """Return a candidate for each way to train; the candidate has the name of the way."""
    candidates = {}
    for name, way in ways.items():
        prepare = partial(StepTraining, way, images)
        expected = partial(compute_expected, way.network, images)
        candidates[name] = Candidate(prepare, expected, way.tolerance, way.keeps_memory)
    return candidates
