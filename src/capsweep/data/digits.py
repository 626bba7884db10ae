"""Data sets of digits: MNIST and its kin (IDX files), SVHN, scikit-learn's; and signed numbers.

Shape letters: N examples, C H W image, E pixels.
"""

import gzip
import io
import struct
import urllib.request
from collections.abc import Mapping, Sequence
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
from capsweep.storage.official_files import local_folder, name_undecodable, resolve_folders
from capsweep.storage.stores import hide_query

TIMEOUT = 10.0  # seconds without an answer before a mirror counts as unreachable
LARGEST = 255  # byte of the numbers with a sign
TEST_STEP, TEST_PLACE = 4, 1  # which of their pairs are tested on; not the first, nor the last
BOX, CANVAS = 20, 28  # pixels: MNIST's digit box and image
TEST_DIGITS = 360  # of scikit-learn's
SPLIT_SEED = 20171026  # the day the paper appeared; part of the data set, never of a cell


class IdxReader(OfficialReader):
    """Finds, downloads, verifies and reads `{train,t10k}-{images-idx3,labels-idx1}-ubyte`, with or
    without `.gz`. mirrors: URL prefixes.
    """

    def __init__(
        self,
        sha256: Mapping[str, str],
        sha256_plain: Mapping[str, str],
        folders: Sequence[str],
        mirrors: Sequence[str],
    ) -> None:
        self.publisher, self.mirrors = " or ".join(mirrors) or "its publisher", mirrors
        super().__init__(sha256, folders, sha256_plain)

    def read(self, folder: str) -> Splits:
        """Return the verified data set, decoded each time: that is as fast as a cache."""
        images = self.decode_files(folder)
        return Splits(images["train"], images["test"])

    def decode_files(self, folder: str) -> Decoded:
        """Images [N, 1, H, W]. Raises DataError naming the file and the cure."""
        for name in self.sha256:
            if self.files.find(folder, f"{name}.gz", name) is None:
                self._download_file(folder, f"{name}.gz")
        files = self.read_verified(folder, self.sha256, ".gz", "")
        arrays = {name: decode_idx(*file) for name, file in files.items()}
        return {
            split: LabelledImages(
                arrays[f"{prefix}-images-idx3-ubyte"][:, None],
                arrays[f"{prefix}-labels-idx1-ubyte"].to(torch.int64),
            )
            for split, prefix in (("train", "train"), ("test", "t10k"))
        }

    def _download_file(self, folder: str, name: str) -> None:
        place = resolve_folders(folder, self.files.folders)[0]
        path, faults = local_folder(place) / name, []
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


def decode_idx(path: Path, data: bytes) -> Tensor:
    """The uint8 array in the bytes of a verified IDX file: the number of dimensions, the sizes in
    big-endian int32, then the numbers, last dimension fastest.
    """
    with name_undecodable(path):
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        dimensions = data[3]
        shape = struct.unpack_from(f">{dimensions}i", data, 4)
        pixels = np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
        return torch.from_numpy(pixels.copy())


class SvhnReader(OfficialReader):
    """SVHN, cropped digits (Netzer et al. 2011): `train_32x32.mat` and `test_32x32.mat`, without
    `extra`; the file's label 10 is the digit 0.
    """

    name = "svhn"
    publisher = "http://ufldl.stanford.edu/housenumbers/"

    def decode_files(self, folder: str) -> Decoded:
        """Images [N, 3, 32, 32]. Raises DataError naming the file and the cure."""
        files = self.read_verified(folder, ["train_32x32", "test_32x32"], ".mat")
        return {split: _decode_svhn(*files.pop(f"{split}_32x32")) for split in ("train", "test")}


def _decode_svhn(path: Path, data: bytes) -> LabelledImages:
    """X is [32, 32, 3, N], rows first; y is [N, 1], 1..10."""
    with name_undecodable(path):
        variables = load_matlab(data)
        return label_images(variables["X"].transpose(3, 2, 0, 1), variables["y"][:, 0] % 10, 10)


def load_matlab(data: bytes) -> dict[str, Any]:
    """The variables in the verified bytes of a file: altered ones can crash scipy's process."""
    from scipy.io import loadmat

    return loadmat(io.BytesIO(data))


class ComputedReader(Reader):
    """A reader of images that no file holds. sha256: of what they are made of, as declared."""

    def __init__(self, sha256: str) -> None:
        self.sha256 = sha256

    def check_digest(self, content: bytes) -> None:
        """Raise DataError where images are made of other bytes than the declared ones."""
        if (found := hash_bytes(content)) != self.sha256:
            raise DataError(
                f"{type(self).__name__} reads sha256 {found}, dataset.reader.sha256 declares "
                f"{self.sha256}; install what is pinned: make setup, or declare another data set"
            )


class DigitsReader(ComputedReader):
    """scikit-learn's 1,797 embedded digits as images of MNIST's size; the split is fixed."""

    def read(self, folder: str) -> Splits:
        """1,437 training and 360 test images [N, 1, 28, 28]; `folder` is not used.

        Raises DataError where the installed scikit-learn has other digits than the declared ones.
        """
        images = decode_once("digits", {"sha256": self.sha256}, self._draw_digits)
        return Splits(images["train"], images["test"])

    def _draw_digits(self) -> Decoded:
        from sklearn.datasets import load_digits  # 1 s, and needed once on a machine

        pixels_NE, target_N = load_digits(return_X_y=True)  # E = 8 * 8
        images = np.asarray(pixels_NE, dtype=np.uint8).reshape(-1, 8, 8)
        labels = np.asarray(target_N, dtype=np.uint8)
        self.check_digest(images.tobytes() + labels.tobytes())
        drawn_N1HW = draw_on_canvas(torch.from_numpy(images))
        examples = LabelledImages(drawn_N1HW, torch.from_numpy(labels.astype(np.int64)))
        train, test = hold_out(examples, TEST_DIGITS, SPLIT_SEED)
        return {"train": train, "test": test}


def draw_on_canvas(images_NHW: Tensor) -> Tensor:
    """8x8 images of intensity 0..16, anti-aliased up to 20x20, centred on 28x28, 0..255."""
    scaled_N1HW = images_NHW[:, None].float() * (255 / 16)
    box = F.interpolate(scaled_N1HW, size=(BOX, BOX), mode="bicubic", antialias=True)
    margin = (CANVAS - BOX) // 2
    return F.pad(box.clamp(0, 255).round().to(torch.uint8), [margin] * 4)


class SignReader(ComputedReader):
    """Numbers as images of one pixel, whose class is their sign: what a network of capsules cannot
    learn without a bias (Peer, Stabinger, Rodriguez-Sanchez 2021, "Limitation of capsule
    networks"). A byte v stands for x = (2 v - 255) / 255, so that 255 - v stands for -x, and none
    for 0. There are all 256, with v and 255 - v in the same split; sha256: of both splits.
    """

    def read(self, folder: str) -> Splits:
        """192 training and 64 test images [N, 1, 1, 1]; `folder` is not used.

        Raises DataError where they are others than the declared ones.
        """
        byte_N = np.arange(LARGEST + 1, dtype=np.uint8)
        pair_N = np.minimum(byte_N, LARGEST - byte_N)
        is_test_N = pair_N % TEST_STEP == TEST_PLACE
        train, test = (_label_bytes(byte_N[chosen_N]) for chosen_N in (~is_test_N, is_test_N))
        self.check_digest(b"".join(map(_list_bytes, (train, test))))
        return Splits(train=train, test=test)


def _label_bytes(byte_N: np.ndarray) -> LabelledImages:
    return label_images(byte_N[:, None, None, None], byte_N > LARGEST // 2, classes=2)


def _list_bytes(examples: LabelledImages) -> bytes:
    labels_N = examples.labels_N.to(torch.uint8)
    return examples.images_NCHW.numpy().tobytes() + labels_N.numpy().tobytes()
