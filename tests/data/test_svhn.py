"""SVHN's MATLAB files: the digit 0 is labelled 10, and only the declared files are decoded."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import official_files
import pytest
import torch

from capsweep.data.images import Reader
from capsweep.data.official import SvhnReader
from capsweep.storage.files import hash_bytes

ReaderOf = Callable[..., Reader]
Refuses = Callable[[Reader, Path, str], None]

NAMES = ["train_32x32", "test_32x32"]


def test_the_files_are_read(tmp_path: Path, reader_of: ReaderOf) -> None:
    overrides = official_files.write_svhn(tmp_path, train=12, test=11)
    reader = reader_of("dataset=svhn", *overrides)
    reader.check(str(tmp_path))
    splits = reader.read(str(tmp_path))
    pixels_HWCN = torch.from_numpy(official_files.noise(0, 32, 32, 3, 12))
    assert splits.train.images_NCHW.shape == (12, 3, 32, 32)
    assert splits.train.images_NCHW[7, 2, 5, 30] == pixels_HWCN[5, 30, 2, 7]
    assert torch.equal(splits.train.images_NCHW, pixels_HWCN.permute(3, 2, 0, 1))
    assert splits.test.labels_N.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert splits.test.labels_N.dtype == torch.int64


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", ["truncated", "altered", "empty"])
def test_a_spoilt_file_is_refused_by_name(
    fault: str, name: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_svhn(tmp_path)
    path = tmp_path / "svhn" / f"{name}.mat"
    content = path.read_bytes()
    spoilt = {"truncated": content[:-9], "altered": content[:-1] + b"\xaa", "empty": b""}
    path.write_bytes(spoilt[fault])
    refuses(reader_of("dataset=svhn", *overrides), tmp_path, rf"{path}: truncated or altered")


def test_swapped_files_are_refused(tmp_path: Path, reader_of: ReaderOf, refuses: Refuses) -> None:
    overrides = official_files.write_svhn(tmp_path)
    train, test = (tmp_path / "svhn" / f"{name}.mat" for name in NAMES)
    content = train.read_bytes()
    train.write_bytes(test.read_bytes())
    test.write_bytes(content)
    refuses(reader_of("dataset=svhn", *overrides), tmp_path, rf"{train}: truncated or altered")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named_with_who_offers_it(
    name: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_svhn(tmp_path)
    (tmp_path / "svhn" / f"{name}.mat").unlink()
    message = rf"{name}\.mat not found .*http://ufldl\.stanford\.edu/housenumbers/"
    refuses(reader_of("dataset=svhn", *overrides), tmp_path, message)


def test_all_missing_files_are_named_at_once(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    message = r"svhn: train_32x32\.mat, test_32x32\.mat not found"
    refuses(reader_of("dataset=svhn"), tmp_path, message)


X = official_files.noise(0, 32, 32, 3, 4)
Y = np.array([[1], [2], [10], [3]], dtype="u1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (official_files.matlab({"X": X}), "has no variable y"),
        (official_files.matlab({"X": X[:31], "y": Y}), r"X is uint8 \[31, 32, 3, 4\]"),
        (official_files.matlab({"X": X / 255, "y": Y}), "X is float64"),
        (official_files.matlab({"X": X.astype("u2"), "y": Y}), "X is uint16, not uint8"),
        (official_files.matlab({"X": X, "y": Y[:3]}), r"y is uint8 \[3, 1\], not \[4, 1\]"),
        (official_files.matlab({"X": X, "y": Y - 1}), r"y has labels 0\.\.9, not 1\.\.10"),
        (official_files.matlab({"X": X, "y": Y + 1}), r"y has labels 2\.\.11, not 1\.\.10"),
        (official_files.matlab({"X": X, "y": Y + 0.5}), r"y has labels"),
        (official_files.matlab({"X": X, "y": Y})[:-40], "not a MATLAB 5 file, or truncated"),
        (b"<html>", "not a MATLAB 5 file, or truncated"),
        (b"", "not a MATLAB 5 file, or truncated"),
    ],
)
def test_a_declared_file_of_another_content_is_refused_by_name(
    content: bytes, message: str, tmp_path: Path, refuses: Refuses
) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.mat").write_bytes(content)
    reader = SvhnReader(dict.fromkeys(NAMES, hash_bytes(content)), ["."])
    refuses(reader, tmp_path, rf"train_32x32\.mat: {message}")


def test_files_of_unknown_hash_are_never_read_and_all_named(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    declared = official_files.write_svhn(tmp_path)
    unknown = [f"dataset.reader.sha256.{name}=unknown" for name in NAMES]
    settings = " ".join(text for text in declared if "sha256" in text)
    refuses(reader_of("dataset=svhn", *unknown), tmp_path, f"set {settings}$")
