"""The page of a running sweep: renewed by another process, rarely, and never a sweep's fault."""

import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from capsweep.report import live


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., live.LivePage]:
    """Makes a live page whose renewal runs some Python after a note in a file."""

    def make(code: str = "") -> live.LivePage:
        page = live.LivePage(tmp_path / "index.html", [], Console(file=io.StringIO()))
        note = f"open({str(tmp_path / 'starts')!r}, 'a').write('x')"
        page.command[1:] = ["-c", f"{note}; {code}"]
        return page

    return make


def renew(page: live.LivePage, ended: int) -> int:
    """Renew a page until nothing runs; the number of starts so far."""
    page.renew(ended)
    while page._process is not None:
        time.sleep(0.01)
        page.renew(ended)
    file = page.path.with_name("starts")
    return len(file.read_text()) if file.exists() else 0


def test_a_page_is_renewed_when_cells_have_ended_and_a_pause_is_over(start: Callable) -> None:
    page = start()
    assert renew(page, 0) == 0
    assert f"report: {page.path} (from" in page.console.file.getvalue().replace("\n", "")
    assert renew(page, 1) == 1
    assert renew(page, 2) == 1  # the pause is 30 times what the first renewal took
    page._next = 0.0
    assert renew(page, 2) == 2
    page._next = 0.0
    assert renew(page, 2) == 2  # nothing has ended since


def test_a_renewal_that_fails_or_hangs_is_no_fault_of_the_sweep(
    start: Callable, capsys: pytest.CaptureFixture
) -> None:
    page = start("raise SystemExit(3)")
    renew(page, 1)
    assert f"{page.path} could not be renewed; make report says why" in capsys.readouterr().err
    page.command[0], page._next = "/no/such/python", 0.0
    renew(page, 2)
    assert "No such file or directory" in capsys.readouterr().err
    slow = start("import time; time.sleep(600)")
    slow.renew(1)
    renewal = slow._process
    assert renewal is not None
    assert renewal.poll() is None
    slow.close()
    assert renewal.poll() is not None
