"""Published data: missing files of MNIST are downloaded, here from a server of this machine; MNIST
and CIFAR-10 are what their publishers say, where they are there.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import http_servers
import official_files
import pytest
from small_data import reader_of, refuses

from capsweep.data.images import Reader, Splits
from capsweep.errors import DataError

UNREACHABLE = "http://127.0.0.1:9/"
# Examples of each digit, as published.
MNIST = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}

Serve = Callable[..., str]
Mirrored = Callable[..., Reader]


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
    """Beside an empty folder, data, the four files: 20 and 10 examples."""
    (tmp_path / "data").mkdir()
    return tmp_path / "made" / "mnist"


@pytest.fixture
def mirrored(made: Path) -> Mirrored:
    """A reader of such files, with these mirrors."""
    kept = [text for text in official_files.write_idx(made.parent) if "mirrors" not in text]
    return lambda *mirrors: reader_of(
        "dataset=mnist", *kept, f"dataset.reader.mirrors=[{','.join(mirrors)}]"
    )


def list_files(folder: Path) -> list[str]:
    """Every file below a folder, hidden ones too."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_only_what_is_missing_is_downloaded_and_kept(
    made: Path, tmp_path: Path, mirrored: Mirrored, serve: Serve
) -> None:
    url, folder = serve(made), tmp_path / "data"
    mirrored(url).check(str(folder))
    assert list_files(folder) == list_files(made)
    kept, gone = sorted(folder.rglob("*.gz"))[:2]
    before = kept.stat().st_mtime_ns
    gone.unlink()
    mirrored(url).check(str(folder))
    assert kept.stat().st_mtime_ns == before
    assert len(mirrored().read(str(folder)).train) == 20  # without a mirror


def test_the_next_mirror_serves_when_one_is_down_empty_or_wrong(
    made: Path, tmp_path: Path, serve: Serve, mirrored: Mirrored
) -> None:
    wrong, empty, folder = tmp_path / "wrong", tmp_path / "empty", tmp_path / "data"
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
def test_mnist_has_its_published_counts_and_the_famous_five(data_folder: Path) -> None:
    reader = reader_of("dataset=mnist", "dataset.reader.mirrors=[]")
    splits: Splits = reader.read(str(data_folder))
    for examples, histogram in ((splits.train, MNIST["train"]), (splits.test, MNIST["test"])):
        assert examples.images_NCHW.shape == (sum(histogram), 1, 28, 28)
        assert examples.labels_N.bincount().tolist() == histogram
    assert splits.train.labels_N[:5].tolist() == [5, 0, 4, 1, 9]
    ink_rows = splits.train.images_NCHW[0, 0].any(dim=1).nonzero().flatten()
    assert (int(ink_rows[0]), int(ink_rows[-1])) == (5, 24)


def test_the_pickled_version_is_said_to_be_another(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").touch()
    message = r"data_batch_1\.bin.* not found .*binary\.tar\.gz; the pickled version is never"
    refuses(reader_of("dataset=cifar10"), tmp_path, message)


def test_the_approximate_copy_has_no_publisher_and_the_official_files_are_not_it(
    tmp_path: Path,
) -> None:
    reader = reader_of("dataset=cifar10_approximate")
    refuses(reader, tmp_path, r"test_batch\.bin not found .*this copy is not published.*=cifar10\)")
    official_files.write_cifar10(tmp_path, form="plain")
    refuses(reader, tmp_path, r"data_batch_1\.bin: truncated or altered .*dataset=cifar10\)$")


@pytest.mark.slow
def test_the_real_images_have_ten_classes_of_equal_size(data_folder: Path) -> None:
    if not (data_folder / "cifar10" / "data_batch_1.bin.xz").is_file():
        pytest.skip(f"no CIFAR-10 in {data_folder}; set CAPSWEEP_TEST_DATA")
    splits = reader_of("dataset=cifar10_approximate").read(str(data_folder))
    for examples, count in ((splits.train, 5000), (splits.test, 1000)):
        assert examples.labels_N.bincount().tolist() == [count] * 10
        assert examples.images_NCHW.shape == (10 * count, 3, 32, 32)
    means = splits.train.images_NCHW.double().mean(dim=(0, 2, 3))
    assert means.tolist() == pytest.approx([125.3, 123.0, 113.9], abs=0.1)  # as published
    assert splits.train.labels_N[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, car
