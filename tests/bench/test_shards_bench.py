"""The benchmark of shards measures only shards that hold what is composed, and leaves nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from capsweep.bench import shards, shards_growth, shards_reading
from capsweep.bench.parity import ParityError
from capsweep.bench.shards_growth import Growth
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
    shards.gate(tmp_path)
    assert not list(tmp_path.glob("*.h5"))


@pytest.mark.parametrize("field", ["images", "labels", "indices", "shifts", "digits"])
def test_a_shard_that_holds_something_else_is_not_measured(field: str, tmp_path: Path) -> None:
    with pytest.raises(ParityError, match=f"{field} of a shard are not those composed"):
        shards.gate(tmp_path, spoilt(field))


def test_all_is_measured_and_nothing_is_left(scratch: Path, tmp_path: Path) -> None:
    report = shards.measure(budget=0, examples=2_000, workers=((2_000, True),), shards=2)
    assert all(measured.value is not None for measured in report.measured)
    assert {measured.bar for measured in report.measured} == {
        300_000,
        150_000,
        500_000,
        1.2,
        500,
        None,
    }
    resident = report.measured[-1].value or 0.0
    assert 100 < resident < 1_000  # MB, torch included
    assert [row["examples"] for row in report.timings] == [
        2_000,
        2_000,
        4_000,
        70_000_000,
        70_000_000,
    ]
    assert all(rate > 0 for rate in report.limits.values())
    assert not list(scratch.iterdir())
    assert not list(user_cache().glob("*.*"))


def test_a_disk_that_is_too_full_is_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "NEEDED", 1e18)
    (measured,) = shards.measure().measured
    assert measured.verdict == "skipped"
    assert measured.skipped.endswith("1000000000.0 GB needed; set TMPDIR")


def test_cost_grows_with_what_the_many_take_beyond_one() -> None:
    even = Growth(100, many=[2.0] * 10, single=[2.0, 2.0, 9.0], index=0.0)
    assert (even.ratio, even.of_one) == (1.0, 0.02)
    assert Growth(100, many=[2.0] * 5 + [4.0] * 5, single=[2.0], index=0.0).ratio == 1.5
    assert Growth(100, many=[2.0] * 10, single=[2.0], index=10.0).ratio == 1.5
    assert even.measured().verdict == "kept"


def test_the_full_data_set_takes_its_share_of_each_core() -> None:
    one, many = shards_growth.extrapolated(seconds=1e-5, size=1300)
    assert (one["cores"], many["cores"]) == (1, 64)
    assert one["seconds"] == pytest.approx(700)
    assert many["seconds"] == pytest.approx(700 / 64)
    assert one["GB"] == many["GB"] == pytest.approx(91)
    assert many["GB/s"] == pytest.approx(64 * one["GB/s"])


def test_what_is_known_of_files_does_not_outlive_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shards_reading.CACHE, "before")
    with shards_reading.shards_read(tmp_path, 1_000) as (folder, found):
        assert os.environ[shards_reading.CACHE].startswith(str(tmp_path))
        for call in shards_reading.calls(folder, found).values():
            call()
    assert os.environ[shards_reading.CACHE] == "before"
