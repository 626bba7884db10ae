"""Typed models of the JSON files in a ledger; a file that its model refuses is damaged.

Unknown keys are kept, and most keys may be absent, so that files of earlier and later code can be
read.
"""

import sys
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    model_validator,
)

from capsweep.statistics import metric_format
from capsweep.storage.checked import describe_fault
from capsweep.storage.files import hash_bytes

LARGEST = sys.float_info.max
ABSENT: Any = None  # the default of a key that may be absent, but may not be null


def _check_date(text: str) -> str:
    date = datetime.fromisoformat(text)
    if date.tzinfo is None or not 2000 <= date.year < 3000:
        raise ValueError("it has no time zone, or its year is not in 2000 to 2999")
    return text


def _check_metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    for name, value in metrics.items():
        if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:
            raise ValueError(f"{name} is {value!r:.40}, not a finite number")
        measure = metric_format.measure_of(name)
        if not measure.low <= value <= measure.high:
            kind = "not between 0 and 1" if measure.high == 1 else "below 0"
            raise ValueError(f"{name} is {value:g}, {kind}")
    return metrics


Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]  # seconds, hours, rates
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
AtLeastOne = Annotated[int, Field(ge=1, lt=2**63)]
Memory = dict[str, Count | None]  # bytes of "process" and of "gpu"; None: unknown
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Digests = dict[str, Digest]
Date = Annotated[str, AfterValidator(_check_date)]
Metrics = Annotated[dict[str, float], AfterValidator(_check_metrics)]


class Record(BaseModel):
    """A JSON object of the ledger. No text counts as a number, and all numbers are finite."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True)

    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)  # pyright: ignore


class Code(Record):
    """The code that trained a cell."""

    numerics: str | None = None  # hash of the code that decides numbers
    package: str | None = None  # hash of the whole package
    capsweep: str | None = None  # version of the package
    commit: str | None = None  # commit of the checkout
    dirty: bool | None = None  # whether the checkout had uncommitted changes


class Duration(Record):
    """The seconds that a cell took."""

    fit: NonNegative  # of the training epochs
    total: NonNegative = ABSENT  # from the start to the result


class Result(Record):
    """The content of result.json, which a finished cell has."""

    metrics: Metrics  # of the last epoch and of the test
    signature: str = ABSENT  # of the cell
    epochs: AtLeastOne = ABSENT  # that were trained
    steps: AtLeastOne = ABSENT  # optimiser steps
    parameters: AtLeastOne = ABSENT  # of the network
    seconds: Duration = ABSENT
    shape: str = ABSENT  # hash of the settings that decide the cost of a cell
    hardware: str = ABSENT  # name of the GPU or processor
    images_per_second: Positive = ABSENT  # in training
    peak_memory_bytes: Memory = ABSENT
    test_sha256: Digest | None = None  # of the test examples
    data: Digests = ABSENT  # of each split
    code: Code = ABSENT
    gpu_hours: NonNegative = ABSENT  # total hours, times the share of a GPU
    first_activations: dict[str, dict[str, float]] = ABSENT  # layer -> quantile -> activation
    finished: Date = ABSENT
    attempt: str = ABSENT  # folder of the files, in an object store
    sha256: Digests = ABSENT  # of each file of the cell, and of this result


class Hardware(Record):
    """The hardware of the machine that trained a cell."""

    processor: str | None = None  # its name
    gpus: list[str] = ABSENT  # their names
    capability: str | None = None  # vector instructions that torch uses, such as AVX512


class Tracking(Record):
    """The place and the labels of a cell's W&B run."""

    project: str | None = None
    entity: str | None = None  # user or team
    mode: Literal["online", "offline", "none"] = "none"  # none: the cell has no run
    group: str | None = None  # the sweep
    job_type: str | None = None  # the arm
    name: str = ABSENT  # the place in the grid and the seed
    notes: str | None = None
    tags: list[str] = ABSENT
    columns: dict[str, JsonValue] = ABSENT  # further settings of the run that are not science


class Circumstances(Record):
    """The code, versions and hardware that trained some epochs of a cell."""

    code: Code = ABSENT
    versions: dict[str, str | None] = ABSENT  # of Python and of packages, by name
    hardware: Hardware = ABSENT
    implementations: dict[str, JsonValue] | None = None  # choices that change only the rounding


class Provenance(Circumstances):
    """The content of provenance.json, which says where the numbers of a cell come from."""

    signature: str = ABSENT  # of the cell
    science: dict[str, Any] = ABSENT  # configuration; reading checks it against the signature
    command: str | None = None  # the command that trains the cell
    overrides: list[str] = ABSENT  # of that command
    started: Date = ABSENT
    fingerprint: str | dict[str, JsonValue] | None = None  # of the data set
    tracking: Tracking = ABSENT
    earlier: list[Circumstances] = ABSENT  # of interrupted runs, if different from these


class Row(Record):
    """A line of metrics.jsonl, which describes an epoch. Keys with a `/` are metrics."""

    epoch: Count  # from 0
    step: Count = ABSENT  # optimiser steps so far
    lr: NonNegative = ABSENT  # learning rate
    margin: NonNegative = ABSENT  # of a loss whose margin grows
    seconds: NonNegative = ABSENT  # that the epoch took

    @model_validator(mode="after")
    def _check_metrics(self) -> "Row":
        extra = (self.model_extra or {}).items()
        _check_metrics({name: value for name, value in extra if "/" in name})
        return self


class Point(Row):
    """A line of steps.jsonl, which describes some steps of an epoch."""

    # Epochs so far, with the fraction of the current one.
    epoch: NonNegative  # pyright: ignore[reportIncompatibleVariableOverride]
    step: Count = Field()  # optimiser steps so far


class Mark(Record):
    """A mark that says which content of a cell W&B has."""

    digest: str  # hash of the content
    server: str  # URL of the W&B server


class Measurement(Record):
    """The cost of cells of one shape on some hardware, as a calibration measured it."""

    shape: str  # hash of the settings that decide the cost of a cell
    hardware: str  # name of the GPU or processor
    seconds_per_step: Positive  # of training
    evaluation_seconds_per_image: NonNegative  # of testing
    startup_seconds: NonNegative  # before the first step
    peak_memory_bytes: Memory  # of a GPU, all that the process takes, its context included
    utilisation: Fraction | None  # of the GPU; None: unknown
    device_memory_bytes: Count | None  # of the whole GPU; None: no GPU
    steps: AtLeastOne  # that were timed

    @property
    def name(self) -> str:
        """The path of its file in the ledger."""
        digest = hash_bytes(self.hardware.encode())[:8]
        return f"measurements/{self.shape}-{digest}.json"


class AddedSeeds(Record):
    """The state of a sweep that adds seeds until its question is decided."""

    looks: list[AtLeastOne]  # numbers of seeds at which the sweep is tested
    seeds: dict[str, list[Count]]  # added seeds, by place of the grid


class IterationResult(Record):
    """The predictions of a network with another number of routing iterations than in training."""

    iterations: Count  # of routing
    changed: Fraction  # of images whose predicted classes differ from those in training
    error: Fraction  # test error


class LayerMeasures(Record):
    """Measures of the couplings of one layer; `lab/evaluation/couplings.py` defines them.

    None: the measure does not apply to the layer.
    """

    entropy: float | None  # of a child's couplings; 1: equal among all choices
    polarisation: float | None  # 0: equal couplings; 1: one choice has all of a child
    variety: float | None  # variance of couplings between images, of their whole variance
    dead: float | None  # fraction of parents that are inactive in all images
    trees: float | None  # distinct parse trees per image


class Couplings(Record):
    """The content of evals/routing.json, which says how the layers of a cell route."""

    examples: AtLeastOne  # test images that were measured
    layers: dict[str, LayerMeasures]  # by name of the layer
    ties: Count  # near ties whose prediction differs from the stored one
    without_sum: list[str]  # layers whose couplings do not sum to 1
    error: Fraction  # of these images
    frozen_error: Fraction | None  # error with mean couplings; None: not possible with the routing
    iterations: list[IterationResult] | None  # None: the routing does not iterate


class Manifest(Record):
    """The content of manifest.json, the first file of an export."""

    format: Literal[1]  # version of the format
    sha256: Digests  # of each file, by name


def find_fault(kind: type[Record], value: Any) -> str | None:
    """Return why a value is not of a kind, with the name of the field; None if it is.

    Args:
        kind: the model.
        value: the value, as read from JSON.
    """
    try:
        kind.model_validate(value)
    except ValidationError as error:
        return describe_fault(error)
    return None
