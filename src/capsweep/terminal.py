"""What is printed for a person: as wide as the terminal, and whole where there is none (a log)."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDEST = 100_000  # no line is as long


def console(stderr: bool = False) -> "Console":
    """A console that prints text as it stands: no markup, no names of emoji, no colours of its own.

    Without a terminal it is plain text, and no line is wrapped or cut unless COLUMNS says at which
    width; rich knows NO_COLOR.
    """
    from rich.console import Console

    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not made.file.isatty():
        made.is_interactive = False  # FORCE_COLOR asks for colours, not for what is redrawn
    if not made.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        made.width = WIDEST
    return made


def line(console: "Console", text: str) -> None:
    """Print a line that nothing is put into: a path or a command is to be copied."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def aside(text: str) -> None:
    """Print a line to the standard error; a live bar that is drawn meanwhile stays below it."""
    print(text, file=sys.stderr, flush=True)  # rich's own console would write through the bar


def paragraph(console: "Console", text: str) -> None:
    """Print sentences; a terminal gets them wrapped between words, a log on one line."""
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def show(console: "Console", table: "RenderableType") -> None:
    """Print a table. One that is too wide folds between words; then it runs over the edge: a number
    is never cut.
    """
    from rich.measure import Measurement

    unbounded = console.options.update(max_width=WIDEST)
    least = Measurement.get(console, unbounded, table).minimum
    asked = console.width
    if least > asked:
        console.width = least
    console.print(table)
    if least > asked:
        console.width = asked
