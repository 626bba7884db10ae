"""What stands in the JSON files of a ledger, as typed models: what one of them refuses is damage.

Keys that no model names are kept: results of earlier and later code are read. So is a key that is
absent: earlier code did not write it.
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

MOST = sys.float_info.max
ABSENT: Any = None  # the default of a key that may be absent, and is never null


def _check_date(text: str) -> str:
    date = datetime.fromisoformat(text)
    if date.tzinfo is None or not 2000 <= date.year < 3000:
        raise ValueError("it has no time zone, or a year of another age")
    return text


def _check_metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    for name, value in metrics.items():
        if type(value) not in (int, float) or not -MOST <= value <= MOST:
            raise ValueError(f"{name} is {value!r:.40}, no number")
        measure = metric_format.measure_of(name)
        if not measure.low <= value <= measure.high:
            kind = "no fraction of 0 to 1" if measure.high == 1 else "below 0"
            raise ValueError(f"{name} is {value:g}, {kind}")
    return metrics


Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]  # of seconds, hours, shares
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
AtLeastOne = Annotated[int, Field(ge=1, lt=2**63)]
Memory = dict[str, Count | None]  # bytes of a process, and of a GPU; None: unknown
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Digests = dict[str, Digest]
Date = Annotated[str, AfterValidator(_check_date)]
Metrics = Annotated[dict[str, float], AfterValidator(_check_metrics)]


class Record(BaseModel):
    """A JSON object of the ledger: no text counts as a number, and none is infinite."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True)

    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)  # pyright: ignore


class Code(Record):
    """Which code made something: hashes of what decides numbers, and of the package; and which
    version and commit that was.
    """

    numerics: str | None = None
    package: str | None = None
    capsweep: str | None = None
    commit: str | None = None
    dirty: bool | None = None


class Duration(Record):
    """Seconds of a cell: of its training alone, and from start to result."""

    fit: NonNegative
    total: NonNegative = ABSENT


class Result(Record):
    """result.json of a finished cell. `sha256` has digests of its files, and its own; `data` those
    of the splits that it saw.
    """

    metrics: Metrics
    signature: str = ABSENT
    epochs: AtLeastOne = ABSENT
    steps: AtLeastOne = ABSENT
    parameters: AtLeastOne = ABSENT
    seconds: Duration = ABSENT
    shape: str = ABSENT
    hardware: str = ABSENT
    images_per_second: Positive = ABSENT
    peak_memory_bytes: Memory = ABSENT
    test_sha256: Digest | None = None
    data: Digests = ABSENT
    code: Code = ABSENT
    gpu_hours: NonNegative = ABSENT
    first_activations: dict[str, dict[str, float]] = ABSENT
    finished: Date = ABSENT
    attempt: str = ABSENT
    sha256: Digests = ABSENT


class Hardware(Record):
    """Of the machine that trained a cell."""

    processor: str | None = None
    gpus: list[str] = ABSENT
    capability: str | None = None


class Tracking(Record):
    """What the W&B run of a cell is called, and where it is."""

    project: str | None = None
    entity: str | None = None
    mode: Literal["online", "offline", "none"] = "none"
    group: str | None = None
    job_type: str | None = None
    name: str = ABSENT
    notes: str | None = None
    tags: list[str] = ABSENT
    columns: dict[str, JsonValue] = ABSENT


class Circumstances(Record):
    """By what some epochs of a cell were trained."""

    code: Code = ABSENT
    versions: dict[str, str | None] = ABSENT
    hardware: Hardware = ABSENT
    implementations: dict[str, JsonValue] | None = None


class Provenance(Circumstances):
    """provenance.json: where the numbers of a cell come from."""

    signature: str = ABSENT
    science: dict[str, Any] = ABSENT  # as its signature says, which is compared
    command: str | None = None
    overrides: list[str] = ABSENT
    started: Date = ABSENT
    fingerprint: str | dict[str, JsonValue] | None = None
    tracking: Tracking = ABSENT
    earlier: list[Circumstances] = ABSENT


class Row(Record):
    """A line of metrics.jsonl; names with a `/` are metrics."""

    epoch: Count
    step: Count = ABSENT
    lr: NonNegative = ABSENT
    margin: NonNegative = ABSENT
    seconds: NonNegative = ABSENT

    @model_validator(mode="after")
    def _check_metrics(self) -> "Row":
        extra = (self.model_extra or {}).items()
        _check_metrics({name: value for name, value in extra if "/" in name})
        return self


class Point(Row):
    """A line of steps.jsonl, inside an epoch."""

    epoch: NonNegative  # pyright: ignore[reportIncompatibleVariableOverride]
    step: Count = Field()


class Mark(Record):
    """What W&B has of a cell, and which server."""

    digest: str
    server: str


class Measurement(Record):
    """What a cell's shape costs on some hardware, as some steps of it measured: seconds of a step
    of training, of testing an image, and before the first step.
    """

    shape: str
    hardware: str
    seconds_per_step: Positive
    evaluation_seconds_per_image: NonNegative
    startup_seconds: NonNegative
    peak_memory_bytes: Memory  # of a GPU, all that a process takes of it, its context included
    utilisation: Fraction | None  # of the GPU
    device_memory_bytes: Count | None  # what the GPU has
    steps: AtLeastOne  # that were timed

    @property
    def name(self) -> str:
        """The file of the ledger that holds it."""
        digest = hash_bytes(self.hardware.encode())[:8]
        return f"measurements/{self.shape}-{digest}.json"


class AddedSeeds(Record):
    """What a sweep that adds seeds remembers: at how many it looked; those added, by place."""

    looks: list[AtLeastOne]
    seeds: dict[str, list[Count]]


class IterationResult(Record):
    """How a network answers with other iterations than it was trained with."""

    iterations: Count
    changed: Fraction
    error: Fraction


class LayerMeasures(Record):
    """How one layer routes."""

    entropy: float | None
    polarisation: float | None
    variety: float | None
    dead: float | None
    trees: float | None


class Couplings(Record):
    """routing.json in the evals/ of a cell: how its layers route."""

    examples: AtLeastOne
    layers: dict[str, LayerMeasures]
    ties: Count
    without_sum: list[str]
    error: Fraction
    frozen_error: Fraction | None
    iterations: list[IterationResult] | None


class Manifest(Record):
    """What is in an export: digests of its files by their names."""

    format: Literal[1]
    sha256: Digests


def find_fault(kind: type[Record], value: Any) -> str | None:
    """Return the field in which a value is not of this kind, and why; None where it is."""
    try:
        kind.model_validate(value)
    except ValidationError as error:
        return describe_fault(error)
    return None
