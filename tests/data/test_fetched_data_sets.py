"""Every data set of official files, read from an object store."""

from collections.abc import Callable
from pathlib import Path

import official_files
import pytest
from s3_objects import S3Server

from capsweep.config import compose
from capsweep.data.images import Reader
from capsweep.training import build

BUCKET = "bucket/data"


def reader(overrides: list[str]) -> Reader:
    """The reader that overrides give."""
    return build.build_reader(compose.cell(overrides).config)


Official = Callable[[Path], list[str]]


@pytest.mark.parametrize(
    ("dataset", "write"),
    [
        ("cifar10", official_files.write_cifar10),
        ("svhn", official_files.write_svhn),
        ("smallnorb", official_files.write_smallnorb),
        ("affnist", official_files.write_affnist),
    ],
)
def test_other_data_sets_come_from_a_store_and_are_then_there(
    dataset: str,
    write: Official,
    store: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overrides = [f"dataset={dataset}", "dataset.validation=0", *write(tmp_path / "made")]
    store.upload(tmp_path / "made", BUCKET)
    expected = reader(overrides).read(str(tmp_path / "made"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another-cache"))
    found = reader(overrides).read(store.url(BUCKET))
    assert found.test.images_NCHW.equal(expected.test.images_NCHW)
    store.forget()
    reader(overrides).check(store.url(BUCKET))
    assert store.total == 0
