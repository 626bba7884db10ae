"""The `capsweep` program: it carries out a command and turns exceptions into exit statuses."""

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence

from capsweep.cli.parser import parse_arguments
from capsweep.config.words import WordError, list_arguments
from capsweep.errors import UserError
from capsweep.runtime import terminal
from capsweep.storage.scratch import own_prefix

# Exit statuses: as argparse and shells have them (141: SIGPIPE), EX_SOFTWARE and EX_IOERR.
BAD_INPUT, INTERRUPTED, UNEXPECTED, REFUSED, UNREAD = 2, 130, 70, 74, 141
LONGEST = 300  # characters of what an exception says
VARIABLES = ("WANDB_", "RAY_", "CAPSWEEP_", "AWS_", "STORAGE", "DATA_DIR")  # that are read


@terminal.escaped_streams()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns its exit status: 0, 1 (a cell failed), 2 (bad input), 130 (Ctrl-C), 70 (a fault of
    ours), 74 (I/O error) or 141 (the output pipe is closed).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--make"]:  # a target of make and its ARGS; make says what else was typed
        flags = os.environ.pop("MAKEFLAGS", "")
        arguments = list_arguments(arguments[1], arguments[2:], flags)
    if arguments[:1] in (["sweep"], ["train"]):
        terminal.outlive_readers()  # `| head` ends no training
    try:
        try:
            return _run_reported(arguments)
        finally:  # also after --help; what Python itself writes as it ends nobody could catch
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
    except OSError as error:
        return _report_refusal(error)


def _run_reported(arguments: list[str]) -> int:
    try:
        return _run_command(arguments)
    except (UserError, WordError) as error:
        # What was typed, and is quoted, may hold line breaks.
        print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError:
        raise
    except Exception as error:  # whatever it is, it is one line for the person
        name = f"unexpected {type(error).__name__}"
        message = " ".join(str(error).split())[:LONGEST] or "it says nothing"
        print(
            f"error: {name}: {message}; the traceback is in {_keep_traceback(error)}",
            file=sys.stderr,
        )
        return UNEXPECTED


def _report_refusal(error: OSError) -> int:
    """Return the exit status where a file cannot be used, or the output cannot be written.

    A reader that closes the pipe, as `head` does, gets no message.
    """
    if error.filename is not None:
        name = error.filename2 or error.filename  # of a rename, the name that was asked for
        print(f"error: {name}: {error.strerror}", file=sys.stderr)
        return BAD_INPUT
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes out what is left when it ends
    if isinstance(error, BrokenPipeError):
        return UNREAD
    print(f"error: {error}", file=sys.stderr)
    return REFUSED


def _keep_traceback(error: Exception) -> str:
    """Return the file into which its traceback is written, if one can be."""
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            encoding="utf-8",
            prefix=own_prefix("capsweep-error"),
            suffix=".txt",
            delete=False,
            errors="backslashreplace",
        ) as file:
            traceback.print_exception(error, file=file)
        return file.name
    except OSError as refusal:
        return f"no file ({refusal.strerror})"


def _run_command(arguments: list[str]) -> int:
    if sys.platform != "linux":  # claims are judged by /proc: without it, all would look dead
        raise UserError(f"capsweep runs on Linux only, this is {sys.platform}; use WSL or Docker")
    _clean_variables()
    # The shell that completes a command line does not say the word `train`.
    if arguments[:1] == ["train"] or {"-sc", "--shell-completion"} & {*arguments}:
        from capsweep.cli import train

        return train.main(arguments[arguments[:1] == ["train"] :])
    parsed = parse_arguments(arguments)
    module, _, function = parsed.handler.partition(":")
    if function == "run_sweep" and not parsed.dry_run:  # before imports, which take a second
        terminal.announce(f"{parsed.sweep}: composing its cells")
    status = getattr(importlib.import_module(module), function)(parsed)
    return 0 if status is None else status


def _clean_variables() -> None:
    """Unset variables that are empty, and strip the newline of a secret from a file."""
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        value = os.environ.pop(name).strip()
        if value:
            os.environ[name] = value
