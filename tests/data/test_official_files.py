"""The official files of every data set: found, and never read unless they are the declared ones."""

import lzma
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import official_files
import pytest
import torch
from s3_server import S3Server

from capsweep.data.images import Reader
from capsweep.errors import DataError

ReaderOf = Callable[..., Reader]
Refuses = Callable[[Reader, Path, str], None]
Write = Callable[[Path], list[str]]

NOBODY = 65534
SMALLNORB = [f"smallnorb/{prefix}" for prefix in official_files.SMALLNORB.values()]
# Data set, what writes its files, and these.
FORMS: list[tuple[str, Write, list[str]]] = [
    (
        "mnist",
        official_files.write_idx,
        [f"mnist/{p}-ubyte.gz" for p in ("train-images-idx3", "t10k-labels-idx1")],
    ),
    ("cifar10", official_files.write_cifar10, ["cifar10/cifar-10-binary.tar.gz"]),
    (
        "cifar10",
        partial(official_files.write_cifar10, form="plain"),
        ["cifar10/data_batch_1.bin", "cifar10/test_batch.bin"],
    ),
    (
        "cifar10",
        partial(official_files.write_cifar10, form="xz"),
        ["cifar10/data_batch_2.bin.xz"],
    ),
    ("svhn", official_files.write_svhn, ["svhn/train_32x32.mat", "svhn/test_32x32.mat"]),
    (
        "smallnorb",
        official_files.write_smallnorb,
        [f"{prefix}-{kind}.mat.gz" for prefix in SMALLNORB for kind in ("dat", "cat")],
    ),
    (
        "smallnorb_azimuth",
        official_files.write_viewpoints,
        [f"{prefix}-info.mat.gz" for prefix in SMALLNORB],
    ),
    ("affnist", official_files.write_affnist, ["affnist/test.mat"]),
    (
        "affnist",
        partial(official_files.write_affnist, batches=3),
        ["affnist/test_batches/2.mat"],
    ),
]
EACH_FORM = pytest.mark.parametrize(("dataset", "write"), [form[:2] for form in FORMS])
EACH_FILE = pytest.mark.parametrize(
    ("dataset", "write", "file"),
    [(dataset, write, file) for dataset, write, files in FORMS for file in files],
)


@EACH_FILE
@pytest.mark.parametrize("fault", ["truncated", "altered", "empty"])
def test_a_spoilt_file_is_refused_by_name(
    fault: str,
    dataset: str,
    write: Write,
    file: str,
    tmp_path: Path,
    reader_of: ReaderOf,
    refuses: Refuses,
) -> None:
    reader = reader_of(f"dataset={dataset}", "dataset.validation=0", *write(tmp_path))
    path = tmp_path / file
    content = path.read_bytes()
    spoilt = {"truncated": content[:-9], "altered": content[:-1] + b"\xaa", "empty": b""}
    path.write_bytes(spoilt[fault])
    name = path.parent if path.parent.name == "test_batches" else path
    refuses(reader, tmp_path, rf"{name}: truncated or altered \(.*; .* again")


@EACH_FILE
def test_a_declared_file_that_cannot_be_decoded_is_refused_by_name(
    dataset: str, write: Write, file: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = [f"dataset={dataset}", "dataset.validation=0", *write(tmp_path)]
    page = b"<html>a captive portal</html>"
    (tmp_path / file).write_bytes(lzma.compress(page) if file.endswith(".xz") else page)
    with pytest.raises(DataError, match="truncated or altered") as refused:
        reader_of(*overrides).read(str(tmp_path))
    hashes = re.search(r"sha256 (\w+), declared (\w+)", str(refused.value))
    assert hashes
    declared = [text.replace(hashes[2], hashes[1]) for text in overrides]
    message = rf"{tmp_path / file}: its sha256 is declared, but it is not such a file"
    refuses(reader_of(*declared), tmp_path, message)


@EACH_FILE
def test_a_missing_file_is_named_with_who_offers_it(
    dataset: str, write: Write, file: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    reader = reader_of(f"dataset={dataset}", "dataset.validation=0", *write(tmp_path))
    (tmp_path / file).unlink()
    name = Path(file).name.removesuffix(".xz")
    messages = {
        "mnist": rf"{name} is absent and cannot be downloaded .*; put .*ubyte\.gz there",
        "cifar-10-binary.tar.gz": r"data_batch_1\.bin, .* not found .*\(cifar-10-binary\.tar\.gz",
        "2.mat": r"test_batches: truncated or altered .*download it again from https://www",
        "test.mat": r"test\.mat or test_batches/1\.mat .* not found .*https://www\.cs\.toronto",
    }
    usual = rf"{name}.* not found .*download from https?://.* and put it there, or set DATA_DIR"
    refuses(reader, tmp_path, messages.get(dataset, messages.get(name, usual)))


@EACH_FORM
def test_files_of_unknown_hash_are_never_read_and_named_with_their_hash(
    dataset: str, write: Write, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    declared = write(tmp_path)
    unknown = [re.sub(r"(sha256.*)=.*", r"\1=unknown", text) for text in declared]
    any_hash = "|".join(re.escape(text) for text in declared if "sha256" in text)
    message = f"not known to us, so nothing is read.* set .*({any_hash})"
    reader = reader_of(f"dataset={dataset}", "dataset.validation=0", *unknown)
    refuses(reader, tmp_path, message)


@EACH_FORM
def test_all_data_sets_come_from_an_object_store_and_are_then_there(
    dataset: str,
    write: Write,
    store: S3Server,
    tmp_path: Path,
    reader_of: ReaderOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = reader_of(f"dataset={dataset}", "dataset.validation=0", *write(tmp_path / "made"))
    store.upload(tmp_path / "made", "bucket/data")
    expected = reader.read(str(tmp_path / "made"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another-cache"))
    splits = reader.read(store.url("bucket/data"))
    assert torch.equal(splits.test.images_NCHW, expected.test.images_NCHW)
    store.asked.clear()
    reader.check(store.url("bucket/data"))
    assert store.total == 0


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_a_missing_folder_is_named(
    dataset: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    nowhere = tmp_path / "nowhere"
    message = rf"places\.data: {nowhere} does not exist; set DATA_DIR"
    refuses(reader_of(f"dataset={dataset}"), nowhere, message)
