"""smallNORB: binary matrices, novel viewpoints, and what the EM paper's authors show a network."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import official_files
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capsweep.data.images import LabelledImages, Reader
from capsweep.data.smallnorb import halve_images
from capsweep.storage.files import user_cache_folder

ReaderOf = Callable[..., Reader]
Refuses = Callable[[Reader, Path, str], None]

TRAIN, TEST = official_files.SMALLNORB.values()
NAMES = [f"{prefix}-{kind}" for prefix in (TRAIN, TEST) for kind in ("dat", "cat")]
UNKNOWN = [f"dataset.reader.sha256.{name}=unknown" for name in NAMES]
NOVEL = ("smallnorb_azimuth", "smallnorb_elevation")
COUNT, SIDE, CROP = 12, 48, 32
SEED, EPOCH = 5, 3

both_forms = pytest.mark.parametrize("is_compressed", [True, False])


def list_hashes(overrides: list[str], are_plain: bool = False) -> list[str]:
    """Those that declare a hash; are_plain: declared for decompressed files."""
    hashes = [text for text in overrides if "sha256" in text]
    return [text.replace(".sha256.", ".sha256_plain.") if are_plain else text for text in hashes]


@both_forms
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
    assert halve_images(image).item() == int(sum(block) / 4 + 0.5)


def test_decompressed_files_are_verified_by_their_own_hash_beside_the_fingerprint(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    compressed = official_files.write_smallnorb(tmp_path / "official", 3, 2)
    plain = official_files.write_smallnorb(tmp_path, 3, 2, is_compressed=False)
    beside = list_hashes(plain, are_plain=True)
    refuses(reader_of("dataset=smallnorb"), tmp_path, f"not known.*set {' '.join(beside)}$")
    splits = reader_of("dataset=smallnorb", *compressed, *beside).read(str(tmp_path))
    assert len(splits.train) == 3


@both_forms
def test_files_of_unknown_hash_are_all_named_and_no_other_hash_replaces_the_fingerprint(
    is_compressed: bool, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    declared = official_files.write_smallnorb(tmp_path, 3, 2, is_compressed)
    reader = reader_of("dataset=smallnorb", *UNKNOWN, *list_hashes(declared, are_plain=True))
    refuses(reader, tmp_path, f"not known to us.*set {' '.join(list_hashes(declared))}$")


def is_familiar(dataset: str, row: np.ndarray) -> bool:
    """Section 5.1 of the paper, in degrees of azimuth and steps of elevation."""
    _, elevation, azimuth, _ = row.tolist()
    if dataset == "smallnorb_azimuth":
        return 10 * azimuth in (300, 320, 340, 0, 20, 40)
    return elevation in (0, 1, 2)


def have_places(part: LabelledImages | None, whole: LabelledImages, places: list[int]) -> bool:
    """Whether a part is the examples at these places of the whole file, in its order."""
    return (
        part is not None
        and torch.equal(part.images_NCHW, whole.images_NCHW[places])
        and torch.equal(part.labels_N, whole.labels_N[places])
    )


@both_forms
def test_familiar_viewpoints_train_and_validate_and_the_others_test(
    is_compressed: bool, tmp_path: Path, reader_of: ReaderOf
) -> None:
    overrides = official_files.write_viewpoints(tmp_path, 6, 4, is_compressed)
    images = [text for text in overrides if "validation" not in text and "-info" not in text]
    whole = reader_of("dataset=smallnorb", *images).read(str(tmp_path))
    assert whole.validation is None
    for dataset in NOVEL:
        splits = reader_of(f"dataset={dataset}", *overrides).read(str(tmp_path))
        trained, tested = (
            [is_familiar(dataset, row) for row in official_files.viewpoints(size)]
            for size in (18, 6)
        )
        assert have_places(splits.train, whole.train, [n for n in range(18) if trained[n]])
        assert have_places(splits.validation, whole.test, [n for n in range(6) if tested[n]])
        assert have_places(splits.test, whole.test, [n for n in range(6) if not tested[n]])
    assert len(list(user_cache_folder().glob("*.npz"))) == 1  # decoded once for all
