"""What is printed for a person: as wide as the terminal, and whole where there is none (a log).

Causes, names and versions come from files and other machines. What of them a terminal would obey,
or could not show, is printed as its escape (`\\x1b`), by print() and by rich alike.
"""

import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDEST = 100_000  # no line is as long
# Controls but for tab and newline, what turns the direction of writing, halves of characters.
# A reset of colours, which libraries write when they end, harms nobody.
OBEYED = re.compile(
    "(?!\x1b\\[0m)[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape_text(text: str, stream: Any = None) -> str:
    """Return the text, with a written escape for every character that a terminal would obey, and
    that the stream's encoding lacks.
    """
    escaped = OBEYED.sub(lambda match: ascii(match[0])[1:-1], text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return escaped.encode(encoding, "backslashreplace").decode(encoding)


@contextmanager
def escaped_streams() -> Iterator[None]:
    """Escape what print() writes within the block, to the standard output and the error."""
    with redirect_stdout(_escape_stream(sys.stdout)), redirect_stderr(_escape_stream(sys.stderr)):
        yield


def _escape_stream(stream: Any) -> Any:
    return stream if stream is None or isinstance(stream, _Escaped) else _Escaped(stream)


class _Escaped:
    """A stream that escapes text. rich, whose own codes are to be obeyed, writes below it."""

    def __init__(self, stream: IO[str]) -> None:
        self.rich_proxied_file = stream  # the name by which rich looks for it

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(escape_text(text, self.rich_proxied_file))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


class _Unbroken(io.FileIO):
    """A file descriptor that drops what nobody reads."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def outlive_readers() -> None:
    """Drop what is printed from now on where its reader is gone; the program goes on."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):  # no stream, or one without a descriptor
            old = stream.rich_proxied_file  # pyright: ignore
            file = io.BufferedWriter(_Unbroken(old.fileno(), "w", closefd=False))
            new = io.TextIOWrapper(file, old.encoding, old.errors, line_buffering=True)
            stream.rich_proxied_file = new  # pyright: ignore


def make_console(stderr: bool = False) -> "Console":
    """Return a console that prints text as it stands: no markup, no names of emoji, no colours of
    its own.

    Without a terminal it is plain text, and no line is wrapped or cut unless COLUMNS says at which
    width; rich knows NO_COLOR.
    """
    console = _console_class()(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.file.isatty():
        console.is_interactive = False  # FORCE_COLOR asks for colours, not for what is redrawn
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = WIDEST
    return console


@cache
def _console_class() -> "type[Console]":
    """Return rich's console, made here because importing it takes longer than `--help` may."""
    from rich.console import Console
    from rich.segment import Segment

    class Escaping(Console):
        """A console of which text is escaped, and the codes of its own are not."""

        @Console.file.getter
        def file(self) -> IO[str]:
            """The stream itself: a live display puts a proxy of rich's own before ours."""
            file = super().file
            while (below := getattr(file, "rich_proxied_file", None)) is not None:
                file = below
            return file

        @property
        def encoding(self) -> str:
            """By which rich chooses frames, bars and spinners that can be shown."""
            return getattr(self.file, "encoding", None) or "utf-8"

        def on_broken_pipe(self) -> None:
            """Raise as print() does; rich itself would end the program."""
            raise BrokenPipeError

        def render_str(self, text: str, **how: Any) -> Any:
            """Escape a text before it is measured."""
            return super().render_str(escape_text(text, self.file), **how)

        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            """Escape also what was no string."""
            for part in super().render(renderable, options):
                yield (
                    part if part.control else Segment(escape_text(part.text, self.file), part.style)
                )

    return Escaping


def count_of(count: float, noun: str) -> str:
    """Return `1 cell`, `2,000 cells`, `0.5 GPUs`."""
    return f"{count:,.15g} {noun}{'' if count == 1 else 's'}"


def describe_seeds(seeds: Iterable[int]) -> str:
    """Return `0 to 4`, or `0, 2, 3`."""
    every = sorted(seeds)
    is_range = len(every) > 2 and every == list(range(every[0], every[-1] + 1))
    return f"{every[0]} to {every[-1]}" if is_range else ", ".join(map(str, every))


def format_command(*words: str) -> str:
    """Return a command of capsweep that a shell takes as it stands, on a PATH without it too."""
    program = ["capsweep"] if shutil.which("capsweep") else [sys.executable, "-m", "capsweep"]
    return shlex.join([*program, *words])


def announce(step: str) -> None:
    """Print at once what a command begins, which may take seconds."""
    print(f"{step} ...", flush=True)


def print_aside(text: str) -> None:
    """Print a line to the standard error; a live bar that is drawn meanwhile stays below it."""
    print(text, file=sys.stderr, flush=True)  # rich's own console would write through the bar


print_once = cache(print_aside)  # the same line once in a process


def print_paragraph(console: "Console", text: str) -> None:
    """Print sentences; a terminal gets them wrapped between words, a log on one line."""
    console.print(text, soft_wrap=not console.is_terminal)


def print_table(console: "Console", table: "RenderableType") -> None:
    """Print a table. One that is too wide folds between words; then it runs over the edge: a number
    is never cut.
    """
    from rich.measure import Measurement

    unbounded = console.options.update(max_width=WIDEST)
    least = Measurement.get(console, unbounded, table).minimum
    width = console.width
    console.width = max(least, width)
    console.print(table)
    console.width = width
