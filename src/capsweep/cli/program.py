"""The `capsweep` program: it parses a command line, carries out the command, and turns exceptions
into exit statuses. Every command imports what it needs, so that `--help` is instant.
"""

import argparse
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from capsweep import __version__, terminal
from capsweep.errors import UserError

# Exit statuses: as argparse and shells have them, and EX_SOFTWARE and EX_IOERR of sysexits.h.
BAD_INPUT, INTERRUPTED, UNEXPECTED, REFUSED = 2, 130, 70, 74
LONGEST = 300  # characters of what an exception says
PLACES = ("STORAGE", "DATA_DIR")  # variables that conf/ reads
TRAIN = "capsweep.cli.train:main"
# What adds each other command to the parser, in the order of `--help`. Its module is imported when
# the command is asked for.
COMMANDS = {
    "sweep": "capsweep.cli.sweep:add_parser",
    "plan": "capsweep.cli.plan:add_parser",
    "report": "capsweep.cli.report:add_parser",
    "info": "capsweep.cli.info:add_parser",
    "eval": "capsweep.cli.eval:add_parser",
    "ledger": "capsweep.cli.ledger:add_parser",
    "data": "capsweep.cli.data:add_parser",
    "cluster": "capsweep.cli.submitting:add_parser",
    "attach": "capsweep.cli.jobs:add_parser",
    "status": "capsweep.cli.jobs:add_parser",
    "stop": "capsweep.cli.jobs:add_parser",
    "bench": "capsweep.cli.bench:add_parser",
    "doctor": "capsweep.cli.doctor:add_parser",
    "wandb": "capsweep.cli.wandb:add_parser",
}


@terminal.escaped_streams()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns 0, 1 (a cell failed), 2 (bad input), 130 (Ctrl-C), 70 (a fault of
    ours) or 74 (a disk, or who reads the output, refuses).
    """
    try:
        exit_status = _run_command(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:
            sys.stdout.flush()
        return exit_status
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # whatever it is, it is one line for the person
        return _report_unexpected(error)


def _report_unexpected(error: Exception) -> int:
    """Print one line, keep the traceback in a file, and return the exit status.

    Nothing is printed where the reader of the output closed the pipe, as `head` does.
    """
    if isinstance(error, OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes out what is left when it ends
    if isinstance(error, BrokenPipeError):
        return REFUSED
    message = " ".join(str(error).split())[:LONGEST] or "it says nothing"
    trace = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="capsweep-error-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file:
            file.write(trace)
        where = f"; the traceback is in {file.name}"
    except OSError:  # no temporary folder can be written
        where = f"\n{trace}"
    print(f"error: unexpected {type(error).__name__}: {message}{where}", file=sys.stderr)
    return REFUSED if isinstance(error, OSError) else UNEXPECTED


def _run_command(arguments: list[str]) -> int:
    if sys.platform != "linux":  # claims are judged by /proc: without it, all would look dead
        raise UserError(f"capsweep runs on Linux only, this is {sys.platform}; use WSL or Docker")
    _unset_empty_variables()
    if arguments[:1] == ["train"]:
        return _load_function(TRAIN)(arguments[1:])
    if "-sc" in arguments or "--shell-completion" in arguments:
        return _load_function(TRAIN)(arguments)  # the shell does not say the word `train`
    parsed = parse_arguments(arguments)
    return parsed.handler(parsed)


def _load_function(place: str) -> Callable[..., Any]:
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(module), function)


def _unset_empty_variables() -> None:
    """A variable that is set to nothing, as scripts do, is one that is not set."""
    for name in [name for name, value in os.environ.items() if not value]:
        if name.startswith(("WANDB_", "RAY_", "CAPSWEEP_", "AWS_")) or name in PLACES:
            del os.environ[name]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Overrides may stand anywhere among the options, which argparse alone does not allow."""
    parser = _make_parser([name for name in arguments[:1] if name in COMMANDS] or COMMANDS)
    parsed, rest = parser.parse_known_args(arguments)
    if unknown := [
        word for word in rest if word.startswith("-") or not hasattr(parsed, "overrides")
    ]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        parsed.overrides = [*parsed.overrides, *rest]
    return parsed


def _make_parser(names: Iterable[str]) -> argparse.ArgumentParser:
    """The parser of these commands."""
    text = "Experiment sweeps for capsule networks."
    parser = argparse.ArgumentParser("capsweep", description=text)
    parser.add_argument("--version", action="version", version=f"capsweep {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("train", help="run one cell: a Hydra application", add_help=False)
    for place in dict.fromkeys(COMMANDS[name] for name in names):
        _load_function(place)(commands)
    return parser
