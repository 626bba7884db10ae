"""CIFAR-10's binary version: found in every form people keep it in, and never mistaken."""

import lzma
from collections.abc import Callable
from pathlib import Path

import official_files
import pytest
import torch
import yaml

from capsweep.config import package_files
from capsweep.data.cifar10 import APPROXIMATE, Cifar10Reader
from capsweep.data.images import Reader
from capsweep.storage.files import hash_bytes

ReaderOf = Callable[..., Reader]
Refuses = Callable[[Reader, Path, str], None]

PLAIN = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


@pytest.mark.parametrize("form", ["archive", "plain", "xz"])
def test_every_form_gives_the_same_images(form: str, tmp_path: Path, reader_of: ReaderOf) -> None:
    overrides = official_files.write_cifar10(tmp_path, train=12, test=3, form=form)
    reader = reader_of("dataset=cifar10", *overrides)
    reader.check(str(tmp_path))
    splits = reader.read(str(tmp_path))
    parts = [official_files.noise(seed, n, 3, 32, 32) for seed, n in enumerate([3, 3, 2, 2, 2])]
    expected = torch.cat([torch.from_numpy(part) for part in parts])
    assert torch.equal(splits.train.images_NCHW, expected)
    assert splits.train.labels_N.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 0, 1]
    assert splits.train.labels_N.dtype == torch.int64
    assert splits.test.images_NCHW.shape == (3, 3, 32, 32)
    assert splits.test.labels_N.tolist() == [0, 1, 2]


@pytest.mark.parametrize("place", [".", "cifar10", "cifar-10-batches-bin"])
def test_the_archive_is_found_where_people_have_it(
    place: str, tmp_path: Path, reader_of: ReaderOf
) -> None:
    overrides = official_files.write_cifar10(tmp_path / "first")
    (tmp_path / "data" / place).mkdir(parents=True)
    archive = tmp_path / "first" / "cifar10" / "cifar-10-binary.tar.gz"
    archive.rename(tmp_path / "data" / place / archive.name)
    splits = reader_of("dataset=cifar10", *overrides).read(str(tmp_path / "data"))
    assert len(splits.train) == 20


@pytest.mark.parametrize("fault", ["truncated", "altered", "empty"])
def test_a_spoilt_archive_is_refused_by_name(
    fault: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_cifar10(tmp_path)
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    content = path.read_bytes()
    spoilt = {"truncated": content[:-9], "altered": content[:-1] + b"\xaa", "empty": b""}
    path.write_bytes(spoilt[fault])
    refuses(
        reader_of("dataset=cifar10", *overrides),
        tmp_path,
        rf"{path}: truncated or altered .*download it again from https://www\.cs\.toronto",
    )


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("form", ["plain", "xz"])
def test_a_spoilt_batch_is_refused_by_name(
    form: str, name: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_cifar10(tmp_path, form=form)
    path = tmp_path / "cifar10" / f"{name}.bin{'.xz' * (form == 'xz')}"
    path.write_bytes(path.read_bytes()[:-5])
    reader = reader_of("dataset=cifar10", *overrides)
    refuses(reader, tmp_path, rf"{path}: truncated or altered")


def test_an_altered_batch_in_a_whole_xz_is_refused(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_cifar10(tmp_path, form="xz")
    path = tmp_path / "cifar10" / "data_batch_2.bin.xz"
    content = lzma.decompress(path.read_bytes())
    path.write_bytes(lzma.compress(content[:-1] + bytes([content[-1] ^ 1])))
    reader = reader_of("dataset=cifar10", *overrides)
    refuses(reader, tmp_path, rf"{path}: truncated or altered")


@pytest.mark.parametrize("missing", PLAIN)
def test_a_missing_file_is_named_with_who_offers_it(
    missing: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_cifar10(tmp_path, form="plain")
    (tmp_path / "cifar10" / f"{missing}.bin").unlink()
    message = rf"cifar-10-binary\.tar\.gz or {missing}\.bin not found .*https://www\.cs\.toronto"
    refuses(reader_of("dataset=cifar10", *overrides), tmp_path, message)


def test_all_missing_files_are_named_at_once(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    needed = ", ".join(rf"{name}\.bin" for name in PLAIN)
    message = rf"cifar10: cifar-10-binary\.tar\.gz or {needed} not found"
    refuses(reader_of("dataset=cifar10"), tmp_path, message)


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-batches-py"])
def test_the_pickled_version_is_said_to_be_another(
    name: str, tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    pickled = tmp_path / name
    pickled.touch() if "." in name else pickled.mkdir()
    message = rf"\({pickled} is the pickled version, which is never read\) not found"
    refuses(reader_of("dataset=cifar10"), tmp_path, message)


def test_the_missing_approximate_copy_is_not_looked_for_at_the_publisher(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    message = r"test_batch\.bin not found .*; nobody offers this copy: .* or set dataset=cifar10 "
    refuses(reader_of("dataset=cifar10_approximate"), tmp_path, message)


def test_what_decompresses_to_more_than_a_batch_is_refused(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_cifar10(tmp_path, form="xz")
    path = tmp_path / "cifar10" / "data_batch_1.bin.xz"
    path.write_bytes(lzma.compress(bytes(31_000_000), preset=0))
    message = rf"{path}: decompresses to more than a batch of 30,730,000 bytes"
    refuses(reader_of("dataset=cifar10", *overrides), tmp_path, message)


def test_a_missing_folder_is_named(tmp_path: Path, reader_of: ReaderOf, refuses: Refuses) -> None:
    nowhere = tmp_path / "nowhere"
    message = rf"places\.data: {nowhere} does not exist; set DATA_DIR"
    refuses(reader_of("dataset=cifar10"), nowhere, message)


def read_as_declared(folder: Path, batches: dict[str, bytes]) -> Cifar10Reader:
    """A reader of an archive that is what it is declared to be, whatever is in it."""
    archive = official_files.cifar10_archive(batches)
    (folder / "cifar-10-binary.tar.gz").write_bytes(archive)
    return Cifar10Reader({"cifar-10-binary": hash_bytes(archive)}, {}, ["."])


def test_a_label_that_is_no_class_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    batches = official_files.cifar10_batches(20, 10)
    batches["data_batch_3"] = batches["data_batch_3"][:3073] + b"\x0a" + bytes(3072)
    message = r"tar\.gz/data_batch_3\.bin: record 1 has label 10, not 0\.\.9"
    refuses(read_as_declared(tmp_path, batches), tmp_path, message)


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(3074)])
def test_a_batch_of_another_size_is_refused(
    content: bytes, tmp_path: Path, refuses: Refuses
) -> None:
    batches = {**official_files.cifar10_batches(20, 10), "test_batch": content}
    message = rf"tar\.gz/test_batch\.bin: {len(content)} bytes are no whole number of 3073-byte"
    refuses(read_as_declared(tmp_path, batches), tmp_path, message)


def test_an_archive_without_a_batch_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    batches = official_files.cifar10_batches(20, 10)
    del batches["data_batch_4"]
    message = r"tar\.gz: has no data_batch_4\.bin"
    refuses(read_as_declared(tmp_path, batches), tmp_path, message)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"<html>")
    reader = Cifar10Reader({"cifar-10-binary": hash_bytes(b"<html>")}, {}, ["."])
    refuses(reader, tmp_path, r"cifar-10-binary\.tar\.gz: not a \.tar\.gz archive")


def test_batches_of_unknown_hash_are_never_read(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_cifar10(tmp_path, form="plain")
    unknown = [
        "dataset.reader.sha256_plain.data_batch_1=unknown" if "data_batch_1=" in text else text
        for text in overrides
    ]
    content = (tmp_path / "cifar10" / "data_batch_1.bin").read_bytes()
    message = rf"set dataset\.reader\.sha256_plain\.data_batch_1={hash_bytes(content)}"
    refuses(reader_of("dataset=cifar10", *unknown), tmp_path, message)


def test_the_approximate_copy_is_declared_where_the_reader_knows_it() -> None:
    written = yaml.safe_load(
        (package_files.find_folder("conf") / "dataset" / "cifar10_approximate.yaml").read_text()
    )
    assert list(written["reader"]["sha256"]) == PLAIN
    assert tuple(written["reader"]["sha256"].values()) == APPROXIMATE


def test_the_approximate_reader_points_to_the_official_one(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    official_files.write_cifar10(tmp_path, form="plain")
    reader = reader_of("dataset=cifar10_approximate")
    refuses(reader, tmp_path, r"data_batch_1\.bin: not the declared copy .*set dataset=cifar10$")


@pytest.fixture
def real(data_folder: Path) -> Path:
    """The data folder, which may well be read-only."""
    if not (data_folder / "cifar10" / "data_batch_1.bin.xz").is_file():
        pytest.skip(f"no CIFAR-10 in {data_folder}; set CAPSWEEP_TEST_DATA")
    return data_folder


@pytest.mark.slow
def test_the_real_images_have_ten_classes_of_equal_size(real: Path, reader_of: ReaderOf) -> None:
    reader = reader_of("dataset=cifar10_approximate")
    splits = reader.read(str(real))
    for examples, count in ((splits.train, 5000), (splits.test, 1000)):
        assert examples.labels_N.bincount().tolist() == [count] * 10
        assert examples.images_NCHW.shape == (10 * count, 3, 32, 32)
    means = splits.train.images_NCHW.double().mean(dim=(0, 2, 3))
    assert means.tolist() == pytest.approx([125.3, 123.0, 113.9], abs=0.1)  # as published
    assert splits.train.labels_N[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, car
    again = reader.read(str(real))
    assert torch.equal(splits.train.images_NCHW, again.train.images_NCHW)
    assert torch.equal(splits.test.labels_N, again.test.labels_N)


@pytest.mark.slow
def test_the_real_copy_under_another_hash_is_not_sent_to_where_it_is(
    real: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    wrong = "dataset.reader.sha256.test_batch=00"
    message = r"test_batch\.bin\.xz: not the declared copy"
    refuses(reader_of("dataset=cifar10_approximate", wrong), real, message)


def test_the_real_copy_is_not_taken_for_the_official_files(
    real: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    message = r"data_batch_1\.bin\.xz: .*not byte-exact.*set dataset=cifar10_approximate"
    refuses(reader_of("dataset=cifar10"), real, message)
