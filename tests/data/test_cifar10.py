"""CIFAR-10's binary version: found in every form people keep it in, and never mistaken."""

from collections.abc import Callable
from pathlib import Path

import official_files
import pytest
import torch

from capsweep.data.images import Reader

ReaderOf = Callable[..., Reader]
Refuses = Callable[[Reader, Path, str], None]


@pytest.mark.parametrize(
    ("form", "place"), [("archive", "."), ("plain", "cifar-10-batches-bin"), ("xz", "cifar10")]
)
def test_every_form_gives_the_same_images_wherever_people_have_it(
    form: str, place: str, tmp_path: Path, reader_of: ReaderOf
) -> None:
    overrides = official_files.write_cifar10(tmp_path / "made", train=12, test=3, form=form)
    (tmp_path / "data" / place).mkdir(parents=True)
    for path in (tmp_path / "made" / "cifar10").iterdir():
        path.rename(tmp_path / "data" / place / path.name)
    reader = reader_of("dataset=cifar10", *overrides)
    reader.check(str(tmp_path / "data"))
    splits = reader.read(str(tmp_path / "data"))
    parts = [official_files.noise(seed, n, 3, 32, 32) for seed, n in enumerate([3, 3, 2, 2, 2])]
    expected = torch.cat([torch.from_numpy(part) for part in parts])
    assert torch.equal(splits.train.images_NCHW, expected)
    assert splits.train.labels_N.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 0, 1]
    assert splits.train.labels_N.dtype == torch.int64
    assert splits.test.images_NCHW.shape == (3, 3, 32, 32)
    assert splits.test.labels_N.tolist() == [0, 1, 2]


def test_the_pickled_version_is_said_to_be_another(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    (tmp_path / "cifar-10-python.tar.gz").touch()
    message = (
        r"data_batch_1\.bin.* not found .*cifar-10-binary\.tar\.gz, the pickled version is never"
    )
    refuses(reader_of("dataset=cifar10"), tmp_path, message)


def test_the_approximate_copy_has_no_publisher_and_the_official_files_are_not_it(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    reader = reader_of("dataset=cifar10_approximate")
    refuses(reader, tmp_path, r"test_batch\.bin not found .*nobody offers this copy.*=cifar10\)")
    official_files.write_cifar10(tmp_path, form="plain")
    refuses(reader, tmp_path, r"data_batch_1\.bin: truncated or altered .*dataset=cifar10\)$")


@pytest.fixture
def real(data_folder: Path) -> Path:
    """The data folder, which may well be read-only."""
    if not (data_folder / "cifar10" / "data_batch_1.bin.xz").is_file():
        pytest.skip(f"no CIFAR-10 in {data_folder}; set CAPSWEEP_TEST_DATA")
    return data_folder


@pytest.mark.slow
def test_the_real_images_have_ten_classes_of_equal_size(real: Path, reader_of: ReaderOf) -> None:
    reader = reader_of("dataset=cifar10_approximate")
    splits = reader.read(str(real))
    for examples, count in ((splits.train, 5000), (splits.test, 1000)):
        assert examples.labels_N.bincount().tolist() == [count] * 10
        assert examples.images_NCHW.shape == (10 * count, 3, 32, 32)
    means = splits.train.images_NCHW.double().mean(dim=(0, 2, 3))
    assert means.tolist() == pytest.approx([125.3, 123.0, 113.9], abs=0.1)  # as published
    assert splits.train.labels_N[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, car
    again = reader.read(str(real))
    assert torch.equal(splits.train.images_NCHW, again.train.images_NCHW)
    assert torch.equal(splits.test.labels_N, again.test.labels_N)
