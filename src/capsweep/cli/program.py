"""The `capsweep` program: its commands, their options, and the exit status of each error.

The function `run_NAME` runs the command NAME. It is in the module with the name of the command's
group or, without a group, of the command; MODULES lists the exceptions. The module is imported only
when the command is typed, so that `--help` is fast. Modules of the package LAB declare more
commands.
"""

import argparse
import os
import pkgutil
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from capsweep import __version__
from capsweep.config import words
from capsweep.errors import UserError
from capsweep.runtime import terminal
from capsweep.storage.scratch import make_scratch_prefix

# Exit statuses: 2 is that of argparse, 130 and 141 are those of shells (Ctrl-C, SIGPIPE), 70 and 74
# those of sysexits.h (EX_SOFTWARE, EX_IOERR).
BAD_INPUT, INTERRUPTED, UNEXPECTED, IO_ERROR, PIPE_CLOSED = 2, 130, 70, 74, 141
LONGEST = 300  # most characters of an exception's text in a message
# The environment variables that capsweep reads have a name that begins with one of these.
VARIABLES = ("WANDB_", "RAY_", "CAPSWEEP_", "AWS_", "STORAGE", "DATA_DIR")

Option: TypeAlias = tuple[str, dict[str, Any]]  # its name, and keyword arguments of `add_argument`
Command: TypeAlias = tuple[str, Sequence[Option]]  # its help line, and its options


def whole_number(least: int) -> Callable[[str], int]:
    """Return an argparse type that accepts whole numbers >= `least`."""

    def parse_number(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number >= {least}, got {text}")
        return int(text)

    return parse_number


def share_or_path(text: str) -> float | Path:
    """Read a share of the training images, a number between 0 and 1, or a path."""
    try:
        share = float(text)
    except ValueError:
        return Path(text)
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"must be a share such as 0.2, or a path, got {text}")
    return share


def size_in_pixels(text: str) -> tuple[int, int]:
    """Read the height and width of images, such as 32 or 32x48."""
    sides = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text)
    if sides is None:
        raise argparse.ArgumentTypeError(f"must be like 32 or 32x48 (height x width), got {text}")
    return int(sides[1]), int(sides[2] or sides[1])


def option(name: str, text: str, **settings: Any) -> Option:
    """Return an option of a command.

    Args:
        name: Name of the option, such as `--eps`.
        text: Help text of the option.
        settings: Further arguments of argparse's `add_argument`.
    """
    return name, {"help": text, **settings}


def _switch(name: str, text: str) -> Option:
    return option(name, text, action="store_true")


DEVICE = option("--device", "auto (default: a GPU if there is one), cpu, ...", default="auto")
DRY_RUN = _switch("--dry-run", "print what would be done, and do nothing")
FILE = option("file", "a tar file", type=Path)
JOB = (option("sweep", "the name of a sweep, or the id of its job", nargs="?"),)
JSON = _switch("--json", "print JSON, for programs")
OVERRIDES = option("overrides", "key=value, as for capsweep train", nargs="*")
FOLDER = option("path", "the data set's folder, which has an index.json", type=Path)
SIGNATURE = option("signature", "the signature of a cell, or its first characters")
SIGNATURES = option("signature", "only these cells, by first characters; default: all", nargs="*")
SWEPT = "a file of sweeps/ (default: ablation) or a path that ends in .yaml, then words"
SWEEP = (option("sweep", SWEPT, nargs="*", default=[]),)
RUN = (
    DRY_RUN,
    _switch("--detach", "submit the sweep to the cluster's job server, and return at once"),
    _switch("--here", "use the Ray of the cluster to which this node belongs"),
)
SYNC = (
    option("--jobs", "cells uploaded at once (default: 4)", type=whole_number(1), default=4),
    option("--timeout", "seconds for each cell (default: 120)", type=whole_number(1), default=120),
)
PLAN = (_switch("--calibrate", "time 20 training steps of each network without estimate"), JSON)
REPORT = (
    _switch("--publish", "rewrite the answer NAME.md beside the file NAME.yaml"),
    _switch("--live", argparse.SUPPRESS),  # typed by a sweep that renews its page as it runs
    JSON,
)
FILTERS = option(
    "filters", "settings, states or first characters: seed=0 status=failed ab", nargs="*"
)
REMOVABLE = option("signature", "cells, by first characters of their signatures", nargs="+")
RERUN = _switch("--run", "run the cell again, and compare its metrics with the stored ones")
LIGHT = _switch("--without-weights", "leave out the files weights.ckpt")
NEW = (
    option("kind", "what to write", choices=["routing", "loss", "model", "dataset", "sweep"]),
    option("name", "small letters, digits and _, such as cosine_routing"),
    option("--file", "for a data set: pictures in folders, or .csv, IDX or .npz files", type=Path),
    option("--test", "its test images: a share such as 0.2, or a path", type=share_or_path),
    option("--validation", "its validation images: a share, or a path", type=share_or_path),
    option("--size", "stretch its pictures to N or HEIGHTxWIDTH pixels", type=size_in_pixels),
)

COMMANDS = {
    "sweep": ("run the missing cells of a sweep, then print its table", [*SWEEP, *RUN]),
    "plan": ("print what a sweep would run, without running it", [*SWEEP, *PLAN]),
    "report": ("print the table of a sweep, and write it to files", [*SWEEP, *REPORT]),
    "new": ("write the files of a new routing, loss, model, data set or sweep", NEW),
    "info": ("print the size and cost of a network, layer by layer", [OVERRIDES]),
    "attach": ("print the output of a sweep that runs as a job; Ctrl-C detaches", JOB),
    "status": ("print the state of each sweep that runs as a job of a cluster", JOB),
    "stop": ("stop a sweep that runs as a job; finished cells and checkpoints stay", JOB),
    "doctor": ("check packages, folders and devices, and say how to fix each fault", []),
}
LEDGER = {
    "ls": ("list cells, one on a line, the newest last", [FILTERS, JSON]),
    "show": ("print everything that is known of a cell", [SIGNATURE, JSON]),
    "failures": ("list failed cells by cause, of all sweeps or of one", [FILTERS]),
    "reproduce": ("print the command that repeats a cell", [SIGNATURE, OVERRIDES, RERUN]),
    "rm": ("remove cells; a sweep that needs them runs them again", [REMOVABLE]),
    "release": ("remove the claim of a run whose machine is gone", [SIGNATURE]),
    "verify": ("check that stored files have not changed", [SIGNATURES]),
    "gc": ("remove files that no result, failure or resume needs", [DRY_RUN]),
    "export": ("write finished and failed cells to a file", [FILE, SIGNATURES, LIGHT]),
    "import": ("check a file that export wrote, and add its cells", [FILE]),
}
DATA = {
    "make": ("make the missing shards of a data set", [OVERRIDES, DRY_RUN]),
    "verify": ("print the content of a data set, and each missing or altered file", [FOLDER]),
}
WANDB = {
    "sync": ("upload the cells that W&B does not have", [SIGNATURES, *SYNC, JSON]),
    "dashboard": ("save a workspace for a sweep in W&B", SWEEP),
}
LAB = "capsweep.lab.commands"
GROUPS = {
    "ledger": ("list, check and remove stored cells", LEDGER),
    "data": ("make and verify data sets of shards", DATA),
    "wandb": ("copy cells of the ledger to Weights & Biases", WANDB),
}


# The module that runs a command, for commands whose module has another name.
MODULES = {**dict.fromkeys(("attach", "status", "stop"), "sweep"), "info": "plan"}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError with a message that names the help of this command."""
        raise UserError(f"{self.prog}: {message}; see `{self.prog} --help`")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, in which words such as SEEDS=3 may be anywhere.

    Returns:
        The options. Each short name, such as SEEDS, gives an attribute in lower case (`seeds`): the
        typed value, else the default, else None. The attribute `words` has the typed short names
        except SWEEP, with their values.

    Raises:
        UserError: A command or option is unknown.
        words.WordError: A short name is unknown, or was typed twice.
    """
    parser, target = make_parser(), words.find_target(arguments)
    values, others = words.split_words(target, arguments)
    parsed, rest = parser.parse_known_args(others)
    is_grid = isinstance(getattr(parsed, "sweep", None), list)
    takes_keys = is_grid or hasattr(parsed, "overrides")
    if unknown := [word for word in rest if word.startswith("-") or not takes_keys]:
        cure = f"see `{parsed.program} --help`"
        raise UserError(f"{parsed.program}: unrecognized arguments: {' '.join(unknown)}; {cure}")
    parsed.overrides = [*getattr(parsed, "overrides", ()), *rest]
    if hasattr(parsed, "sweep"):
        _separate_name(parsed, values.pop("SWEEP", ""), "ablation" if is_grid else None)
    given = {"EXECUTOR": "ray"} | values
    typed = {word.name.lower(): given.get(word.name) for word in words.list_words(target)}
    vars(parsed).update(typed | {"sweep": getattr(parsed, "sweep", None)})
    parsed.words = values
    return parsed


def _separate_name(parsed: argparse.Namespace, named: str, default: str | None) -> None:
    """Separate the name of a sweep from the overrides, which may be in any order.

    Args:
        parsed: The options. The attributes `sweep` and `overrides` are replaced.
        named: The value of SWEEP, or empty.
        default: The name if none was typed.

    Raises:
        UserError: Two different names were typed.
    """
    first = parsed.sweep or []
    typed = [*(first if isinstance(first, list) else [first]), *parsed.overrides]
    parsed.overrides = [word for word in typed if "=" in word or word.startswith(("~", "+"))]
    names = list(dict.fromkeys(w for w in (*typed, named) if w and w not in parsed.overrides))
    if len(names) > 1:
        typed_names = " and ".join(n[:80] for n in names)
        raise UserError(f"{typed_names}: {parsed.program} takes one name; overrides are key=value")
    parsed.sweep = names[0] if names else default


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands, those of the laboratory included."""
    parser = _Parser("capsweep", description="Experiment sweeps for capsule networks.")
    parser.add_argument("--version", action="version", version=f"capsweep {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("train", help="train one cell (a Hydra application)", add_help=False)
    for name, command in COMMANDS.items():
        _add_command(commands, f"capsweep.cli.{MODULES.get(name, name)}:run_{name}", name, command)
    for group, (text, members) in GROUPS.items():
        inner = _add_group(commands, group, text)
        for name, command in members.items():
            _add_command(inner, f"capsweep.cli.{group}:run_{name}", name, command, group)
    _add_package(commands, LAB)
    return parser


def _add_package(commands: Any, package: str, group: str = "") -> None:
    """Add the commands that the modules of a package declare; an inner package is a group."""
    for found in pkgutil.iter_modules(pkgutil.resolve_name(package).__path__):
        module = pkgutil.resolve_name(f"{package}.{found.name}")
        if found.ispkg:
            inner = _add_group(commands, found.name, module.TEXT)
            _add_package(inner, module.__name__, found.name)
            continue
        for name, command in module.COMMANDS.items():
            function = "run" if hasattr(module, "run") else f"run_{name}".replace("-", "_")
            _add_command(commands, f"{module.__name__}:{function}", name, command, group)


def _add_group(commands: Any, name: str, text: str) -> Any:
    below = commands.add_parser(name, help=text, description=text)
    return below.add_subparsers(metavar="COMMAND", required=True)


def _add_command(commands: Any, handler: str, name: str, command: Command, group: str = "") -> None:
    """Add a command, its options, and the words that its help lists."""
    text, options = command
    listed = words.describe_words(words.find_target([*group.split(), name]))
    if listed and any(each in (OVERRIDES, *SWEEP) for each in options):
        listed += "\n  key=value              any key of conf/"
    parser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"words:\n{listed}" if listed else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name_or_flag, settings in options:
        parser.add_argument(name_or_flag, **settings)
    parser.set_defaults(handler=handler, command=name, program=parser.prog)


@terminal.escaped_streams()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The command line without the name of the program; None for the command
            line of this process.

    Returns:
        The exit status: 0, 1 (a cell or check failed), 2 (bad input), 3 (no cell failed, but some
        cells are not finished), 70 (an error of capsweep), 74 (I/O error), 130 (Ctrl-C) or 141 (the
        output pipe is closed).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--make"]:  # a target and its ARGS follow; MAKEFLAGS has the words
        flags = os.environ.pop("MAKEFLAGS", "")
        arguments = words.list_arguments(arguments[1], arguments[2:], flags)
    if arguments[:1] in (["sweep"], ["train"]):
        terminal.outlive_readers()  # so that `| head` does not end a training
    try:
        return _run_reported(arguments)
    except OSError as error:
        return _report_os_error(error)


def _run_reported(arguments: list[str]) -> int:
    """Run a command, print an error in one line, and return the exit status.

    Raises:
        OSError: The system reported an error; `main` prints it.
    """
    try:
        return _run_command(arguments)
    except (UserError, words.WordError) as error:
        # A message may quote typed text that has line breaks.
        message = terminal.complete_commands(" ".join(str(error).splitlines()))
        print(f"error: {message}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError:
        raise
    except Exception as error:  # any other error is reported in one line, too
        message = " ".join(str(error).split())[:LONGEST] or "no message"
        fault = f"unexpected {type(error).__name__}: {message}"
        print(f"error: {fault}; the traceback is in {_keep_traceback(error)}", file=sys.stderr)
        return UNEXPECTED
    finally:  # an error of a flush at Python's exit could not be caught
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()


def _report_os_error(error: OSError) -> int:
    """Print an error of the system, and return its exit status.

    Nothing is printed if the reader of the output closed the pipe, as `head` does.
    """
    if error.filename is not None:
        name = error.filename2 or error.filename  # a rename has two names; the new one is printed
        print(f"error: {name}: {error.strerror}", file=sys.stderr)
        return BAD_INPUT
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes its output once more at exit
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED
    print(f"error: {error}", file=sys.stderr)
    return IO_ERROR


def _keep_traceback(error: Exception) -> str:
    """Write the traceback of an error to a temporary file, and return the name of the file.

    If no file can be written, return the reason instead.
    """
    try:
        number, name = tempfile.mkstemp(".txt", make_scratch_prefix("capsweep-error"))
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
        return name
    except OSError as fault:
        return f"no file ({fault.strerror})"


def _run_command(arguments: list[str]) -> int:
    """Run a command and return its exit status; `train` parses its arguments itself."""
    if sys.platform != "linux":  # without /proc, the owner of every claim would look dead
        raise UserError(f"capsweep runs on Linux only, this is {sys.platform}; use WSL or Docker")
    _clean_variables()
    # For shell completion, the shell calls the program without the word `train`.
    if arguments[:1] == ["train"] or {"-sc", "--shell-completion"} & {*arguments}:
        from capsweep.cli import train

        return train.main(arguments[arguments[:1] == ["train"] :])
    parsed = parse_arguments(arguments)
    if parsed.command == "sweep" and not parsed.dry_run:  # printed before imports that take seconds
        terminal.announce(f"{parsed.sweep}: composing its cells")
    return pkgutil.resolve_name(parsed.handler)(parsed) or 0


def _clean_variables() -> None:
    """Unset the empty ones among VARIABLES, and strip blanks and newlines from the others."""
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        if value := os.environ.pop(name).strip():
            os.environ[name] = value
