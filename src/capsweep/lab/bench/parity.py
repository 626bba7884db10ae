"""Whole networks on this device against the reference in float64 on a processor.

Scores, loss and all gradients of a training step are compared; the reference convolves directly. In
float64 the device must compute the same. In float32 a feature near zero can be rounded to the other
side of ReLU, and gradients jump there: they are only bounded. A wrong number is reported, and so is
a candidate that cannot run: that is what one wants to know.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from capsweep.lab.bench import machine, variants
from capsweep.lab.bench.comparison import Results, describe_error, relative_error
from capsweep.lab.bench.results import BenchReport, Measured
from capsweep.lab.bench.training import (
    CAPSNET,
    MATRIX_CAPSNET,
    TOLERANCE,
    StepCandidate,
    StepTraining,
    compute_expected,
)

IMAGES = 8
QUICK = {"parity": {"images": 2}}
OUTPUTS, GRADIENTS = "error of outputs", "error of gradients"
PLAIN = "softmax"  # the normaliser that goes without saying
CNN = ("model=cnn_small", "dataset=digits", "model.dropout=0")  # a device draws masks of its own


@dataclass(frozen=True)
class Precision:
    """Says how numbers are computed, and how far they may be off.

    Attributes:
        name: how tables name it.
        dtype: of parameters and images.
        outputs: the largest error of outputs, in units of the largest number of a tensor.
        gradients: the same of gradients.
        trained: `precision` of the candidate.
    """

    name: str
    dtype: torch.dtype
    outputs: float
    gradients: float
    trained: str = "32"

    @property
    def bars(self) -> dict[str, float]:
        """By the column that they are of."""
        return {OUTPUTS: self.outputs, GRADIENTS: self.gradients}


FLOAT64 = Precision("float64", torch.float64, 1e-6, 1e-5)  # the loss is of float32 scores
FLOAT32 = Precision("float32", torch.float32, 2e-5, TOLERANCE["32"])
MIXED = Precision("bf16-mixed", torch.float32, 0.02, TOLERANCE["bf16-mixed"], "bf16-mixed")
PRECISIONS = {each.name: each for each in (FLOAT64, FLOAT32, MIXED)}


@dataclass(frozen=True)
class ParityCase:
    """A network as it is trained, in one precision, which the candidate's follows."""

    network: StepCandidate
    precision: Precision

    @property
    def candidate(self) -> StepCandidate:
        """What is trained."""
        return replace(self.network, precision=self.precision.trained)

    @property
    def names(self) -> dict[str, str | None]:
        """Network, implementation, precision and routing."""
        config = self.candidate.cell.config
        routing = config["routing"] or {"name": None, "impl": None}
        normaliser = routing.get("normaliser", PLAIN)
        return {
            "network": config["model"]["name"],
            "implementation": routing["impl"],
            "precision": self.precision.name,
            "routing": routing["name"]
            if normaliser == PLAIN
            else f"{routing['name']}, {normaliser}",
        }


def list_cases() -> list[ParityCase]:
    """Return the networks that are compared, in each precision.

    They are the CapsNet by each implementation, on a GPU also by Triton's kernels; the matrix
    capsules; a CNN; and every routing by the implementation that `auto` chooses.
    """
    impls = ("fast", "triton") if machine.is_gpu() else ("fast",)
    capsnets = [StepCandidate(impl, overrides=CAPSNET) for impl in impls]
    others = [StepCandidate("fast", overrides=overrides) for overrides in (MATRIX_CAPSNET, CNN)]
    cases = [
        ParityCase(each, precision)
        for each in (*capsnets, *others, *_list_variants())
        for precision in (FLOAT64, FLOAT32)
    ]
    return [*cases, *(ParityCase(each, MIXED) for each in capsnets)]


def _list_variants() -> list[StepCandidate]:
    """As `bench variants` has them; random couplings are drawn once, the same on every device."""
    candidates = variants.list_candidates()
    fixed = (*candidates["random"].overrides, "routing.draw=fixed")
    candidates["random"] = replace(candidates["random"], overrides=fixed)
    return list(candidates.values())


def measure_parity(images: int = IMAGES, cases: Sequence[ParityCase] | None = None) -> BenchReport:
    """Return a row for each case, and a bar for those of one network, implementation, precision."""
    references: dict[tuple[str, ...], Results] = {}
    rows = []
    for case in list_cases() if cases is None else cases:
        try:
            overrides = case.candidate.overrides
            if overrides not in references:
                exact = torch.float64, torch.device("cpu")
                references[overrides] = compute_expected(overrides, images, *exact)
            step = StepTraining(case.candidate, images, case.precision.dtype)
            errors = measure_errors(references[overrides], step.compute_results())
        except Exception as error:  # whatever it is, the other cases are measured
            errors = dict.fromkeys((OUTPUTS, GRADIENTS), math.inf)
            errors |= {"largest": describe_error(error)}
        rows.append(case.names | errors)
    return BenchReport(judge_errors(rows), rows)


def measure_errors(expected: Results, actual: Results) -> dict[str, Any]:
    """Return the largest error of the outputs and of the gradients, and the tensor with the latter.

    What is no number counts as infinite. Raises KeyError for a tensor that is not given.
    """
    errors = {name: relative_error(each, actual[name]) for name, each in expected.items()}
    errors = {name: math.inf if math.isnan(error) else error for name, error in errors.items()}
    outputs = {name: errors.pop(name) for name in ("scores", "loss")}
    largest = max(errors, key=lambda name: errors[name])
    return {
        OUTPUTS: max(outputs.values()),
        GRADIENTS: errors[largest],
        "largest": largest.removeprefix("gradient of "),
    }


def judge_errors(rows: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """Return the largest errors of each network, implementation and precision."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        key = row["network"], row["implementation"], row["precision"]
        groups.setdefault(key, []).append(row)
    return [
        Measured(
            f"{network}{'' if impl is None else f' by {impl}'} in {precision}: {kind}",
            max(row[kind] for row in group),
            "of the largest number",
            PRECISIONS[precision].bars[kind],
        )
        for (network, impl, precision), group in groups.items()
        for kind in (OUTPUTS, GRADIENTS)
    ]
