"""CIFAR-10 (Krizhevsky 2009), the official binary version; the pickled version is never read.

A record is one label byte 0..9 and 3,072 bytes: 32x32 pixels of the red, green and blue plane.
"""

import io
import lzma
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from capsweep.data.images import Decoded, DecodedReader, LabelledImages, label_images
from capsweep.data.official import OfficialReader
from capsweep.storage.official_files import name_undecodable, read_content

ARCHIVE = "cifar-10-binary"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
IMAGE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # bytes
NUM_CLASSES = 10
BATCH = 10_000 * RECORD  # bytes of every official batch
PUBLISHER = "https://www.cs.toronto.edu/~kriz/cifar.html"
OFFICIAL = f"{PUBLISHER} (a copy that is not byte-exact: dataset=cifar10_approximate)"
APPROXIMATE = "where you have it from (nobody offers this copy; the official: dataset=cifar10)"


class Cifar10Reader(OfficialReader, DecodedReader):
    """Reads `cifar-10-binary.tar.gz`, or its six `.bin` files, each plain or compressed as `.xz`.

    sha256: of the archive, and sha256_plain of the six files; or sha256 of the six files of another
    copy. Files compressed as `.xz` are hashed without.
    """

    name = "cifar10"

    def __init__(
        self,
        sha256: Mapping[str, str],
        folders: Sequence[str],
        sha256_plain: Mapping[str, str] | None = None,
    ) -> None:
        self.is_official = ARCHIVE in sha256
        self.publisher = OFFICIAL if self.is_official else APPROXIMATE
        super().__init__(sha256, folders, sha256_plain)

    def decode_files(self, folder: str) -> Decoded:
        """Images [N, 3, 32, 32]. Raises DataError naming the file and the cure."""
        batches = {name: _parse_batch(*batch) for name, batch in self._read_batches(folder)}
        train = [batches[name] for name in TRAIN]
        images_NCHW = torch.cat([batch.images_NCHW for batch in train])
        labels_N = torch.cat([batch.labels_N for batch in train])
        return {"train": LabelledImages(images_NCHW, labels_N), "test": batches[TEST]}

    def _read_batches(self, folder: str) -> Iterator[tuple[str, tuple[Path, bytes]]]:
        """By name: the file and the verified bytes of every batch."""
        archive = self.files.find(folder, f"{ARCHIVE}.tar.gz") if self.is_official else None
        if archive is not None:
            data = read_content(archive)
            self.files.check_digests(self.digest_of(archive, data, ARCHIVE))
            with name_undecodable(archive):
                members = _read_members(data)
                yield from ((name, (archive, members[name])) for name in (*TRAIN, TEST))
            return
        group = "sha256_plain" if self.is_official else "sha256"
        for name, path in self._find_batches(folder).items():
            data = read_content(path)
            data = _decompress_batch(data) if path.suffix == ".xz" else data
            self.files.check_digests(self.digest_of(path, data, name, group))
            yield name, (path, data)

    def _find_batches(self, folder: str) -> dict[str, Path]:
        paths = {n: self.files.find(folder, f"{n}.bin", f"{n}.bin.xz") for n in (*TRAIN, TEST)}
        absent = ", ".join(f"{name}.bin" for name, path in paths.items() if path is None)
        if absent and self.is_official:
            absent = f"{ARCHIVE}.tar.gz (the pickled version is never read) or {absent}"
        if absent:
            raise self.files.missing_error(folder, absent)
        return {name: path for name, path in paths.items() if path is not None}


def _decompress_batch(data: bytes) -> bytes:
    """Return at most a byte more than a batch has: what is not verified yet may become anything.

    Damaged bytes stay as they are, and are refused by their hash.
    """
    decompressor = lzma.LZMADecompressor()
    try:
        content = decompressor.decompress(data, BATCH + 1)
    except lzma.LZMAError:
        return data
    return content if decompressor.eof else data


def _read_members(data: bytes) -> dict[str, bytes]:
    """The files in the bytes of the archive, by name without ending."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive.getmembers()]
        return {Path(name).stem: file.read() for name, file in files if file}


def _parse_batch(path: Path, data: bytes) -> LabelledImages:
    """The records of one batch."""
    with name_undecodable(path):
        records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
        return label_images(records[:, 1:].reshape(-1, *IMAGE), records[:, 0], NUM_CLASSES)
