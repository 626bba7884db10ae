"""CIFAR-10's binary version: found in every form people keep it in, and never mistaken."""

import lzma
from collections.abc import Callable
from pathlib import Path

import official_files
import pytest
import torch

from capsweep.data.cifar10 import Cifar10Reader
from capsweep.data.images import Reader
from capsweep.storage.files import hash_bytes

ReaderOf = Callable[..., Reader]
Refuses = Callable[[Reader, Path, str], None]

BATCHES = official_files.cifar10_batches(20, 10)


@pytest.mark.parametrize("form", ["archive", "plain", "xz"])
@pytest.mark.parametrize("place", [".", "cifar10", "cifar-10-batches-bin"])
def test_every_form_gives_the_same_images_wherever_people_have_it(
    form: str, place: str, tmp_path: Path, reader_of: ReaderOf
) -> None:
    overrides = official_files.write_cifar10(tmp_path / "made", train=12, test=3, form=form)
    (tmp_path / "data" / place).mkdir(parents=True)
    for path in (tmp_path / "made" / "cifar10").iterdir():
        path.rename(tmp_path / "data" / place / path.name)
    reader = reader_of("dataset=cifar10", *overrides)
    reader.check(str(tmp_path / "data"))
    splits = reader.read(str(tmp_path / "data"))
    parts = [official_files.noise(seed, n, 3, 32, 32) for seed, n in enumerate([3, 3, 2, 2, 2])]
    expected = torch.cat([torch.from_numpy(part) for part in parts])
    assert torch.equal(splits.train.images_NCHW, expected)
    assert splits.train.labels_N.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 0, 1]
    assert splits.train.labels_N.dtype == torch.int64
    assert splits.test.images_NCHW.shape == (3, 3, 32, 32)
    assert splits.test.labels_N.tolist() == [0, 1, 2]


def test_an_altered_batch_in_a_whole_xz_is_refused(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_cifar10(tmp_path, form="xz")
    path = tmp_path / "cifar10" / "data_batch_2.bin.xz"
    content = lzma.decompress(path.read_bytes())
    path.write_bytes(lzma.compress(content[:-1] + bytes([content[-1] ^ 1])))
    reader = reader_of("dataset=cifar10", *overrides)
    refuses(reader, tmp_path, rf"{path}: truncated or altered")


def test_what_decompresses_to_more_than_a_batch_is_refused(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    overrides = official_files.write_cifar10(tmp_path, form="xz")
    path = tmp_path / "cifar10" / "data_batch_1.bin.xz"
    path.write_bytes(lzma.compress(bytes(31_000_000), preset=0))
    message = rf"{path}: decompresses to more than a batch of 30,730,000 bytes"
    refuses(reader_of("dataset=cifar10", *overrides), tmp_path, message)


def test_the_pickled_version_is_said_to_be_another(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    (tmp_path / "cifar-10-python.tar.gz").touch()
    message = r"cifar-10-binary\.tar\.gz \(the pickled version is never read\) or data_batch_1\.bin"
    refuses(reader_of("dataset=cifar10"), tmp_path, message)


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (
            {"data_batch_3": BATCHES["data_batch_3"][:3073] + b"\x0a" + bytes(3072)},
            r"/data_batch_3\.bin: record 1 has label 10, not 0\.\.9",
        ),
        ({"test_batch": b""}, r"/test_batch\.bin: 0 bytes are no whole number of 3073-byte"),
        ({"test_batch": bytes(3074)}, r"/test_batch\.bin: 3074 bytes are no whole number"),
        ({"data_batch_4": None}, r": has no data_batch_4\.bin"),
        (b"<html>", r": not a \.tar\.gz archive"),
    ],
)
def test_a_declared_archive_of_another_content_is_refused_by_name(
    archive: bytes | dict[str, bytes | None], message: str, tmp_path: Path, refuses: Refuses
) -> None:
    if isinstance(archive, dict):
        batches = {
            name: content for name, content in (BATCHES | archive).items() if content is not None
        }
        archive = official_files.cifar10_archive(batches)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(archive)
    reader = Cifar10Reader({"cifar-10-binary": hash_bytes(archive)}, ["."])
    refuses(reader, tmp_path, rf"cifar-10-binary\.tar\.gz{message}")


def test_the_approximate_copy_has_no_publisher_and_the_official_files_are_not_it(
    tmp_path: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    reader = reader_of("dataset=cifar10_approximate")
    refuses(reader, tmp_path, r"test_batch\.bin not found .*nobody offers this copy.*=cifar10\)")
    official_files.write_cifar10(tmp_path, form="plain")
    refuses(reader, tmp_path, r"data_batch_1\.bin: truncated or altered .*dataset=cifar10\)$")


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


def test_the_real_copy_is_not_taken_for_the_official_files(
    real: Path, reader_of: ReaderOf, refuses: Refuses
) -> None:
    message = r"data_batch_1\.bin\.xz: truncated or altered .*dataset=cifar10_approximate"
    refuses(reader_of("dataset=cifar10"), real, message)
