"""How the cost of `dynamic.fast` grows with each size of the layer, and with the iterations.

Shape letters: B batch, I children, J parents, T iterations.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from capsweep.bench import device, interleaved, routing
from capsweep.bench.measured import Measured, Report
from capsweep.bench.routing_problem import PASSES, Pass, Problem, Sizes
from capsweep.model.routing import dynamic

VARIED: Mapping[str, tuple[str, Sequence[int]]] = {
    "B": ("batch", (32, 64, 128, 256, 512)),
    "I": ("children", (288, 576, 1152, 2304)),
    "J": ("parents", (5, 10, 20, 40)),
    "T": ("num_iters", (1, 2, 3, 4, 5, 6)),
}
Milliseconds = dict[int, float]
Costs = dict[tuple[str, Pass], Milliseconds]
NOTE = (
    "One size varies, the others are those of CapsNet: B = 128, I = 1152, J = 10, P = 8, D = 16, "
    "T = 3. All values of a size take turns, times are medians. Exponents are fitted by least "
    "squares on logarithms: 1 is in proportion."
)


def exponent(cost: Milliseconds) -> float:
    """The power of the size with which its cost grows: slope of log cost over log size."""
    sizes = np.log([float(size) for size in cost])
    return float(np.polyfit(sizes, np.log(list(cost.values())), 1)[0])


def increments(cost: Milliseconds) -> list[float]:
    """What each iteration adds to the one before."""
    found = [cost[num_iters] for num_iters in sorted(cost)]
    return [more - less for less, more in pairwise(found)]


def beyond_the_first(cost: Milliseconds) -> Milliseconds:
    """By further iterations, what they cost: the first is one product and has no agreement."""
    return {num_iters - 1: took - cost[1] for num_iters, took in cost.items() if num_iters > 1}


def measure(
    varied: Mapping[str, tuple[str, Sequence[int]]] = VARIED, budget: float = 3.0
) -> Report:
    """All sizes. budget: least seconds of each. Raises ParityError before it measures."""
    with device.threads():
        routing.gate()
        costs: Costs = {
            (letter, which): _costs(letter, field, values, which, budget)
            for letter, (field, values) in varied.items()
            for which in PASSES
        }
    rows = [row for letter in varied for row in _rows(letter, costs)]
    return Report(_measured(costs), rows, [NOTE])


def _costs(
    letter: str, field: str, values: Sequence[int], which: Pass, budget: float
) -> Milliseconds:
    print(f"scaling: {letter}, {which}", file=sys.stderr, flush=True)
    route = dynamic.IMPLS["fast"]
    calls = {
        str(value): Problem(replace(Sizes(), **{field: value})).call(route, which)
        for value in values
    }
    taken = interleaved.take(calls, budget)
    return {value: median(taken[str(value)]) * 1e3 for value in values}


def _rows(letter: str, costs: Costs) -> list[dict[str, Any]]:
    return [
        {"size": f"{letter} = {value}"}
        | {f"{which}, ms": costs[letter, which][value] for which in PASSES}
        for value in costs[letter, "forward"]
    ]


def _measured(costs: Costs) -> list[Measured]:
    found = [
        Measured(f"{which}: exponent of the cost in {letter}", exponent(cost), "")
        if letter != "T"
        else Measured(
            f"{which}: exponent of the further cost in T - 1", exponent(beyond_the_first(cost)), ""
        )
        for (letter, which), cost in costs.items()
    ]
    if ("T", "forward") in costs:
        added = max(increments(costs["T", "forward"]))
        what = "forward, B = 128: what each further iteration adds, the most"
        found.append(Measured(what, added, "ms", 25, skipped=device.skipped_on_gpu()))
    return found
