"""Dynamic routing, the layer of CapsNet: time and memory of one call, against both baselines."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from capsweep.bench import baselines, device, extra_memory, interleaved, limits, parity
from capsweep.bench.baselines import Route
from capsweep.bench.interleaved import Seconds
from capsweep.bench.measured import Measured, Report
from capsweep.bench.routing_problem import PASSES, Pass, Problem, Sizes
from capsweep.model.routing import dynamic

BATCHES, ITERATIONS = (32, 128, 512), (1, 3, 5)
# Awkward sizes, and the layer that is measured, with more images than fit a chunk.
GATE = (Sizes(3, 11, 5, 4, 7), Sizes(batch=33))
GATE_ITERATIONS = (1, 2, 3, 5)
TOLERANCE = 1e-9  # in float64
NOTES = (
    "Forward is without autograd; forward + backward gives the gradients of poses, weights and "
    "bias. Candidates take turns in one process; a ratio is the median over the rounds. Extra "
    "memory is by how much a fresh process grows in the call, beyond its inputs. The share of the "
    "matmul limit counts necessary operations: votes once, one agreement and one weighted sum per "
    "further iteration, three times as many with backward.",
)


def candidates() -> dict[str, Route]:
    """By name: the baselines, and what the variant has beside its reference. Triton's kernel needs
    a GPU.
    """
    own = {name: route for name, route in dynamic.IMPLS.items() if name != "reference"}
    if not device.on_gpu():
        own.pop("triton", None)
    return {"textbook": baselines.textbook, "bmm": baselines.bmm, **own}


def gate() -> None:
    """Raise ParityError unless all candidates give the reference's outputs and gradients."""
    for sizes in GATE:
        for num_iters in GATE_ITERATIONS:
            problem = Problem(sizes.with_iterations(num_iters), torch.float64)
            found = {name: problem.results(route) for name, route in candidates().items()}
            parity.check(problem.results(dynamic.reference), found, TOLERANCE)


@dataclass
class Case:
    """One problem and pass: seconds and bytes of each candidate, and why one is missing."""

    sizes: Sizes
    which: Pass
    taken: Seconds = field(default_factory=dict)
    extra: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def over(self, slow: str) -> float | None:
        """How many times longer `slow` takes than `fast`; None where it was not measured."""
        return interleaved.over(self.taken, slow, "fast")

    def rows(self, limit: float) -> list[dict[str, Any]]:
        """A row per candidate; limit: operations a second of a matrix product."""
        batch, flops = self.sizes.batch, self.sizes.flops(self.which)
        where = {"B": batch, "T": self.sizes.num_iters, "pass": self.which}
        return [
            where | interleaved.row(self.taken, name, batch, self.extra[name], flops, limit)
            for name in self.taken
        ]


def measure(
    batches: Sequence[int] = BATCHES, iterations: Sequence[int] = ITERATIONS, budget: float = 4.0
) -> Report:
    """All sizes. budget: least seconds of each case. Raises ParityError before it measures."""
    with device.threads():
        gate()
        told = limits.told({"fp32": torch.float32})
        cases: list[Case] = []
        for num_iters in iterations:
            for batch in sorted(batches):
                cases += _both_passes(cases, Sizes(batch=batch, num_iters=num_iters), budget)
    cases.sort(key=lambda case: (case.sizes.batch, case.sizes.num_iters))
    limit = told["matmul fp32, GFLOP/s"] * 1e9
    rows = [row for case in cases for row in case.rows(limit)]
    return Report(bars(cases), rows, [*NOTES, *_missing(cases)], told)


def _both_passes(smaller: Sequence[Case], sizes: Sizes, budget: float) -> list[Case]:
    print(f"routing: B = {sizes.batch}, T = {sizes.num_iters}", file=sys.stderr, flush=True)
    cases = [Case(sizes, which) for which in PASSES]
    for name in candidates():
        for case in cases:
            wanted = _predicted(smaller, name, case)
            if wanted > device.largest_call():
                case.missing[name] = f"it would need about {wanted / 1e9:.1f} GB"
        bearable = [case for case in cases if name not in case.missing]
        passes = [case.which for case in bearable]
        found = extra_memory.of(PREPARED, name, sizes.batch, sizes.num_iters, passes)
        for case, extra in zip(bearable, found, strict=True):
            case.extra[name] = extra
    problem = Problem(sizes)
    for case in cases:
        calls = {name: problem.call(candidates()[name], case.which) for name in case.extra}
        case.taken = interleaved.take(calls, budget)
    return cases


def _predicted(smaller: Sequence[Case], name: str, wanted: Case) -> float:
    """Bytes, in proportion to the largest smaller batch that was measured."""
    known = [
        case
        for case in smaller
        if name in case.extra
        and (case.which, case.sizes.num_iters) == (wanted.which, wanted.sizes.num_iters)
    ]
    if not known:
        return 0.0
    return known[-1].extra[name] * wanted.sizes.batch / known[-1].sizes.batch


PREPARED = f"{__name__}:prepared"


def prepared(
    name: str, batch: int, num_iters: int, passes: Sequence[Pass]
) -> list[Callable[[], object]]:
    """One call of a candidate for each pass. Tiny ones come first, for what is made once a process:
    threads, and buffers of the libraries.
    """
    route = candidates()[name]
    tiny = Problem(Sizes(batch=2, children=16, num_iters=num_iters))
    for which in passes:
        tiny.call(route, which)()
    problem = Problem(Sizes(batch=batch, num_iters=num_iters))
    return [problem.call(route, which) for which in passes]


def bars(cases: Iterable[Case]) -> list[Measured]:
    """The bars of the routing layer: B = 128, T = 3, on two cores."""
    found: Mapping[str, Case] = {
        case.which: case
        for case in cases
        if (case.sizes.batch, case.sizes.num_iters) == (128, 3) and "fast" in case.taken
    }
    both, forward = found.get("forward + backward"), found.get("forward")

    def ratio(what: str, case: Case | None, slow: str, bar: float, stretch: float) -> Measured:
        value = None if case is None else case.over(slow)
        return _bar(f"routing, {what}: fast over {slow}", value, bar, stretch, at_least=True)

    share = None
    if both is not None and "textbook" in both.extra:
        share = both.extra["fast"] / both.extra["textbook"]
    what = "routing, forward + backward: extra memory of fast, of textbook's"
    return [
        ratio("forward + backward", both, "textbook", 5, 10),
        ratio("forward", forward, "textbook", 10, 20),
        ratio("forward + backward", both, "bmm", 2, 3),
        _bar(what, share, 1 / 8, 1 / 20, at_least=False),
    ]


def _bar(what: str, value: float | None, bar: float, stretch: float, at_least: bool) -> Measured:
    reason = device.skipped_on_gpu() or (None if value is not None else "not measured in this run")
    return Measured(what, value, "x", bar, at_least, stretch, reason)


def _missing(cases: Iterable[Case]) -> list[str]:
    limit = f"more than the {device.largest_call() / 1e9:.0f} GB that one call may take"
    return [
        f"Not measured: {name} at B = {case.sizes.batch}, T = {case.sizes.num_iters}, "
        f"{case.which}: {reason}, {limit}."
        for case in cases
        for name, reason in case.missing.items()
    ]
