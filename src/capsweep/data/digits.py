"""Readers of MNIST and similar data sets, of SVHN, of scikit-learn's digits, and of signed numbers.

Shape letters: N examples, C H W image, E pixels.
"""

import gzip
import io
import struct
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsweep.data.images import LabelledImages, Reader, Splits, hold_out, label_images
from capsweep.data.official import Decoded, OfficialReader, decode_once
from capsweep.errors import DataError
from capsweep.storage.files import hash_bytes, write_atomically
from capsweep.storage.official_files import locate_folder, report_undecodable, resolve_folders
from capsweep.storage.stores import hide_query

TIMEOUT = 10.0  # seconds without an answer before a mirror counts as unreachable
LARGEST_BYTE = 255  # largest of the bytes 0..255, which stand for signed numbers
# The bytes v and 255 - v, with v < 128, are a pair. The pair is in the test split if v % TEST_STEP
# == TEST_PLACE. So the first pair (v = 0) and the last pair (v = 127) are training examples.
TEST_STEP, TEST_PLACE = 4, 1
BOX, CANVAS = 20, 28  # sides in pixels: the box around a digit of MNIST; an image of MNIST
TEST_DIGITS = 360  # number of scikit-learn's 1,797 digits that are test images
UINT8 = 8  # code of bytes in the header of an IDX file


@dataclass(kw_only=True)
class IdxReader(OfficialReader):
    """A reader of MNIST or of a data set in the same format.

    The files are `{train,t10k}-{images-idx3,labels-idx1}-ubyte`, with or without `.gz`. Missing
    files are downloaded.

    Attributes:
        sha256: The sha256 of each `.gz` file. Keys are the names of the files without `.gz`.
        sha256_plain: The known sha256 of files that are stored decompressed, by the same names.
        folders: Where to look for the files: names of folders below the data folder. Downloads are
            written to the first folder.
        mirrors: URLs for downloads, which are tried in order. The name of a file is appended to the
            URL.
    """

    mirrors: Sequence[str]

    def __post_init__(self) -> None:
        self.publisher = " or ".join(self.mirrors) or "its publisher"
        super().__post_init__()

    def read(self, folder: str) -> Splits:
        """Read and verify the data set; see `Reader.read`.

        The files are decoded in each call, because this is as fast as reading decoded images from a
        cache.
        """
        images = self.decode_files(folder)
        return Splits(images["train"], images["test"])

    def decode_files(self, folder: str) -> Decoded:
        """Download missing files, and read the splits with uint8 images [N, 1, H, W].

        Args:
            folder: The data folder, a path or the URL of an object store.

        Raises:
            DataError: If a file cannot be downloaded, if its hash is not the declared one, or if it
                cannot be decoded.
            StoreError: If the object store does not answer.
        """
        for name in self.sha256:
            if self.files.find(folder, f"{name}.gz", name) is None:
                self._download_file(folder, f"{name}.gz")
        files = self.read_verified(folder, self.sha256, ".gz", "")
        arrays = {}
        for name, (path, data) in files.items():
            with report_undecodable(path):
                arrays[name] = torch.from_numpy(decode_idx(path, data))
        return {
            split: LabelledImages(
                arrays[f"{prefix}-images-idx3-ubyte"][:, None],
                arrays[f"{prefix}-labels-idx1-ubyte"].to(torch.int64),
            )
            for split, prefix in (("train", "train"), ("test", "t10k"))
        }

    def _download_file(self, folder: str, name: str) -> None:
        place = resolve_folders(folder, self.files.folders)[0]
        path, faults = locate_folder(place) / name, []
        for mirror in self.mirrors:
            try:
                with urllib.request.urlopen(f"{mirror}{name}", timeout=TIMEOUT) as answer:
                    data = answer.read()
            except (OSError, HTTPException) as error:
                faults.append(f"{mirror}: {error}")
                continue
            if hash_bytes(data) == self.sha256[path.stem]:
                write_atomically(path, lambda file, data=data: file.write(data))
                return
            faults.append(f"{mirror}: sha256 differs from the declared one")
        needed = ", ".join(f"{name}.gz" for name in self.sha256)
        raise DataError(
            f"places.data={hide_query(place)}: {name} is absent and cannot be downloaded "
            f"({'; '.join(faults)}); put {needed} there, or set DATA_DIR"
        )


def decode_idx(path: Path, data: bytes) -> np.ndarray:
    """Decode the uint8 array in an IDX file.

    The third byte of the file is the type of the numbers, and the fourth byte is the number of
    dimensions. The next bytes are the sizes of the dimensions as big-endian int32, and after them
    the elements of the array. The index of the last dimension changes fastest.

    Args:
        path: Path of the file. If the path ends in .gz, `data` is decompressed first.
        data: The bytes of the file.

    Returns:
        The uint8 array, in the shape that the file declares.

    Raises:
        Exception: If `data` is not an IDX file of uint8 numbers.
    """
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    kind, dimensions = data[2:4]
    if kind != UINT8:
        raise ValueError(f"the type of its numbers is {kind:#04x}, not {UINT8:#04x} (bytes)")
    shape = struct.unpack_from(f">{dimensions}i", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()


class SvhnReader(OfficialReader):
    """A reader of SVHN's cropped digits (Netzer et al. 2011), without the `extra` images.

    The files are `train_32x32.mat` and `test_32x32.mat`. In the files, label 10 means the digit 0.
    """

    name = "svhn"
    publisher = "http://ufldl.stanford.edu/housenumbers/"

    def decode_files(self, folder: str) -> Decoded:
        """Read the splits, with uint8 images [N, 3, 32, 32], from the official files."""
        files = self.read_verified(folder, ["train_32x32", "test_32x32"], ".mat")
        return {split: _decode_svhn(*files.pop(f"{split}_32x32")) for split in ("train", "test")}


def _decode_svhn(path: Path, data: bytes) -> LabelledImages:
    """Decode a file that has uint8 images `X` [H, W, C, N] and labels `y` [N, 1] in 1..10."""
    with report_undecodable(path):
        variables = load_matlab(data)
        return label_images(variables["X"].transpose(3, 2, 0, 1), variables["y"][:, 0] % 10, 10)


def load_matlab(data: bytes) -> dict[str, Any]:
    """Load the variables of a MATLAB file by their names.

    Args:
        data: The bytes of the file. Their hash must have been verified, because damaged bytes can
            crash scipy, and scipy then crashes the whole process.
    """
    from scipy.io import loadmat

    return loadmat(io.BytesIO(data))


@dataclass
class ComputedReader(Reader):
    """A reader of images that are computed and not read from a file of the data folder.

    Attributes:
        sha256: The declared sha256 of the bytes from which the images are computed.
    """

    sha256: str

    def check_digest(self, content: bytes) -> None:
        """Check that bytes have the declared sha256.

        Args:
            content: The bytes from which images are computed.

        Raises:
            DataError: If the bytes have another sha256.
        """
        if (computed := hash_bytes(content)) != self.sha256:
            raise DataError(
                f"dataset.reader.sha256 is {self.sha256}, but {type(self).__name__} computes "
                f"{computed}; install the pinned versions (make setup), or correct the hash"
            )


class DigitsReader(ComputedReader):
    """A reader of scikit-learn's 1,797 digits.

    The digits are enlarged to the size of MNIST's images. The split into training and test images
    is the same in all cells.
    """

    def read(self, folder: str) -> Splits:
        """Return 1,437 training and 360 test images, uint8 [N, 1, 28, 28].

        Args:
            folder: Not used, since no file of the data folder is read.

        Raises:
            DataError: If the digits of the installed scikit-learn are not the declared ones.
        """
        images = decode_once("digits", {"sha256": self.sha256}, self._draw_digits)
        return Splits(images["train"], images["test"])

    def _draw_digits(self) -> Decoded:
        from sklearn.datasets import load_digits  # takes 1 s, and is needed once per machine

        pixels_NE, target_N = load_digits(return_X_y=True)  # E = 8 * 8
        images = np.asarray(pixels_NE, dtype=np.uint8).reshape(-1, 8, 8)
        labels = np.asarray(target_N, dtype=np.uint8)
        self.check_digest(images.tobytes() + labels.tobytes())
        drawn_N1HW = draw_on_canvas(torch.from_numpy(images))
        examples = LabelledImages(drawn_N1HW, torch.from_numpy(labels.astype(np.int64)))
        train, test = hold_out(examples, TEST_DIGITS)
        return {"train": train, "test": test}


def draw_on_canvas(images_NHW: Tensor) -> Tensor:
    """Enlarge 8x8 images to MNIST's size.

    Args:
        images_NHW: Images [N, 8, 8] with intensities 0..16.

    Returns:
        uint8 images [N, 1, 28, 28] with intensities 0..255. Each digit is resized to 20x20 pixels
        (bicubic, anti-aliased) and placed in the middle.
    """
    scaled_N1HW = images_NHW[:, None].float() * (255 / 16)
    box = F.interpolate(scaled_N1HW, size=(BOX, BOX), mode="bicubic", antialias=True)
    margin = (CANVAS - BOX) // 2
    return F.pad(box.clamp(0, 255).round().to(torch.uint8), [margin] * 4)


class SignReader(ComputedReader):
    """A reader of signed numbers as images of one pixel; the sign of a number is its class.

    A capsule network cannot learn this task without a bias (Peer, Stabinger, Rodriguez-Sanchez
    2021, "Limitation of capsule networks"). A byte v stands for x = (2 v - 255) / 255, so that
    255 - v stands for -x and no byte stands for 0. The data set has one image for each of the 256
    bytes. The images of the bytes v and 255 - v are always in the same split.

    Args:
        sha256: The declared sha256 of these bytes in order: the training images, their labels, the
            test images, their labels.
    """

    def read(self, folder: str) -> Splits:
        """Return 192 training and 64 test images, uint8 [N, 1, 1, 1].

        Args:
            folder: Not used, since no file of the data folder is read.

        Raises:
            DataError: If the images and labels have another sha256 than the declared one.
        """
        byte_N = np.arange(LARGEST_BYTE + 1, dtype=np.uint8)
        pair_N = np.minimum(byte_N, LARGEST_BYTE - byte_N)
        is_test_N = pair_N % TEST_STEP == TEST_PLACE
        splits = byte_N[~is_test_N], byte_N[is_test_N]
        labelled = [(split_N, split_N > LARGEST_BYTE // 2) for split_N in splits]
        self.check_digest(b"".join(array.tobytes() for pair in labelled for array in pair))
        train, test = (label_images(b_N[:, None, None, None], y_N, 2) for b_N, y_N in labelled)
        return Splits(train, test)
