"""What is shown of a job that is watched: its lines as they are, and the bar of its sweep."""

import sys
from typing import TYPE_CHECKING

from capsweep import terminal

if TYPE_CHECKING:
    from rich.console import Console


class Shown:
    """A job's log without the lines by which it tells its progress. On a terminal that can redraw
    these are a live bar below the others, as of a sweep that runs here, which takes the place of
    the lines of progress for a log too.
    """

    def __init__(self, console: "Console") -> None:
        from capsweep.sweep import bar

        self._told, self._bar = bar, bar.Bar(console)
        self._console = console
        self._begun = ""  # a line whose end has not come

    def __enter__(self) -> "Shown":
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.hide()
        if self._begun:
            self._print([self._begun])

    def write(self, text: str) -> None:
        """Take what the job has printed: whole lines, or parts of them."""
        *lines, self._begun = (self._begun + text).split("\n")
        others = [f"{line}\n" for line in lines if not self._is_progress(line)]
        if others:
            self._print(others)

    def _is_progress(self, line: str) -> bool:
        """Whether a line is no line to be printed; moves the bar."""
        if (standing := self._told.read(line)) is not None:
            self._bar.show(standing)
        elif line == self._told.OVER:
            self._bar.hide()
        else:
            return self._bar.is_live and bool(self._told.OF_A_LOG.fullmatch(line))
        return True

    def _print(self, lines: list[str]) -> None:
        if self._bar.is_live:
            terminal.line(self._console, "".join(lines).removesuffix("\n"))
        else:
            sys.stdout.write("".join(lines))
            sys.stdout.flush()
