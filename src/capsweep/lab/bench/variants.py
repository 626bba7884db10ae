"""Every routing in the training step of `capsnet_tiny` on pairs of digits, on a processor: what a
variant costs, as a cell trains it, beside dynamic routing.
"""

import operator
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Any

from capsweep.config import package_files
from capsweep.lab.bench import comparison
from capsweep.lab.bench.processes import start_calls
from capsweep.lab.bench.results import BenchReport, Measured
from capsweep.lab.bench.training import StepCandidate, StepTraining, check_step
from capsweep.model.routing import describe_routing
from capsweep.model.routing.normalisers import NORMALISERS
from capsweep.training import devices

SETTINGS = ("experiment=overlap", "model.head=linear", "loss=binary_cross_entropy")
DYNAMIC = "dynamic"
IMAGES, GATE_IMAGES = 64, 4
QUICK = {"variants": {"budget": 0.0}}
SLOWEST = 2.0  # times dynamic routing: a slower variant deserves a fast path


def list_candidates() -> dict[str, StepCandidate]:
    """Return a candidate for each file of conf/routing and each normaliser of dynamic routing, by
    the implementation that `routing.impl: auto` chooses.
    """
    folder = package_files.find_folder("conf") / "routing"
    choices = {path.stem: [f"routing={path.stem}"] for path in sorted(folder.glob("*.yaml"))}
    for name in [*NORMALISERS][1:]:
        choices[f"{DYNAMIC}, {name}"] = ["routing=dynamic", f"routing.normaliser={name}"]
    return {
        name: StepCandidate("auto", overrides=(*SETTINGS, *choice))
        for name, choice in choices.items()
    }


def measure_variants(
    budget: float = 60.0, candidates: Mapping[str, StepCandidate] | None = None
) -> BenchReport:
    """Return the time of a step with each candidate.

    budget: the least seconds of the rounds. Raises ParityError, before a speed is measured, where
    an implementation does not compute what its reference does.
    """
    candidates = candidates or list_candidates()
    for name, candidate in candidates.items():
        check_step(name, candidate, GATE_IMAGES)
    with start_calls({"steps": (_prepare_steps, candidates, budget)}) as calls:
        rows = calls["steps"].ask(operator.call)
    slowest = max(rows, key=lambda row: row["over dynamic"])
    what = f"step of capsnet_tiny, over dynamic routing: the slowest, {slowest['routing']}"
    return BenchReport([Measured(what, slowest["over dynamic"], "x", SLOWEST)], rows)


def _prepare_steps(
    candidates: Mapping[str, StepCandidate], budget: float
) -> partial[list[dict[str, Any]]]:
    """In a process that keeps freed memory and has one thread, as that of a cell of a sweep."""
    devices.keep_freed_memory()
    return partial(_measure_steps, candidates, budget)


def _measure_steps(candidates: Mapping[str, StepCandidate], budget: float) -> list[dict[str, Any]]:
    """A row for each candidate; their steps take turns."""
    with devices.using_threads(1):
        steps = {name: StepTraining(each, IMAGES) for name, each in candidates.items()}
        seconds = comparison.time_in_turns(steps, budget)
    return [
        {
            "routing": name,
            "implementation": describe_routing(steps[name].network),
            "parameters": sum(each.numel() for each in steps[name].network.parameters()),
            "ms": median(seconds[name]) * 1e3,
            "over dynamic": comparison.median_ratio(seconds, name, DYNAMIC),
        }
        for name in candidates
    ]
