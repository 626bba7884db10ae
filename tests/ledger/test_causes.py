"""Why a cell failed, by the type of what was raised; in which keys it differs from another."""

import errno
import json
from typing import Any

import pytest
import torch

from capsweep.config import compose
from capsweep.config.cell import NEUTRAL, get, remove_key
from capsweep.errors import ConfigError, DataError, NodeError, NonFiniteLossError
from capsweep.ledger import causes
from capsweep.ledger.causes import CauseKind, find_differences


class OwnError(LookupError):
    """Of a kind by its base alone."""


class OddError(Exception):
    """Of no kind."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("Tried to allocate 2 GiB"), CauseKind.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), CauseKind.OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), CauseKind.OUT_OF_MEMORY),
        (MemoryError(), CauseKind.OUT_OF_MEMORY),
        (NonFiniteLossError("the loss was not finite"), CauseKind.NOT_FINITE),
        (DataError("train.gz is truncated"), CauseKind.DATA),
        (json.JSONDecodeError("Expecting value", "", 0), CauseKind.DATA),
        (NodeError("other versions"), CauseKind.NODE),
        (OSError(errno.ENOSPC, "No space left on device"), CauseKind.STORAGE),
        (FileNotFoundError(errno.ENOENT, "No such file", "data"), CauseKind.STORAGE),
        (ConfigError("epochs must be >= 1"), CauseKind.CODE),
        (TypeError("timeouterror: no such argument"), CauseKind.CODE),
        (ValueError("an oserror in a text is none"), CauseKind.CODE),
        (OwnError("missing"), CauseKind.CODE),
        (RuntimeError("CUDA error: unspecified launch failure"), CauseKind.UNKNOWN),
        (OddError("what is this"), CauseKind.UNKNOWN),
    ],
)
def test_the_type_of_an_error_decides_its_kind(error: Exception, kind: CauseKind) -> None:
    assert causes.classify_cause(causes.describe_cause(error)) == kind


def test_what_was_raised_from_a_full_disk_is_of_the_storage() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    for error in (raised_after(full, from_=full), raised_after(full)):
        cause = causes.describe_cause(error)
        assert causes.classify_cause(cause) == CauseKind.STORAGE
        assert cause.startswith("OSError: [Errno 28] No space left on device")
        assert "RuntimeError: unexpected pos 64" in cause
    cause = causes.describe_cause(raised_after(full, from_=None))
    assert causes.classify_cause(cause) == CauseKind.UNKNOWN


def raised_after(error: Exception, **cause: Exception | None) -> Exception:
    """A second error while the first is handled; from_: what it is said to be raised from."""
    second = RuntimeError("unexpected pos 64")
    second.__context__ = error
    if cause:
        second.__cause__ = cause["from_"]  # sets __suppress_context__, as `raise ... from` does
    return second


def older(science: dict[str, Any]) -> dict[str, Any]:
    """The same cell as it was recorded before there were options with neutral values."""
    for path, neutral in NEUTRAL.items():
        if get(science, path) == neutral:
            science = remove_key(science, path)
    return science


def test_an_older_cell_differs_in_nothing_but_what_was_set() -> None:
    now = compose.cell(["model=capsnet", "seed=1"]).science
    before = older(compose.cell(["model=capsnet", "seed=2"]).science)
    assert "gradient" not in before["routing"]
    assert find_differences(now, before) == {"seed": (1, 2)}
    assert find_differences(before, now) == {"seed": (2, 1)}


def test_an_option_is_compared_to_its_neutral_value_where_its_group_stands() -> None:
    now = compose.cell(["model=capsnet", "routing.gradient=last"]).science
    before = older(compose.cell(["model=capsnet"]).science)
    assert find_differences(now, before) == {"routing.gradient": ("last", "full")}
    without_routing = older(compose.cell(["model=cnn_small"]).science)
    assert find_differences(now, without_routing)["routing.gradient"] == ("last", None)
