"""Output for a person: wrapped to the width of a terminal, or in unbroken lines in a log.

Printed texts, such as causes of errors, names and versions, can come from files and from other
machines. These texts may contain characters that control a terminal, or characters that a terminal
cannot show. This module makes print() and rich write such characters as escapes.
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
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDEST = 100_000  # columns; longer than any line
# Control characters except tab and newline, marks that change the direction of writing, and
# surrogates. The code that resets colours is allowed: it is harmless, and libraries write it when
# they end.
UNSAFE = re.compile(
    "(?!\x1b\\[0m)[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# The program's name in a command of a message, but not in a sentence about capsweep.
COMMAND = re.compile(r"\bcapsweep(?= (?:data|eval|ledger|new|plan|stop|sweep|train|wandb)\b)")


def escape_text(text: str, stream: Any = None) -> str:
    """Replace each unsafe character of a text by its escape, as ascii() does.

    A character is unsafe if it can control a terminal, or if the encoding of `stream` lacks it.
    Without a stream, the encoding is UTF-8.
    """
    escaped = UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return escaped.encode(encoding, "backslashreplace").decode(encoding)


@contextmanager
def escaped_streams() -> Iterator[None]:
    """Make print() escape unsafe characters inside the block, on stdout and stderr."""
    with redirect_stdout(_escape_stream(sys.stdout)), redirect_stderr(_escape_stream(sys.stderr)):
        yield


def _escape_stream(stream: Any) -> Any:
    return stream if stream is None or isinstance(stream, _Escaped) else _Escaped(stream)


class _Escaped:
    """A wrapper of a stream. It escapes the unsafe characters of texts that print() writes.

    rich writes directly to the wrapped stream, so that rich's own codes stay unchanged.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.rich_proxied_file = stream  # rich looks for an attribute of this name

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(escape_text(text, self.rich_proxied_file))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


class _Unbroken(io.FileIO):
    """A raw file that discards output after the reader of its pipe has closed the pipe."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def outlive_readers() -> None:
    """Make stdout and stderr discard output after the reader has closed the pipe.

    Otherwise, the next output would end the program. This function has an effect only inside the
    block of `escaped_streams`.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):  # no stream, or a stream without a descriptor
            old = stream.rich_proxied_file  # pyright: ignore[reportAttributeAccessIssue]
            file = io.BufferedWriter(_Unbroken(old.fileno(), "w", closefd=False))
            new = io.TextIOWrapper(file, old.encoding, old.errors, line_buffering=True)
            stream.rich_proxied_file = new  # pyright: ignore[reportAttributeAccessIssue]


def make_console(stderr: bool = False) -> "Console":
    """Return a rich console that prints text literally: no markup, no emoji names, no highlighting.

    If the output does not go to a terminal, and FORCE_COLOR is not set, the output is plain text,
    and lines are wrapped only if COLUMNS sets a width. rich itself handles NO_COLOR.
    """
    console = _console_class()(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.file.isatty():
        console.is_interactive = False  # FORCE_COLOR is for colours only, not for live displays
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = WIDEST
    return console


@cache
def _console_class() -> "type[Console]":
    """Return a class of rich consoles that escape unsafe characters.

    rich is imported only here, because the import is slow.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Escaping(Console):
        """A console that escapes unsafe characters in text, and keeps rich's own codes."""

        @Console.file.getter
        def file(self) -> IO[str]:
            """Return the original stream below the wrappers of capsweep and of rich."""
            file = super().file
            while (below := getattr(file, "rich_proxied_file", None)) is not None:
                file = below
            return file

        @property
        def encoding(self) -> str:
            """The encoding of the stream. rich draws frames, bars and spinners in this encoding."""
            return getattr(self.file, "encoding", None) or "utf-8"

        def on_broken_pipe(self) -> None:
            """Raise BrokenPipeError, as print() does; rich itself would end the program."""
            raise BrokenPipeError

        def render_str(self, text: str, **how: Any) -> Any:
            """Escape and render a string, so that rich measures the width of the escaped string."""
            return super().render_str(escape_text(text, self.file), **how)

        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            """Yield rich's segments with escaped texts, because some texts bypass `render_str`."""
            for part in super().render(renderable, options):
                yield (
                    part if part.control else Segment(escape_text(part.text, self.file), part.style)
                )

    return Escaping


def count_of(count: float, noun: str) -> str:
    """Return a number with its noun, as in `1 cell`, `2,000 cells` or `0.5 GPUs`."""
    return f"{count:,.15g} {noun}{'' if count == 1 else 's'}"


def describe_seeds(seeds: Iterable[int]) -> str:
    """Return seeds as text: `0 to 4` if there are three or more without a gap, else `0, 2, 3`."""
    every = sorted(seeds)
    is_range = len(every) > 2 and every == list(range(every[0], every[-1] + 1))
    return f"{every[0]} to {every[-1]}" if is_range else ", ".join(map(str, every))


def format_command(*words: str) -> str:
    """Return a command line of capsweep that can be pasted into a shell.

    The command begins with `capsweep` if this program is on the PATH, else with the path of the
    program, such as `.venv/bin/capsweep`, or with `PYTHON -m capsweep`.
    """
    program, script = ["capsweep"], Path(sys.executable).with_name("capsweep")
    if shutil.which("capsweep") is None:
        near = os.path.relpath(script)
        shown = str(script) if near.startswith("..") else near
        program = [shown] if script.exists() else [sys.executable, "-m", "capsweep"]
    return shlex.join([*program, *words])


def complete_commands(text: str) -> str:
    """Replace `capsweep` in the commands that a message names, so that they work as typed here."""
    return COMMAND.sub(lambda _: format_command(), text)


def announce(step: str) -> None:
    """Print what begins now, and flush the output, because the work may take seconds."""
    print(f"{step} ...", flush=True)


def print_aside(text: str) -> None:
    """Print a line to stderr. A live progress bar stays below the line."""
    print(text, file=sys.stderr, flush=True)  # rich's own console would write through the bar


print_once = cache(print_aside)  # prints equal lines once per process


def print_paragraphs(console: "Console", *texts: str) -> None:
    """Print texts: wrapped between words on a terminal, each on one line in a log."""
    for text in texts:
        console.print(text, soft_wrap=not console.is_terminal)


def print_table(console: "Console", table: "RenderableType") -> None:
    """Print a table that may be wider than the terminal.

    Text in columns is wrapped between words, so that the table fits if possible. A table that is
    still too wide is printed beyond the edge of the terminal, because a number must never be cut.
    """
    unbounded = console.options.update(max_width=WIDEST)
    least = console.measure(table, options=unbounded).minimum
    width = console.width
    console.width = max(least, width)
    console.print(table)
    console.width = width
