"""The command line of `capsweep`: every command and its options, without what carries them out.

A command is carried out by `run_COMMAND` of the module of its name or group, or of MODULES; the
module is imported when the command is typed, so that `--help` is instant. More commands are found
by listing the folder FOUND, whose package says what a module there declares.
"""

import argparse
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, get_args

from capsweep import __version__
from capsweep.config.words import NAME, describe_words, list_words, split_words
from capsweep.errors import UserError
from capsweep.ledger.causes import Status

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
JOB_NAME = _option("name", "a file of data_prep: multimnist (default), affnist_like", nargs="?")
MAKE = (JOB_NAME, OVERRIDES, DRY_RUN)
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
    "make": (
        "write the shards of a data set, or what is missing of them",
        [JOB_NAME, OVERRIDES, DRY_RUN],
    ),
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
# What make calls a command of a group, where that is not the group's name.
TARGETS = {"data make": "shards", "wandb sync": "wandb-sync", "wandb dashboard": "dashboard"}


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong with a command line in a line of ours."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError: one line, without the usage."""
        raise UserError(f"{self.prog}: {message}; `{self.prog} --help` lists what there is")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what was typed: words may stand anywhere among the options.

    The values of short names are `words`, and attributes named like them, None where they were not
    typed. Raises UserError or WordError naming a command, option or word that there is not.
    """
    parser, target = make_parser(), _find_target(arguments)
    values, others = split_words(target, list(arguments))
    parsed, rest = parser.parse_known_args(others)
    keys = [word for word in rest if not word.startswith("-")]
    takes_keys = hasattr(parsed, "overrides") or isinstance(getattr(parsed, "sweep", None), list)
    if unknown := rest if not takes_keys else [word for word in rest if word not in keys]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if hasattr(parsed, "sweep"):
        default = "ablation" if isinstance(parsed.sweep, list) else None
        _split_name(parsed, keys, values.pop("SWEEP", None), "sweep", default)
    elif keys:
        parsed.overrides = [*parsed.overrides, *keys]
    if target == "shards":
        _split_name(parsed, [], values.get("DATASET"), "name", "multimnist")
    typed = {word.name.lower(): values.get(word.name, word.default) for word in list_words(target)}
    vars(parsed).update(typed | {"sweep": getattr(parsed, "sweep", None)})
    parsed.words = values
    return parsed


def _find_target(arguments: Sequence[str]) -> str:
    """Return what make calls a command: of most groups their name."""
    names = [w for w in arguments if not (w.startswith("-") or NAME.fullmatch(w))][:2]
    return TARGETS.get(" ".join(names), names[0] if names else "")


def _split_name(
    parsed: argparse.Namespace, keys: Sequence[str], named: str | None, field: str, default: Any
) -> None:
    """Tell the name of a sweep or data set from the keys beside it, typed in any order.

    named: by SWEEP or DATASET. Raises UserError for two names.
    """
    first = getattr(parsed, field)
    typed = [*(first if isinstance(first, list) else [first] if first else [])]
    typed += [*getattr(parsed, "overrides", ()), *keys]
    names = [word for word in typed if not ("=" in word or word.startswith(("~", "+")))]
    parsed.overrides = [word for word in typed if word not in names]
    names = list(dict.fromkeys([*names, named] if named else names))
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
    listed = describe_words(_find_target([*group.split(), name]))
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
