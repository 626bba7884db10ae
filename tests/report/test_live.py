"""The page of a running sweep: renewed by another process, rarely, and never a sweep's fault."""

import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from capsweep.report import live


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], live.LivePage]:
    """Makes a live page whose renewal runs some Python; it notes its starts in a file."""

    def make(code: str) -> live.LivePage:
        page = live.LivePage(tmp_path / "index.html", [], Console(file=io.StringIO()))
        note = f"open({str(tmp_path / 'starts')!r}, 'a').write('x')"
        page.command[1:] = ["-c", f"{note}; {code}"]
        return page

    return make


def count_starts(folder: Path, least: int = 1) -> int:
    file = folder / "starts"
    for _ in range(500):
        if file.exists() and len(file.read_text()) >= least:
            break
        time.sleep(0.01)
    return len(file.read_text())


def test_a_page_is_renewed_when_cells_have_ended_and_a_pause_is_over(
    start: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = start("pass")
    page.renew(0)
    assert f"report: {page.path} (from" in page.console.file.getvalue().replace("\n", "")
    assert not (tmp_path / "starts").exists()
    page.renew(1)
    page._renewal.join()
    page.renew(2)  # the pause is 30 times what the first renewal took
    assert count_starts(tmp_path) == 1
    page._next = time.monotonic()
    page.renew(2)
    page._renewal.join()
    page._next = time.monotonic()
    page.renew(2)  # nothing has ended since
    assert count_starts(tmp_path, 2) == 2


def test_a_renewal_that_fails_or_hangs_is_no_fault_of_the_sweep(
    start: Callable, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    page = start("raise SystemExit(3)")
    page.renew(1)
    page._renewal.join()
    assert f"{page.path} could not be renewed; make report says why" in capsys.readouterr().err
    page.command[0] = "/no/such/python"
    page._next = 0
    page.renew(2)
    page._renewal.join()
    assert "No such file or directory" in capsys.readouterr().err
    slow = start("import time; time.sleep(600)")
    slow.renew(1)
    count_starts(tmp_path, 2)
    began = time.monotonic()
    slow.close()
    assert time.monotonic() - began < 10
    assert not slow._renewal.is_alive()
    assert capsys.readouterr().err == ""
