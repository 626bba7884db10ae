"""The command line of `capsweep`: every command and its options, without what carries them out.

A command is carried out by `run_COMMAND` of a module of its name, that of its group, or `jobs`; the
module is imported when the command is typed, so that `--help` is instant.
"""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, get_args

from capsweep import __version__
from capsweep.config.words import WordError, describe_words, list_words, split_words
from capsweep.errors import UserError
from capsweep.lab.evaluation import figures
from capsweep.lab.evaluation.figures import whole_number
from capsweep.ledger.causes import Status

Option: TypeAlias = tuple[str, dict[str, Any]]  # its name, and the settings of `add_argument`
Command: TypeAlias = tuple[str, Sequence[Option]]  # what it does in a line, and its options


def _parse_positives(text: str) -> tuple[float, ...]:
    with suppress(ValueError):
        numbers = tuple(dict.fromkeys(float(word) for word in text.split(",")))
        if all(0 < number < float("inf") for number in numbers):
            return numbers
    raise argparse.ArgumentTypeError(f"must be above 0, such as 0.1,0.2, got {text}")


def _parse_methods(text: str) -> tuple[str, ...]:
    methods = tuple(dict.fromkeys(text.split(",")))
    if not {*methods} <= {"fgsm", "bim", "pgd"}:
        raise argparse.ArgumentTypeError(f"must be of fgsm, bim, pgd, got {text}")
    return methods


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


DEVICE = _option("--device", "auto (default): a GPU if any; cpu, ...", default="auto")
DRY_RUN = _switch("--dry-run", "say what would be done, and do nothing")
FILE = _option("file", "a tar file", type=Path)
JOB = (_option("sweep", "a sweep's name, or the id of its job", nargs="?"),)
JSON = _switch("--json", "for programs")
OVERRIDES = _option("overrides", "key=value, as of capsweep train", nargs="*")
FOLDER = _option("path", "the data set's folder, with its index.json", type=Path)
SIGNATURE = _option("signature", "a signature, or its first letters")
SIGNATURES = _option("signature", "only these cells: signatures, or first letters", nargs="*")
SWEEP = (
    _option(
        "sweep",
        "a file of sweeps/ (default: ablation) or a path ending in .yaml, and words",
        nargs="*",
        default=[],
    ),
)
RUN = (
    DRY_RUN,
    _switch("--detach", "submit to the cluster's job server and return; see attach, status, stop"),
    _switch("--here", "drive the cluster that this node is of"),
)
ATTACK = (
    _option("--method", "of fgsm (default), bim, pgd", type=_parse_methods, default="fgsm"),
    _option(
        "--eps", "largest change of a value: 0.1,0.2,0.3", type=_parse_positives, default="0.1"
    ),
    _option("--steps", "of bim and pgd (default 10)", type=whole_number(1), default=10),
    _option("--restarts", "of pgd (default 5)", type=whole_number(1), default=5),
    _switch("--targeted", "at each of the other classes in turn; default: at any"),
    _option("--examples", "the first so many test examples; all", type=whole_number(1)),
)
ROUTED = (
    _option("sweep", "a sweep, as of eval attack, or the signature of a cell", metavar="target"),
    *SWEEP[1:],
    _option(
        "--examples",
        f"the first so many test images ({figures.TRACED_EXAMPLES})",
        type=whole_number(1),
        default=figures.TRACED_EXAMPLES,
    ),
)
MAKE = (
    _option("name", "a file of data_prep: multimnist (default), affnist_like", nargs="?"),
    *(OVERRIDES, DRY_RUN),
    _switch("--with-sources", "also the two digits alone"),
)
SYNC = (
    _option("--jobs", "so many cells at once (default 4)", type=whole_number(1), default=4),
    _option("--timeout", "seconds for a cell (120)", type=whole_number(1), default=120),
)
BENCH = (
    _option(
        "names",
        "start, sweep, routing, step, em, data, shards, ...; default: all but parity",
        nargs="*",
    ),
    _switch("--quick", "tiny sizes, to see that it runs; it measures nothing"),
    _option("--publish", "renew their sections of this page", metavar="PAGE"),
)
PLAN = (_switch("--calibrate", "time 20 steps of unknown shapes"), JSON)
REPORT = (
    _switch("--publish", "renew NAME.md beside NAME.yaml"),
    _option("--evals", "first draw missing figures: reconstructions,couplings, or all"),
    JSON,
)
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
PICTURE = _option("--picture", "a PNG; default: NAME-examples.png here", type=Path)
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
    "bench": ("measure, and print every number beside its bar", BENCH),
    "doctor": ("print versions and places, and what to do about each fault", []),
}
EVAL: dict[str, Command] = {
    "ensemble": ("add the scores of each row's seeds, from stored predictions", SWEEP),
    "attack": ("test networks on images that mislead them", [*SWEEP, *ATTACK, DEVICE]),
    "multicrop": ("average the scores of 13 crops of each test image", [*SWEEP, DEVICE]),
    "routing": ("measure couplings, and what they do for answers", [*ROUTED, DEVICE, JSON]),
}
for _name, _text in figures.FIGURES.items():
    EVAL[_name] = (_text, [SIGNATURE, DEVICE])
LEDGER = {
    "ls": ("a line per cell, the newest last", [FILTERS, STATUS, SINCE, JSON]),
    "show": ("all that is known of a cell", [SIGNATURE, JSON]),
    "why": ("the keys that differ from the nearest finished cell", [CELL]),
    "compare": ("two cells on the same test examples", [PAIR]),
    "failures": ("failures of all sweeps, or of one, by their cause", [FILTERS, SINCE]),
    "reproduce": (
        "the command that makes a cell again",
        [SIGNATURE, OVERRIDES, RERUN],
    ),
    "rm": ("remove cells; they are run again when asked for", [REMOVABLE]),
    "release": ("forget a run whose machine is gone", [SIGNATURE]),
    "verify": ("whether stored files are what was stored", [SIGNATURES]),
    "gc": ("remove what no result, failure or resume depends on", [DRY_RUN]),
    "export": ("write finished and failed cells to a file", [FILE, SIGNATURES, LIGHT]),
    "import": ("merge a file that export wrote, verified", [FILE]),
}
DATA = {
    "make": ("write the shards of a data set, or what is missing of them", MAKE),
    "verify": ("name every missing, altered or surplus file", [FOLDER]),
    "info": (
        "print what a data set holds, and draw its first examples",
        [FOLDER, PICTURE],
    ),
}
WANDB = {
    "sync": ("upload what W&B does not have", [SIGNATURES, *SYNC, JSON]),
    "dashboard": ("save a workspace of a sweep in W&B", [*SWEEP, URL, DRY_RUN]),
}
GROUPS = {
    "eval": ("ask more of finished cells than their errors", EVAL),
    "ledger": ("look at finished and failed cells, and keep the ledger in order", LEDGER),
    "data": ("data sets of shards: make, verify, look at them", DATA),
    "wandb": ("copy what the ledger has to Weights & Biases", WANDB),
}


# What make calls a command of a group, where that is not the group's name.
TARGETS = {
    "data make": "shards",
    "wandb sync": "wandb-sync",
    "wandb dashboard": "dashboard",
}


class _Parser(argparse.ArgumentParser):
    """That of a figure gets the figure's options when it is typed, since they take an import."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError: one line, without the usage."""
        raise UserError(f"{self.prog}: {message}; `{self.prog} --help` lists what there is")

    def parse_known_args(self, *args: Any, **settings: Any) -> Any:
        if (name := self.get_default("figure")) is not None:
            figures.load_figure(name).add_options(self)
        return super().parse_known_args(*args, **settings)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what was typed: words may stand anywhere among the options.

    The values of short names are `words`, and attributes named like them, None where they were not
    typed. Raises UserError naming a command, option or word that there is not.
    """
    parser, target = make_parser(), _find_target(arguments)
    try:
        values, others = split_words(target, list(arguments))
    except WordError as error:
        raise UserError(str(error)) from error
    parsed, rest = parser.parse_known_args(others)
    keys = [word for word in rest if not word.startswith("-")]
    takes_keys = hasattr(parsed, "overrides") or isinstance(getattr(parsed, "sweep", None), list)
    if unknown := rest if not takes_keys else [word for word in rest if word not in keys]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if hasattr(parsed, "sweep"):
        _split_sweep(parsed, keys, values.pop("SWEEP", None))
    elif keys:
        parsed.overrides = [*parsed.overrides, *keys]
    if target == "shards":
        parsed.name = values.get("DATASET", parsed.name or "multimnist")
    typed = {word.name.lower(): values.get(word.name, word.default) for word in list_words(target)}
    vars(parsed).update(typed | {"sweep": getattr(parsed, "sweep", None)})
    parsed.words = values
    return parsed


def _find_target(arguments: Sequence[str]) -> str:
    """Return what make calls a command: of most groups their name."""
    names = [word for word in arguments if not word.startswith("-")][:2]
    return TARGETS.get(" ".join(names), names[0] if names else "")


def _split_sweep(parsed: argparse.Namespace, keys: Sequence[str], named: str | None) -> None:
    """Tell the name of a sweep from the overrides beside it. Raises UserError for two names."""
    first = parsed.sweep if isinstance(parsed.sweep, list) else [parsed.sweep]
    typed = [word for word in (*first, *getattr(parsed, "overrides", ()), *keys) if word]
    names = [w for w in typed if w.endswith(".yaml") or not ("=" in w or w.startswith(("~", "+")))]
    parsed.overrides = [word for word in typed if word not in names]
    names = list(dict.fromkeys([*names, named] if named else names))
    if len(names) > 1:
        raise UserError(f"{' and '.join(names)}: one sweep at a time; name one")
    default = "ablation" if isinstance(parsed.sweep, list) else None
    parsed.sweep = names[0] if names else default


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser("capsweep", description="Experiment sweeps for capsule networks.")
    parser.add_argument("--version", action="version", version=f"capsweep {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("train", help="run one cell: a Hydra application", add_help=False)
    for name, command in COMMANDS.items():
        module = "jobs" if name in ("attach", "status", "stop") else name
        _add_command(commands, module, name, command)
    for group, (text, members) in GROUPS.items():
        below = commands.add_parser(group, help=text, description=text)
        inner = below.add_subparsers(metavar="COMMAND", required=True)
        for name, command in members.items():
            module = name if name == "reproduce" else group
            _add_command(inner, module, name, command)
    return parser


def _add_command(commands: Any, module: str, name: str, command: Command) -> None:
    text, options = command
    target = TARGETS.get(f"{module} {name}", module if module in GROUPS else name)
    listed = describe_words(target)
    parser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"words:\n{listed}\n  key=value              any key of conf/" if listed else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option, settings in options:
        parser.add_argument(option, **settings)
    if name in figures.FIGURES:
        parser.set_defaults(handler="eval:run_figure", figure=name)
    else:
        parser.set_defaults(handler=f"{module}:run_{name}".replace("-", "_"))
