"""Training steps of the networks that have large convolutions, on a processor.

A cell is timed as it trained before convolutions were transformed, with direct ones, and as now.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from capsweep.lab.bench import comparison
from capsweep.lab.bench.processes import RemoteCall, start_calls
from capsweep.lab.bench.results import Measured
from capsweep.lab.bench.training import StepCandidate, StepTraining, check_step, prepare_step

BEFORE, DIRECT, NOW = "direct, memory given back", "direct", "transformed"
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
FEWEST_ROUNDS = 5  # a step of the largest takes seconds
SPEEDS = (  # network, column and bar
    ("capsnet", "over before", 2.0),
    ("baseline_mnist", "over direct", 1.5),
    ("capsnet_small", "over direct", 1.3),
    ("capsnet_tiny", "over direct", 1.3),
)
Row = dict[str, Any]
Candidates = Mapping[str, StepCandidate]


def list_candidates(*overrides: str) -> dict[str, StepCandidate]:
    """Return three ways to train a network.

    BEFORE: what a cell did until it kept freed memory and transformed convolutions; NOW: what it
    does.
    """
    now = StepCandidate("fast", overrides=overrides)
    direct = replace(now, convolution="direct")
    return {BEFORE: replace(direct, keeps_memory=False), DIRECT: direct, NOW: now}


def check_networks(names: Iterable[str], images: int) -> dict[str, Candidates]:
    """Return the candidates of each network.

    Raises ParityError where a network does not compute in float64 what direct convolutions do.
    """
    candidates: dict[str, Candidates] = {
        name: list_candidates(f"model={name}", f"dataset={NETWORKS[name]}") for name in names
    }
    for name, each in candidates.items():
        check_step(name, each[NOW], images, torch.float64)
    return candidates


def measure_networks(candidates: Mapping[str, Candidates], images: int, budget: float) -> list[Row]:
    """Return a row for each network. budget: least seconds of its rounds."""
    rows = []
    for name, ways in candidates.items():
        with start_calls({way: (prepare_step, c, images) for way, c in ways.items()}) as calls:
            seconds = comparison.time_in_turns(calls, budget, FEWEST_ROUNDS, RemoteCall.__call__)
            rows.append(make_row(name, NETWORKS[name], seconds, calls))
    return rows


def make_row(
    network: str, dataset: str, seconds: comparison.Seconds, calls: Mapping[str, RemoteCall]
) -> Row:
    """Return a network's columns. tiles: of each convolution, from the first to the last."""
    methods = calls[NOW].ask(StepTraining.describe_convolutions).values()
    return {
        "network": network,
        "data set": dataset,
        "before: ms": median(seconds[BEFORE]) * 1e3,
        "direct: ms": median(seconds[DIRECT]) * 1e3,
        "ms": median(seconds[NOW]) * 1e3,
        "over before": comparison.median_ratio(seconds, BEFORE, NOW),
        "over direct": comparison.median_ratio(seconds, DIRECT, NOW),
        "before: peak MB": calls[BEFORE].peak / 1e6,
        "peak MB": calls[NOW].peak / 1e6,
        "first step: ms": calls[NOW].seconds[0] * 1e3,
        "tiles": ", ".join(method.removeprefix("transformed, tiles of ") for method in methods),
    }


def judge_networks(rows: Sequence[Row]) -> list[Measured]:
    """Return the bars of speed of the measured networks, and of the memory of them all."""
    if not rows:
        return []
    by_name = {row["network"]: row for row in rows}
    speeds = [
        Measured(f"step of {name}: fp32 {column}", by_name[name][column], "x", bar, True)
        for name, column, bar in SPEEDS
        if name in by_name
    ]
    largest = max(rows, key=_compare_peaks)
    what = f"peak memory of a step, over before: the largest, of {largest['network']}"
    return [*speeds, Measured(what, _compare_peaks(largest), "x", 1.3)]


def _compare_peaks(row: Row) -> float:
    return row["peak MB"] / row["before: peak MB"]
