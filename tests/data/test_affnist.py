"""affNIST: trained on MNIST, tested on transformed digits that stand upright."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import official_files
import pytest
import torch

from capsweep.config import compose
from capsweep.data.images import Reader
from capsweep.errors import DataError
from capsweep.storage.files import hash_bytes
from capsweep.training import build

Refuses = Callable[[Reader, Path, str], None]


def reader_of(overrides: list[str]) -> Reader:
    """The reader of dataset=affnist with these overrides, downloading nothing."""
    offline = ["dataset=affnist", "dataset.reader.mirrors=[]", "dataset.validation=0"]
    kept = [text for text in overrides if text not in offline]
    return build.build_reader(compose.cell([*offline, *kept]).config)


@pytest.mark.parametrize("batches", [None, 1, 3])
def test_training_images_are_mnists_and_test_images_are_affnists(
    batches: int | None, tmp_path: Path
) -> None:
    overrides = official_files.write_affnist(tmp_path, train=6, test=11, batches=batches)
    reader = reader_of(overrides)
    reader.check(str(tmp_path))
    splits = reader.read(str(tmp_path))
    digits = torch.from_numpy(official_files.noise(0, 6, 28, 28))
    assert torch.equal(splits.train.images_NCHW[:, 0], digits)
    assert splits.train.labels_N.tolist() == [0, 1, 2, 3, 4, 5]
    expected = torch.from_numpy(official_files.noise(7, 11, 40, 40))
    assert torch.equal(splits.test.images_NCHW[:, 0], expected)
    assert splits.test.labels_N.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert splits.test.labels_N.dtype == torch.int64


def test_ten_batches_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    overrides = official_files.write_affnist(tmp_path, train=1, test=24, batches=12)
    splits = reader_of(overrides).read(str(tmp_path))
    expected = torch.from_numpy(official_files.noise(7, 24, 40, 40))
    assert torch.equal(splits.test.images_NCHW[:, 0], expected)


@pytest.mark.parametrize("batches", [None, 3])
def test_files_of_unknown_hash_are_never_read(
    batches: int | None, tmp_path: Path, refuses: Refuses
) -> None:
    overrides = official_files.write_affnist(tmp_path, batches=batches)
    source = [text for text in overrides if ".test.sha256." not in text]
    [declared] = [text for text in overrides if ".test.sha256." in text]
    refuses(reader_of(source), tmp_path, f"not known to us.* set {declared}$")


@pytest.mark.parametrize("batches", [None, 3])
def test_a_truncated_file_is_refused(batches: int | None, tmp_path: Path, refuses: Refuses) -> None:
    overrides = official_files.write_affnist(tmp_path, batches=batches)
    path = tmp_path / "affnist" / ("test.mat" if batches is None else "test_batches/2.mat")
    path.write_bytes(path.read_bytes()[:-1])
    named = path if batches is None else path.parent
    refuses(reader_of(overrides), tmp_path, rf"{named}: truncated or altered .*tijmen/affNIST")


def test_a_missing_batch_is_named(tmp_path: Path, refuses: Refuses) -> None:
    overrides = official_files.write_affnist(tmp_path, batches=3)
    missing = tmp_path / "affnist" / "test_batches" / "2.mat"
    missing.unlink()
    refuses(reader_of(overrides), tmp_path, rf"{missing}: missing; download it from https://")


def test_missing_files_are_named_with_who_offers_them(tmp_path: Path, refuses: Refuses) -> None:
    overrides = official_files.write_affnist(tmp_path)
    (tmp_path / "affnist" / "test.mat").unlink()
    message = r"test\.mat or test_batches/1\.mat .* not found .*https://www\.cs\.toronto\.edu/~tij"
    refuses(reader_of(overrides), tmp_path, message)


def test_missing_training_images_are_named_by_their_own_reader(
    tmp_path: Path, refuses: Refuses
) -> None:
    overrides = official_files.write_affnist(tmp_path)
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").unlink()
    refuses(reader_of(overrides), tmp_path, r"train-images-idx3-ubyte\.gz is absent")


IMAGE = official_files.noise(0, 1600, 3)
LABELS = np.array([[0, 5, 9]], dtype="u1")


def affnist(**fields: object) -> bytes:
    """A file with these fields."""
    return official_files.matlab({"affNISTdata": fields})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (official_files.matlab({"image": IMAGE}), "has no variable affNISTdata"),
        (official_files.matlab({"affNISTdata": IMAGE}), r"affNISTdata has fields \[\]"),
        (affnist(image=IMAGE), r"affNISTdata has fields \['image'\]"),
        (affnist(image=IMAGE[:784], label_int=LABELS), r"image is uint8 \[784, 3\], not \[1600, N"),
        (affnist(image=IMAGE.astype("u2"), label_int=LABELS), "image is uint16, not uint8"),
        (affnist(image=IMAGE, label_int=LABELS[:, :2]), r"label_int is uint8 \[1, 2\], not \[1, 3"),
        (affnist(image=IMAGE, label_int=LABELS + 1), r"label_int 1\.\.10, not 0\.\.9"),
        (b"<html>", "not a MATLAB 5 file, or truncated"),
    ],
)
def test_a_declared_file_of_another_content_is_refused_by_name(
    content: bytes, message: str, tmp_path: Path, refuses: Refuses
) -> None:
    overrides = official_files.write_affnist(tmp_path)
    (tmp_path / "affnist" / "test.mat").write_bytes(content)
    source = [text for text in overrides if ".test.sha256." not in text]
    declared = f"dataset.test.sha256.test={hash_bytes(content)}"
    refuses(reader_of([*source, declared]), tmp_path, rf"test\.mat: {message}")


def test_the_digits_of_the_real_file_stand_upright(data_folder: Path, tmp_path: Path) -> None:
    # Whatever file is there is accepted here: without its official hash, this test is its proof.
    with pytest.raises(DataError) as refused:
        reader_of([]).read(str(data_folder))
    if "not found" in str(refused.value):
        pytest.skip(f"no affNIST in {data_folder}; set CAPSWEEP_TEST_DATA")
    folder = tmp_path / "data"  # in which a cache may be written
    folder.mkdir()
    for path in data_folder.iterdir():
        (folder / path.name).symlink_to(path)
    test = reader_of([str(refused.value).rpartition(" set ")[2]]).read(str(folder)).test
    ones = test.images_NCHW[test.labels_N == 1, 0].double()
    place = torch.arange(40.0, dtype=torch.float64)
    spread = []
    for dim in (2, 1):  # of the rows, of the columns
        ink = ones.sum(dim=dim)
        mean = (ink * place).sum(1) / ink.sum(1)
        spread.append(((ink * (place - mean[:, None]) ** 2).sum(1) / ink.sum(1)).mean())
    assert spread[0] > spread[1]  # a one is taller than wide
