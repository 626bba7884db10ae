"""smallNORB (LeCun, Huang, Bottou 2004): stereo pairs in NYU's binary matrix format.

A matrix is, in little-endian int32: a magic number that says the type, the number of dimensions,
at least three dimensions (unused ones are 1); then the numbers, last dimension fastest.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from capsweep.config.bounds import VIEWPOINTS
from capsweep.data.decoded_images import Decoded, DecodedReader
from capsweep.data.images import LabelledImages, Splits
from capsweep.errors import DataError
from capsweep.storage.files import hash_bytes
from capsweep.storage.official_files import UNKNOWN, DeclaredFile, OfficialFiles, content_of

PREFIXES = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
INT32 = np.dtype("<i4")
TYPES = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: INT32}
IMAGES = tuple(f"{prefix}-{kind}" for prefix in PREFIXES.values() for kind in ("dat", "cat"))
LEAST_DIMENSIONS = 3  # in the header, however few the matrix has
PAIR = (2, 96, 96)  # left and right camera
NUM_CLASSES = 5
DATASET = "smallnorb"  # the job that makes shards of all files
PUBLISHER = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
# A row of an `info` file, of one stereo pair: which of ten toys, two codes, which of six lights.
INFO: Mapping[str, Sequence[int]] = {
    "instance": range(10),
    "elevation": VIEWPOINTS["elevation"],
    "azimuth": VIEWPOINTS["azimuth"],
    "light": range(6),
}
INFOS = {split: f"{prefix}-info" for split, prefix in PREFIXES.items()}


class SmallNorbReader(DecodedReader):
    """Reads the `dat` and `cat` files of both splits, `.mat.gz` or `.mat`, or the shards that were
    made of them; halves the images.

    sha256: of the official .mat.gz files, by name without ending: the fingerprint; sha256_plain:
    of the same files decompressed. A hash may be the text `unknown`; without both of them a plain
    file is verified by `sha256`, as it also is where it is the declared one. folders: where to look
    below the data folder.
    """

    name = DATASET

    def __init__(
        self,
        sha256: Mapping[str, str],
        sha256_plain: Mapping[str, str],
        folders: Sequence[str],
    ) -> None:
        self.sha256 = dict(sha256)
        self.sha256_plain = dict(sha256_plain)
        self.files = OfficialFiles(folders, PUBLISHER, (*sha256.values(), *sha256_plain.values()))

    def declare_hashes(self) -> Mapping[str, object]:
        """All hashes that the images are verified by; of other files there may be more."""
        return {
            "sha256": {name: self.sha256[name] for name in IMAGES},
            "sha256_plain": {n: self.sha256_plain[n] for n in IMAGES if n in self.sha256_plain},
        }

    def decode(self, folder: str) -> Decoded:
        """Stereo pairs [N, 2, 48, 48]: of 96x96 pixels each 2x2 block becomes its mean, rounded
        half up. Raises DataError naming the file and the cure.
        """
        paths, contents = self.contents(folder, IMAGES)
        # The pairs have no name here: 448 MB, not to be kept while the other split is read.
        return {split: _halved(*pairs_and_labels(split, paths, contents)) for split in PREFIXES}

    def contents(
        self, folder: str, names: Sequence[str]
    ) -> tuple[dict[str, Path], dict[str, bytes]]:
        """Paths and verified bytes of the files of these names, without their ending."""
        paths = self.files.find_all(folder, {n: [f"{n}.mat.gz", f"{n}.mat"] for n in names})
        found = {name: self._declared(path, name) for name, path in paths.items()}
        return paths, self.files.read_all(found)

    def _declared(self, path: Path, name: str) -> DeclaredFile:
        fingerprint, plain = self.sha256[name], self.sha256_plain.get(name, UNKNOWN)
        # What is not hashed into the signature may verify only what the fingerprint identifies.
        if path.suffix == ".gz" or fingerprint == UNKNOWN:
            return DeclaredFile(path, fingerprint, f"dataset.reader.sha256.{name}")
        if plain == UNKNOWN and hash_bytes(content_of(path)) == fingerprint:
            return DeclaredFile(path, fingerprint, f"dataset.reader.sha256.{name}")
        return DeclaredFile(path, plain, f"dataset.reader.sha256_plain.{name}")


def halved(images_NCHW: np.ndarray) -> np.ndarray:
    """uint8 images of half the height and width: the mean of each 2x2 block, rounded half up."""
    total_NCHW = np.full(
        (*images_NCHW.shape[:2], *(s // 2 for s in images_NCHW.shape[2:])), 2, "u2"
    )
    for row in (0, 1):
        for column in (0, 1):
            total_NCHW += images_NCHW[:, :, row::2, column::2]
    return (total_NCHW >> 2).astype(np.uint8)


def _halved(pairs_NCHW: np.ndarray, labels_N: np.ndarray) -> LabelledImages:
    return LabelledImages(torch.from_numpy(halved(pairs_NCHW)), torch.from_numpy(labels_N))


def pairs_and_labels(
    split: str, paths: Mapping[str, Path], contents: dict[str, bytes]
) -> tuple[np.ndarray, np.ndarray]:
    """Stereo pairs uint8 [N, 2, 96, 96] and their labels int64 [N], as published.

    contents: verified bytes of the `dat` and `cat` files at `paths`, which are taken out of it.
    """
    dat, cat = (f"{PREFIXES[split]}-{kind}" for kind in ("dat", "cat"))
    pairs_NCHW = _pairs(paths[dat], contents.pop(dat))
    return pairs_NCHW, _labels(paths[cat], contents.pop(cat), len(pairs_NCHW))


def _pairs(path: Path, data: bytes) -> np.ndarray:
    pairs_NCHW = matrix(path, data)
    if pairs_NCHW.dtype != np.uint8 or pairs_NCHW.ndim != 4 or pairs_NCHW.shape[1:] != PAIR:
        raise DataError(
            f"{path}: {pairs_NCHW.dtype} {list(pairs_NCHW.shape)}, not bytes [N, 2, 96, 96]"
        )
    return pairs_NCHW


def _labels(path: Path, data: bytes, count: int) -> np.ndarray:
    categories = matrix(path, data)
    if categories.dtype != INT32 or categories.shape != (count,):
        raise DataError(
            f"{path}: {categories.dtype} {list(categories.shape)}, not int32 [{count}], one "
            "category of every stereo pair"
        )
    _check_labels(path, categories)
    return categories.astype(np.int64)


def _check_labels(path: Path, labels_N: np.ndarray) -> None:
    if len(labels_N) and not 0 <= labels_N.min() <= labels_N.max() < NUM_CLASSES:
        raise DataError(
            f"{path}: categories {labels_N.min()}..{labels_N.max()}, not 0..{NUM_CLASSES - 1}"
        )


def matrix(path: Path, data: bytes) -> np.ndarray:
    """The matrix in the bytes of `path`, decompressed first where its name ends in .gz.

    Raises DataError naming the file: truncated, of another type, or of another length than its
    header says.
    """
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: truncated or no gzip file ({error})") from error
    try:
        magic, dimensions = struct.unpack_from("<ii", data)
        kind = TYPES.get(magic)
        if kind is None:
            raise DataError(f"{path}: begins with {magic:#010x}, not a matrix of bytes or int32")
        stored = max(dimensions, LEAST_DIMENSIONS)
        sizes = struct.unpack_from(f"<{stored}i", data, 8)
    except struct.error as error:
        raise DataError(f"{path}: {len(data)} bytes are too few for a header") from error
    shape, start = sizes[:dimensions], 8 + 4 * stored
    if dimensions < 1 or min(sizes) < 1 or len(data) - start != math.prod(shape) * kind.itemsize:
        raise DataError(f"{path}: truncated or altered; {len(data)} bytes for {list(sizes)}")
    return np.frombuffer(data, kind, offset=start).reshape(shape)


class NovelViewpoints:
    """Trains on the training images of familiar viewpoints and tests on the test images of the
    others. Validates on the TEST images of familiar viewpoints: toys that training never showed,
    and the paper's protocol compares networks of equal error on them.

    sha256, sha256_plain, folders: as `SmallNorbReader` has them, of the `info` files too.
    viewpoint: azimuth or elevation. familiar: its codes that are trained on.
    """

    def __init__(
        self,
        sha256: Mapping[str, str],
        sha256_plain: Mapping[str, str],
        folders: Sequence[str],
        viewpoint: str,
        familiar: Sequence[int],
    ) -> None:
        self.smallnorb = SmallNorbReader(sha256, sha256_plain, folders)
        self.column, self.familiar = list(INFO).index(viewpoint), list(familiar)

    def check(self, folder: str) -> None:
        """Find, verify and decode all files. Raises DataError naming the file."""
        self.read(folder)

    def read(self, folder: str) -> Splits:
        """The three splits, each in the order of its file. Raises DataError."""
        info = self._info(folder)
        whole = self.smallnorb.read(folder)

        def is_familiar(split: str, examples: LabelledImages) -> Tensor:
            path, info_NE = info[split]
            check_info(path, info_NE, len(examples))
            return torch.from_numpy(np.isin(info_NE[:, self.column], self.familiar))

        trained_N = is_familiar("train", whole.train)
        tested_N = is_familiar("test", whole.test)
        return Splits(
            train=whole.train.select(trained_N),
            validation=whole.test.select(tested_N),
            test=whole.test.select(~tested_N),
        )

    def _info(self, folder: str) -> dict[str, tuple[Path, np.ndarray]]:
        """By split: the file that has the columns of INFO, and these."""
        paths, contents = self.smallnorb.contents(folder, list(INFOS.values()))
        return {s: (paths[n], matrix(paths[n], contents[n])) for s, n in INFOS.items()}


def check_info(path: Path, info_NE: np.ndarray, count: int) -> None:
    """Raise DataError unless this is int32 [N, 4], the columns of INFO, of `count` pairs."""
    if info_NE.dtype != INT32 or info_NE.shape != (count, len(INFO)):
        raise DataError(
            f"{path}: {info_NE.dtype} {list(info_NE.shape)}, not int32 [{count}, {len(INFO)}], "
            f"{', '.join(INFO)} of every stereo pair"
        )
    for column, (name, known) in enumerate(INFO.items()):
        unknown = sorted(set(info_NE[:, column].tolist()) - set(known))
        if unknown:
            raise DataError(f"{path}: {name} {unknown[0]} is none of {', '.join(map(str, known))}")
