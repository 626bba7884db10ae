"""Small data sets: labelled noise, IDX files of our own making, a mirror on this machine."""

import gzip
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from capsweep.config import compose
from capsweep.data.images import LabelledImages, Reader
from capsweep.data.official import IdxReader
from capsweep.errors import DataError
from capsweep.storage.files import hash_bytes
from capsweep.training import build

COUNTS = {"train": 7, "t10k": 3}
HEIGHT, WIDTH = 5, 4


@pytest.fixture(scope="session")
def noise() -> Callable[..., LabelledImages]:
    """N random images whose label is their place, so that every one is known again."""

    def make(count: int, channels: int = 1, height: int = 6, width: int = 5) -> LabelledImages:
        generator = torch.Generator().manual_seed(count)
        shape = (count, channels, height, width)
        images_NCHW = torch.randint(1, 256, shape, generator=generator, dtype=torch.uint8)
        return LabelledImages(images_NCHW, torch.arange(count))

    return make


@pytest.fixture(scope="session")
def idx_bytes() -> dict[str, bytes]:
    """Four IDX files by name: image n is full of the numbers from n on, its label is n."""
    files = {}
    for prefix, count in COUNTS.items():
        pixels = bytes((n + p) % 256 for n in range(count) for p in range(HEIGHT * WIDTH))
        head = struct.pack(">4i", 0x00000803, count, HEIGHT, WIDTH)
        files[f"{prefix}-images-idx3-ubyte"] = head + pixels
        labels = bytes(range(count))
        files[f"{prefix}-labels-idx1-ubyte"] = struct.pack(">2i", 0x00000801, count) + labels
    return files


def _compressed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


@pytest.fixture(scope="session")
def write_idx(idx_bytes: dict[str, bytes]) -> Callable[..., None]:
    """Writes the four files into a folder, plain or compressed."""

    def write(folder: Path, is_compressed: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in idx_bytes.items():
            if is_compressed:
                (folder / f"{name}.gz").write_bytes(_compressed(content))
            else:
                (folder / name).write_bytes(content)

    return write


@pytest.fixture(scope="session")
def idx_reader(idx_bytes: dict[str, bytes]) -> Callable[..., IdxReader]:
    """A reader that declares the sha256 of these files; mirrors as arguments."""

    def make(*mirrors: str) -> IdxReader:
        return IdxReader(
            sha256={name: hash_bytes(_compressed(content)) for name, content in idx_bytes.items()},
            sha256_plain={name: hash_bytes(content) for name, content in idx_bytes.items()},
            folders=[".", "mnist", "MNIST/raw"],
            mirrors=mirrors,
        )

    return make


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test's terminal is not a server's log."""


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Serves a folder on this machine and returns its URL; another handler for odd servers."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers: list[ThreadingHTTPServer] = []
    threads: list[threading.Thread] = []

    def start(folder: Path, handler: type[SimpleHTTPRequestHandler] = _Quiet) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
        servers.append(server)
        threads.append(
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        )
        threads[-1].start()
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def reader_of() -> Callable[..., Reader]:
    """The reader that `dataset=NAME` and further overrides give."""

    def make(*overrides: str) -> Reader:
        return build.build_reader(compose.cell(overrides).config)

    return make


@pytest.fixture
def refuses() -> Callable[[Reader, Path, str], None]:
    """Asserts that both `check` and `read` of a reader refuse a folder with this message."""

    def assert_refused(reader: Reader, folder: Path, message: str) -> None:
        for call in (reader.check, reader.read):
            with pytest.raises(DataError, match=message):
                call(str(folder))

    return assert_refused
