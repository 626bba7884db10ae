"""The command line of `capsweep`: every command and its options, without what carries them out.

A command is carried out by `run_COMMAND` of a module of its name, that of its group, or `jobs`; the
module is imported when the command is typed, so that `--help` is instant. More commands are found
by listing the folder FOUND, whose package says what a module there declares.
"""

import argparse
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, get_args

from capsweep import __version__
from capsweep.cluster import driver
from capsweep.errors import UserError
from capsweep.ledger.causes import Status

Option: TypeAlias = tuple[str, dict[str, Any]]  # its name, and the settings of `add_argument`
Command: TypeAlias = tuple[str, Sequence[Option]]  # what it does in a line, and its options

# What is no more, and what to use instead.
REMOVED = {
    "cluster": "use `ray up docs/examples/aws.yaml` and CLUSTER=address, or `kubectl apply -f "
    "docs/examples/kuberay.yaml`; on Slurm `make sweep CLUSTER=slurm` submits a sweep",
    "--json": "plan, report, `ledger ls`, `ledger show`, `wandb sync` and `eval routing` have it; "
    "bench and eval write files into STORAGE",
    **dict.fromkeys(("--store", "--gzip"), "leave it out, shards hold pixels"),
    **dict.fromkeys(("--deep", "--sample"), "use --again N"),
    "--eps-scale": "leave it out, eps counts in the network's input",
    "--starred": "use --correct and --failures",
    "gpu-proof": "use `make test-gpu`, `bench step` and `make sweep SWEEP=table1_mnist_gpu`",
    "--untargeted": "leave it out, without --targeted an attack is untargeted",
    **dict.fromkeys(
        ("--weights", "--distance", "--bins", "--range"),
        "leave it out, distances are squared, up to 0.05, and votes count by assignment",
    ),
}
# Options of a sweep that set a key of every cell; a value with commas is an axis.
KEYS = {
    "--dataset": ("dataset", "a file of conf/dataset (mnist), or several"),
    "--epochs": ("epochs", "epochs of every cell"),
    "--batch": ("batch_size", "batch size of every cell"),
    "--rerun": ("rerun", "never, stale or always: which finished cells do not count"),
}
# Options of a sweep that say where things are: a text, whatever characters it has.
PLACES = {
    "--data-dir": ("places.data", "where the data sets are"),
    "--storage": ("places.storage", "where results go"),
    "--ledger": ("places.ledger", "where finished cells are: a folder, or s3://bucket/folder"),
}


def whole_number(least: int) -> Callable[[str], int]:
    """Return the type of an option that is a whole number from `least` on."""

    def parse_number(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number >= {least}, got {text}")
        return int(text)

    return parse_number


def _parse_since(text: str) -> datetime:
    units = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
    with suppress(ValueError, OverflowError):
        if text[-1:] in units:
            return datetime.now(UTC) - timedelta(**{units[text[-1]]: float(text[:-1])})
        return datetime.fromisoformat(text).astimezone()
    raise argparse.ArgumentTypeError(f"must be such as 2h, 1d or 2026-11-24, got {text}")


def _option(name: str, text: str | None = None, **settings: Any) -> Option:
    return name, {"help": text, **settings}


def _switch(name: str, text: str) -> Option:
    return _option(name, text, action="store_true")


ADDRESS = _option("--address", "a running Ray: head:6379; of jobs also http://head:8265")
CELLS = (
    _option("--storage", "where results are; default: outputs"),
    _option("--ledger", "a folder or URL; default: STORAGE/ledger"),
)
CLUSTER = _option("--cluster", "a file of conf/cluster: local (default), address, slurm")
DATA_DIR = _option("--data-dir", "where source images, or all data sets, are")
DEVICE = _option("--device", "auto (default): a GPU if any; cpu, ...", default="auto")
DRY_RUN = _switch("--dry-run", "say what would be done, and do nothing")
EXECUTOR = _option("--executor", "ray (default), local, or array of sweep", default="ray")
FILE = _option("file", "a tar file", type=Path)
JOBS = (CLUSTER, ADDRESS)
JOB = (_option("sweep", "a sweep's name, or the id of its job"), *JOBS)
JSON = _switch("--json", "for programs")
OVERRIDES = _option("overrides", "Hydra overrides, as of capsweep train", nargs="*")
FOLDER = _option("path", "the data set's folder, with its index.json", type=Path)
SIGNATURE = _option("signature", "a signature, or its first letters")
SIGNATURES = _option("signature", "only these cells: signatures, or first letters", nargs="*")
SWEEP = (
    _option("sweep", "a file of sweeps/ (ablation), or a path ending in .yaml"),
    _option("overrides", "Hydra overrides for every arm; a=1,3 is an axis", nargs="*"),
    _option("--routing", "routing iterations (1,3), variants (em,dynamic) or control (no routing)"),
    _option("--recon", "reconstruction: on, off, or weights"),
    _option("--seeds", "how many seeds, or which: 0,1,7"),
    _option("--model", "the model of every arm but a baseline of another network"),
    _option("--arms", "keep these arms; the baseline stays"),
    _option("--baseline", "the arm that differences are to, instead of the sweep file's"),
    _option("--metric", "of the table, instead of the sweep file's: test/loss"),
    *(_option(name, text) for name, (_, text) in (KEYS | PLACES).items()),
    _option("--zip", "KEY,KEY: axes that move together", action="append", default=[]),
    _option("--exclude", "'a=1 b=2': leave these places out", action="append", default=[]),
)
RUN = (
    *(*JOBS, EXECUTOR, DRY_RUN),
    _option("--shard", "with --executor array: this job's part, such as 2/8"),
    _option("--budget", "start only cells that end within it: 90s, 9m, 2h"),
    _option("--max-hours", "of this command: then what runs leaves, 8 or 0.5"),
    _option("--max-gpu-hours", "as --max-hours, of GPU time that cells have taken"),
    _option("--more-seeds", "up to so many, where an order is undecided"),
    _option("--retry", "failed: also cells that the same code failed before", choices=["failed"]),
    _switch("--detach", "submit to the cluster's job server and return; see attach, status, stop"),
)
MAKE = (
    _option("name", "a file of data_prep: multimnist, affnist_like"),
    *(OVERRIDES, DATA_DIR, EXECUTOR, ADDRESS, DRY_RUN),
    _option("--pairs", "per digit of training and test", type=whole_number(1), metavar="N"),
    _option("--shards", "files of the training split", type=int, metavar="N"),
    _switch("--with-sources", "also the two digits alone"),
    _option("--storage", "the data set's own folder; default: DATA/NAME"),
)
SYNC = (
    _option("--jobs", "so many cells at once (default 4)", type=whole_number(1), default=4),
    _option("--timeout", "seconds for a cell (120)", type=whole_number(1), default=120),
)
PLAN = (*JOBS, _switch("--calibrate", "time 20 steps of unknown shapes"), JSON)
REPORT = (
    _switch("--publish", "renew NAME.md beside NAME.yaml"),
    JSON,
)
ANY_JOB = _option("sweep", "a sweep's name, or the id of its job; default: all", nargs="?")
STATUS = _option("--status", "only these cells", choices=get_args(Status))
FILTERS = _option(
    "filters", "settings or first letters: dataset=digits sweep=ablation ab", nargs="*"
)
SINCE = _option("--since", "only cells since then: 2h, 1d or 2026-11-24", type=_parse_since)
CELL = _option("cell", "a signature, or overrides: routing.num_iters=2", nargs="+")
PAIR = _option("signature", "two cells", nargs=2)
REMOVABLE = _option("signature", "cells, by their first letters", nargs="+")
RERUN = _switch("--run", "run it, and compare the numbers")
LIGHT = _switch("--without-weights", "leave weights.ckpt out")
AGAIN = _option(
    "--again", "make N examples anew (1,000), and compare", type=whole_number(1), metavar="N"
)
PICTURE = _option("--picture", "a PNG; default: NAME-examples.png here", type=Path)
NEW = (
    _option(
        "kind", "routing, loss, model or dataset", choices=["routing", "loss", "model", "dataset"]
    ),
    _option("name", "small letters, digits and _, such as cosine_routing"),
    _option("--file", "of a data set: an .npz of images and labels", type=Path),
    _option("--axes", "of its images, where their shape does not tell", choices=["chw", "hwc"]),
)
URL = _option("--url", "of the workspace to renew; default: a new one is made")

COMMANDS = {
    "sweep": ("run what is missing of a sweep, then print its table", [*SWEEP, *RUN]),
    "plan": ("print what a sweep would run, and run nothing", [*SWEEP, *PLAN]),
    "report": ("print the table of a sweep, and write it in every form", [*SWEEP, *REPORT]),
    "new": ("write the files of a routing, loss, model or data set of your own", NEW),
    "info": ("print what a network costs, layer by layer", [OVERRIDES]),
    "attach": ("watch a sweep that runs as a job of a cluster; Ctrl-C detaches", JOB),
    "status": ("what a cluster has, and what its sweeps are doing", [ANY_JOB, *JOBS]),
    "stop": ("end a sweep that runs as a job; finished cells and checkpoints stay", JOB),
    "doctor": ("print versions and places, and what to do about each fault", []),
}
LEDGER = {
    "ls": ("a line per cell, the newest last", [FILTERS, STATUS, SINCE, *CELLS, JSON]),
    "show": ("all that is known of a cell", [SIGNATURE, *CELLS, JSON]),
    "why": ("the keys that differ from the nearest finished cell", [CELL, *CELLS]),
    "compare": ("two cells on the same test examples", [PAIR, *CELLS]),
    "failures": ("failures of all sweeps, or of one, by their cause", [FILTERS, SINCE, *CELLS]),
    "reproduce": (
        "the command that makes a cell again",
        [SIGNATURE, OVERRIDES, RERUN, DATA_DIR, *CELLS],
    ),
    "rm": ("remove cells; they are run again when asked for", [REMOVABLE, *CELLS]),
    "release": ("forget a run whose machine is gone", [SIGNATURE, *CELLS]),
    "verify": ("whether stored files are what was stored", [SIGNATURES, *CELLS]),
    "gc": ("remove what no result, failure or resume depends on", [DRY_RUN, *CELLS]),
    "export": ("write finished and failed cells to a file", [FILE, SIGNATURES, LIGHT, *CELLS]),
    "import": ("merge a file that export wrote, verified", [FILE, *CELLS]),
}
DATA = {
    "make": ("write the shards of a data set, or what is missing of them", MAKE),
    "verify": ("name every missing, altered or surplus file", [FOLDER, OVERRIDES, DATA_DIR, AGAIN]),
    "info": (
        "print what a data set holds, and draw its first examples",
        [FOLDER, PICTURE, DATA_DIR],
    ),
}
WANDB = {
    "sync": ("upload what W&B does not have", [SIGNATURES, *CELLS, *SYNC, JSON]),
    "dashboard": ("save a workspace of a sweep in W&B", [*SWEEP, URL, DRY_RUN]),
}
FOUND = "capsweep.lab.commands"
GROUPS = {
    "ledger": ("look at finished and failed cells, and keep the ledger in order", LEDGER),
    "data": ("data sets of shards: make, verify, look at them", DATA),
    "wandb": ("copy what the ledger has to Weights & Biases", WANDB),
}


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong with a command line in a line of ours."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError: one line, without the usage."""
        raise UserError(f"{self.prog}: {message}; `{self.prog} --help` lists what there is")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Overrides may stand anywhere among the options, which argparse alone does not allow.

    Raises UserError for a command or an option that is no more, saying what to use instead.
    """
    _refuse_removed(arguments[:1])
    parser = make_parser()
    parsed, rest = parser.parse_known_args(arguments)
    unknown = [word for word in rest if word.startswith("-") or not hasattr(parsed, "overrides")]
    _refuse_removed(unknown)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        parsed.overrides = [*parsed.overrides, *rest]
    return parsed


def _refuse_removed(words: Sequence[str]) -> None:
    for word in words:
        name = word.partition("=")[0]
        if name in REMOVED:
            raise UserError(f"{name} is no more: {REMOVED[name]}")


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser("capsweep", description="Experiment sweeps for capsule networks.")
    parser.add_argument("--version", action="version", version=f"capsweep {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("train", help="run one cell: a Hydra application", add_help=False)
    for name, command in COMMANDS.items():
        module = "jobs" if name in ("attach", "status", "stop") else name
        _add_command(commands, f"capsweep.cli.{module}:run_{name}", name, command)
    driver.add_here_option(commands.choices["sweep"])
    for group, (text, members) in GROUPS.items():
        inner = _add_group(commands, group, text)
        for name, command in members.items():
            module = name if name == "reproduce" else group
            _add_command(inner, f"capsweep.cli.{module}:run_{name}", name, command)
    _add_found(commands, FOUND)
    return parser


def _add_found(commands: Any, package: str) -> None:
    """Add what the modules of a package declare; a package below it is a group of commands."""
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{found.name}")
        if found.ispkg:
            _add_found(_add_group(commands, found.name, module.TEXT), module.__name__)
            continue
        for name, command in module.COMMANDS.items():
            function = "run" if hasattr(module, "run") else f"run_{name}".replace("-", "_")
            _add_command(commands, f"{module.__name__}:{function}", name, command)


def _add_group(commands: Any, name: str, text: str) -> Any:
    below = commands.add_parser(name, help=text, description=text)
    return below.add_subparsers(metavar="COMMAND", required=True)


def _add_command(commands: Any, handler: str, name: str, command: Command) -> None:
    text, options = command
    parser = commands.add_parser(name, help=text, description=text)
    for option, settings in options:
        parser.add_argument(option, **settings)
    parser.set_defaults(handler=handler, command=name)
