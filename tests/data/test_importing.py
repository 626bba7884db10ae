"""Images and labels in the forms in which people have them, imported into one .npz file."""

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from official_files import labels, noise, write_idx
from PIL import Image

from capsweep.data.arrays import NpzReader
from capsweep.data.images import Splits
from capsweep.data.importing import Imported, import_data
from capsweep.data.pictures import decode_picture
from capsweep.errors import UserError

COLOURS, GREY = noise(0, 30, 8, 9, 3), noise(1, 30, 8, 8)
LABELS, NAMES = labels(30, 3), ("bee", "ant", "cow")
ROWS = np.column_stack([LABELS, GREY.reshape(30, -1)])


def save_pictures(folder: Path, images: np.ndarray) -> Path:
    """Write a PNG for each image into the folder of its class."""
    for number, image in enumerate(images):
        path = folder / NAMES[LABELS[number]] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


def save_csv(path: Path, rows: np.ndarray, first: str) -> Path:
    """Write rows below names of columns, of which the first is given; below nothing if it is ""."""
    names = [first, *(f"pixel{number}" for number in range(rows.shape[1] - 1))] if first else []
    np.savetxt(path, rows, "%g", ",", header=",".join(names), comments="")
    return path


def run_import(source: Path, **options: Any) -> tuple[Splits, Imported]:
    """Import a data set, and read the written file as a cell does."""
    target = source.parent / "written" / "own.npz"
    parts = {name: options.pop(name) for name in ("test", "validation") if name in options}
    data = import_data(source, target, parts, **options)
    reader = NpzReader({"own": data.sha256}, ["."], num_classes=len(data.class_names))
    return reader.read(str(target.parent)), data


def test_a_folder_of_classes_is_split_by_a_share_of_each_class(tmp_path: Path) -> None:
    folder = save_pictures(tmp_path / "own", COLOURS)
    (folder / "ant" / "broken.png").write_bytes((folder / "ant" / "01.png").read_bytes()[:-30])
    (folder / "ant" / "notes.txt").touch()
    (folder / "dog").mkdir()
    os.mkfifo(folder / "ant" / "pipe.png")
    splits, data = run_import(folder, test=0.2, validation=0.25)
    assert data.class_names == ["ant", "bee", "cow"]
    dog, notes, broken = data.left_out
    assert dog == f"folders without pictures: {folder}/dog"
    assert "1 .txt" in notes
    assert "2 unreadable pictures" in broken
    assert "ant/broken.png" in broken
    written = {
        i.transpose(2, 0, 1).tobytes(): NAMES[n] for i, n in zip(COLOURS, LABELS, strict=True)
    }
    for split, count in {"train": 6, "validation": 2, "test": 2}.items():
        examples = vars(splits)[split]
        assert np.bincount(examples.labels_N).tolist() == [count] * 3
        for image, label in zip(examples.images_NCHW, examples.labels_N, strict=True):
            assert written.pop(image.numpy().tobytes()) == data.class_names[label]
    assert not written
    assert run_import(folder, test=0.2, validation=0.25)[1].sha256 == data.sha256


def test_folders_of_splits_are_read_and_sizes_and_colours_must_agree(tmp_path: Path) -> None:
    save_pictures(tmp_path / "own/Train", COLOURS)
    save_pictures(tmp_path / "own/valid", GREY)
    (tmp_path / "own/masks").mkdir()
    own, test = tmp_path / "own", tmp_path / "own/valid"
    with pytest.raises(UserError, match=r"own has no test images .*--test 0\.2"):
        run_import(own)
    sizes = r"2 sizes \(height x width\): 8x8 \(60\), 8x9 \(30\); type --size 8 to"
    with pytest.raises(UserError, match=sizes):
        run_import(own, test=test)
    with pytest.raises(UserError, match="validation images already; leave out --validation"):
        run_import(own, validation=0.1)
    splits, data = run_import(own, test=test, size=(5, 6))
    assert data.left_out == [f"folders without classes: {own}/masks"]
    assert splits.validation is not None
    assert splits.test.images_NCHW.shape == splits.validation.images_NCHW.shape == (30, 3, 5, 6)


@pytest.mark.parametrize(
    ("mode", "pixel", "expected"),
    [
        ("L", 7, [7, 7, 7]),
        ("1", 1, [255, 255, 255]),
        ("I;16", 0x1234, [0x12, 0x12, 0x12]),
        ("RGBA", (200, 100, 50, 255), [200, 100, 50]),
        ("RGBA", (200, 100, 50, 0), [255, 255, 255]),
        ("LA", (7, 0), [255, 255, 255]),
        ("P", 1, [10, 20, 30]),
    ],
)
def test_every_kind_of_pixel_becomes_rgb_by_one_rule(
    mode: str, pixel: Any, expected: list[int], tmp_path: Path
) -> None:
    picture = Image.new(mode, (3, 2), pixel)
    if mode == "P":
        picture.putpalette([0, 0, 0, 10, 20, 30])
    picture.save(tmp_path / "x.png")
    decoded = decode_picture(tmp_path / "x.png")
    assert decoded.dtype == np.uint8
    assert decoded.shape == (3, 2, 3)
    assert (decoded == np.array(expected)[:, None, None]).all()


def test_pictures_are_turned_as_their_exif_data_say_and_huge_ones_are_refused(
    tmp_path: Path,
) -> None:
    picture, exif = Image.fromarray(COLOURS[0]), Image.Exif()
    exif[0x0112] = 6  # turned right by 90 degrees
    picture.save(tmp_path / "turned.png", exif=exif)
    turned = np.rot90(COLOURS[0], -1).transpose(2, 0, 1)
    np.testing.assert_array_equal(decode_picture(tmp_path / "turned.png"), turned)
    Image.new("1", (11_000, 11_000)).save(tmp_path / "huge.png")
    with pytest.raises(UserError, match="11000x11000 pixels are too many"):
        decode_picture(tmp_path / "huge.png")


def test_csv_files_are_read_with_and_without_names(tmp_path: Path) -> None:
    for first in ("", "label"):
        source = save_csv(tmp_path / "train.csv", ROWS, first)
        splits, data = run_import(source, test=source)
        np.testing.assert_array_equal(splits.train.images_NCHW.numpy()[:, 0], GREY)
        assert splits.test.labels_N.tolist() == LABELS.tolist()
        assert data.class_names == ["0", "1", "2"]
    assert run_import(source, test=0.2, size=(4, 6))[0].test.images_NCHW.shape == (6, 1, 4, 6)


def test_idx_files_are_read_plain_and_packed_and_labels_may_begin_anywhere(tmp_path: Path) -> None:
    write_idx(tmp_path)
    folder = tmp_path / "mnist"
    for prefix in ("t10k", "train"):
        packed = folder / f"{prefix}-labels-idx1-ubyte.gz"
        content = bytearray(gzip.decompress(packed.read_bytes()))
        packed.unlink()
        content[8:] = [number + 1 for number in content[8:]]
        (folder / f"{prefix}-labels.idx1-ubyte").write_bytes(content)
    for source in (folder, folder / "train-images-idx3-ubyte.gz"):
        splits, data = run_import(source, validation=0.5)
        assert splits.test.images_NCHW.numpy().tobytes() == noise(1, 10, 28, 28).tobytes()
        assert sorted(splits.train.labels_N.tolist()) == [*range(10)]
        assert data.class_names == [str(number) for number in range(1, 11)]
    (folder / "other-train-images-idx3-ubyte.gz").touch()
    with pytest.raises(UserError, match=f"IDX files of 2 data sets; .* --file {folder}/"):
        run_import(folder)


def test_arrays_are_read_by_the_names_of_medmnist_and_of_keras(tmp_path: Path) -> None:
    for kinds in (("train_images", "train_labels"), ("x_train", "y_train")):
        arrays = {kinds[0]: GREY, kinds[1]: LABELS[:, None] * 2 + 5, "notes": np.zeros(3)}
        np.savez(tmp_path / "own.npz", **arrays, allow_pickle=False)
        splits, data = run_import(tmp_path / "own.npz", test=0.2)
        assert data.class_names == ["5", "7", "9"]
        assert data.left_out == [f"arrays of {tmp_path}/own.npz: notes"]
        assert np.bincount(splits.train.labels_N).tolist() == [8, 8, 8]


def test_other_files_are_refused_saying_what_to_type_and_nothing_is_left(tmp_path: Path) -> None:
    flat, several = tmp_path / "flat", np.eye(2)[LABELS % 2]
    (flat / "train").mkdir(parents=True)
    np.savez(tmp_path / "many.npz", train_images=GREY, train_labels=several, allow_pickle=False)
    np.savez(tmp_path / "one.npz", train_images=GREY / 255, train_labels=LABELS, allow_pickle=False)
    np.savez(tmp_path / "none.npz", images=GREY, allow_pickle=False)
    np.savez(tmp_path / "same.npz", train_images=GREY, train_labels=LABELS * 0, allow_pickle=False)
    kaggle = save_csv(tmp_path / "test.csv", ROWS, "pixel")
    oblong = save_csv(tmp_path / "oblong.csv", ROWS[:, :57], "label")
    wrong = save_csv(tmp_path / "wrong.csv", ROWS + 0.5, "label")
    (tmp_path / "a.zip").touch()
    (tmp_path / "cut.npz").write_bytes((tmp_path / "one.npz").read_bytes()[:999])
    save_pictures(tmp_path / "code/own", GREY)
    (tmp_path / "code/own/ant").rename(tmp_path / "code/own/${oc.env:HOME}")
    for source, message in {
        flat: "no folders of classes; put the pictures of each class into",
        tmp_path / "many.npz": r"many\.npz: train_labels are int64 \(30, 2\) for 30 images",
        tmp_path / "one.npz": r"one\.npz: train_images are float64, not uint8; write intensities",
        tmp_path / "none.npz": "it has no train_images; it has images",
        tmp_path / "same.npz": r"same\.npz: all images have the same class",
        tmp_path / "cut.npz": r"cut\.npz: .*; save by np\.savez",
        kaggle: "no column `label` .*Kaggle.* type --test",
        oblong: r"oblong\.csv: 56 columns of pixels are no square image",
        wrong: r"wrong\.csv: it cannot be imported: could not convert string",
        tmp_path / "code": f"one class only, .*; .* --file {tmp_path}/code/",
        tmp_path / "a.zip": "unpack it, and name its folder",
        tmp_path / "code/own": "the name of a class may not contain",
    }.items():
        with pytest.raises(UserError, match=message):
            run_import(source, test=0.2)
    assert not list((tmp_path / "written").glob("*.npz"))
