"""Whole networks on this device against the reference in float64 on a processor.

Scores, loss and all gradients of a training step are compared; the reference convolves directly. In
float64 the device must compute the same. In float32 a feature near zero can be rounded to the other
side of ReLU, and gradients jump there: they are only bounded. A wrong number is reported, and so is
a candidate that cannot run: that is what one wants to know.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from capsweep.lab import bench
from capsweep.lab.bench import BenchReport, Measured
from capsweep.lab.bench.comparison import Results, describe_error, relative_error
from capsweep.lab.bench.training import (
    CAPSNET,
    FLOAT64_TOLERANCE,
    MATRIX_CAPSNET,
    TOLERANCE,
    StepCandidate,
    StepTraining,
    compute_expected,
    list_variants,
)

IMAGES = 8
QUICK = {"parity": {"images": 2}}
OUTPUTS, GRADIENTS = "error of outputs", "error of gradients"
CNN = ("model=cnn_small", "dataset=digits", "model.dropout=0")  # a device draws masks of its own


@dataclass(frozen=True)
class Precision:
    """Says how numbers are computed, and how far they may be off.

    Attributes:
        dtype: of parameters and images.
        trained: `precision` of the candidate.
        bars: the largest error of outputs, and of gradients, in units of the largest number of a
            tensor.
    """

    dtype: torch.dtype
    trained: str
    bars: Mapping[str, float]


PRECISIONS = {
    "float64": Precision(torch.float64, "32", {OUTPUTS: 1e-6, GRADIENTS: FLOAT64_TOLERANCE}),
    "float32": Precision(torch.float32, "32", {OUTPUTS: 2e-5, GRADIENTS: TOLERANCE["32"]}),
    "bf16-mixed": Precision(
        torch.float32, "bf16-mixed", {OUTPUTS: 0.02, GRADIENTS: TOLERANCE["bf16-mixed"]}
    ),
}
Case = tuple[str, StepCandidate, str]  # routing or network, how it trains, and its precision


def list_cases() -> list[Case]:
    """Return the networks that are compared, in each precision.

    They are the CapsNet by each implementation, on a GPU also by Triton's kernels; the matrix
    capsules; a CNN; and every routing by the implementation that `auto` chooses. Random couplings
    are drawn once, the same on every device.
    """
    impls = ("fast", "triton") if bench.is_gpu() else ("fast",)
    candidates = {f"capsnet by {impl}": StepCandidate(impl, overrides=CAPSNET) for impl in impls}
    cases = [(name, each, "bf16-mixed") for name, each in candidates.items()]
    candidates["matrix_capsnet by fast"] = StepCandidate("fast", overrides=MATRIX_CAPSNET)
    candidates["cnn_small"] = StepCandidate("fast", overrides=CNN)
    variants = list_variants()
    fixed = (*variants["random"].overrides, "routing.draw=fixed")
    variants["random"] = replace(variants["random"], overrides=fixed)
    candidates |= {f"capsnet_tiny, {name}": each for name, each in variants.items()}
    exact = ("float64", "float32")
    return [*((n, each, p) for n, each in candidates.items() for p in exact), *cases]


def measure_parity(images: int = IMAGES, cases: Iterable[Case] | None = None) -> BenchReport:
    """Return a row for each case, and the bars of each precision: those of the worst case."""
    references: dict[tuple[str, ...], Results] = {}
    rows: list[dict[str, Any]] = []
    for name, candidate, precision in list_cases() if cases is None else cases:
        way, overrides = PRECISIONS[precision], candidate.overrides
        try:
            if overrides not in references:
                exact = torch.float64, torch.device("cpu")
                references[overrides] = compute_expected(overrides, images, *exact)
            step = StepTraining(replace(candidate, precision=way.trained), images, way.dtype)
            errors = measure_errors(references[overrides], step.compute_results())
        except Exception as error:  # whatever it is, the other cases are measured
            errors = {OUTPUTS: math.inf, GRADIENTS: math.inf, "largest": describe_error(error)}
        rows.append({"network": name, "precision": precision, **errors})
    measured = []
    for precision, way in PRECISIONS.items():
        for kind, bar in way.bars.items():
            here = [row for row in rows if row["precision"] == precision]
            if here:
                worst = max(here, key=lambda row: row[kind])
                what = f"{kind} in {precision}: the largest, of {worst['network']}"
                measured.append(Measured(what, worst[kind], "of the largest number", bar))
    return BenchReport(measured, rows)


def measure_errors(expected: Results, actual: Results) -> dict[str, Any]:
    """Return the largest error of the outputs and of the gradients, and the tensor with the latter.

    What is no number counts as infinite. Raises KeyError for a tensor that is not given.
    """
    errors = {name: relative_error(each, actual[name]) for name, each in expected.items()}
    errors = {name: math.inf if math.isnan(error) else error for name, error in errors.items()}
    outputs = [errors.pop(name) for name in ("scores", "loss")]
    largest = max(errors, key=lambda name: errors[name])
    tensor = largest.removeprefix("gradient of ")
    return {OUTPUTS: max(outputs), GRADIENTS: errors[largest], "largest": tensor}
