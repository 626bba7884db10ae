"""What follows from code and configuration alone is computed once on a machine, and never stale."""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from caches import forget

from capsweep.config import compose
from capsweep.storage.checked import KEPT_SECONDS, compute_once
from capsweep.training import size as sizes
from capsweep.training.size import measure_size


@pytest.fixture(autouse=True)
def computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a cache that is empty; this process remembers nothing either."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    forget(compose)
    yield tmp_path / "empty" / "capsweep" / "computed"
    forget(compose)


@pytest.fixture
def compute() -> Callable[[], int]:
    """Counts how often it was called."""
    calls = iter(range(100))
    return lambda: next(calls)


@pytest.mark.parametrize("damage", [b"", b"1", b"no digest\n0", b"\xff\xfe\n0"])
def test_a_value_is_computed_once_and_a_damaged_file_counts_as_absent(
    damage: bytes, compute: Callable[[], int], computed: Path
) -> None:
    assert [compute_once("counts", key, compute) for key in "aaba"] == [0, 0, 1, 0]
    for path in (computed / "counts").iterdir():
        path.write_bytes(damage)
    assert [compute_once("counts", "a", compute) for _ in range(2)] == [2, 2]


def test_without_a_place_values_are_computed_each_time(
    compute: Callable[[], int], tmp_path: Path
) -> None:
    (tmp_path / "empty").write_text("a file where the folder would be")
    assert [compute_once("counts", "a", compute) for _ in range(2)] == [0, 1]


def test_values_of_a_month_ago_go(compute: Callable[[], int], computed: Path) -> None:
    compute_once("counts", "a", compute)
    (old,) = (computed / "counts").iterdir()
    long_ago = time.time() - KEPT_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    compute_once("counts", "b", compute)
    assert not old.exists()


def test_a_composition_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for storage in ("one", "other"):
        forget(compose)
        monkeypatch.setenv("STORAGE", storage)
        assert Path(compose.cell([]).config["places"]["storage"]).name == storage


def test_a_composition_follows_the_files_of_conf(conf_tree: Callable[[], Path]) -> None:
    assert compose.cell(["dataset=mnist"]).config["dataset"]["shift"] != 7
    path = conf_tree() / "dataset" / "mnist.yaml"
    path.write_text(re.sub("(?m)^shift: .*", "shift: 7", path.read_text()))
    assert compose.cell(["dataset=mnist"]).config["dataset"]["shift"] == 7


def test_a_size_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose.cell(["model=cnn_small", "dataset=digits"]).config
    before = measure_size(config)
    monkeypatch.setattr(sizes.code_identity, "hash_package", lambda: "other code")
    measured, measure = [], sizes.measure_layers
    monkeypatch.setattr(
        sizes, "measure_layers", lambda config: measured.append(1) or measure(config)
    )
    assert measure_size(config) == measure_size(config) == before
    assert len(measured) == 1
