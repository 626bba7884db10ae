"""Reader of CIFAR-10 (Krizhevsky 2009) in its binary version; the pickled version is never read.

A record has one label byte (0..9), then the red, the green and the blue plane of an image. Each
plane has 32x32 bytes.
"""

import io
import lzma
import tarfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from capsweep.data.images import LabelledImages, join_examples, label_images
from capsweep.data.official import Decoded, OfficialReader
from capsweep.storage.official_files import read_content, report_undecodable

ARCHIVE = "cifar-10-binary"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
IMAGE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # bytes
NUM_CLASSES = 10
BATCH = 10_000 * RECORD  # bytes of each official batch file
PUBLISHER = "https://www.cs.toronto.edu/~kriz/cifar.html"
OFFICIAL = (
    f"{PUBLISHER} ({ARCHIVE}.tar.gz; the pickled version is never read; for a copy that is not "
    "byte-exact: dataset=cifar10_approximate)"
)
APPROXIMATE = "its source (this copy is not published; for the official one: dataset=cifar10)"


class Cifar10Reader(OfficialReader):
    """A reader of CIFAR-10 from the official archive, or from the six files in the archive.

    The archive is `cifar-10-binary.tar.gz`. Each of the six files may be `.bin` or `.bin.xz`. An
    `.xz` file is decompressed before it is hashed.

    Attributes:
        sha256: For the official data, the sha256 of the archive. For a copy that is not official,
            the sha256 of each of the six files. Keys are names without ending.
        folders: Where to look for the files: names of folders below the data folder.
        sha256_plain: The sha256 of each of the six files in the official archive. Keys are names
            without ending.
    """

    name = "cifar10"

    def __post_init__(self) -> None:
        self.is_official = ARCHIVE in self.sha256
        self.publisher = OFFICIAL if self.is_official else APPROXIMATE
        super().__post_init__()

    def decode_files(self, folder: str) -> Decoded:
        """Read the splits, with uint8 images [N, 3, 32, 32], from the archive or its six files."""
        if self.is_official and self.files.find(folder, f"{ARCHIVE}.tar.gz"):
            files = self.read_verified(folder, [ARCHIVE], ".tar.gz")
            batches = _parse_archive(*files[ARCHIVE])
        else:
            files = self.read_verified(folder, [*TRAIN, TEST], ".bin", ".bin.xz")
            batches = {name: _parse_batch(*file) for name, file in files.items()}
        return {"train": join_examples([batches[name] for name in TRAIN]), "test": batches[TEST]}

    def read_file(self, path: Path) -> bytes:
        """Read a file, and decompress it if its name ends in .xz.

        Args:
            path: The file.

        Raises:
            DataError: If the file cannot be read.
        """
        data = read_content(path)
        if path.suffix != ".xz":
            return data
        with suppress(lzma.LZMAError, EOFError), lzma.open(io.BytesIO(data)) as file:
            # The size is limited, since a file that is not verified yet may decompress to any size.
            return file.read(BATCH + 1)
        return data  # damaged: these bytes have a wrong hash, so the file is refused


def _parse_archive(path: Path, data: bytes) -> dict[str, LabelledImages]:
    """Parse the six files in the archive; the keys of the result are their names without ending."""
    with report_undecodable(path), tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        files = {Path(each.name).stem: archive.extractfile(each) for each in archive.getmembers()}
        contents = {name: file.read() for name, file in files.items() if file}
        return {name: _parse_batch(path, contents[name]) for name in (*TRAIN, TEST)}


def _parse_batch(path: Path, data: bytes) -> LabelledImages:
    """Parse the records of one batch file; `path` is for messages."""
    with report_undecodable(path):
        records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
        return label_images(records[:, 1:].reshape(-1, *IMAGE), records[:, 0], NUM_CLASSES)
