"""Official files that cannot be read at all: refused by name, before they are in memory."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import official_files
import pytest

from capsweep.data.images import Reader
from capsweep.storage.official_files import LARGEST

ReaderOf = Callable[..., Reader]
Refuses = Callable[[Reader, Path, str], None]
NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("place", [".", "svhn", "svhn/train_32x32.mat"])
def test_what_may_not_be_read_is_named(place: str, reader_of: ReaderOf, refuses: Refuses) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's are closed to others
        _refused_to_nobody(Path(folder), place, reader_of, refuses)


def _refused_to_nobody(data: Path, place: str, reader_of: ReaderOf, refuses: Refuses) -> None:
    data.chmod(0o755)
    reader = reader_of("dataset=svhn", *official_files.write_svhn(data))
    (data / place).chmod(0o000)
    os.seteuid(NOBODY)
    try:
        refuses(reader, data, rf"^{data}.*: cannot be read \(Permission denied\); correct its perm")
    finally:
        os.seteuid(0)


def test_a_huge_file_is_not_brought_into_memory(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_svhn(tmp_path)
    path = tmp_path / "svhn" / "test_32x32.mat"
    os.truncate(path, LARGEST)  # a hole, which needs no disk
    message = rf"{path}: 2,147,483,648 bytes, more than any official file has"
    refuses(reader_of("dataset=svhn", *overrides), tmp_path, message)


def test_a_reader_that_looks_nowhere_says_so(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    reader = reader_of("dataset=svhn", "dataset.reader.folders=[]")
    refuses(reader, tmp_path, r"train_32x32\.mat, test_32x32\.mat not found \(looked in no folder")
