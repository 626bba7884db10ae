"""What people see: a terminal gets what fits, a log gets everything, and no escape codes."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import reported_cells

from capsweep import cli
from capsweep.cli import program
from capsweep.report import grid
from capsweep.runtime import terminal
from capsweep.sweep import expand, spec

ESCAPE = "\x1b["


def in_terminal(columns: int, *arguments: str) -> str:
    """What `capsweep ARGUMENTS` shows in a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    hidden = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "CI")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    kept["TERM"] = "xterm"
    command = [sys.executable, "-m", "capsweep", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=kept) as process:
        os.close(theirs)
        output = b""
        while chunk := _read(ours):
            output += chunk
    os.close(ours)
    assert process.returncode == 0, output.decode()
    return output.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    """Linux says EIO where the other side is closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.fixture
def begun(storage: Path) -> Path:
    """A storage in which one cell of the ablation is finished."""
    reported_cells.finish(storage / "ledger", expand.expand_sweep(spec.load("ablation"))[0], 0.01)
    return storage


@pytest.mark.parametrize("command", ["report", "plan"])
def test_the_ablation_fits_a_terminal_of_eighty_columns(command: str, begun: Path) -> None:
    output = in_terminal(80, command, "ablation", f"STORAGE={begun}")
    assert ESCAPE in output
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output).splitlines()
    lines = [line for line in lines if not line.startswith("report: ")]
    assert max(len(line) for line in lines) <= 80
    assert re.search(r"capsnet +3 +0\.0005 ", output) or command == "plan"


def test_information_of_a_network_has_every_number_and_fits_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (30, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main(["info", "model=capsnet", "dataset=mnist"]) == 0
        output = capsys.readouterr().out
        for text in ("8,215,728", "11,520", "5,308,672", "406,405,120", "256x20x20"):
            assert text in output
        assert "…" not in output
    lines = output.splitlines()
    assert max(len(line) for line in lines[:-1]) <= 80
    assert lines[-1].startswith("FLOPs and votes are per image;")


def test_a_log_has_whole_lines_and_no_escape_codes(begun: Path) -> None:
    command = [sys.executable, "-m", "capsweep", "report", "ablation", f"STORAGE={begun}"]
    known = dict(os.environ)  # readline has put COLUMNS where only a child sees it
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=known).stdout
    assert ESCAPE not in printed
    rows = [line for line in printed.splitlines() if line.lstrip().startswith("capsnet")]
    assert len(rows) == 4
    assert all("seeds" in row and "≠ capsnet, mnist, 640 epochs" in row for row in rows)
    note = next(line for line in printed.splitlines() if line.startswith("published"))
    assert note.endswith("baseline CNN of 35.4 M parameters.")


HOSTILE = "red \x1b[31m title \x1b]0;x\x07 up \x9b2A back \r turned \u202e half \udc80"
SHOWN = r"red \x1b[31m title \x1b]0;x\x07 up \x9b2A back \r turned \u202e half \udc80"


def test_what_a_terminal_would_obey_is_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = grid.grid_terminal(HOSTILE, [HOSTILE], [[HOSTILE]])
    with terminal.escaped_streams():
        print(HOSTILE)
        terminal.print_aside(HOSTILE)
        console = terminal.make_console()
        terminal.print_paragraphs(console, HOSTILE)
        terminal.print_table(console, table)
        console.out(HOSTILE)
    printed = capsys.readouterr()
    assert printed.out.count(SHOWN) == 6
    assert printed.err == f"{SHOWN}\n"
    assert not terminal.UNSAFE.search(printed.out)


def test_signs_that_a_log_lacks_are_escapes_and_tables_stay_straight() -> None:
    rows = [["a · b", "1.5 ± 0.5", "x"], ["\u0142", "–", "≠ y"]]
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    with redirect_stdout(stream):
        table = grid.grid_terminal(None, ["one", "two.key", "lr=0.1"], rows)
        terminal.print_table(terminal.make_console(), table)
        stream.flush()
    lines = stream.buffer.getvalue().decode("latin-1").splitlines()
    assert len({len(line) for line in lines}) == 1
    words = [line.replace("|", " ").split() for line in lines]
    assert words[1:3] == [["two."], ["one", "key", "lr=0.1"]]
    assert words[-2] == ["\\u0142", "\\u2013", "\\u2260", "y"]


def test_a_report_is_in_files_before_it_is_on_the_screen(
    begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal, "print_table", interrupt)
    assert cli.main(["report", "ablation", f"STORAGE={begun}"]) == program.INTERRUPTED
    assert (begun / "reports" / "ablation" / "index.html").exists()
