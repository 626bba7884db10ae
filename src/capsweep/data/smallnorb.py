"""Readers of smallNORB (LeCun, Huang, Bottou 2004), a data set of stereo pairs of images.

The files are matrices in NYU's binary format. A file begins with a header of little-endian int32
numbers: a magic number for the dtype, the number of dimensions, and the size of each dimension. The
header has at least three sizes; the size of an unused dimension is 1. After the header come the
elements. The index of the last dimension changes fastest.
"""

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from capsweep.data.images import Splits, label_images
from capsweep.data.official import Decoded, OfficialReader
from capsweep.storage.official_files import report_undecodable

PREFIXES = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
TYPES = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}
IMAGES = tuple(f"{prefix}-{kind}" for prefix in PREFIXES.values() for kind in ("dat", "cat"))
LEAST_DIMENSIONS = 3  # smallest number of sizes in a header, also for fewer dimensions
PAIR = (2, 96, 96)  # shape of a stereo pair: cameras (left, right), rows, columns
NUM_CLASSES = 5
ENDINGS = (".mat.gz", ".mat")
INFO = ("instance", "elevation", "azimuth", "light")  # columns of an `info` file
INFOS = {split: f"{prefix}-info" for split, prefix in PREFIXES.items()}


class SmallNorbReader(OfficialReader):
    """A reader of smallNORB's `dat` (images) and `cat` (classes) files.

    The height and the width of the images are halved. The files may be `.mat.gz` or `.mat`.
    """

    name = "smallnorb"
    publisher = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"

    def decode_files(self, folder: str) -> Decoded:
        """Read the splits, and halve height and width of the images to uint8 [N, 2, 48, 48]."""
        files = self.read_verified(folder, IMAGES, *ENDINGS)
        images = {}
        for split, prefix in PREFIXES.items():
            # No variable refers to the full-size pairs (448 MB), so this line frees their memory.
            images_NCHW = halve_images(parse_matrix(*files.pop(f"{prefix}-dat"), *PAIR))
            path, data = files[f"{prefix}-cat"]
            labels_N = parse_matrix(path, data)
            with report_undecodable(path):
                images[split] = label_images(images_NCHW, labels_N, NUM_CLASSES)
        return images


def halve_images(images_NCHW: np.ndarray) -> np.ndarray:
    """Halve the height and width of images; each new pixel is the mean of a 2x2 block.

    Args:
        images_NCHW: uint8 images [N, C, H, W].

    Returns:
        uint8 images [N, C, H / 2, W / 2]. Means are rounded to integers; x.5 is rounded up.
    """
    rows_NCHW = np.add(images_NCHW[:, :, ::2], images_NCHW[:, :, 1::2], dtype="u2")
    total_NCHW = rows_NCHW[..., ::2] + rows_NCHW[..., 1::2]
    return ((total_NCHW + 2) >> 2).astype(np.uint8)


def parse_matrix(path: Path, data: bytes, *shape: int) -> np.ndarray:
    """Parse a matrix in NYU's format.

    Args:
        path: Path of the file, for messages. If the path ends in .gz, `data` is decompressed first.
        data: Verified bytes of the file.
        *shape: Sizes of all dimensions except the first.

    Returns:
        The matrix [N, *shape], with the dtype that its header declares.

    Raises:
        DataError: If the bytes are not a matrix in this format.
    """
    with report_undecodable(path):
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        magic, dimensions = struct.unpack_from("<ii", data)
        start = 8 + 4 * max(dimensions, LEAST_DIMENSIONS)
        return np.frombuffer(data, TYPES[magic], offset=start).reshape(-1, *shape)


@dataclass(kw_only=True)
class NovelViewpoints(SmallNorbReader):
    """A reader of smallNORB with familiar viewpoints for training and novel ones for testing.

    Training images are the official training images of the familiar viewpoints. Test images are the
    official test images of the other viewpoints. Validation images are the official test images of
    the familiar viewpoints; they show other toys than the training images. The protocol of "Matrix
    capsules with EM routing" compares networks that have the same validation error.

    Attributes:
        sha256: The sha256 of each `.mat.gz` file, also of the `info` files. Keys are the names of
            the files without ending.
        sha256_plain: The known sha256 of files that are stored decompressed, by the same names.
        folders: Where to look for the files: names of folders below the data folder.
        viewpoint: The angle that makes a viewpoint familiar or novel: "azimuth" or "elevation" of
            the camera.
        familiar: The familiar values of this angle, as the codes in the `info` files.
    """

    viewpoint: str
    familiar: Sequence[int]

    def read(self, folder: str) -> Splits:
        """Read and verify the splits; see `Reader.read`.

        The examples of a split are in the order of the official file.
        """
        files = self.read_verified(folder, INFOS.values(), *ENDINGS)
        # The hashes of `info` files are left out, so that all viewpoints share one cache file.
        sha256, plain = (
            {name: group[name] for name in IMAGES if name in group}
            for group in (self.sha256, self.sha256_plain)
        )
        splits = SmallNorbReader(sha256, self.folders, plain).read(folder)

        def is_familiar(split: str) -> Tensor:
            info_NE = parse_matrix(*files[INFOS[split]], len(INFO))
            angle_N = info_NE[:, INFO.index(self.viewpoint)]
            return torch.from_numpy(np.isin(angle_N, self.familiar))

        trained_N, tested_N = is_familiar("train"), is_familiar("test")
        return Splits(
            train=splits.train.select(trained_N),
            validation=splits.test.select(tested_N),
            test=splits.test.select(~tested_N),
        )
