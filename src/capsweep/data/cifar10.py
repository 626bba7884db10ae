"""CIFAR-10 (Krizhevsky 2009), the official binary version; the pickled version is never read.

A record is one label byte 0..9 and 3,072 bytes: 32x32 pixels of the red, green and blue plane.
"""

import io
import lzma
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from capsweep.data.images import LabelledImages, join_examples, label_images
from capsweep.data.official import Decoded, OfficialReader
from capsweep.storage.official_files import name_undecodable, read_content

ARCHIVE = "cifar-10-binary"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
IMAGE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # bytes
NUM_CLASSES = 10
BATCH = 10_000 * RECORD  # bytes of every official batch
PUBLISHER = "https://www.cs.toronto.edu/~kriz/cifar.html"
OFFICIAL = (
    f"{PUBLISHER} ({ARCHIVE}.tar.gz, the pickled version is never read; a copy that is not "
    "byte-exact: dataset=cifar10_approximate)"
)
APPROXIMATE = "where you have it from (nobody offers this copy; the official: dataset=cifar10)"


class Cifar10Reader(OfficialReader):
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
        if self.is_official and self.files.find(folder, f"{ARCHIVE}.tar.gz"):
            files = self.read_verified(folder, [ARCHIVE], ".tar.gz")
            batches = _parse_archive(*files[ARCHIVE])
        else:
            files = self.read_verified(folder, [*TRAIN, TEST], ".bin", ".bin.xz")
            batches = {name: _parse_batch(*file) for name, file in files.items()}
        return {"train": join_examples([batches[name] for name in TRAIN]), "test": batches[TEST]}

    def read_file(self, path: Path) -> bytes:
        """Return the bytes of a file, those of an `.xz` decompressed."""
        data = read_content(path)
        if path.suffix != ".xz":
            return data
        with suppress(lzma.LZMAError, EOFError), lzma.open(io.BytesIO(data)) as file:
            # At most a byte more than a batch: what is not verified yet may become anything.
            return file.read(BATCH + 1)
        return data  # damaged bytes as they are, which are refused by their hash


def _parse_archive(path: Path, data: bytes) -> dict[str, LabelledImages]:
    """Return the batches in the bytes of the archive, by name without ending."""
    with name_undecodable(path), tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        files = {Path(each.name).stem: archive.extractfile(each) for each in archive.getmembers()}
        contents = {name: file.read() for name, file in files.items() if file}
        return {name: _parse_batch(path, contents[name]) for name in (*TRAIN, TEST)}


def _parse_batch(path: Path, data: bytes) -> LabelledImages:
    """The records of one batch."""
    with name_undecodable(path):
        records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
        return label_images(records[:, 1:].reshape(-1, *IMAGE), records[:, 0], NUM_CLASSES)
