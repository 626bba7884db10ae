"""One's own images and labels, read from an .npz file."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsweep.data.arrays import NpzReader
from capsweep.errors import DataError
from capsweep.storage.checked import open_npz
from capsweep.storage.files import hash_file

DRAW = np.random.default_rng(0)
IMAGES = DRAW.integers(0, 256, (6, 2, 5, 7), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8)
OBJECTS = np.array([{}] * 6)


def save(folder: Path, declared: str | None = None, **changed: Any) -> NpzReader:
    """A file, and its reader; None: an array is left out."""
    content = {"train_images": IMAGES, "train_labels": LABELS, "test_images": IMAGES[:2]}
    content |= {"test_labels": LABELS[:2], **changed}
    np.savez(folder / "own.npz", **{k: v for k, v in content.items() if v is not None})
    return make_reader(folder, declared)


def make_reader(folder: Path, axes: str | None = None) -> NpzReader:
    """The reader of the file that is there."""
    return NpzReader({"own": hash_file(folder / "own.npz")}, ["."], num_classes=3, axes=axes)


def assert_refused(folder: Path, message: str) -> None:
    """Assert that the file that is there is refused by one line with its name."""
    with pytest.raises(DataError, match=rf"own\.npz: .*{message}") as refused:
        make_reader(folder).read(str(folder))
    assert "\n" not in str(refused.value)


def test_a_file_beside_its_yaml_needs_no_data_folder(tmp_path: Path) -> None:
    reader = save(tmp_path)
    message = r"nowhere does not exist; set DATA_DIR to the folder that has own\.npz from conf/"
    with pytest.raises(DataError, match=message):
        reader.read(str(tmp_path / "nowhere"))
    beside = NpzReader(reader.sha256, [str(tmp_path)], num_classes=3)
    assert len(beside.read(str(tmp_path / "nowhere")).train.labels_N) == len(LABELS)


def shape_images(*shape: int) -> dict[str, np.ndarray]:
    """Arrays of images of this shape, of the splits that `save` writes."""
    images = DRAW.integers(0, 256, (6, *shape), dtype=np.uint8)
    return {"train_images": images, "test_images": images[:2]}


def declare_shape(path: Path, name: str, shape: tuple[int, ...]) -> None:
    """Write an .npz again, in which the header of one array declares another shape."""
    with zipfile.ZipFile(path) as archive:
        contents = {member: archive.read(member) for member in archive.namelist()}
    stored, header = io.BytesIO(contents[f"{name}.npy"]), io.BytesIO()
    np.lib.format.read_magic(stored)
    _, order, dtype = np.lib.format.read_array_header_1_0(stored)
    described = {"descr": dtype.str, "fortran_order": order, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    contents[f"{name}.npy"] = header.getvalue() + stored.read()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in contents.items():
            archive.writestr(member, content)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"train_labels": LABELS[:, None], "test_labels": LABELS[:2, None]},
        {"train_labels": LABELS.astype(">i8"), "test_labels": LABELS[:2].astype(">u2")},
        {"train_labels": LABELS.astype(np.float16)},
        {"train_images": np.asfortranarray(IMAGES)},
    ],
)
def test_other_ways_to_write_the_same_numbers_are_taken(
    changed: dict[str, np.ndarray], tmp_path: Path
) -> None:
    splits = save(tmp_path, **changed).read(str(tmp_path))
    np.testing.assert_array_equal(splits.train.images_NCHW.numpy(), IMAGES)
    np.testing.assert_array_equal(splits.train.labels_N.numpy(), LABELS)
    np.testing.assert_array_equal(splits.test.images_NCHW.numpy(), IMAGES[:2])
    assert splits.validation is None


def test_validation_images_of_the_file_are_the_validation_split(tmp_path: Path) -> None:
    reader = save(tmp_path, val_images=IMAGES[3:5], val_labels=LABELS[3:5, None])
    for _ in range(2):  # of the file, and of the cache
        splits = reader.read(str(tmp_path))
        assert splits.validation is not None
        np.testing.assert_array_equal(splits.validation.images_NCHW.numpy(), IMAGES[3:5])
        np.testing.assert_array_equal(splits.validation.labels_N.numpy(), LABELS[3:5])
        np.testing.assert_array_equal(splits.train.images_NCHW.numpy(), IMAGES)
        np.testing.assert_array_equal(splits.test.images_NCHW.numpy(), IMAGES[:2])


@pytest.mark.parametrize(
    ("shape", "axes", "read"),
    [
        ((28, 28, 3), None, (3, 28, 28)),
        ((3, 28, 28), None, (3, 28, 28)),
        ((1, 28, 1), "hwc", (1, 1, 28)),
        ((13, 30, 32), "chw", (13, 30, 32)),
        ((28, 28), "chw", (1, 28, 28)),
    ],
)
def test_axes_are_those_that_the_shape_tells_or_that_are_named(
    shape: tuple[int, ...], axes: str | None, read: tuple[int, ...], tmp_path: Path
) -> None:
    images = shape_images(*shape)
    splits = save(tmp_path, axes, **images).read(str(tmp_path))
    written = images["train_images"]
    if len(shape) == 3 and read != shape:
        written = written.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(splits.train.images_NCHW.numpy(), written.reshape(6, *read))


@pytest.mark.parametrize("shape", [(3, 32, 3), (13, 30, 32)])
def test_axes_that_a_shape_leaves_open_are_told_by_the_file(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    images = shape_images(*shape)
    save(tmp_path, **images)
    assert_refused(tmp_path, "channels of .* rows and .*, or .*; store which, as axes='chw' or")
    train = save(tmp_path, **images, axes="hwc").read(str(tmp_path)).train
    written = images["train_images"].transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(train.images_NCHW.numpy(), written)
    save(tmp_path, **images, axes="nhwc")
    assert_refused(tmp_path, "nhwc")


DARK = (IMAGES > 127).astype(np.uint8)
STANDARDISED = ((IMAGES - 127.0) / 50).astype(np.int8).astype(np.uint8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_labels": None}, "it has no train_labels; it has train_images, test_images, test_"),
        ({"val_images": IMAGES}, "it has no val_labels"),
        ({"val_images": IMAGES[:, :1], "val_labels": LABELS}, r"val_images are \[1, 5, 7\] each"),
        ({"train_images": IMAGES / 255}, r"are float64, not uint8; write intensities 0\.\.255"),
        ({"train_images": IMAGES.reshape(6, -1)}, r"train_images have the shape \(6, 70\); save"),
        ({"train_images": IMAGES[:, :0]}, r"train_images is empty: its shape is \(6, 0, 5, 7\)"),
        ({"test_labels": LABELS[:1]}, r"test_labels are uint8 \(1,\) for 2 images; write one c"),
        ({"train_labels": np.eye(3)[LABELS]}, r"from one-hot rows: labels\.argmax"),
        ({"train_labels": LABELS + 1}, r"labels 1\.\.3, not 0\.\.2"),
        ({"test_labels": LABELS[:2] + 4}, r"labels 4\.\.5, not 0\.\.2"),
        ({"train_labels": LABELS // 2}, "no training example has class 2"),
        ({"train_labels": LABELS.astype(str)}, r"are <U3 \(6,\) for 6 images; write one class"),
        ({"train_images": OBJECTS}, "Object arrays cannot be loaded"),
        ({"test_images": IMAGES[[3, 3]]}, "test_images are all identical"),
        ({"val_images": DARK, "val_labels": LABELS}, "val_images have only the values 0, 1, as"),
        ({"train_images": STANDARDISED}, "have only the values 0, 1, 2, 254, 255"),
    ],
)
def test_other_arrays_are_refused_saying_which_and_the_cure(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save(tmp_path, **changed)
    assert_refused(tmp_path, message)


def test_images_of_black_and_white_are_taken(tmp_path: Path) -> None:
    white = {"train_images": DARK * 255, "test_images": DARK[:2] * 255}
    splits = save(tmp_path, **white).read(str(tmp_path))
    np.testing.assert_array_equal(splits.train.images_NCHW.numpy(), DARK * 255)


@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x03\x00\x00\x00\x00\x00", b"\x80\x04N."])
def test_a_member_that_is_no_array_is_refused(content: bytes, packed: int, tmp_path: Path) -> None:
    save(tmp_path)
    with zipfile.ZipFile(tmp_path / "own.npz", "a") as archive:
        archive.writestr("more.npy", content, packed)
    assert_refused(tmp_path, "save by np.savez")


def test_a_file_that_is_cut_or_no_archive_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    path, buffer = tmp_path / "own.npz", io.BytesIO()
    np.save(buffer, IMAGES)
    for content in (path.read_bytes()[:-30], path.read_bytes()[40:], b"", buffer.getvalue()):
        path.write_bytes(content)
        assert_refused(tmp_path, "save by np.savez")


HUGE = 2**40


@pytest.mark.parametrize("shape", [(HUGE, 28, 28), (2**62, 2**62), (0, 2**70), (-1, -12), (3,)])
def test_an_array_that_declares_another_size_than_it_has_is_refused_before_it_is_read(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    save(tmp_path)
    declare_shape(tmp_path / "own.npz", "test_labels", shape)
    assert_refused(tmp_path, r"test_labels\.npy declares .* but has 2 bytes; save")


@pytest.mark.parametrize("field", ["file_size", "compress_size"])
def test_a_member_that_declares_more_bytes_than_the_file_can_hold_is_refused(field: str) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("scores.npy", b"\0" * 1000)
        setattr(archive.infolist()[0], field, HUGE)  # as the list at the end of the file has it
    with pytest.raises(ValueError, match=r"scores\.npy: 1,.* bytes in a file of"):
        open_npz(file)


def test_a_file_of_another_hash_is_not_read(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(DataError, match=r"own\.npz: truncated or altered"):
        NpzReader({"own": "0" * 64}, ["."], num_classes=3).read(str(tmp_path))
    with pytest.raises(DataError, match=r"set dataset\.reader\.sha256\.own=[0-9a-f]{64}"):
        NpzReader({"own": "unknown"}, ["."], num_classes=3).read(str(tmp_path))
