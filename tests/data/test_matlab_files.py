"""SVHN and affNIST: MATLAB files, of which only the declared ones are decoded."""

from collections.abc import Callable
from pathlib import Path

import official_files
import pytest
import torch

from capsweep.data.images import Reader

ReaderOf = Callable[..., Reader]
Refuses = Callable[[Reader, Path, str], None]


def test_svhn_is_read_with_its_label_10_as_the_digit_0(tmp_path: Path, reader_of: ReaderOf) -> None:
    overrides = official_files.write_svhn(tmp_path, train=12, test=11)
    splits = reader_of("dataset=svhn", *overrides).read(str(tmp_path))
    pixels_HWCN = torch.from_numpy(official_files.noise(0, 32, 32, 3, 12))
    assert splits.train.images_NCHW[7, 2, 5, 30] == pixels_HWCN[5, 30, 2, 7]
    assert torch.equal(splits.train.images_NCHW, pixels_HWCN.permute(3, 2, 0, 1))
    assert splits.test.labels_N.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert splits.test.labels_N.dtype == torch.int64


@pytest.mark.parametrize("batches", [None, 1, 12])
def test_affnist_trains_on_mnist_and_tests_on_its_own_images(
    batches: int | None, tmp_path: Path, reader_of: ReaderOf
) -> None:
    overrides = official_files.write_affnist(tmp_path, train=6, test=24, batches=batches)
    reader = reader_of("dataset=affnist", "dataset.validation=0", *overrides)
    reader.check(str(tmp_path))
    splits = reader.read(str(tmp_path))
    digits = torch.from_numpy(official_files.noise(0, 6, 28, 28))
    assert torch.equal(splits.train.images_NCHW[:, 0], digits)
    expected = torch.from_numpy(official_files.noise(7, 24, 40, 40))
    assert torch.equal(splits.test.images_NCHW[:, 0], expected)
    assert splits.test.labels_N.tolist() == [n % 10 for n in range(24)]
    assert splits.test.labels_N.dtype == torch.int64
