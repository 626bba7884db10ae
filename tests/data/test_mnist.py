"""The official MNIST files, as conf/dataset/mnist.yaml declares them."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from capsweep.config import compose
from capsweep.data.images import Splits
from capsweep.data.official import IdxReader

pytestmark = pytest.mark.mnist

TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # 0 .. 9
TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture(scope="module")
def read() -> Callable[[Path], Splits]:
    """Reads with the declared sha256, and downloads nothing."""
    declared = compose.cell(["dataset=mnist"]).config["dataset"]["reader"]
    arguments = {key: value for key, value in declared.items() if key != "_target_"}
    return lambda folder: IdxReader(**{**arguments, "mirrors": []}).read(str(folder))


@pytest.fixture(scope="module")
def mnist(data_folder: Path, read: Callable[[Path], Splits]) -> Splits:
    """From the compressed files."""
    return read(data_folder)


def test_mnist_has_its_published_counts(mnist: Splits) -> None:
    for examples, histogram in ((mnist.train, TRAIN), (mnist.test, TEST)):
        assert examples.images_NCHW.shape == (sum(histogram), 1, 28, 28)
        assert examples.images_NCHW.dtype == torch.uint8
        assert examples.labels_N.bincount().tolist() == histogram


def test_the_first_training_image_is_the_famous_five(mnist: Splits) -> None:
    assert mnist.train.labels_N[:5].tolist() == [5, 0, 4, 1, 9]
    image_HW = mnist.train.images_NCHW[0, 0]
    assert image_HW.max() == 255
    ink_rows = image_HW.any(dim=1).nonzero().flatten()
    assert (int(ink_rows[0]), int(ink_rows[-1])) == (5, 24)


def test_plain_files_give_the_same_tensors(
    mnist: Splits, data_folder: Path, tmp_path: Path, read: Callable[[Path], Splits]
) -> None:
    for path in (data_folder / "mnist").glob("*.gz"):
        (tmp_path / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    plain = read(tmp_path)
    for one, other in ((mnist.train, plain.train), (mnist.test, plain.test)):
        assert torch.equal(one.images_NCHW, other.images_NCHW)
        assert torch.equal(one.labels_N, other.labels_N)
