"""Downloads: from a real server on this machine, verified before they are kept."""

from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from capsweep.data.official import IdxReader
from capsweep.errors import DataError

UNREACHABLE = "http://127.0.0.1:9/"

MakeReader = Callable[..., IdxReader]
Write = Callable[..., None]
Serve = Callable[..., str]


@pytest.fixture
def mirror(tmp_path: Path, write_idx: Write, serve: Serve) -> str:
    """A mirror that has the files."""
    write_idx(tmp_path / "mirror")
    return serve(tmp_path / "mirror")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty data folder."""
    path = tmp_path / "data"
    path.mkdir()
    return path


def files(folder: Path) -> list[str]:
    """Every file below a folder, hidden ones too."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_missing_files_are_downloaded_and_kept(
    folder: Path, mirror: str, idx_reader: MakeReader
) -> None:
    reader = idx_reader(mirror)
    reader.check(str(folder))
    assert files(folder) == sorted(f"{name}.gz" for name in reader.sha256)
    assert len(idx_reader().read(str(folder)).train) == 7  # without a mirror


def test_only_what_is_missing_is_downloaded(
    folder: Path, mirror: str, write_idx: Write, idx_reader: MakeReader
) -> None:
    write_idx(folder)
    kept, gone = sorted(folder.iterdir())[:2]
    before = kept.stat().st_mtime_ns
    gone.unlink()
    idx_reader(mirror).check(str(folder))
    assert gone.exists()
    assert kept.stat().st_mtime_ns == before


def test_the_next_mirror_serves_when_one_is_down_empty_or_wrong(
    tmp_path: Path, folder: Path, mirror: str, serve: Serve, idx_reader: MakeReader
) -> None:
    wrong, empty = tmp_path / "wrong", tmp_path / "empty"
    empty.mkdir()
    wrong.mkdir()
    for name in idx_reader().sha256:
        (wrong / f"{name}.gz").write_bytes(b"a captive portal")
    idx_reader(UNREACHABLE, serve(empty), serve(wrong), mirror).check(str(folder))
    assert len(files(folder)) == 4


def test_wrong_bytes_are_refused_and_leave_nothing(
    tmp_path: Path, folder: Path, serve: Serve, write_idx: Write, idx_reader: MakeReader
) -> None:
    write_idx(tmp_path / "mirror")
    name = next(iter(idx_reader().sha256))
    path = tmp_path / "mirror" / f"{name}.gz"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    url = serve(tmp_path / "mirror")
    with pytest.raises(DataError, match=rf"{name}\.gz is absent .*{url}: sha256 differs"):
        idx_reader(url).check(str(folder))
    assert files(folder) == []


def test_every_mirror_that_was_tried_is_named(
    tmp_path: Path, folder: Path, serve: Serve, idx_reader: MakeReader
) -> None:
    (tmp_path / "empty").mkdir()
    url = serve(tmp_path / "empty")
    with pytest.raises(DataError, match=rf"\({UNREACHABLE}: .*; {url}: .*404.*\); put "):
        idx_reader(UNREACHABLE, url).check(str(folder))
    assert files(folder) == []


class Cut(SimpleHTTPRequestHandler):
    """Ends the connection in the middle of a file."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"the first bytes")
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class Babbling(Cut):
    """Answers, but not in HTTP."""

    def do_GET(self) -> None:
        self.wfile.write(b"220 ready\r\n\r\n")
        self.close_connection = True


@pytest.mark.parametrize("handler", [Cut, Babbling])
def test_a_broken_answer_is_refused_by_name(
    handler: type[Cut], folder: Path, serve: Serve, idx_reader: MakeReader
) -> None:
    with pytest.raises(DataError, match="is absent and cannot be downloaded"):
        idx_reader(serve(folder, handler)).check(str(folder))
    assert files(folder) == []


def test_a_data_folder_that_cannot_be_written_is_named(mirror: str, idx_reader: MakeReader) -> None:
    with pytest.raises(DataError, match="/proc"):
        idx_reader(mirror).check("/proc")
