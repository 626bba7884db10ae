"""MNIST's files: found where people have them, else downloaded from a server of this machine."""

import gzip
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import http_servers
import official_files
import pytest
import torch

from capsweep.data.images import Reader, Splits
from capsweep.errors import DataError
from capsweep.storage.files import hash_bytes

UNREACHABLE = "http://127.0.0.1:9/"
# Examples of each digit, as published.
MNIST = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}

ReaderOf = Callable[..., Reader]
Mirrored = Callable[..., Reader]
Serve = Callable[..., str]


class Files(http_servers.Handler):
    """Those of a folder."""

    folder: Path

    def send_file(self) -> None:
        path = self.folder / self.path.lstrip("/")
        is_there = path.is_file()
        self.send_answer(200 if is_there else 404, path.read_bytes() if is_there else b"", {})

    do_GET = send_file


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Serves a folder on this machine and returns its URL."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ExitStack() as servers:

        def start(folder: Path) -> str:
            port = servers.enter_context(http_servers.serving_http(Files, folder=folder))
            return f"http://127.0.0.1:{port}/"

        yield start


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The four files: 20 and 10 examples."""
    official_files.write_idx(tmp_path / "made")
    return tmp_path / "made" / "mnist"


@pytest.fixture
def mirrored(reader_of: ReaderOf, tmp_path: Path) -> Mirrored:
    """A reader of such files, with these mirrors."""
    declared = official_files.write_idx(tmp_path / "declared")
    kept = [text for text in declared if "mirrors" not in text]
    return lambda *mirrors: reader_of(
        "dataset=mnist", *kept, f"dataset.reader.mirrors=[{','.join(mirrors)}]"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty data folder."""
    path = tmp_path / "data"
    path.mkdir()
    return path


def list_files(folder: Path) -> list[str]:
    """Every file below a folder, hidden ones too."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw"])
def test_the_files_are_found_and_read(place: str, made: Path, mirrored: Mirrored) -> None:
    (made.parent / place).mkdir(parents=True, exist_ok=True)
    for path in made.glob("*.gz"):
        path.rename(made.parent / place / path.name)
    reader = mirrored()
    reader.check(str(made.parent))
    splits = reader.read(str(made.parent))
    for seed, (examples, count) in enumerate(((splits.train, 20), (splits.test, 10))):
        pixels_NHW = torch.from_numpy(official_files.noise(seed, count, 28, 28))
        assert torch.equal(examples.images_NCHW, pixels_NHW[:, None])
        assert examples.labels_N.dtype == torch.int64
        assert examples.labels_N.tolist() == [n % 10 for n in range(count)]


def test_decompressed_files_are_verified_by_their_own_hash(made: Path, reader_of: ReaderOf) -> None:
    declared = ["dataset=mnist", "dataset.reader.mirrors=[]"]
    for path in made.glob("*.gz"):
        content = gzip.decompress(path.read_bytes())
        path.with_suffix("").write_bytes(content)
        path.unlink()
        declared.append(f"dataset.reader.sha256_plain.{path.stem}={hash_bytes(content)}")
    assert len(reader_of(*declared).read(str(made.parent)).train) == 20
    images = (made / "t10k-images-idx3-ubyte").read_bytes()
    (made / "t10k-labels-idx1-ubyte").write_bytes(images)
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte: truncated or altered"):
        reader_of(*declared).check(str(made.parent))


def test_only_what_is_missing_is_downloaded_and_kept(
    made: Path, folder: Path, mirrored: Mirrored, serve: Serve
) -> None:
    url = serve(made)
    mirrored(url).check(str(folder))
    assert list_files(folder) == list_files(made)
    kept, gone = sorted(folder.rglob("*.gz"))[:2]
    before = kept.stat().st_mtime_ns
    gone.unlink()
    mirrored(url).check(str(folder))
    assert kept.stat().st_mtime_ns == before
    assert len(mirrored().read(str(folder)).train) == 20  # without a mirror


def test_the_next_mirror_serves_when_one_is_down_empty_or_wrong(
    made: Path, tmp_path: Path, folder: Path, serve: Serve, mirrored: Mirrored
) -> None:
    wrong, empty = tmp_path / "wrong", tmp_path / "empty"
    for place in (wrong, empty):
        place.mkdir()
    for path in made.iterdir():
        (wrong / path.name).write_bytes(b"a captive portal")
    bad = (UNREACHABLE, serve(empty), serve(wrong))
    with pytest.raises(DataError, match=rf"\({UNREACHABLE}: .*; .*404.*; .*sha256 differs.*; put"):
        mirrored(*bad).check(str(folder))
    assert list_files(folder) == []
    mirrored(*bad, serve(made)).check(str(folder))
    assert len(list_files(folder)) == 4


@pytest.mark.mnist
def test_mnist_has_its_published_counts_and_the_famous_five(
    data_folder: Path, tmp_path: Path, reader_of: ReaderOf
) -> None:
    reader = reader_of("dataset=mnist", "dataset.reader.mirrors=[]")
    splits: Splits = reader.read(str(data_folder))
    for examples, histogram in ((splits.train, MNIST["train"]), (splits.test, MNIST["test"])):
        assert examples.images_NCHW.shape == (sum(histogram), 1, 28, 28)
        assert examples.labels_N.bincount().tolist() == histogram
    assert splits.train.labels_N[:5].tolist() == [5, 0, 4, 1, 9]
    ink_rows = splits.train.images_NCHW[0, 0].any(dim=1).nonzero().flatten()
    assert (int(ink_rows[0]), int(ink_rows[-1])) == (5, 24)
    for path in (data_folder / "mnist").glob("*.gz"):
        (tmp_path / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    plain = reader.read(str(tmp_path))
    assert torch.equal(splits.train.images_NCHW, plain.train.images_NCHW)
    assert torch.equal(splits.test.labels_N, plain.test.labels_N)
