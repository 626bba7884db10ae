"""MNIST and its kin: the four official IDX files, verified, decoded by torchvision."""

import gzip
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

import torch
from torch import Tensor
from torchvision.datasets.mnist import read_image_file, read_label_file

from capsweep.data import fetched
from capsweep.data.images import LabelledImages, Splits
from capsweep.data.verified import content_of, cure_of
from capsweep.errors import DataError
from capsweep.files import hash_bytes, write_atomically
from capsweep.object_store import is_url, shown

TIMEOUT = 10.0  # seconds without an answer before a mirror counts as unreachable


class IdxReader:
    """Finds, downloads, verifies and reads `{train,t10k}-{images-idx3,labels-idx1}-ubyte`.

    sha256: of the official .gz files, by name without .gz; sha256_plain: of the same files
    decompressed, where known. folders: where to look below the data folder. mirrors: URL prefixes.
    """

    def __init__(
        self,
        sha256: Mapping[str, str],
        sha256_plain: Mapping[str, str],
        folders: Sequence[str],
        mirrors: Sequence[str],
    ) -> None:
        self.sha256 = sha256
        self.sha256_plain = sha256_plain
        self.folders = folders
        self.mirrors = mirrors

    def check(self, folder: str) -> None:
        """Find or download all files and verify them. Raises DataError naming the file."""
        for name in self.sha256:
            self._verified(folder, name)

    def read(self, folder: str) -> Splits:
        """The verified data set. Raises DataError naming the file and the cure."""
        return Splits(train=self._split(folder, "train"), test=self._split(folder, "t10k"))

    def _split(self, folder: str, prefix: str) -> LabelledImages:
        images_NHW = _decode(self._verified(folder, f"{prefix}-images-idx3-ubyte"), read_image_file)
        labels_N = _decode(self._verified(folder, f"{prefix}-labels-idx1-ubyte"), read_label_file)
        return LabelledImages(images_NHW[:, None], labels_N.to(torch.int64))

    def _verified(self, folder: str, name: str) -> bytes:
        """The decompressed bytes of one file whose sha256 is the declared one."""
        path = self._find(folder, name)
        data = content_of(path)
        declared = (self.sha256 if path.suffix == ".gz" else self.sha256_plain).get(name)
        if declared is None:
            raise DataError(f"{path}: only the official {name}.gz can be verified; put it beside")
        if hash_bytes(data) != declared:
            raise DataError(
                f"{path}: truncated or altered ({len(data)} bytes, sha256 {hash_bytes(data)}, "
                f"declared {declared}); {cure_of(path, 'download it again')}"
            )
        return gzip.decompress(data) if path.suffix == ".gz" else data

    def _find(self, folder: str, name: str) -> Path:
        if not is_url(folder) and not Path(folder).is_dir():
            raise DataError(
                f"places.data: {folder} does not exist; set DATA_DIR to the folder of "
                f"{name}.gz, or create it and the files are downloaded"
            )
        of = fetched.places(folder, self.folders)
        plain = self.sha256_plain.get(name, "none is declared")
        accepted = fetched.declared([self.sha256[name], plain])
        found = fetched.find(of, (f"{name}.gz", name), accepted)
        return found or self._download(of[0], f"{name}.gz")

    def _download(self, place: str, name: str) -> Path:
        path = fetched.local(place) / name
        faults = []
        for mirror in self.mirrors:
            try:
                with urllib.request.urlopen(f"{mirror}{path.name}", timeout=TIMEOUT) as answer:
                    data = answer.read()
            except (OSError, HTTPException) as error:
                faults.append(f"{mirror}: {error}")
                continue
            if hash_bytes(data) == self.sha256[path.stem]:
                return _keep(path, data, place)
            faults.append(f"{mirror}: sha256 differs from the declared one")
        needed = ", ".join(f"{name}.gz" for name in self.sha256)
        absent = f"{fetched.KEY}={shown(place)}: {name}" if is_url(place) else str(path)
        raise DataError(
            f"{absent} is absent and cannot be downloaded ({'; '.join(faults)}); "
            f"put {needed} into {shown(place)}"
        )


def _keep(path: Path, data: bytes, place: str) -> Path:
    try:
        if is_url(place):
            fetched.begin(place)
        write_atomically(path, lambda file: file.write(data))
    except OSError as error:
        raise DataError(
            f"{path}: downloaded, but cannot be written ({error.strerror}); "
            "set DATA_DIR to a folder that can be written, or put the file there"
        ) from error
    return path


def _decode(data: bytes, read: "type[Tensor] | object") -> Tensor:
    """torchvision's decoder reads files, so the verified bytes go through one."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return read(file.name)  # type: ignore[operator]
