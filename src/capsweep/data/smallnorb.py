"""smallNORB (LeCun, Huang, Bottou 2004): stereo pairs in NYU's binary matrix format.

A matrix is, in little-endian int32: a magic number that says the type, the number of dimensions,
at least three dimensions (unused ones are 1); then the numbers, last dimension fastest.
"""

import gzip
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from capsweep.data.images import Reader, Splits, label_images
from capsweep.data.official import Decoded, OfficialReader
from capsweep.storage.official_files import name_undecodable

PREFIXES = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
TYPES = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}
IMAGES = tuple(f"{prefix}-{kind}" for prefix in PREFIXES.values() for kind in ("dat", "cat"))
LEAST_DIMENSIONS = 3  # in the header, however few the matrix has
PAIR = (2, 96, 96)  # left and right camera
NUM_CLASSES = 5
ENDINGS = (".mat.gz", ".mat")
INFO = ("instance", "elevation", "azimuth", "light")  # a row of an `info` file, of a stereo pair
INFOS = {split: f"{prefix}-info" for split, prefix in PREFIXES.items()}


class SmallNorbReader(OfficialReader):
    """Reads the `dat` and `cat` files of both splits, `.mat.gz` or `.mat`; halves the images."""

    name = "smallnorb"
    publisher = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"

    def decode_files(self, folder: str) -> Decoded:
        """Stereo pairs [N, 2, 48, 48]: of 96x96 pixels each 2x2 block becomes its mean, rounded
        half up. Raises DataError naming the file and the cure.
        """
        files = self.read_verified(folder, IMAGES, *ENDINGS)
        images = {}
        for split, prefix in PREFIXES.items():
            # The pairs have no name here: 448 MB, not to be kept while the other split is read.
            images_NCHW = halve_images(parse_matrix(*files.pop(f"{prefix}-dat"), *PAIR))
            path, data = files[f"{prefix}-cat"]
            labels_N = parse_matrix(path, data)
            with name_undecodable(path):
                images[split] = label_images(images_NCHW, labels_N, NUM_CLASSES)
        return images


def halve_images(images_NCHW: np.ndarray) -> np.ndarray:
    """uint8 images of half the height and width: the mean of each 2x2 block, rounded half up."""
    count, channels, height, width = images_NCHW.shape
    total_NCHW = np.full((count, channels, height // 2, width // 2), 2, "u2")
    for row in (0, 1):
        for column in (0, 1):
            total_NCHW += images_NCHW[:, :, row::2, column::2]
    return (total_NCHW >> 2).astype(np.uint8)


def parse_matrix(path: Path, data: bytes, *shape: int) -> np.ndarray:
    """The matrix in the bytes of `path`, decompressed first where its name ends in .gz; shape: of
    an element along the first dimension. Raises DataError naming the file.
    """
    with name_undecodable(path):
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        magic, dimensions = struct.unpack_from("<ii", data)
        start = 8 + 4 * max(dimensions, LEAST_DIMENSIONS)
        return np.frombuffer(data, TYPES[magic], offset=start).reshape(-1, *shape)


class NovelViewpoints(Reader):
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
        self.files = SmallNorbReader(sha256, folders, sha256_plain)
        own = [{n: group[n] for n in IMAGES if n in group} for group in (sha256, sha256_plain)]
        self.images = SmallNorbReader(own[0], folders, own[1])  # decoded once, for all viewpoints
        self.column, self.familiar = INFO.index(viewpoint), list(familiar)

    def read(self, folder: str) -> Splits:
        """The three splits, each in the order of its file. Raises DataError."""
        files = self.files.read_verified(folder, INFOS.values(), *ENDINGS)
        splits = self.images.read(folder)

        def is_familiar(split: str) -> Tensor:
            info_NE = parse_matrix(*files[INFOS[split]], len(INFO))
            return torch.from_numpy(np.isin(info_NE[:, self.column], self.familiar))

        trained_N, tested_N = is_familiar("train"), is_familiar("test")
        return Splits(
            train=splits.train.select(trained_N),
            validation=splits.test.select(tested_N),
            test=splits.test.select(~tested_N),
        )
