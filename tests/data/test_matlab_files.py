"""SVHN and affNIST: MATLAB files, of which only the declared ones are decoded."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import official_files
import pytest
import torch
from official_files import matlab

from capsweep.data.images import Reader
from capsweep.data.official import SvhnReader
from capsweep.errors import DataError
from capsweep.storage.files import hash_bytes

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


X = official_files.noise(0, 32, 32, 3, 4)
Y = np.array([[1], [2], [10], [3]], dtype="u1")
NAMES = ["train_32x32", "test_32x32"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (matlab({"X": X}), "has no variable y"),
        (matlab({"X": X[:31], "y": Y}), r"X is uint8 \[31, 32, 3, 4\], not \[32, 32, 3, N\]"),
        (matlab({"X": X / 255, "y": Y}), "X is float64, not uint8"),
        (matlab({"X": X, "y": Y[:3]}), r"y is uint8 \[3, 1\], not \[4, 1\]"),
        (matlab({"X": X, "y": Y - 1}), r"y has labels 0\.\.9, not 1\.\.10"),
        (matlab({"X": X, "y": Y + 1}), r"y has labels 2\.\.11, not 1\.\.10"),
        (matlab({"X": X, "y": Y + 0.5}), r"y has labels"),
        (matlab({"X": X, "y": Y})[:-40], "not a MATLAB 5 file, or truncated"),
        (b"<html>", "not a MATLAB 5 file, or truncated"),
        (b"", "not a MATLAB 5 file, or truncated"),
    ],
)
def test_declared_files_of_svhn_of_another_content_are_refused_by_name(
    content: bytes, message: str, tmp_path: Path, refuses: Refuses
) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.mat").write_bytes(content)
    reader = SvhnReader(dict.fromkeys(NAMES, hash_bytes(content)), ["."])
    refuses(reader, tmp_path, rf"train_32x32\.mat: {message}")


IMAGE = official_files.noise(0, 1600, 3)
LABELS = np.array([[0, 5, 9]], dtype="u1")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (IMAGE, r"affNISTdata has fields \[\]"),
        ({"image": IMAGE}, r"affNISTdata has fields \['image'\]"),
        ({"image": IMAGE[:784], "label_int": LABELS}, r"image is uint8 \[784, 3\], not \[1600, N"),
        ({"image": IMAGE.astype("u2"), "label_int": LABELS}, "image is uint16, not uint8"),
        ({"image": IMAGE, "label_int": LABELS[:, :2]}, r"label_int is uint8 \[1, 2\], not \[1, 3"),
        ({"image": IMAGE, "label_int": LABELS + 1}, r"label_int 1\.\.10, not 0\.\.9"),
    ],
)
def test_a_declared_file_of_affnist_of_another_content_is_refused_by_name(
    fields: object, message: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_affnist(tmp_path)
    content = matlab({"affNISTdata": fields})
    (tmp_path / "affnist" / "test.mat").write_bytes(content)
    overrides[-1] = f"dataset.test.sha256.test={hash_bytes(content)}"
    reader = reader_of("dataset=affnist", "dataset.validation=0", *overrides)
    refuses(reader, tmp_path, rf"test\.mat: {message}")


def test_the_digits_of_the_real_affnist_stand_upright(
    data_folder: Path, tmp_path: Path, reader_of: ReaderOf
) -> None:
    # Whatever file is there is accepted here: without its official hash, this test is its proof.
    offline = ("dataset=affnist", "dataset.reader.mirrors=[]", "dataset.validation=0")
    with pytest.raises(DataError) as refused:
        reader_of(*offline).read(str(data_folder))
    if "not found" in str(refused.value):
        pytest.skip(f"no affNIST in {data_folder}; set CAPSWEEP_TEST_DATA")
    folder = tmp_path / "data"  # in which a cache may be written
    folder.mkdir()
    for path in data_folder.iterdir():
        (folder / path.name).symlink_to(path)
    declared = str(refused.value).rpartition(" set ")[2]
    test = reader_of(*offline, declared).read(str(folder)).test
    ones = test.images_NCHW[test.labels_N == 1, 0].double()
    place = torch.arange(40.0, dtype=torch.float64)
    spread = []
    for dim in (2, 1):  # of the rows, of the columns
        ink = ones.sum(dim=dim)
        mean = (ink * place).sum(1) / ink.sum(1)
        spread.append(((ink * (place - mean[:, None]) ** 2).sum(1) / ink.sum(1)).mean())
    assert spread[0] > spread[1]  # a one is taller than wide
