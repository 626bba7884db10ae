"""The `capsweep` program: its commands and their options, and the exit status of each fault.

A command is carried out by `run_COMMAND` of the module of its name or group, or of MODULES; the
module is imported when the command is typed, so that `--help` is instant. More commands are found
by listing the folder FOUND, whose package says what a module there declares.
"""

import argparse
import importlib
import os
import pkgutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, get_args

from capsweep import __version__
from capsweep.config import words
from capsweep.errors import UserError
from capsweep.ledger.causes import Status
from capsweep.runtime import terminal
from capsweep.storage.scratch import make_scratch_prefix

# Exit statuses: as argparse and shells have them (141: SIGPIPE), EX_SOFTWARE and EX_IOERR.
BAD_INPUT, INTERRUPTED, UNEXPECTED, REFUSED, UNREAD = 2, 130, 70, 74, 141
LONGEST = 300  # characters of what an exception says
VARIABLES = ("WANDB_", "RAY_", "CAPSWEEP_", "AWS_", "STORAGE", "DATA_DIR")  # that are read

Option: TypeAlias = tuple[str, dict[str, Any]]  # its name, and the settings of `add_argument`
Command: TypeAlias = tuple[str, Sequence[Option]]  # what it does in a line, and its options


def whole_number(least: int) -> Callable[[str], int]:
    """Return the type of an option that is a whole number from `least` on."""

    def parse_number(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number >= {least}, got {text}")
        return int(text)

    return parse_number


def _option(name: str, text: str | None = None, **settings: Any) -> Option:
    return name, {"help": text, **settings}


def _switch(name: str, text: str) -> Option:
    return _option(name, text, action="store_true")


DEVICE = _option("--device", "auto (default): a GPU if any; cpu, ...", default="auto")
DRY_RUN = _switch("--dry-run", "say what would be done, and do nothing")
FILE = _option("file", "a tar file", type=Path)
JOB = (_option("sweep", "a sweep's name, or the id of its job", nargs="?"),)
JSON = _switch("--json", "for programs")
OVERRIDES = _option("overrides", "key=value, as of capsweep train", nargs="*")
FOLDER = _option("path", "the data set's folder, with its index.json", type=Path)
SIGNATURE = _option("signature", "a signature, or its first letters")
SIGNATURES = _option("signature", "only these cells: signatures, or first letters", nargs="*")
SWEPT = "a file of sweeps/ (default: ablation) or a path ending in .yaml, and words"
SWEEP = (_option("sweep", SWEPT, nargs="*", default=[]),)
RUN = (
    DRY_RUN,
    _switch("--detach", "submit to the cluster's job server and return; see attach, status, stop"),
    _switch("--here", "drive the cluster that this node is of"),
)
DATASET = _option("name", "a file of data_prep (default: multimnist)", nargs="?")
MAKE = (DATASET, OVERRIDES, DRY_RUN)
SYNC = (
    _option("--jobs", "so many cells at once (default 4)", type=whole_number(1), default=4),
    _option("--timeout", "seconds for a cell (120)", type=whole_number(1), default=120),
)
PLAN = (_switch("--calibrate", "time 20 steps of unknown shapes"), JSON)
REPORT = (_switch("--publish", "renew NAME.md beside NAME.yaml"), JSON)
STATUS = _option("--status", "only these cells", choices=get_args(Status))
FILTERS = _option(
    "filters", "settings or first letters: dataset=digits sweep=ablation ab", nargs="*"
)
CELL = _option("cell", "a signature, or overrides: routing.num_iters=2", nargs="+")
PAIR = _option("signature", "two cells", nargs=2)
REMOVABLE = _option("signature", "cells, by their first letters", nargs="+")
RERUN = _switch("--run", "run it, and compare the numbers")
LIGHT = _switch("--without-weights", "leave weights.ckpt out")
NEW = (
    _option("kind", "what to write", choices=["routing", "loss", "model", "dataset", "sweep"]),
    _option("name", "small letters, digits and _, such as cosine_routing"),
    _option("--file", "of a data set: an .npz of images and labels", type=Path),
    _option("--axes", "of its images, where their shape does not tell", choices=["chw", "hwc"]),
)
URL = _option("--url", "of the workspace to renew; default: a new one is made")

COMMANDS = {
    "sweep": ("run what is missing of a sweep, then print its table", [*SWEEP, *RUN]),
    "plan": ("print what a sweep would run, and run nothing", [*SWEEP, *PLAN]),
    "report": ("print the table of a sweep, and write it in every form", [*SWEEP, *REPORT]),
    "new": ("write the files of a routing, loss, model, data set or sweep of your own", NEW),
    "info": ("print what a network costs, layer by layer", [OVERRIDES]),
    "attach": ("watch a sweep that runs as a job of a cluster; Ctrl-C detaches", JOB),
    "status": ("what a cluster has, and what its sweeps are doing", JOB),
    "stop": ("end a sweep that runs as a job; finished cells and checkpoints stay", JOB),
    "doctor": ("print versions and places, and what to do about each fault", []),
}
LEDGER = {
    "ls": ("a line per cell, the newest last", [FILTERS, STATUS, JSON]),
    "show": ("all that is known of a cell", [SIGNATURE, JSON]),
    "why": ("the keys that differ from the nearest finished cell", [CELL]),
    "compare": ("two cells on the same test examples", [PAIR]),
    "failures": ("failures of all sweeps, or of one, by their cause", [FILTERS]),
    "reproduce": ("the command that makes a cell again", [SIGNATURE, OVERRIDES, RERUN]),
    "rm": ("remove cells; they are run again when asked for", [REMOVABLE]),
    "release": ("forget a run whose machine is gone", [SIGNATURE]),
    "verify": ("whether stored files are what was stored", [SIGNATURES]),
    "gc": ("remove what no result, failure or resume depends on", [DRY_RUN]),
    "export": ("write finished and failed cells to a file", [FILE, SIGNATURES, LIGHT]),
    "import": ("merge a file that export wrote, verified", [FILE]),
}
DATA = {
    "make": ("write the shards of a data set, or what is missing of them", MAKE),
    "verify": ("say what a data set holds, and name every missing or altered file", [FOLDER]),
}
WANDB = {
    "sync": ("upload what W&B does not have", [SIGNATURES, *SYNC, JSON]),
    "dashboard": ("save a workspace of a sweep in W&B", [*SWEEP, URL]),
}
FOUND = "capsweep.lab.commands"
GROUPS = {
    "ledger": ("look at finished and failed cells, and keep the ledger in order", LEDGER),
    "data": ("data sets of shards: make and verify them", DATA),
    "wandb": ("copy what the ledger has to Weights & Biases", WANDB),
}


# Where a command is carried out, if not in a module of its name.
MODULES = {**dict.fromkeys(("attach", "status", "stop"), "sweep"), "info": "plan"}


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong with a command line in a line of ours."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError: one line, without the usage."""
        raise UserError(f"{self.prog}: {message}; `{self.prog} --help` lists what there is")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what was typed: words may stand anywhere among the options.

    The values of short names are `words`, and attributes named like them, None where they were not
    typed. Raises UserError or words.WordError naming a command, option or word that there is not.
    """
    parser, target = make_parser(), words.find_target(arguments)
    values, others = words.split_words(target, arguments)
    parsed, rest = parser.parse_known_args(others)
    is_grid = isinstance(getattr(parsed, "sweep", None), list)
    takes_keys = is_grid or hasattr(parsed, "overrides")
    if unknown := [word for word in rest if word.startswith("-") or not takes_keys]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    parsed.overrides = [*getattr(parsed, "overrides", ()), *rest]
    if target == "shards":
        _tell_name_apart(parsed, "name", values.get("DATASET") or "", "multimnist")
    elif hasattr(parsed, "sweep"):
        named = values.pop("SWEEP", "")
        _tell_name_apart(parsed, "sweep", named, "ablation" if is_grid else None)
    given = words.DEFAULTS | values
    typed = {word.name.lower(): given.get(word.name) for word in words.list_words(target)}
    vars(parsed).update(typed | {"sweep": getattr(parsed, "sweep", None)})
    parsed.words = values
    return parsed


def _tell_name_apart(
    parsed: argparse.Namespace, field: str, named: str, default: str | None
) -> None:
    """Tell the name of a sweep or data set from the keys beside it, typed in any order.

    named: by SWEEP or DATASET. Raises UserError for two names.
    """
    first = getattr(parsed, field) or []
    typed = [*(first if isinstance(first, list) else [first]), *parsed.overrides]
    parsed.overrides = [word for word in typed if "=" in word or word.startswith(("~", "+"))]
    names = list(dict.fromkeys(w for w in (*typed, named) if w and w not in parsed.overrides))
    if len(names) > 1:
        raise UserError(f"{' and '.join(n[:80] for n in names)}: two names; keep one")
    setattr(parsed, field, names[0] if names else default)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser("capsweep", description="Experiment sweeps for capsule networks.")
    parser.add_argument("--version", action="version", version=f"capsweep {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("train", help="run one cell: a Hydra application", add_help=False)
    for name, command in COMMANDS.items():
        _add_command(commands, f"capsweep.cli.{MODULES.get(name, name)}:run_{name}", name, command)
    for group, (text, members) in GROUPS.items():
        inner = _add_group(commands, group, text)
        for name, command in members.items():
            _add_command(inner, f"capsweep.cli.{group}:run_{name}", name, command, group)
    _add_found(commands, FOUND)
    return parser


def _add_found(commands: Any, package: str, group: str = "") -> None:
    """Add what the modules of a package declare; a package below it is a group of commands."""
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{found.name}")
        if found.ispkg:
            inner = _add_group(commands, found.name, module.TEXT)
            _add_found(inner, module.__name__, found.name)
            continue
        for name, command in module.COMMANDS.items():
            function = "run" if hasattr(module, "run") else f"run_{name}".replace("-", "_")
            _add_command(commands, f"{module.__name__}:{function}", name, command, group)


def _add_group(commands: Any, name: str, text: str) -> Any:
    below = commands.add_parser(name, help=text, description=text)
    return below.add_subparsers(metavar="COMMAND", required=True)


def _add_command(commands: Any, handler: str, name: str, command: Command, group: str = "") -> None:
    text, options = command
    listed = words.describe_words(words.find_target([*group.split(), name]))
    parser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"words:\n{listed}\n  key=value              any key of conf/" if listed else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option, settings in options:
        parser.add_argument(option, **settings)
    parser.set_defaults(handler=handler, command=name)


@terminal.escaped_streams()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns its exit status: 0, 1 (a cell failed), 2 (bad input), 130 (Ctrl-C), 70 (a fault of
    ours), 74 (I/O error) or 141 (the output pipe is closed).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--make"]:  # a target of make and its ARGS; make says what else was typed
        flags = os.environ.pop("MAKEFLAGS", "")
        arguments = words.list_arguments(arguments[1], arguments[2:], flags)
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
    except (UserError, words.WordError) as error:
        # What was typed, and is quoted, may hold line breaks.
        print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError:
        raise
    except Exception as error:  # whatever it is, it is one line for the person
        message = " ".join(str(error).split())[:LONGEST] or "it says nothing"
        fault = f"unexpected {type(error).__name__}: {message}"
        print(f"error: {fault}; the traceback is in {_keep_traceback(error)}", file=sys.stderr)
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
    text = "".join(traceback.format_exception(error)).encode(errors="backslashreplace")
    try:
        number, name = tempfile.mkstemp(".txt", make_scratch_prefix("capsweep-error"))
        with os.fdopen(number, "wb") as file:
            file.write(text)
        return name
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
    return getattr(importlib.import_module(module), function)(parsed) or 0


def _clean_variables() -> None:
    """Unset variables that are empty, and strip the newline of a secret from a file."""
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        if value := os.environ.pop(name).strip():
            os.environ[name] = value
