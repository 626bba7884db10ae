"""Typed models of the JSON files in a ledger. A file that does not fit its model is damaged.

Unknown keys are kept, and most keys may be absent, so that files of earlier and later versions can
be read.
"""

import sys
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from capsweep.statistics import metric_format
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
Memory = dict[str, Count | None]  # bytes, by "process" and "gpu"; None: unknown, or no GPU
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digests = dict[str, Digest]
Date = Annotated[str, AfterValidator(_check_date)]
Metrics = Annotated[dict[str, float], AfterValidator(_check_metrics)]


class Record(BaseModel):
    """A JSON object of the ledger, with checked types. All numbers are finite."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True)

    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]


class Code(Record):
    """The code that trained a cell."""

    numerics: str | None = None  # hash of the code that decides numbers
    package: str | None = None  # hash of the whole package
    capsweep: str | None = None  # version of the package
    commit: str | None = None  # commit of the checkout
    dirty: bool | None = None  # whether the checkout had uncommitted changes
    changes: str = ABSENT  # name and size of the file with these changes


class Duration(Record):
    """The seconds that a cell took."""

    fit: NonNegative  # seconds of the training epochs
    total: NonNegative = ABSENT  # seconds from the start to the result, without interruptions


class Result(Record):
    """The content of result.json, the file that every finished cell has."""

    metrics: Metrics  # metrics of the last epoch and of the test
    signature: str = ABSENT  # signature of the cell
    epochs: AtLeastOne = ABSENT  # number of epochs that were trained
    steps: AtLeastOne = ABSENT  # number of optimiser steps
    parameters: AtLeastOne = ABSENT  # number of parameters of the network
    seconds: Duration = ABSENT  # how long the cell took
    shape: str = ABSENT  # hash of the settings that decide the cost of a cell
    hardware: str = ABSENT  # name of the GPU or processor
    images_per_second: Positive = ABSENT  # speed of training
    peak_memory_bytes: Memory = ABSENT  # peak memory of the process and of its GPU
    test_sha256: Digest | None = None  # digest of the test examples
    data: Digests = ABSENT  # digest of each split of the data
    code: Code = ABSENT  # hashes of the code that trained the cell
    gpu_hours: NonNegative = ABSENT  # total hours, multiplied by the cell's number or share of GPUs
    classes: dict[str, list[Count]] = ABSENT  # test images by class, see examples.count_classes
    first_activations: dict[str, dict[str, float]] = ABSENT  # layer -> quantile -> activation
    finished: Date = ABSENT  # when the cell finished
    attempt: str = ABSENT  # in an object store: name of the folder with the cell's files
    sha256: Digests = ABSENT  # digest of each file by name, including this result


class Hardware(Record):
    """The hardware of the machine that trained a cell."""

    processor: str | None = None  # name of the processor
    gpus: list[str] = ABSENT  # names of the GPUs
    capability: str | None = None  # vector instructions that torch uses, such as AVX512


class Tracking(Record):
    """The W&B project and the labels of a cell's W&B run."""

    project: str | None = None  # W&B project
    entity: str | None = None  # W&B user or team
    mode: Literal["online", "offline", "none"] = "none"  # none: no W&B run
    group: str | None = None  # name of the sweep
    job_type: str | None = None  # name of the arm
    name: str = ABSENT  # name of the run: the cell's place in the grid and its seed
    notes: str | None = None  # notes of the run
    tags: list[str] = ABSENT  # tags of the run
    columns: dict[str, JsonValue] = ABSENT  # settings that the run shows but that are not science


class Circumstances(Record):
    """The code, versions and hardware that trained some epochs of a cell."""

    code: Code = ABSENT  # the code
    versions: dict[str, str | None] = ABSENT  # versions of Python and of packages, by name
    hardware: Hardware = ABSENT  # the machine
    implementations: dict[str, JsonValue] | None = None  # choices that change only rounding


class Provenance(Circumstances):
    """The content of provenance.json: where the numbers of a cell come from."""

    signature: str = ABSENT  # signature of the cell
    science: dict[str, Any] = ABSENT  # science configuration; its hash is the signature
    command: str | None = None  # the command that trains the cell
    overrides: list[str] = ABSENT  # overrides in this command
    started: Date = ABSENT  # when the cell started
    fingerprint: str | dict[str, JsonValue] | None = None  # identity of the data set
    tracking: Tracking = ABSENT  # the W&B run
    # The circumstances of each interrupted run, if they differ from the circumstances above.
    earlier: list[Circumstances] = ABSENT


class Row(Record):
    """A line of metrics.jsonl: the values of one epoch. Keys with a `/` are metrics."""

    epoch: Count  # index of the epoch, from 0
    step: Count = ABSENT  # number of optimiser steps so far
    lr: NonNegative = ABSENT  # learning rate
    margin: NonNegative = ABSENT  # margin of the loss, if it grows in training
    seconds: NonNegative = ABSENT  # how long the epoch took

    @model_validator(mode="after")
    def _check_metrics(self) -> "Row":
        extra = (self.model_extra or {}).items()
        _check_metrics({name: value for name, value in extra if "/" in name})
        return self


class Point(Row):
    """A line of steps.jsonl: the values of the optimiser steps since the previous line."""

    # Number of epochs so far, including the completed fraction of the current epoch.
    epoch: NonNegative  # pyright: ignore[reportIncompatibleVariableOverride]
    step: Count = Field()  # number of optimiser steps so far


class Mark(Record):
    """A note which says that a W&B server has received all content of a finished cell."""

    digest: str  # hash of the content
    server: str  # URL of the W&B server


class Columns(Record):
    """The columns of W&B runs: by the signature of a cell, the value of each column."""

    __pydantic_extra__: dict[str, dict[str, JsonValue]] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]


class Measurement(Record):
    """The cost of cells with one `shape` on one `hardware`, as a calibration measured it."""

    shape: str  # hash of the settings that decide the cost of a cell
    hardware: str  # name of the GPU or processor
    seconds_per_step: Positive  # median time of an optimiser step
    evaluation_seconds_per_image: NonNegative  # time of testing an image
    startup_seconds: NonNegative  # time from the start to the first step
    peak_memory_bytes: Memory  # peak memory; for the GPU, this includes CUDA's context
    utilisation: Fraction | None  # fraction of the time in which the GPU is busy; None: unknown
    device_memory_bytes: Count | None  # memory of the whole GPU; None: no GPU
    steps: AtLeastOne  # number of timed optimiser steps

    @property
    def name(self) -> str:
        """The path of the measurement's file in the ledger."""
        digest = hash_bytes(self.hardware.encode())[:8]
        return f"measurements/{self.shape}-{digest}.json"


class IterationResult(Record):
    """The test result of a network with a given number of routing iterations."""

    iterations: Count  # number of routing iterations
    # Fraction of images whose prediction differs from the prediction with the number of iterations
    # that training used.
    changed: Fraction
    error: Fraction  # test error


class LayerMeasures(Record):
    """Measures of the couplings of one layer; `lab/evaluation/couplings.py` defines them.

    The choices of a child are its parents. With none-of-the-above, "no parent" is one more choice.
    A measure is None if it does not apply to the layer.
    """

    entropy: float | None  # entropy of couplings / ln(number of choices); 1: all equal
    polarisation: float | None  # 0: equal couplings; 1: each child is coupled to one choice only
    variety: float | None  # variance of couplings between images, relative to the total variance
    dead: float | None  # fraction of parents that are inactive in all images


class Couplings(Record):
    """The content of evals/routing.json: measures of the routing in each layer of a cell."""

    examples: AtLeastOne  # number of test images that were measured
    layers: dict[str, LayerMeasures]  # measures by the name of the layer
    # Number of images whose new prediction is right and stored prediction is wrong, or the reverse.
    ties: Count
    without_sum: list[str]  # names of layers whose couplings do not sum to 1
    error: Fraction  # error on these images
    frozen_error: Fraction | None  # error with mean couplings; None: impossible with this routing
    iterations: list[IterationResult] | None  # None: the routing has no iterations


class Manifest(Record):
    """The content of manifest.json, the first file of an export."""

    format: Literal[1]  # version of the format
    sha256: Digests  # digest of each file, by name
