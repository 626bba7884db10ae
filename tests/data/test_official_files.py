"""The official files of every data set: read as they were written, wherever people have them, and
never unless they are the declared ones.
"""

import gzip
import lzma
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from official_files import (
    SMALLNORB,
    labels,
    noise,
    viewpoints,
    write_affnist,
    write_cifar10,
    write_idx,
    write_smallnorb,
    write_svhn,
    write_viewpoints,
)
from s3_server import S3Server
from small_data import reader_of, refuses

from capsweep.data.images import Reader
from capsweep.errors import DataError
from capsweep.storage.files import hash_bytes, user_cache_folder

Write = Callable[[Path], list[str]]
Examples = tuple[np.ndarray, np.ndarray]  # images and labels


def write_plain(write: Write, folder: Path) -> list[str]:
    """The same files decompressed, whose own hashes are declared beside those of the official."""
    declared = write(folder)
    for path in list(folder.rglob("*.gz")):
        content, name = gzip.decompress(path.read_bytes()), path.name.split(".")[0]
        path.with_suffix("").write_bytes(content)
        path.unlink()
        declared.append(f"dataset.reader.sha256_plain.{name}={hash_bytes(content)}")
    return declared


def find_family(dataset: str) -> str:
    """The usual folder."""
    return dataset.split("_")[0]


TRAIN, TEST = SMALLNORB.values()
ARCHIVE, PLAIN = "cifar-10-binary.tar.gz", ["data_batch_1.bin", "test_batch.bin"]
MATRICES = [f"{prefix}-{kind}.mat.gz" for prefix in (TRAIN, TEST) for kind in ("dat", "cat")]
MATLAB = ["train_32x32.mat", "test_32x32.mat"]
plain_viewpoints = partial(write_plain, write_viewpoints)
# Data set, what writes its files, another folder where people have them, and some of these.
FORMS: list[tuple[str, Write, str, list[str]]] = [
    ("mnist", write_idx, "MNIST/raw", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]),
    ("mnist", partial(write_plain, write_idx), ".", ["t10k-labels-idx1-ubyte"]),
    ("cifar10", write_cifar10, ".", [ARCHIVE]),
    ("cifar10", partial(write_cifar10, form="plain"), "cifar-10-batches-bin", PLAIN),
    ("cifar10", partial(write_cifar10, form="xz"), ".", ["data_batch_2.bin.xz"]),
    ("svhn", write_svhn, "SVHN", MATLAB),
    ("smallnorb", write_smallnorb, ".", MATRICES),
    ("smallnorb", partial(write_plain, write_smallnorb), "smallNORB", [f"{TRAIN}-dat.mat"]),
    ("smallnorb_azimuth", write_viewpoints, ".", [f"{TRAIN}-info.mat.gz", f"{TEST}-info.mat.gz"]),
    ("smallnorb_azimuth", plain_viewpoints, ".", [f"{TEST}-info.mat"]),
    ("smallnorb_elevation", write_viewpoints, ".", []),
    ("affnist", write_affnist, "affNIST", ["test.mat"]),
    ("affnist", partial(write_affnist, batches=3), ".", ["test_batches/2.mat"]),
    ("affnist", partial(write_affnist, batches=1), ".", []),
]
EACH_FORM = pytest.mark.parametrize(("dataset", "write", "place"), [form[:3] for form in FORMS])
EACH_FILE = pytest.mark.parametrize(
    ("dataset", "write", "file"),
    [(form[0], form[1], f"{find_family(form[0])}/{name}") for form in FORMS for name in form[3]],
)


def list_written(dataset: str) -> dict[str, Examples]:
    """What was written of each split: 20 examples to train on and 10 to test on."""
    train, test = labels(20), labels(10)
    match dataset:
        case "mnist":
            images = noise(0, 20, 1, 28, 28), noise(1, 10, 1, 28, 28)
        case "affnist":
            images = noise(0, 20, 1, 28, 28), noise(7, 10, 1, 40, 40)
        case "cifar10":
            batches = [noise(number, 4, 3, 32, 32) for number in range(5)]
            images, train = (np.concatenate(batches), noise(5, 10, 3, 32, 32)), np.arange(20) % 4
        case "svhn":
            pixels = noise(0, 32, 32, 3, 20), noise(1, 32, 32, 3, 10)
            images = tuple(pixels_HWCN.transpose(3, 2, 0, 1) for pixels_HWCN in pixels)
        case "smallnorb":
            return {"train": make_smallnorb(0, 20), "test": make_smallnorb(1, 10)}
        case _:  # familiar viewpoints train and validate, and the others test
            return {
                "train": select_viewpoints(dataset, 0, 60, are_familiar=True),
                "validation": select_viewpoints(dataset, 1, 15, are_familiar=True),
                "test": select_viewpoints(dataset, 1, 15, are_familiar=False),
            }
    return {"train": (images[0], train), "test": (images[1], test)}


def make_smallnorb(seed: int, count: int) -> Examples:
    """Of the pixels of a seed: every 2x2 block is its mean, rounded half up."""
    blocks = noise(seed, count, 2, 96, 96).reshape(count, 2, 48, 2, 48, 2).astype(int)
    return (blocks.sum(axis=(3, 5)) + 2) // 4, labels(count, 5)


def select_viewpoints(dataset: str, seed: int, count: int, are_familiar: bool) -> Examples:
    """Section 5.1 of the paper, in degrees of azimuth and steps of elevation."""
    images, classes = make_smallnorb(seed, count)
    _, elevation_N, azimuth_N, _ = viewpoints(count).T
    if dataset == "smallnorb_azimuth":
        familiar_N = np.isin(10 * azimuth_N, (300, 320, 340, 0, 20, 40))
    else:
        familiar_N = np.isin(elevation_N, (0, 1, 2))
    return images[familiar_N == are_familiar], classes[familiar_N == are_familiar]


@pytest.fixture
def reader(dataset: str, write: Write, tmp_path: Path) -> Reader:
    """Of the files that were written there."""
    return reader_of(f"dataset={dataset}", "dataset.validation=0", *write(tmp_path / "data"))


@EACH_FORM
def test_every_form_is_read_as_it_was_written_from_folders_and_an_object_store(
    dataset: str,
    write: Write,
    place: str,
    reader: Reader,
    store: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, other, url = tmp_path / "data", tmp_path / "other", store.url("bucket/data")
    store.upload(usual, "bucket/data")
    shutil.copytree(usual, other)
    shutil.copytree(usual / find_family(dataset), other / place, dirs_exist_ok=True)
    shutil.rmtree(other / find_family(dataset))
    for number, folder in enumerate((str(usual), str(other), url)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{number}"))
        reader.check(folder)
        splits = vars(reader.read(folder))
        written = list_written(dataset)
        for name in ("train", "validation", "test"):
            assert (splits[name] is None) == (name not in written)
        for name, (images, classes) in written.items():
            assert torch.equal(splits[name].images_NCHW, torch.tensor(images.astype("u1")))
            assert splits[name].labels_N.dtype == torch.int64
            assert splits[name].labels_N.tolist() == classes.tolist()
    store.asked.clear()
    reader.check(url)
    # Official names that were not there are asked for again.
    is_plain = isinstance(write, partial) and write.func is write_plain
    assert (store.count("GET") if is_plain else store.total) == 0


def test_smallnorb_and_its_viewpoints_are_decoded_once(tmp_path: Path) -> None:
    viewpoints = write_viewpoints(tmp_path)
    images = [text for text in viewpoints if "validation" not in text and "-info" not in text]
    reader_of("dataset=smallnorb", *images).read(str(tmp_path))
    for dataset in ("smallnorb_azimuth", "smallnorb_elevation"):
        reader_of(f"dataset={dataset}", *viewpoints).read(str(tmp_path))
    assert len(list(user_cache_folder().glob("*.npz"))) == 1


@EACH_FILE
@pytest.mark.parametrize("fault", ["truncated", "altered", "empty"])
def test_a_spoilt_file_is_refused_by_name(
    fault: str, file: str, reader: Reader, tmp_path: Path
) -> None:
    path = tmp_path / "data" / file
    content = path.read_bytes()
    spoilt = {"truncated": content[:-9], "altered": content[:-1] + b"\xaa", "empty": b""}
    path.write_bytes(spoilt[fault])
    name = path.parent if path.parent.name == "test_batches" else path
    refuses(reader, tmp_path / "data", rf"{name}: truncated or altered \(.*; .* again")


@EACH_FILE
def test_a_declared_file_that_cannot_be_decoded_is_refused_by_name(
    dataset: str, write: Write, file: str, tmp_path: Path
) -> None:
    overrides = [f"dataset={dataset}", "dataset.validation=0", *write(tmp_path)]
    page = b"<html>a captive portal</html>"
    (tmp_path / file).write_bytes(lzma.compress(page) if file.endswith(".xz") else page)
    with pytest.raises(DataError, match="truncated or altered") as refused:
        reader_of(*overrides).read(str(tmp_path))
    hashes = re.search(r"sha256 (\w+), declared (\w+)", str(refused.value))
    assert hashes
    declared = [text.replace(hashes[2], hashes[1]) for text in overrides]
    message = rf"{tmp_path / file}: it has the declared sha256, but cannot be decoded"
    refuses(reader_of(*declared), tmp_path, message)


@EACH_FILE
def test_a_missing_file_is_named_with_who_offers_it(
    dataset: str, file: str, reader: Reader, tmp_path: Path
) -> None:
    (tmp_path / "data" / file).unlink()
    name = Path(file).name.removesuffix(".xz")
    messages = {
        "mnist": rf"{name}(\.gz)? is absent and cannot be downloaded .*; put .*ubyte\.gz there",
        "cifar-10-binary.tar.gz": r"data_batch_1\.bin, .* not found .*\(cifar-10-binary\.tar\.gz",
        "2.mat": r"test_batches: truncated or altered .*download it again from https://www",
        "test.mat": r"test\.mat or test_batches/1\.mat .* not found .*https://www\.cs\.toronto",
    }
    usual = rf"{name}.* not found .*download from https?://.* and put it there, or set DATA_DIR"
    refuses(reader, tmp_path / "data", messages.get(dataset, messages.get(name, usual)))


@EACH_FORM
def test_files_of_unknown_hash_are_never_read_and_named_with_their_hash(
    dataset: str, write: Write, place: str, tmp_path: Path
) -> None:
    declared = write(tmp_path)
    group = "sha256_plain" if any("sha256_plain" in text for text in declared) else "sha256"
    unknown = [re.sub(rf"({group}.*)=.*", r"\1=unknown", text) for text in declared]
    any_hash = "|".join(re.escape(text) for text in declared if group in text)
    message = f"we do not know the publisher's hash, so nothing is read.* set .*({any_hash})"
    refuses(reader_of(f"dataset={dataset}", "dataset.validation=0", *unknown), tmp_path, message)


def test_a_hash_of_decompressed_files_does_not_replace_an_unknown_fingerprint(
    tmp_path: Path,
) -> None:
    hashes = [text for text in write_smallnorb(tmp_path) if "sha256" in text]
    plain = [text.replace(".sha256.", ".sha256_plain.") for text in hashes]
    unknown = [f"{text.partition('=')[0]}=unknown" for text in hashes]
    reader = reader_of("dataset=smallnorb", *unknown, *plain)
    refuses(reader, tmp_path, f"we do not know the.*set {' '.join(hashes)}$")


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_a_missing_folder_is_named(dataset: str, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    message = rf"places\.data: {nowhere} does not exist; set DATA_DIR"
    refuses(reader_of(f"dataset={dataset}"), nowhere, message)
