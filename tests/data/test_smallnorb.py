"""smallNORB's binary matrices: stereo pairs, halved, and every wrong header refused by name."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import official_files
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capsweep.data.images import Reader
from capsweep.data.smallnorb import SmallNorbReader, halved
from capsweep.storage.files import hash_bytes

ReaderOf = Callable[..., Reader]
Refuses = Callable[[Reader, Path, str], None]

TRAIN, TEST = official_files.SMALLNORB.values()
NAMES = [f"{prefix}-{kind}" for prefix in (TRAIN, TEST) for kind in ("dat", "cat")]


@pytest.mark.parametrize("is_compressed", [True, False])
def test_the_files_are_read(is_compressed: bool, tmp_path: Path, reader_of: ReaderOf) -> None:
    overrides = official_files.write_smallnorb(tmp_path, 7, 3, is_compressed)
    reader = reader_of("dataset=smallnorb", *overrides)
    reader.check(str(tmp_path))
    splits = reader.read(str(tmp_path))
    assert splits.train.images_NCHW.shape == (7, 2, 48, 48)
    assert splits.train.images_NCHW.dtype == torch.uint8
    assert splits.train.labels_N.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert splits.train.labels_N.dtype == torch.int64
    pairs_NCHW = official_files.noise(1, 3, 2, 96, 96).astype(int)
    block = pairs_NCHW[2, 1, 20:22, 94:96]
    assert splits.test.images_NCHW[2, 1, 10, 47] == (block.sum() + 2) // 4


@given(st.lists(st.integers(0, 255), min_size=4, max_size=4))
def test_a_block_becomes_its_mean_rounded_half_up(block: list[int]) -> None:
    image = np.array(block, dtype=np.uint8).reshape(1, 1, 2, 2)
    assert halved(image).item() == int(sum(block) / 4 + 0.5)


def test_a_half_is_rounded_up_and_white_stays_white() -> None:
    assert halved(np.array([[[[1, 0], [0, 1]]]], dtype=np.uint8)).item() == 1
    assert halved(np.full((1, 1, 2, 2), 255, dtype=np.uint8)).item() == 255


@pytest.mark.parametrize("is_compressed", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_file_is_refused_by_name(
    name: str, is_compressed: bool, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_smallnorb(tmp_path, 3, 2, is_compressed)
    path = tmp_path / "smallnorb" / f"{name}.mat{'.gz' * is_compressed}"
    path.write_bytes(path.read_bytes()[:-3])
    reader = reader_of("dataset=smallnorb", *(overrides if is_compressed else plain(overrides)))
    refuses(reader, tmp_path, rf"{path}: truncated or altered .*https://cs\.nyu\.edu")


@pytest.mark.parametrize("kind", ["dat", "cat"])
def test_swapped_files_are_refused_by_name(
    kind: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_smallnorb(tmp_path, 3, 2)
    train, test = (tmp_path / "smallnorb" / f"{p}-{kind}.mat.gz" for p in (TRAIN, TEST))
    content = train.read_bytes()
    train.write_bytes(test.read_bytes())
    test.write_bytes(content)
    refuses(reader_of("dataset=smallnorb", *overrides), tmp_path, rf"{train}: truncated or altered")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named_with_who_offers_it(
    name: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_smallnorb(tmp_path, 3, 2)
    (tmp_path / "smallnorb" / f"{name}.mat.gz").unlink()
    message = rf"{name}\.mat\.gz not found .*https://cs\.nyu\.edu/~ylclab/data/norb-v1\.0-small/"
    refuses(reader_of("dataset=smallnorb", *overrides), tmp_path, message)


def hashes(overrides: list[str]) -> list[str]:
    """Those that declare a hash."""
    return [text for text in overrides if "sha256" in text]


def plain(overrides: list[str]) -> list[str]:
    """The same hashes, declared for decompressed files."""
    return [text.replace(".sha256.", ".sha256_plain.") for text in overrides]


UNKNOWN = [f"dataset.reader.sha256.{name}=unknown" for name in NAMES]


@pytest.mark.parametrize("is_compressed", [True, False])
def test_files_of_unknown_hash_are_never_read_and_all_named(
    is_compressed: bool, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    declared = official_files.write_smallnorb(tmp_path, 3, 2, is_compressed)
    message = f"not known to us.*set {' '.join(hashes(declared))}$"
    refuses(reader_of("dataset=smallnorb", *UNKNOWN), tmp_path, message)


def test_decompressed_official_files_are_not_called_truncated_but_can_be_declared(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    declared = plain(official_files.write_smallnorb(tmp_path, 3, 2, is_compressed=False))
    message = f"not known to us.*set {' '.join(hashes(declared))}$"
    refuses(reader_of("dataset=smallnorb"), tmp_path, message)
    assert len(reader_of("dataset=smallnorb", *declared).read(str(tmp_path)).train) == 3


def test_all_missing_files_are_named_at_once(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    message = ", ".join(rf"{name}\.mat\.gz" for name in NAMES)
    refuses(reader_of("dataset=smallnorb"), tmp_path, rf"smallnorb: {message} not found")


def test_a_hash_outside_the_fingerprint_does_not_replace_it(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    declared = official_files.write_smallnorb(tmp_path, 3, 2, is_compressed=False)
    reader = reader_of("dataset=smallnorb", *UNKNOWN, *plain(declared))
    refuses(reader, tmp_path, r"set dataset\.reader\.sha256\.smallnorb")


def test_plain_files_are_verified_by_their_own_hash_beside_the_fingerprint(
    tmp_path: Path, reader_of: ReaderOf
) -> None:
    compressed = official_files.write_smallnorb(tmp_path / "official", 3, 2)
    declared = official_files.write_smallnorb(tmp_path, 3, 2, is_compressed=False)
    overrides = [*compressed, *plain(hashes(declared))]
    splits = reader_of("dataset=smallnorb", *overrides).read(str(tmp_path))
    assert len(splits.train) == 3


def test_files_of_the_wrong_kind_are_refused_though_declared(
    tmp_path: Path, refuses: Refuses
) -> None:
    official_files.write_smallnorb(tmp_path, 3, 2)
    place = tmp_path / "smallnorb"
    cat = (place / f"{TRAIN}-cat.mat.gz").read_bytes()
    (place / f"{TRAIN}-dat.mat.gz").write_bytes(cat)
    sha256 = {name: hash_bytes((place / f"{name}.mat.gz").read_bytes()) for name in NAMES}
    reader = SmallNorbReader(sha256, {}, ["smallnorb"])
    refuses(reader, tmp_path, rf"{TRAIN}-dat\.mat\.gz: int32 \[3\], not bytes \[N, 2, 96, 96\]")


PAIRS = official_files.noise(0, 3, 2, 96, 96)
DAT = official_files.norb_matrix(PAIRS)
CAT = official_files.norb_matrix(np.array([0, 1, 4], dtype="<i4"))


@pytest.mark.parametrize(
    ("dat", "cat", "message"),
    [
        (struct.pack("<i", 0x1E3D4C53) + DAT[4:], CAT, r"dat\.mat: begins with 0x1e3d4c53"),
        (struct.pack(">i", 0x1E3D4C55) + DAT[4:], CAT, r"dat\.mat: begins with 0x554c3d1e"),
        (DAT[:-1], CAT, r"dat\.mat: truncated or altered; .* \[3, 2, 96, 96\]"),
        (DAT + b"\0", CAT, r"dat\.mat: truncated or altered"),
        (DAT[:10], CAT, r"dat\.mat: 10 bytes are too few for a header"),
        (b"", CAT, r"dat\.mat: 0 bytes are too few"),
        (official_files.norb_matrix(PAIRS[:, :1]), CAT, r"dat\.mat: uint8 \[3, 1, 96, 96\], not"),
        (official_files.norb_matrix(PAIRS[..., :48]), CAT, r"dat\.mat: uint8 \[3, 2, 96, 48\], no"),
        (DAT, DAT, r"cat\.mat: uint8 \[3, 2, 96, 96\], not int32 \[3\]"),
        (DAT, official_files.norb_matrix(np.zeros(4, "<i4")), r"cat\.mat: int32 \[4\], not int32"),
        (DAT, official_files.norb_matrix(np.full(3, 5, "<i4")), r"cat\.mat: categories 5\.\.5, n"),
        (DAT, official_files.norb_matrix(np.full(3, -1, "<i4")), r"cat\.mat: categories -1\.\.-1"),
        (DAT, CAT[:-4], r"cat\.mat: truncated or altered"),
    ],
)
def test_a_declared_file_of_another_content_is_refused_by_name(
    dat: bytes, cat: bytes, message: str, tmp_path: Path, refuses: Refuses
) -> None:
    contents = dict(zip(NAMES, (dat, cat, DAT, CAT), strict=True))
    for name, content in contents.items():
        (tmp_path / f"{name}.mat").write_bytes(content)
    sha256 = {name: hash_bytes(content) for name, content in contents.items()}
    refuses(SmallNorbReader(sha256, sha256, ["."]), tmp_path, message)


@pytest.mark.parametrize("content", [gzip.compress(DAT)[:-6], b"<html>"])
def test_a_declared_file_that_is_no_gzip_is_refused_by_name(
    content: bytes, tmp_path: Path, refuses: Refuses
) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.mat.gz").write_bytes(content)
    reader = SmallNorbReader(dict.fromkeys(NAMES, hash_bytes(content)), {}, ["."])
    refuses(reader, tmp_path, rf"{TRAIN}-dat\.mat\.gz: truncated or no gzip file")
