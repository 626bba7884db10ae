"""The benchmark of shards measures only shards that hold what is composed, and leaves nothing."""

from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from capsweep.bench import shards
from capsweep.bench.comparison import ParityError
from capsweep.files import user_cache


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders of this test are made."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def spoilt(field: str) -> Callable[[Path], None]:
    """Changes one number of example 7."""

    def spoil(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            flat = file[field][7].flatten()
            flat[-1] ^= 1
            file[field][7] = flat.reshape(file[field].shape[1:])

    return spoil


def test_a_shard_holds_what_is_composed(tmp_path: Path) -> None:
    shards.check_shard(tmp_path)
    assert not list(tmp_path.glob("*.h5"))


@pytest.mark.parametrize("field", ["images", "labels", "indices", "shifts"])
def test_a_shard_that_holds_something_else_is_not_measured(field: str, tmp_path: Path) -> None:
    with pytest.raises(ParityError, match=f"{field} of a shard are not those composed"):
        shards.check_shard(tmp_path, spoilt(field))


def test_all_is_measured_and_nothing_is_left(scratch: Path) -> None:
    report = shards.measure(budget=0, examples=2_000, workers=(2_000,))
    assert all(measured.value is not None for measured in report.measured)
    assert [measured.bar for measured in report.measured] == [
        300_000,
        150_000,
        500_000,
        500_000,
        500,
    ]
    resident = report.measured[-1].value or 0.0
    assert 100 < resident < 1_000  # MB, torch included
    assert not list(scratch.iterdir())
    assert not list(user_cache().glob("*.*"))


def test_a_disk_that_is_too_full_is_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "NEEDED", 1e18)
    (measured,) = shards.measure().measured
    assert measured.verdict == "skipped"
    assert measured.skipped.endswith("1000000000.0 GB needed; set TMPDIR")
