"""CIFAR-10 (Krizhevsky 2009), the official binary version; the pickled version is never read.

A record is one label byte 0..9 and 3,072 bytes: 32x32 pixels of the red, green and blue plane.
"""

import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from capsweep.data.decoded_images import Decoded, DecodedReader
from capsweep.data.images import LabelledImages
from capsweep.errors import DataError
from capsweep.storage.files import hash_bytes
from capsweep.storage.object_store import is_url
from capsweep.storage.official_files import UNKNOWN, OfficialFiles, content_of

ARCHIVE = "cifar-10-binary"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
IMAGE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # bytes
NUM_CLASSES = 10
BATCH = 10_000 * RECORD  # bytes of every official batch
PUBLISHER = "https://www.cs.toronto.edu/~kriz/cifar.html"
PICKLED = ("cifar-10-python.tar.gz", "cifar-10-batches-py")  # the file, and what is in it

# The copy of conf/dataset/cifar10_approximate.yaml, so that it is not taken for a damaged file.
APPROXIMATE = (
    "0def081c410489f98b3935c2d405fc7436d23377894a5d6a710ce1fad8082588",
    "69cda47c0145e3c217e9d41887b354db05bc67d8e824a0007c909625de6c9935",
    "1a4d0920ea06101641902b09fdac800cad7b5105963deee31ddff8e83fbabe6c",
    "7f8e9534c4aa91fa34cb7cb4561b126eac16e9a5aff31f1fdb6b38d83f3b92d6",
    "ace578a129b1d9695ee4254afb079a7573b408a36f818d5d96062484607c1619",
    "b7a8afae140bbcc0153185efcbd5d6b73bc11a49943288e23ba94c44c391c169",
)


class Cifar10Reader(DecodedReader):
    """Reads `cifar-10-binary.tar.gz`, or its six `.bin` files, each plain or compressed as `.xz`.

    sha256: the fingerprint, of the archive or of the six files (without `.xz`), by name without
    ending; sha256_plain: of the six files, where the archive's is the fingerprint. A hash may be
    the text `unknown`. folders: where to look below the data folder.
    """

    name = "cifar10"

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
        """All hashes that the files are verified by."""
        return {"sha256": self.sha256, "sha256_plain": self.sha256_plain}

    def decode(self, folder: str) -> Decoded:
        """Images [N, 3, 32, 32]. Raises DataError naming the file and the cure."""
        batches = {name: _examples(path, data) for name, path, data in self._batches(folder)}
        train = [batches[name] for name in TRAIN]
        images_NCHW = torch.cat([batch.images_NCHW for batch in train])
        labels_N = torch.cat([batch.labels_N for batch in train])
        return {"train": LabelledImages(images_NCHW, labels_N), "test": batches[TEST]}

    def _batches(self, folder: str) -> Iterator[tuple[str, Path, bytes]]:
        """Name, file and verified bytes of every batch."""
        archive = self.files.find(folder, f"{ARCHIVE}.tar.gz") if ARCHIVE in self.sha256 else None
        if archive is None:
            for name, path in self._find_plain(folder).items():
                yield name, path, self._plain(path, name)
            return
        data = content_of(archive)
        self.files.verify(archive, data, self.sha256[ARCHIVE], f"dataset.reader.sha256.{ARCHIVE}")
        for name, content in _members(archive, data):
            yield name, archive / f"{name}.bin", content

    def _find_plain(self, folder: str) -> dict[str, Path]:
        found = {n: self.files.find(folder, f"{n}.bin", f"{n}.bin.xz") for n in (*TRAIN, TEST)}
        absent = ", ".join(f"{name}.bin" for name, path in found.items() if path is None)
        if absent and ARCHIVE not in self.sha256:
            cure = f"nobody offers this copy: put it there, or set dataset=cifar10 ({PUBLISHER})"
            raise self.files.missing(folder, absent, cure)
        if absent:
            archive, batches = PICKLED
            pickled = None  # of a store nothing is fetched for a note
            if not is_url(folder):
                pickled = self.files.find(folder, archive) or self.files.find_folder(
                    folder, batches
                )
            note = f" ({pickled} is the pickled version, which is never read)" if pickled else ""
            raise self.files.missing(folder, f"{ARCHIVE}.tar.gz or {absent}{note}")
        return {name: path for name, path in found.items() if path is not None}

    def _plain(self, path: Path, name: str) -> bytes:
        data = content_of(path)
        data = _decompressed(path, data) if path.suffix == ".xz" else data
        group = "sha256_plain" if ARCHIVE in self.sha256 else "sha256"
        declared = getattr(self, group).get(name, UNKNOWN)
        self._refuse_other_copies(path, hash_bytes(data), declared)
        self.files.verify(path, data, declared, f"dataset.reader.{group}.{name}")
        return data

    def _refuse_other_copies(self, path: Path, found: str, declared: str) -> None:
        if found == declared:
            return
        if ARCHIVE in self.sha256 and found in APPROXIMATE:
            raise DataError(
                f"{path}: of a copy that is not byte-exact (some images are decoded from JPEG); "
                "set dataset=cifar10_approximate, or put the official files there"
            )
        if ARCHIVE not in self.sha256:
            raise DataError(
                f"{path}: not the declared copy (sha256 {found}, declared {declared}); if it is "
                f"the official file of {PUBLISHER}, set dataset=cifar10"
            )


def _decompressed(path: Path, data: bytes) -> bytes:
    """At most a batch: what is not verified yet may decompress to anything."""
    try:
        with lzma.open(io.BytesIO(data)) as file:
            content = file.read(BATCH + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise DataError(f"{path}: truncated or altered ({error}); copy it again") from error
    if len(content) > BATCH:
        raise DataError(f"{path}: decompresses to more than a batch of {BATCH:,} bytes")
    return content


def _members(path: Path, data: bytes) -> Iterator[tuple[str, bytes]]:
    """The six batches in the bytes of the archive."""
    wanted = {f"{name}.bin": name for name in (*TRAIN, TEST)}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for member in (entry for entry in archive if entry.isfile()):
                name = wanted.pop(Path(member.name).name, None)
                file = archive.extractfile(member) if name else None
                if name and file:
                    yield name, file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a .tar.gz archive ({error})") from error
    if wanted:
        raise DataError(f"{path}: has no {', '.join(wanted)}; the binary version is needed")


def _examples(path: Path, data: bytes) -> LabelledImages:
    """The records of one batch."""
    if not data or len(data) % RECORD:
        raise DataError(f"{path}: {len(data)} bytes are no whole number of {RECORD}-byte records")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    labels_N = records[:, 0].astype(np.int64)
    if labels_N.max() >= NUM_CLASSES:
        wrong = int(np.argmax(labels_N >= NUM_CLASSES))
        raise DataError(f"{path}: record {wrong} has label {labels_N[wrong]}, not 0..9")
    images_NCHW = records[:, 1:].reshape(-1, *IMAGE).copy()
    return LabelledImages(torch.from_numpy(images_NCHW), torch.from_numpy(labels_N))
