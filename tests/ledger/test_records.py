"""The types of stored JSON: what code wrote is read, with keys that no type names, and a value of
another kind is refused.
"""

from copy import deepcopy
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from json_paths import list_paths
from pydantic import ValidationError

from capsweep.ledger import lease, records
from capsweep.storage.checked import describe_fault

DIGEST = "ab" * 32
NOW = "2026-11-23T10:00:00+00:00"
CODE = {"numerics": "n", "package": "p"}
WHOLE: dict[type[records.Record], dict[str, Any]] = {
    records.Result: {
        "signature": "0123456789abcdef",
        "metrics": {"test/error": 0.5, "test/loss": 0, "test/at_least_one": 1, "x": -3.5},
        "epochs": 2,
        "steps": 7,
        "parameters": 3,
        "seconds": {"fit": 1, "total": 1.5},
        "shape": "s",
        "hardware": "h",
        "images_per_second": 5.5,
        "peak_memory_bytes": {"process": 3, "gpu": 1},
        "test_sha256": DIGEST,
        "data": {"train": DIGEST, "test": DIGEST},
        "code": CODE,
        "gpu_hours": 0.0,
        "first_activations": {"layer": {"q0": 0.5}},
        "finished": NOW,
        "attempt": "a",
        "sha256": {"result.json": DIGEST},
    },
    records.Provenance: {
        "signature": "0123456789abcdef",
        "command": "c",
        "overrides": ["a=b"],
        "started": NOW,
        "code": CODE | {"capsweep": "1", "commit": "c", "dirty": False},
        "versions": {"torch": "2"},
        "hardware": {"processor": "p", "gpus": ["g"], "capability": "c"},
        "tracking": {"mode": "none", "group": "g", "tags": ["t"], "name": "n"},
        "earlier": [{"code": CODE, "versions": {"torch": "2"}, "hardware": {"gpus": []}}],
    },
    records.Row: {"epoch": 1, "step": 3, "lr": 0.5, "margin": 0.5, "seconds": 1.0, "a/loss": 1.0},
    records.Point: {"epoch": 0.5, "step": 3, "lr": 0.5, "train/loss_step": 0.5},
    lease.Claim: {
        "signature": "0123456789abcdef",
        "generation": 1,
        "owner": {"host": "h", "machine": "m", "pid": 3, "started": "9"},
        "beat": 0,
    },
    records.Mark: {"digest": "d", "server": "s"},
    records.Manifest: {"format": 1, "sha256": {"a/b": DIGEST}},
}
# Of every kind that JSON has, and numbers that nobody measures.
KINDS = ("text", 3, 0.5, True, [1], {"a": 1}, float("inf"), float("nan"), 10**400, -1)


@pytest.mark.parametrize("kind", WHOLE, ids=lambda kind: kind.__name__)
def test_what_was_written_is_read_whatever_else_stands_there(kind: type[records.Record]) -> None:
    kind.model_validate(WHOLE[kind] | {"of a later version": [{"a": None}]})
    with pytest.raises(ValidationError):
        kind.model_validate([])


def is_alike(value: Any, other: Any) -> bool:
    """Whether a value may stand where the other one does, as far as this test knows."""
    if isinstance(value, (int, float)) and type(other) in (int, float):
        return value in (3, 0.5) or (value is True and type(other) is int)
    return type(value) is type(other)


@pytest.mark.parametrize("kind", WHOLE, ids=lambda kind: kind.__name__)
def test_a_value_of_another_kind_is_refused_by_the_name_of_its_field(
    kind: type[records.Record],
) -> None:
    for path in list_paths(WHOLE[kind]):
        for value in KINDS:
            above, copy = path[:-1], deepcopy(WHOLE[kind])
            is_any = path[-1] in ("x", "q0") and value == -1  # a metric or activation of any sign
            if is_any or is_alike(value, reduce(getitem, path, copy)):
                continue
            reduce(getitem, above, copy)[path[-1]] = value
            with pytest.raises(ValidationError) as refused:
                kind.model_validate(copy)
            fault = describe_fault(refused.value)
            assert str(path[0]) in fault or "a/loss" in fault or "train/loss" in fault


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        (records.Result, {"metrics": {"val/error": 1.5}}, "val/error is 1.5, not between 0 and 1"),
        (records.Result, {"metrics": {"test/at_least_one": -1}}, "not between 0 and 1"),
        (records.Result, {"epochs": 0}, "epochs"),
        (records.Result, {"seconds": {"fit": -1, "total": 3}}, "seconds.fit"),
        (records.Result, {"sha256": {"a": "ab"}}, "sha256.a"),
        (records.Result, {"later": [1e999]}, "later"),
        (records.Row, {"epoch": 0.5}, "epoch"),
        (records.Row, {"val/loss": -1}, "val/loss is -1, below 0"),
        (records.Row, {"val/error": "0.5"}, "val/error is '0.5', not a finite number"),
        (lease.Claim, {"beat": 1e999}, "beat"),
    ],
)
def test_a_number_that_nobody_measures_is_refused(
    kind: type[records.Record], change: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        kind.model_validate(WHOLE[kind] | change)
    assert why in describe_fault(refused.value)
