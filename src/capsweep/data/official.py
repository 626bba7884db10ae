"""The official files of MNIST and its kin (IDX), SVHN and affNIST (MATLAB); scikit-learn's digits.

Every byte is verified before it is decoded. Shape letters: N examples, C H W image, E pixels.
"""

import gzip
import hashlib
import io
import struct
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsweep.data.images import (
    Decoded,
    DecodedReader,
    LabelledImages,
    Reader,
    Splits,
    decode_once,
    label_images,
    stratified_sample,
)
from capsweep.errors import DataError
from capsweep.storage.files import hash_bytes, write_atomically
from capsweep.storage.official_files import (
    UNKNOWN,
    Digest,
    OfficialFiles,
    local_folder,
    name_undecodable,
    read_content,
    resolve_folders,
)
from capsweep.storage.stores import hide_query, join

TIMEOUT = 10.0  # seconds without an answer before a mirror counts as unreachable
BOX, CANVAS = 20, 28  # pixels: MNIST's digit box and image
AFFNIST, AFFNIST_SIDE = "affNISTdata", 40  # the struct in a file; pixels
AFFNIST_PUBLISHER = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/"
TEST_DIGITS = 360  # of scikit-learn's
SPLIT_SEED = 20171026  # the day the paper appeared; part of the data set, never of a cell


class OfficialReader:
    """A reader of official files.

    sha256: of the official files, by name without ending: the fingerprint; sha256_plain: of the
    same files decompressed, where known. A hash may be the text `unknown`. folders: where to look
    below the data folder.
    """

    publisher: str

    def __init__(
        self,
        sha256: Mapping[str, str],
        folders: Sequence[str],
        sha256_plain: Mapping[str, str] | None = None,
    ) -> None:
        self.sha256, self.sha256_plain = dict(sha256), dict(sha256_plain or {})
        self.files = OfficialFiles(folders, self.publisher)

    @property
    def declared_hashes(self) -> Mapping[str, Mapping[str, str]]:
        """All hashes that the files are verified by."""
        return {"sha256": self.sha256, "sha256_plain": self.sha256_plain}

    def digest_of(self, path: Path, data: bytes, name: str, group: str = "sha256") -> Digest:
        """The hash of the content of a file, and the one that the group declares for its name."""
        declared = getattr(self, group).get(name, UNKNOWN)
        return Digest(path, hash_bytes(data), declared, f"dataset.reader.{group}.{name}")

    def select_digest(self, path: Path, data: bytes, name: str) -> Digest:
        """Return the digest by which a file is verified."""
        return self.digest_of(path, data, name)

    def read_verified(
        self, folder: str, names: Mapping[str, Sequence[str]]
    ) -> dict[str, tuple[Path, bytes]]:
        """Return paths and verified bytes by name without ending, `names` being what files may be
        called. Raises DataError naming the file and the cure.
        """
        paths = self.files.find_all(folder, names)
        contents = {name: (path, read_content(path)) for name, path in paths.items()}
        self.files.check_digests(*(self.select_digest(*contents[n], n) for n in names))
        return contents


class IdxReader(OfficialReader, Reader):
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
        """Return the verified data set. Raises DataError naming the file and the cure."""
        return Splits(
            train=self._read_split(folder, "train"), test=self._read_split(folder, "t10k")
        )

    def _read_split(self, folder: str, prefix: str) -> LabelledImages:
        images_NHW = self._read_verified(folder, f"{prefix}-images-idx3-ubyte")
        labels_N = self._read_verified(folder, f"{prefix}-labels-idx1-ubyte")
        return LabelledImages(images_NHW[:, None], labels_N.to(torch.int64))

    def _read_verified(self, folder: str, name: str) -> Tensor:
        """The array in one file whose sha256 is the declared one."""
        path = self.files.find(folder, f"{name}.gz", name) or self._download_file(
            folder, f"{name}.gz"
        )
        is_compressed = path.suffix == ".gz"
        if not is_compressed and name not in self.sha256_plain:
            raise DataError(f"{path}: only the official {name}.gz can be verified; put it beside")
        data = read_content(path)
        group = "sha256" if is_compressed else "sha256_plain"
        self.files.check_digests(self.digest_of(path, data, name, group))
        with name_undecodable(path):
            return decode_idx(gzip.decompress(data) if is_compressed else data)

    def _download_file(self, folder: str, name: str) -> Path:
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
                return path
            faults.append(f"{mirror}: sha256 differs from the declared one")
        needed = ", ".join(f"{name}.gz" for name in self.sha256)
        raise DataError(
            f"places.data={hide_query(place)}: {name} is absent and cannot be downloaded "
            f"({'; '.join(faults)}); put {needed} there, or set DATA_DIR"
        )


def decode_idx(data: bytes) -> Tensor:
    """The uint8 array in the bytes of a verified IDX file: the number of dimensions, the sizes in
    big-endian int32, then the numbers, last dimension fastest.
    """
    dimensions = data[3]
    shape = struct.unpack_from(f">{dimensions}i", data, 4)
    pixels = np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    return torch.from_numpy(pixels.copy())


class SvhnReader(OfficialReader, DecodedReader):
    """SVHN, cropped digits (Netzer et al. 2011): `train_32x32.mat` and `test_32x32.mat`, without
    `extra`; the file's label 10 is the digit 0.
    """

    name = "svhn"
    publisher = "http://ufldl.stanford.edu/housenumbers/"

    def decode_files(self, folder: str) -> Decoded:
        """Images [N, 3, 32, 32]. Raises DataError naming the file and the cure."""
        names = {split: f"{split}_32x32" for split in ("train", "test")}
        files = self.read_verified(folder, {name: [f"{name}.mat"] for name in names.values()})
        return {split: _decode_svhn(*files.pop(name)) for split, name in names.items()}


def _decode_svhn(path: Path, data: bytes) -> LabelledImages:
    """X is [32, 32, 3, N], rows first; y is [N, 1], 1..10."""
    with name_undecodable(path):
        variables = load_matlab(data)
        return label_images(variables["X"].transpose(3, 2, 0, 1), variables["y"][:, 0] % 10, 10)


def load_matlab(data: bytes) -> dict[str, Any]:
    """The variables in the verified bytes of a file: altered ones can crash scipy's process."""
    from scipy.io import loadmat

    return loadmat(io.BytesIO(data))


class AffnistTest:
    """affNIST (Tieleman 2013): MNIST's test digits under affine transformations, from `test.mat` or
    `test_batches/1.mat ...`; Sabour et al. 2017 train on MNIST placed on the same 40x40 canvas.

    `image` is [1600, N], a digit a column, read rows first (pixel 40 y + x), as public programs do;
    `tests/data/test_matlab_files.py` proves the order where the file is.

    sha256: the fingerprint; `test` of test.mat, `test_batches` of the numbered files one after the
    other (`cat {1..32}.mat | sha256sum`), or the text `unknown`. folders: where to look below the
    data folder.
    """

    def __init__(self, sha256: Mapping[str, str], folders: Sequence[str]) -> None:
        self.sha256 = dict(sha256)
        self.files = OfficialFiles(folders, AFFNIST_PUBLISHER)
        numbered = [join(folder, "test_batches") for folder in folders]
        self.batches = OfficialFiles(numbered, AFFNIST_PUBLISHER)

    def read(self, folder: str, test: LabelledImages) -> LabelledImages:
        """Return affNIST's test images [N, 1, 40, 40]. Raises DataError naming file and cure."""
        declared = {"sha256": self.sha256}
        images = decode_once("affnist", declared, lambda: {"test": self._decode_files(folder)})
        return images["test"]

    def _decode_files(self, folder: str) -> LabelledImages:
        whole = self.files.find(folder, "test.mat")
        paths = [whole] if whole else self._find_batches(folder)
        contents = [read_content(path) for path in paths]
        digest = hashlib.sha256()
        for data in contents:
            digest.update(data)
        name, path = ("test", whole) if whole else ("test_batches", paths[0].parent)
        declared, key = self.sha256.get(name, UNKNOWN), f"dataset.test.sha256.{name}"
        self.files.check_digests(Digest(path, digest.hexdigest(), declared, key))
        parts = [_parse_affnist(path, data) for path, data in zip(paths, contents, strict=True)]
        images_NCHW = torch.cat([part.images_NCHW for part in parts])
        return LabelledImages(images_NCHW, torch.cat([part.labels_N for part in parts]))

    def _find_batches(self, folder: str) -> list[Path]:
        """The numbered files, up to the first that is absent."""
        numbered = (self.batches.find(folder, f"{number}.mat") for number in count(1))
        paths = [path for path in takewhile(bool, numbered) if path]
        if not paths:
            needed = "test.mat or test_batches/1.mat ... 32.mat"
            archives = "test.mat.zip or test_batches.zip"
            cure = f"download {archives} from {AFFNIST_PUBLISHER} and unpack it there"
            raise self.files.missing_error(folder, needed, cure)
        return paths


def _parse_affnist(path: Path, data: bytes) -> LabelledImages:
    """`image` is [1600, N] uint8, `label_int` [1, N], fields of one struct."""
    with name_undecodable(path):
        fields = load_matlab(data)[AFFNIST][0, 0]
        images_NCHW = fields["image"].T.reshape(-1, 1, AFFNIST_SIDE, AFFNIST_SIDE)
        return label_images(images_NCHW, fields["label_int"][0], 10)


class DigitsReader(DecodedReader):
    """scikit-learn's 1,797 embedded digits as images of MNIST's size; the split is fixed."""

    name = "digits"

    def __init__(self, sha256: str) -> None:
        self.sha256 = sha256

    @property
    def declared_hashes(self) -> Mapping[str, str]:
        """The hash of scikit-learn's arrays."""
        return {"sha256": self.sha256}

    def decode_files(self, folder: str) -> Decoded:
        """1,437 training and 360 test images [N, 1, 28, 28]; `folder` is not used.

        Raises DataError where the installed scikit-learn has other digits than the declared ones.
        """
        images_NHW, labels_N = self._load_digits()
        examples = LabelledImages(draw_on_canvas(images_NHW), labels_N)
        test = stratified_sample(labels_N.numpy(), TEST_DIGITS, SPLIT_SEED)
        rest = np.setdiff1d(np.arange(len(examples)), test)
        return {
            "train": examples.select(torch.from_numpy(rest)),
            "test": examples.select(torch.from_numpy(np.sort(test))),
        }

    def _load_digits(self) -> tuple[Tensor, Tensor]:
        from sklearn.datasets import load_digits  # 1 s, and needed once on a machine

        pixels_NE, target_N = load_digits(return_X_y=True)  # E = 8 * 8
        images = np.asarray(pixels_NE, dtype=np.uint8).reshape(-1, 8, 8)
        labels = np.asarray(target_N, dtype=np.uint8)
        digest = hash_bytes(images.tobytes() + labels.tobytes())
        if digest != self.sha256:
            raise DataError(
                f"scikit-learn's load_digits has sha256 {digest}, conf/dataset/digits.yaml "
                f"declares {self.sha256}; install the pinned scikit-learn: make setup"
            )
        return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def draw_on_canvas(images_NHW: Tensor) -> Tensor:
    """8x8 images of intensity 0..16, anti-aliased up to 20x20, centred on 28x28, 0..255."""
    scaled_N1HW = images_NHW[:, None].float() * (255 / 16)
    box = F.interpolate(scaled_N1HW, size=(BOX, BOX), mode="bicubic", antialias=True)
    margin = (CANVAS - BOX) // 2
    return F.pad(box.clamp(0, 255).round().to(torch.uint8), [margin] * 4)
