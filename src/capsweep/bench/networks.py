"""Training steps of the networks that have large convolutions, on a processor: as a cell trained
before, with direct convolutions, and as it trains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from capsweep.bench import comparison
from capsweep.bench.processes import RemoteCall, start_calls
from capsweep.bench.results import Measured
from capsweep.bench.training import StepCandidate, StepTraining, check_steps, prepare_step

BEFORE, DIRECT, OURS = WAYS = "direct, memory given back", "direct", "transformed"
NETWORKS = {  # with a kernel of 4 or more, and their data sets; capsnet is measured by `step`
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
FEWEST_ROUNDS = 3  # a step of the largest takes seconds
SPEEDS = (  # network, column and bar
    ("capsnet", "over before", 2.0),
    ("baseline_mnist", "over direct", 1.5),
    ("capsnet_small", "over direct", 1.3),
    ("capsnet_tiny", "over direct", 1.3),
)
PEAKS = ("capsnet", "baseline_mnist")
Row = dict[str, Any]


def list_ways(*overrides: str) -> dict[str, StepCandidate]:
    """Three ways to train a network. BEFORE: what a cell did until it kept freed memory and
    transformed convolutions; OURS: what it does.
    """
    ours = StepCandidate("fast", overrides=overrides)
    direct = replace(ours, convolution="direct")
    return {BEFORE: replace(direct, keeps_memory=False), DIRECT: direct, OURS: ours}


def measure_networks(networks: Mapping[str, str], images: int, budget: float) -> list[Row]:
    """A row each. budget: least seconds of a network's rounds. Raises ParityError."""
    candidates = {
        name: list_ways(f"model={name}", f"dataset={networks[name]}") for name in networks
    }
    for ways in candidates.values():
        check_steps(ways, torch.float64)
    rows = []
    for name, ways in candidates.items():
        with start_calls({way: (prepare_step, c, images) for way, c in ways.items()}) as calls:
            seconds = comparison.time_in_turns(calls, budget, FEWEST_ROUNDS, RemoteCall.__call__)
            rows.append(make_row(name, networks[name], seconds, calls))
    return rows


def make_row(
    network: str, dataset: str, seconds: comparison.Seconds, calls: Mapping[str, RemoteCall]
) -> Row:
    """A network's columns. tiles: of each convolution, from the first to the last."""
    before, direct, ours = (median(seconds[way]) * 1e3 for way in WAYS)
    over_before, over_direct = (comparison.median_ratio(seconds, way, OURS) for way in WAYS[:2])
    methods = calls[OURS].ask(StepTraining.describe_convolutions).values()
    return {
        "network": network,
        "data set": dataset,
        "before: ms": before,
        "direct: ms": direct,
        "ms": ours,
        "over before": over_before,
        "over direct": over_direct,
        "before: peak MB": calls[BEFORE].peak / 1e6,
        "peak MB": calls[OURS].peak / 1e6,
        "first step: ms": calls[OURS].seconds[0] * 1e3,
        "tiles": ", ".join(method.removeprefix("transformed, tiles of ") for method in methods),
    }


def judge_networks(rows: Sequence[Row]) -> list[Measured]:
    """The bars of speed and memory, of the networks that were measured."""
    by_name = {row["network"]: row for row in rows}
    speeds = [
        Measured(f"step of {name}: fp32 {column}", by_name[name][column], "x", bar, True)
        for name, column, bar in SPEEDS
        if name in by_name
    ]
    peaks = {
        n: by_name[n]["peak MB"] / by_name[n]["before: peak MB"] for n in PEAKS if n in by_name
    }
    return speeds + [
        Measured(f"step of {name}: peak memory of before's", peak, "x", 1.3)
        for name, peak in peaks.items()
    ]
