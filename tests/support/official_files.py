"""Small files in the formats of the official ones, written header for header.

Every `write_*` fills a folder, which is then `places.data`, and returns the Hydra overrides with
which the reader of that data set accepts them: hashes and counts. Pixels are `noise` of a seed,
label n is n modulo the number of classes.
"""

import gzip
import io
import lzma
import struct
import tarfile
from pathlib import Path

import numpy as np
from scipy.io import savemat

from capsweep.storage.files import hash_bytes

BYTE_MATRIX, INT_MATRIX = 0x1E3D4C55, 0x1E3D4C54
SMALLNORB = {
    "training": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "testing": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}


def noise(seed: int, *shape: int) -> np.ndarray:
    """uint8 pixels."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def labels(count: int, classes: int = 10) -> np.ndarray:
    """0, 1, 2, ... and again from 0."""
    return np.arange(count, dtype=np.int64) % classes


def _declare_counts(train: int, test: int) -> list[str]:
    return [f"dataset.examples.train={train}", f"dataset.examples.test={test}"]


def _declare_hash(name: str, data: bytes, group: str = "sha256") -> str:
    return f"dataset.reader.{group}.{name}={hash_bytes(data)}"


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_idx(folder: Path, train: int = 20, test: int = 10, size: int = 28) -> list[str]:
    """MNIST's four files below mnist/, for dataset=mnist."""
    overrides = [*_declare_counts(train, test), "dataset.reader.mirrors=[]"]
    for seed, (prefix, count) in enumerate((("train", train), ("t10k", test))):
        head = struct.pack(">4i", 0x00000803, count, size, size)
        images = head + noise(seed, count, size, size).tobytes()
        targets = struct.pack(">2i", 0x00000801, count) + labels(count).astype("u1").tobytes()
        for kind, content in (("images-idx3", images), ("labels-idx1", targets)):
            name, data = f"{prefix}-{kind}-ubyte", gzip.compress(content, mtime=0)
            _write(folder / "mnist" / f"{name}.gz", data)
            overrides.append(_declare_hash(name, data))
    return overrides


def write_cifar10(
    folder: Path, train: int = 20, test: int = 10, form: str = "archive"
) -> list[str]:
    """CIFAR-10 below cifar10/, for dataset=cifar10: records of a label byte and three planes of
    32x32. form: archive, plain or xz.
    """
    counts = [*(len(part) for part in np.array_split(np.arange(train), 5)), test]
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    batches = {}
    for seed, (name, count) in enumerate(zip(names, counts, strict=True)):
        records = [labels(count).astype("u1"), noise(seed, count, 3 * 32 * 32)]
        batches[name] = np.column_stack(records).astype("u1").tobytes()
    place, overrides = folder / "cifar10", _declare_counts(train, test)
    if form == "archive":
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, content in batches.items():
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        _write(place / "cifar-10-binary.tar.gz", file.getvalue())
        return [*overrides, _declare_hash("cifar-10-binary", file.getvalue())]
    for name, content in batches.items():
        is_xz = form == "xz"
        stored = lzma.compress(content, preset=0) if is_xz else content
        _write(place / f"{name}.bin{'.xz' * is_xz}", stored)
        overrides.append(_declare_hash(name, content, "sha256_plain"))
    return overrides


def encode_matlab(variables: dict[str, object]) -> bytes:
    """A compressed MATLAB 5 file."""
    file = io.BytesIO()
    savemat(file, variables, do_compression=True)
    return file.getvalue()


def write_svhn(folder: Path, train: int = 20, test: int = 10) -> list[str]:
    """SVHN's two files below svhn/, for dataset=svhn; the digit 0 is labelled 10."""
    overrides = _declare_counts(train, test)
    for seed, (split, count) in enumerate((("train", train), ("test", test))):
        digits = labels(count)
        y = np.where(digits == 0, 10, digits).astype("u1").reshape(-1, 1)
        data = encode_matlab({"X": noise(seed, 32, 32, 3, count), "y": y})
        _write(folder / "svhn" / f"{split}_32x32.mat", data)
        overrides.append(_declare_hash(f"{split}_32x32", data))
    return overrides


def write_matrix(folder: Path, name: str, values: np.ndarray) -> str:
    """A compressed matrix of bytes or int32 below smallnorb/, in NYU's binary format: the override
    that declares its hash.
    """
    magic, kind = (BYTE_MATRIX, "u1") if values.dtype == np.uint8 else (INT_MATRIX, "<i4")
    sizes = [*values.shape, *[1] * (3 - values.ndim)]
    head = struct.pack(f"<{2 + len(sizes)}i", magic, values.ndim, *sizes)
    data = gzip.compress(head + values.astype(kind).tobytes(), compresslevel=1, mtime=0)
    _write(folder / "smallnorb" / f"{name}.mat.gz", data)
    return _declare_hash(name, data)


def write_smallnorb(folder: Path, train: int = 20, test: int = 10) -> list[str]:
    """smallNORB's dat and cat files below smallnorb/, for dataset=smallnorb."""
    overrides = _declare_counts(train, test)
    for seed, (prefix, count) in enumerate(zip(SMALLNORB.values(), (train, test), strict=True)):
        matrices = {"dat": noise(seed, count, 2, 96, 96), "cat": labels(count, 5).astype("<i4")}
        for kind, values in matrices.items():
            overrides.append(write_matrix(folder, f"{prefix}-{kind}", values))
    return overrides


def viewpoints(count: int) -> np.ndarray:
    """Rows of instance, elevation, azimuth and light. Every third has a familiar azimuth, those
    after them a familiar elevation (section 5.1 of "Matrix capsules with EM routing").
    """
    n, turn = np.arange(count), np.arange(count) // 3
    azimuths = np.where(n % 3 == 0, 2 * ((15 + turn % 6) % 18), 2 * (3 + turn % 12))
    elevations = np.where(n % 3 == 1, turn % 3, 3 + turn % 6)
    return np.stack([n % 10, elevations, azimuths, n % 6], axis=1).astype("<i4")


def write_viewpoints(folder: Path, train: int = 20, test: int = 10) -> list[str]:
    """smallNORB with its info files, for dataset=smallnorb_azimuth or smallnorb_elevation: as many
    pairs as leave `train` familiar ones to train on, `test`, even, novel ones, and half as many
    familiar ones to validate on.
    """
    sizes = (3 * train, 3 * test // 2)
    images = write_smallnorb(folder, *sizes)
    declared = [text for text in images if ".examples." not in text]
    for prefix, count in zip(SMALLNORB.values(), sizes, strict=True):
        declared.append(write_matrix(folder, f"{prefix}-info", viewpoints(count)))
    return [*_declare_counts(train, test), f"dataset.examples.validation={test // 2}", *declared]


def affnist_file(images_NHW: np.ndarray, digits: np.ndarray) -> bytes:
    """A batch of affNIST: one struct with a digit a column, rows of pixels first."""
    image = np.ascontiguousarray(images_NHW.reshape(len(images_NHW), -1).T)
    one_hot = np.eye(10, dtype="u1")[digits].T
    fields = {"image": image, "label_int": digits.astype("u1")[None], "label_one_of_n": one_hot}
    return encode_matlab({"affNISTdata": fields})


def write_affnist(
    folder: Path, train: int = 20, test: int = 10, batches: int | None = None
) -> list[str]:
    """affNIST below affnist/, as test.mat or in `batches`, and MNIST to train on, for
    dataset=affnist.
    """
    mnist = [text for text in write_idx(folder, train, test=1) if ".examples." not in text]
    images, digits = noise(7, test, 40, 40), labels(test)
    if batches is None:
        name, data = "test", affnist_file(images, digits)
        _write(folder / "affnist" / "test.mat", data)
    else:
        name, data = "test_batches", b""
        for number, part in enumerate(np.array_split(np.arange(test), batches), start=1):
            content = affnist_file(images[part], digits[part])
            _write(folder / "affnist" / "test_batches" / f"{number}.mat", content)
            data += content
    declared = f"dataset.test.sha256.{name}={hash_bytes(data)}"
    return [*_declare_counts(train, test), *mnist, declared]
