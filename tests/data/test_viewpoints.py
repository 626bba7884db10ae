"""smallNORB's novel viewpoints: who trains, validates and tests, and info files refused by name."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import official_files
import pytest
import torch

from capsweep.data.images import LabelledImages, Reader, Splits
from capsweep.data.smallnorb import INFO, NovelViewpoints
from capsweep.storage.files import hash_bytes, user_cache_folder

ReaderOf = Callable[..., Reader]
Refuses = Callable[[Reader, Path, str], None]

DATASETS = ("smallnorb_azimuth", "smallnorb_elevation")
PREFIXES = tuple(official_files.SMALLNORB.values())
NAMES = [f"{prefix}-{kind}" for prefix in PREFIXES for kind in ("dat", "cat", "info")]
INFOS = [name for name in NAMES if name.endswith("-info")]
TRAIN, TEST = 6, 4  # of 18 and 6 stereo pairs

every_dataset = pytest.mark.parametrize("dataset", DATASETS)
every_form = pytest.mark.parametrize("is_compressed", [True, False])


def is_familiar(dataset: str, row: np.ndarray) -> bool:
    """Section 5.1, in degrees of azimuth and steps of elevation."""
    _, elevation, azimuth, _ = row.tolist()
    if dataset == "smallnorb_azimuth":
        return 10 * azimuth in (300, 320, 340, 0, 20, 40)
    return elevation in (0, 1, 2)


def same(found: LabelledImages | None, whole: LabelledImages, wanted: list[int]) -> bool:
    """Whether these are the examples `wanted` of the whole file, in its order."""
    if found is None:
        return False
    return torch.equal(found.images_NCHW, whole.images_NCHW[wanted]) and torch.equal(
        found.labels_N, whole.labels_N[wanted]
    )


@every_form
@every_dataset
def test_familiar_viewpoints_train_and_validate_and_the_others_test(
    dataset: str, is_compressed: bool, tmp_path: Path, reader_of: ReaderOf
) -> None:
    overrides = official_files.write_viewpoints(tmp_path, TRAIN, TEST, is_compressed)
    reader = reader_of(f"dataset={dataset}", *overrides)
    reader.check(str(tmp_path))
    splits = reader.read(str(tmp_path))
    images = [text for text in overrides if "validation" not in text and "-info" not in text]
    whole: Splits = reader_of("dataset=smallnorb", *images).read(str(tmp_path))
    sizes = (3 * TRAIN, 3 * TEST // 2)
    trained, tested = (
        [is_familiar(dataset, row) for row in official_files.viewpoints(size)] for size in sizes
    )
    assert same(splits.train, whole.train, [n for n in range(sizes[0]) if trained[n]])
    assert same(splits.validation, whole.test, [n for n in range(sizes[1]) if tested[n]])
    assert same(splits.test, whole.test, [n for n in range(sizes[1]) if not tested[n]])
    assert (len(splits.train), len(splits.test)) == (TRAIN, TEST)


def test_images_are_decoded_once_for_all_smallnorb_data_sets(
    tmp_path: Path, reader_of: ReaderOf
) -> None:
    overrides = official_files.write_viewpoints(tmp_path, TRAIN, TEST)
    images = [text for text in overrides if "validation" not in text and "-info" not in text]
    reader_of("dataset=smallnorb", *images).read(str(tmp_path))
    for dataset in DATASETS:
        reader_of(f"dataset={dataset}", *overrides).read(str(tmp_path))
    assert len(list(user_cache_folder().glob("*.npz"))) == 1


def test_smallnorb_itself_needs_no_info_files(tmp_path: Path, reader_of: ReaderOf) -> None:
    overrides = official_files.write_smallnorb(tmp_path, 3, 2)
    assert not list(tmp_path.rglob("*info*"))
    splits = reader_of("dataset=smallnorb", *overrides).read(str(tmp_path))
    assert splits.validation is None
    assert len(splits.train) == 3


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named_with_who_offers_it(
    name: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_viewpoints(tmp_path, TRAIN, TEST)
    (tmp_path / "smallnorb" / f"{name}.mat.gz").unlink()
    message = rf"{name}\.mat\.gz not found .*https://cs\.nyu\.edu/~ylclab/data/norb-v1\.0-small/"
    refuses(reader_of("dataset=smallnorb_azimuth", *overrides), tmp_path, message)


@pytest.mark.parametrize("name", INFOS)
def test_a_truncated_info_file_is_refused_by_name(
    name: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_viewpoints(tmp_path, TRAIN, TEST)
    path = tmp_path / "smallnorb" / f"{name}.mat.gz"
    path.write_bytes(path.read_bytes()[:-3])
    reader = reader_of("dataset=smallnorb_azimuth", *overrides)
    refuses(reader, tmp_path, rf"{path}: truncated or altered .*https://cs\.nyu\.edu")


def test_swapped_info_files_are_refused_by_name(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_viewpoints(tmp_path, TRAIN, TEST)
    train, test = (tmp_path / "smallnorb" / f"{name}.mat.gz" for name in INFOS)
    content = train.read_bytes()
    train.write_bytes(test.read_bytes())
    test.write_bytes(content)
    reader = reader_of("dataset=smallnorb_azimuth", *overrides)
    refuses(reader, tmp_path, rf"{train}: truncated or altered")


@every_form
def test_info_files_of_unknown_hash_are_never_read_and_both_named(
    is_compressed: bool, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_viewpoints(tmp_path, TRAIN, TEST, is_compressed)
    declared = [text for text in overrides if "-info=" in text]
    unknown = [f"dataset.reader.sha256.{name}=unknown" for name in INFOS]
    rest = [text for text in overrides if text not in declared]
    reader = reader_of("dataset=smallnorb_azimuth", *rest, *unknown)
    refuses(reader, tmp_path, rf"not known to us.*set {' '.join(declared)}$")


def test_decompressed_info_files_can_be_declared_beside_the_fingerprint(
    tmp_path: Path, reader_of: ReaderOf
) -> None:
    official = official_files.write_viewpoints(tmp_path / "official", TRAIN, TEST)
    plain = official_files.write_viewpoints(tmp_path, TRAIN, TEST, is_compressed=False)
    beside = [text.replace(".sha256.", ".sha256_plain.") for text in plain if ".sha256." in text]
    reader = reader_of("dataset=smallnorb_azimuth", *official, *beside)
    assert len(reader.read(str(tmp_path)).train) == TRAIN


def altered(column: str, code: int) -> np.ndarray:
    """The viewpoints of all training pairs, one of them altered."""
    info_NE = official_files.viewpoints(3 * TRAIN)
    info_NE[4, list(INFO).index(column)] = code
    return info_NE


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (official_files.viewpoints(17), r"int32 \[17, 4\], not int32 \[18, 4\], instance, elev"),
        (official_files.viewpoints(18)[:, :3], r"int32 \[18, 3\], not int32 \[18, 4\]"),
        (official_files.noise(0, 18, 4), r"uint8 \[18, 4\], not int32"),
        (altered("instance", 10), r"instance 10 is none of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (altered("elevation", 9), r"elevation 9 is none of 0, 1, 2, 3, 4, 5, 6, 7, 8$"),
        (altered("azimuth", 36), r"azimuth 36 is none of 0, 2, 4"),
        (altered("azimuth", 3), r"azimuth 3 is none of 0, 2, 4, .* 34$"),
        (altered("light", -1), r"light -1 is none of 0, 1, 2, 3, 4, 5$"),
    ],
)
def test_a_declared_info_file_of_another_content_is_refused_by_name(
    info: np.ndarray, message: str, tmp_path: Path, refuses: Refuses
) -> None:
    official_files.write_viewpoints(tmp_path, TRAIN, TEST)
    place = tmp_path / "smallnorb"
    (place / f"{INFOS[0]}.mat.gz").write_bytes(gzip.compress(official_files.norb_matrix(info)))
    sha256 = {name: hash_bytes((place / f"{name}.mat.gz").read_bytes()) for name in NAMES}
    reader = NovelViewpoints(sha256, {}, ["smallnorb"], "azimuth", [0])
    refuses(reader, tmp_path, rf"{INFOS[0]}\.mat\.gz: {message}")
