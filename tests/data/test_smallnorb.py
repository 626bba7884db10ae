"""smallNORB: binary matrices, novel viewpoints, and what the EM paper's authors show a network."""

import gzip
import math
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import official_files
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from official_files import norb_matrix

from capsweep.config import compose
from capsweep.data.images import LabelledImages, Reader
from capsweep.data.randomness import generator_of
from capsweep.data.smallnorb import INFO, NovelViewpoints, SmallNorbReader, halve_images
from capsweep.storage.files import hash_bytes, user_cache_folder
from capsweep.training import build

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


PAIRS = official_files.noise(0, 3, 2, 96, 96)
DAT = norb_matrix(PAIRS)
CAT = norb_matrix(np.array([0, 1, 4], dtype="<i4"))


@pytest.mark.parametrize(
    ("dat", "cat", "message"),
    [
        (struct.pack("<i", 0x1E3D4C53) + DAT[4:], CAT, r"dat\.mat: begins with 0x1e3d4c53"),
        (struct.pack(">i", 0x1E3D4C55) + DAT[4:], CAT, r"dat\.mat: begins with 0x554c3d1e"),
        (DAT[:-1], CAT, r"dat\.mat: truncated or altered; .* \[3, 2, 96, 96\]"),
        (DAT + b"\0", CAT, r"dat\.mat: truncated or altered"),
        (DAT[:10], CAT, r"dat\.mat: 10 bytes are too few for a header"),
        (norb_matrix(PAIRS[:, :1]), CAT, r"dat\.mat: uint8 \[3, 1, 96, 96\], not"),
        (CAT, CAT, r"dat\.mat: int32 \[3\], not bytes \[N, 2, 96, 96\]"),
        (DAT, DAT, r"cat\.mat: uint8 \[3, 2, 96, 96\], not int32 \[3\]"),
        (DAT, norb_matrix(np.zeros(4, "<i4")), r"cat\.mat: int32 \[4\], not int32"),
        (DAT, norb_matrix(np.full(3, 5, "<i4")), r"cat\.mat: categories 5\.\.5, n"),
        (DAT, norb_matrix(np.full(3, -1, "<i4")), r"cat\.mat: categories -1\.\.-1"),
    ],
)
def test_a_declared_file_of_another_content_is_refused_by_name(
    dat: bytes, cat: bytes, message: str, tmp_path: Path, refuses: Refuses
) -> None:
    contents = dict(zip(NAMES, (dat, cat, DAT, CAT), strict=True))
    for name, content in contents.items():
        (tmp_path / f"{name}.mat").write_bytes(content)
    sha256 = {name: hash_bytes(content) for name, content in contents.items()}
    refuses(SmallNorbReader(sha256, ["."], sha256), tmp_path, message)


@pytest.mark.parametrize("content", [gzip.compress(DAT)[:-6], b"<html>"])
def test_a_declared_file_that_is_no_gzip_is_refused_by_name(
    content: bytes, tmp_path: Path, refuses: Refuses
) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.mat.gz").write_bytes(content)
    reader = SmallNorbReader(dict.fromkeys(NAMES, hash_bytes(content)), ["."])
    refuses(reader, tmp_path, rf"{TRAIN}-dat\.mat\.gz: truncated or no gzip file")


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


def alter_viewpoint(column: str, code: int) -> np.ndarray:
    """The viewpoints of all training pairs, one of them altered."""
    info_NE = official_files.viewpoints(18)
    info_NE[4, list(INFO).index(column)] = code
    return info_NE


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (official_files.viewpoints(17), r"int32 \[17, 4\], not int32 \[18, 4\], instance, elev"),
        (official_files.noise(0, 18, 4), r"uint8 \[18, 4\], not int32"),
        (alter_viewpoint("instance", 10), r"instance 10 is none of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (alter_viewpoint("elevation", 9), r"elevation 9 is none of 0, 1, 2, 3, 4, 5, 6, 7, 8$"),
        (alter_viewpoint("azimuth", 3), r"azimuth 3 is none of 0, 2, 4, .* 34$"),
        (alter_viewpoint("light", -1), r"light -1 is none of 0, 1, 2, 3, 4, 5$"),
    ],
)
def test_a_declared_info_file_of_another_content_is_refused_by_name(
    info: np.ndarray, message: str, tmp_path: Path, refuses: Refuses
) -> None:
    official_files.write_viewpoints(tmp_path, 6, 4)
    place, name = tmp_path / "smallnorb", f"{TRAIN}-info"
    (place / f"{name}.mat.gz").write_bytes(gzip.compress(norb_matrix(info)))
    names = [*NAMES, name, f"{TEST}-info"]
    sha256 = {name: hash_bytes((place / f"{name}.mat.gz").read_bytes()) for name in names}
    reader = NovelViewpoints(sha256, {}, ["smallnorb"], "azimuth", [0])
    refuses(reader, tmp_path, rf"{name}\.mat\.gz: {message}")


@pytest.fixture(scope="module")
def pairs() -> LabelledImages:
    """Stereo pairs after halving, dark and bright and of little and of much contrast."""
    generator = np.random.default_rng(0)
    level_N111 = generator.integers(0, 120, (COUNT, 1, 1, 1))
    span_N111 = generator.integers(2, 130, (COUNT, 1, 1, 1))
    noise_NCHW = generator.random((COUNT, 2, SIDE, SIDE))
    images_NCHW = (level_N111 + span_N111 * noise_NCHW).astype(np.uint8)
    return LabelledImages(torch.from_numpy(images_NCHW), torch.arange(COUNT) % 5)


def standardise_views(image_CHW: np.ndarray) -> np.ndarray:
    """Both views jointly."""
    deviation = max(image_CHW.std(), 1 / math.sqrt(image_CHW.size))
    return (image_CHW - image_CHW.mean()) / deviation


def make_training_image(
    pair_CHW: np.ndarray, added: float, factor: float, top: int, left: int
) -> np.ndarray:
    """One training image, in the authors' order: nothing is cropped before it is jittered."""
    image_CHW = pair_CHW.astype(float) + added  # brightness of 0..255, not clipped
    for channel in range(2):  # contrast keeps the mean of each view as it is now, all 48x48 pixels
        mean = image_CHW[channel].mean()
        image_CHW[channel] = (image_CHW[channel] - mean) * factor + mean
    return standardise_views(image_CHW[:, top : top + CROP, left : left + CROP])


@pytest.mark.parametrize("dataset", ["smallnorb", *NOVEL])
def test_training_images_are_brightened_contrasted_cropped_and_then_standardised(
    dataset: str, pairs: LabelledImages
) -> None:
    config = compose.cell([f"dataset={dataset}"]).config
    assert config["dataset"]["batches"]["brightness"] == 63.0
    batch = build.build_presenter(config)(pairs, "train").prepare_epoch(SEED, EPOCH)(
        torch.arange(COUNT)
    )
    generator = generator_of(SEED, "crop", EPOCH)
    places_N2 = torch.randint(SIDE - CROP + 1, (COUNT, 2), generator=generator)
    uniform_3N = torch.rand((3, COUNT), generator=generator).double()
    for n in range(COUNT):
        expected_CHW = make_training_image(
            pairs.images_NCHW[n].numpy(),
            63 * (2 * float(uniform_3N[1, n]) - 1),
            0.2 + 1.6 * float(uniform_3N[2, n]),
            *places_N2[n].tolist(),
        )
        np.testing.assert_allclose(batch.images_BCHW[n].numpy(), expected_CHW, atol=1e-4)
    assert torch.equal(batch.labels, pairs.labels_N)
