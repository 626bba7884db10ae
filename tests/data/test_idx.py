"""MNIST's files: found where people have them, and never read unless they are the declared ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from capsweep.data.official import IdxReader
from capsweep.errors import DataError

PLACES = [".", "mnist", "MNIST/raw"]
NAMES = [f"{prefix}-{kind}-ubyte" for prefix in ("train", "t10k") for kind in ("images-idx3",)]
NAMES += [f"{prefix}-labels-idx1-ubyte" for prefix in ("train", "t10k")]
UNREACHABLE = "http://127.0.0.1:9/"

MakeReader = Callable[..., IdxReader]
Write = Callable[..., None]


def suffix(is_compressed: bool) -> str:
    """Of a file's name."""
    return ".gz" if is_compressed else ""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("is_compressed", [True, False])
def test_the_files_are_found_and_read(
    place: str, is_compressed: bool, tmp_path: Path, write_idx: Write, idx_reader: MakeReader
) -> None:
    write_idx(tmp_path / place, is_compressed)
    reader = idx_reader()
    reader.check(str(tmp_path))
    splits = reader.read(str(tmp_path))
    for examples, count in ((splits.train, 7), (splits.test, 3)):
        first_N = torch.arange(count)
        pixels_NCHW = first_N[:, None] + torch.arange(20)
        assert examples.images_NCHW.dtype == torch.uint8
        assert torch.equal(examples.images_NCHW, pixels_NCHW.reshape(count, 1, 5, 4).byte())
        assert examples.labels_N.dtype == torch.int64
        assert torch.equal(examples.labels_N, first_N)


def test_files_may_lie_in_different_places(
    tmp_path: Path, write_idx: Write, idx_reader: MakeReader
) -> None:
    write_idx(tmp_path / "mnist")
    write_idx(tmp_path, is_compressed=False)
    (tmp_path / NAMES[0]).unlink()
    (tmp_path / "mnist" / f"{NAMES[1]}.gz").unlink()
    assert len(idx_reader().read(str(tmp_path)).train) == 7


def refused(reader: IdxReader, folder: Path, message: str) -> None:
    """Both `check` and `read` refuse the folder."""
    for call in (reader.check, reader.read):
        with pytest.raises(DataError, match=message):
            call(str(folder))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_compressed", [True, False])
@pytest.mark.parametrize("fault", ["truncated", "altered", "empty"])
def test_a_spoilt_file_is_refused_by_name(
    name: str,
    is_compressed: bool,
    fault: str,
    tmp_path: Path,
    write_idx: Write,
    idx_reader: MakeReader,
) -> None:
    write_idx(tmp_path, is_compressed)
    path = tmp_path / f"{name}{suffix(is_compressed)}"
    content = path.read_bytes()
    spoilt = {"truncated": content[:-1], "altered": content[:-1] + b"\xaa", "empty": b""}
    assert spoilt[fault] != content
    path.write_bytes(spoilt[fault])
    refused(idx_reader(), tmp_path, rf"{path}: truncated or altered .*delete it and download it")


@pytest.mark.parametrize("is_compressed", [True, False])
@pytest.mark.parametrize("kind", ["images-idx3-ubyte", "labels-idx1-ubyte"])
def test_the_test_files_under_the_names_of_the_training_files_are_refused(
    kind: str, is_compressed: bool, tmp_path: Path, write_idx: Write, idx_reader: MakeReader
) -> None:
    write_idx(tmp_path, is_compressed)
    train, test = (tmp_path / f"{p}-{kind}{suffix(is_compressed)}" for p in ("train", "t10k"))
    content = train.read_bytes()
    train.write_bytes(test.read_bytes())
    test.write_bytes(content)
    refused(idx_reader(), tmp_path, r"(train|t10k)-.*: truncated or altered")


def test_a_missing_folder_is_named_with_the_cure(tmp_path: Path, idx_reader: MakeReader) -> None:
    nowhere = tmp_path / "nowhere"
    refused(
        idx_reader(UNREACHABLE), nowhere, rf"places\.data: {nowhere} does not exist; .*DATA_DIR"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_without_a_network_is_named_with_the_cure(
    name: str, tmp_path: Path, write_idx: Write, idx_reader: MakeReader
) -> None:
    write_idx(tmp_path)
    missing = tmp_path / f"{name}.gz"
    missing.unlink()
    message = rf"{missing} is absent and cannot be downloaded \(.*{UNREACHABLE}.*put .*{name}\.gz"
    refused(idx_reader(UNREACHABLE), tmp_path, message)
    assert not missing.exists()


def test_a_plain_file_of_unknown_content_is_not_trusted(
    tmp_path: Path, write_idx: Write, idx_reader: MakeReader
) -> None:
    write_idx(tmp_path, is_compressed=False)
    known = idx_reader()
    reader = IdxReader(known.sha256, {}, known.folders, [])
    refused(reader, tmp_path, rf"only the official {NAMES[0]}\.gz can be verified")
