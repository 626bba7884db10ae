"""One's own images and labels, read from an .npz file."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored_arrays import declare_shape

from capsweep.data.arrays import NpzReader
from capsweep.errors import DataError
from capsweep.storage.files import hash_file
from capsweep.storage.npz import open_npz

DRAW = np.random.default_rng(0)
IMAGES = DRAW.integers(0, 256, (6, 2, 5, 4), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8)


def save(folder: Path, **changed: Any) -> NpzReader:
    """A file, and its reader; None: an array is left out."""
    arrays = {"train_images": IMAGES, "train_labels": LABELS, "test_images": IMAGES[:2]}
    arrays |= {"test_labels": LABELS[:2], **changed}
    np.savez(folder / "own.npz", **{k: v for k, v in arrays.items() if v is not None})
    return NpzReader({"own": hash_file(folder / "own.npz")}, ["."], num_classes=3)


def test_images_and_labels_are_those_of_the_file(tmp_path: Path) -> None:
    splits = save(tmp_path).read(str(tmp_path))
    np.testing.assert_array_equal(splits.train.images_NCHW.numpy(), IMAGES)
    np.testing.assert_array_equal(splits.train.labels_N.numpy(), LABELS)
    np.testing.assert_array_equal(splits.test.images_NCHW.numpy(), IMAGES[:2])


def test_images_without_channels_have_one(tmp_path: Path) -> None:
    grey = {"train_images": IMAGES[:, 0], "test_images": IMAGES[:2, 0]}
    splits = save(tmp_path, **grey).read(str(tmp_path))
    np.testing.assert_array_equal(splits.train.images_NCHW.numpy(), IMAGES[:, :1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_labels": None}, "train_labels is not a file in the archive"),
        ({"train_images": IMAGES / 255}, r"float64 \(6, 2, 5, 4\)"),
        ({"test_images": IMAGES[:2].reshape(2, -1)}, r"test has images \(2, 40\)"),
        ({"test_images": IMAGES[:2].transpose(0, 2, 3, 1)}, "have channels last"),
        ({"test_labels": LABELS[:1]}, "with 1 labels"),
        ({"train_labels": LABELS + 1}, r"labels 1\.\.3, not 0\.\.2"),
        ({"train_labels": LABELS / 2}, "labels 0.0"),
        ({"train_labels": np.array([{}] * 6)}, "allow_pickle=False"),
    ],
)
def test_other_arrays_are_refused_saying_which_and_how_to_write_them(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    reader = save(tmp_path, **changed)
    with pytest.raises(DataError, match=rf"own\.npz: .*{message}.*write it by np\.savez"):
        reader.read(str(tmp_path))


HUGE = 2**40


@pytest.mark.parametrize(
    "shape",
    [(HUGE, 28, 28), (2**62, 2**62), (HUGE,), (0, 2**70), (-1, -12), (3,), (10**400,)],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_an_array_that_declares_another_size_than_it_has_is_refused_before_it_is_read(
    shape: tuple[int, ...], is_packed: bool, tmp_path: Path
) -> None:
    save(tmp_path)
    declare_shape(tmp_path / "own.npz", "test_labels", shape, is_packed=is_packed)
    reader = NpzReader({"own": hash_file(tmp_path / "own.npz")}, ["."], num_classes=3)
    with pytest.raises(DataError, match=r"own\.npz: test_labels\.npy declares .* and has 2; write"):
        reader.read(str(tmp_path))


@pytest.mark.parametrize(("field", "size"), [("file_size", HUGE), ("compress_size", HUGE)])
def test_a_member_that_declares_more_bytes_than_the_file_can_hold_is_refused(
    field: str, size: int, tmp_path: Path
) -> None:
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("scores.npy", b"\0" * 1000)
        setattr(archive.infolist()[0], field, size)  # as the list at the end of the file has it
    with path.open("rb") as file, pytest.raises(ValueError, match=r"scores\.npy declares"):
        open_npz(file)


def test_a_file_of_another_hash_is_not_read(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(DataError, match=r"own\.npz: truncated or altered"):
        NpzReader({"own": "0" * 64}, ["."], num_classes=3).read(str(tmp_path))
    with pytest.raises(DataError, match=r"set dataset\.reader\.sha256\.own=[0-9a-f]{64}"):
        NpzReader({"own": "unknown"}, ["."], num_classes=3).read(str(tmp_path))
