"""Why a cell failed: told from the type of what was raised, not from its words."""

import errno
import json
from pathlib import Path

import pytest
import torch
from small_disks import small_disk

from capsweep.errors import ConfigError, DataError, NodeError, NonFiniteLossError, WorkerLostError
from capsweep.ledger import causes
from capsweep.ledger.causes import Kind
from capsweep.storage.files import write_atomically


class OwnError(LookupError):
    """Of a kind by its base alone."""


class OddError(Exception):
    """Of no kind."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), Kind.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), Kind.OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Kind.OUT_OF_MEMORY),
        (MemoryError(), Kind.OUT_OF_MEMORY),
        (NonFiniteLossError("the loss was not finite"), Kind.NOT_FINITE),
        (DataError("train.gz is truncated"), Kind.DATA),
        (json.JSONDecodeError("Expecting value", "", 0), Kind.DATA),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), Kind.DATA),
        (NodeError("other versions"), Kind.NODE),
        (WorkerLostError("killed"), Kind.LOST),
        (OSError(errno.ENOSPC, "No space left on device"), Kind.STORAGE),
        (FileNotFoundError(errno.ENOENT, "No such file", "data"), Kind.STORAGE),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), Kind.STORAGE),
        (OSError(errno.ENOTCONN, "Transport endpoint is not connected"), Kind.STORAGE),
        (TimeoutError("timed out"), Kind.STORAGE),
        (ConfigError("epochs must be >= 1"), Kind.CODE),
        (TypeError("timeouterror: no such argument"), Kind.CODE),
        (ValueError("an oserror in a text is none"), Kind.CODE),
        (OwnError("missing"), Kind.CODE),
        (ZeroDivisionError("division by zero"), Kind.CODE),
        (RuntimeError("CUDA error: unspecified launch failure"), Kind.UNKNOWN),
        (OddError("what is this"), Kind.UNKNOWN),
    ],
)
def test_the_type_of_an_error_decides_its_kind(error: Exception, kind: Kind) -> None:
    assert causes.kind(causes.of(error)) == kind
    on_a_device = f"RankFailedError: device 1 of 2: {causes.of(error)}"
    assert causes.kind(on_a_device) == kind


def test_only_what_is_provably_of_the_code_is_not_tried_again() -> None:
    assert not causes.can_succeed(causes.of(TypeError("a bug")))
    assert not causes.can_succeed(causes.of(NonFiniteLossError("step 3")))
    assert causes.can_succeed(causes.of(RuntimeError("who knows")))


def test_what_was_raised_from_a_full_disk_is_of_the_storage() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    for error in (raised_after(full, from_=full), raised_after(full)):
        cause = causes.of(error)
        assert causes.kind(cause) == Kind.STORAGE
        assert cause.startswith("OSError: [Errno 28] No space left on device")
        assert "RuntimeError: unexpected pos 64" in cause
    assert causes.kind(causes.of(raised_after(full, from_=None))) == Kind.UNKNOWN


def raised_after(error: Exception, **cause: Exception | None) -> Exception:
    """A second error while the first is handled; from_: what it is said to be raised from."""
    second = RuntimeError("unexpected pos 64")
    second.__context__ = error
    if cause:
        second.__cause__ = cause["from_"]  # sets __suppress_context__, as `raise ... from` does
    return second


def test_a_checkpoint_that_finds_the_disk_full_is_of_the_storage(tmp_path: Path) -> None:
    weights = {"weight": torch.zeros(1_000_000)}
    with (
        small_disk(tmp_path / "disk", megabytes=1) as disk,
        pytest.raises((OSError, RuntimeError)) as full,
    ):
        write_atomically(disk / "weights.ckpt", lambda file: torch.save(weights, file))
    assert causes.kind(causes.of(full.value)) == Kind.STORAGE


def test_causes_of_earlier_versions_are_read() -> None:
    assert causes.kind("StoreError: s3://bucket refuses") == Kind.STORAGE
    assert causes.kind(causes.lost("its worker process is gone")) == Kind.LOST
    assert causes.kind("") == Kind.UNKNOWN
