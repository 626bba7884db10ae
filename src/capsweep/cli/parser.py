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
from capsweep.errors import UserError
from capsweep.lab.evaluation import figures
from capsweep.lab.evaluation.figures import whole_number
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
    _option("--more-seeds", "up to so many, where an order is undecided"),
    _option("--retry", "failed: also cells that the same code failed before", choices=["failed"]),
    _switch("--here", "drive the cluster that this node is of"),
    _switch("--detach", "submit to the cluster's job server and return; see attach, status, stop"),
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
BENCH = (
    _option(
        "names",
        "start, sweep, routing, step, em, data, shards, ...; default: all but parity",
        nargs="*",
    ),
    _switch("--quick", "tiny sizes, to see that it runs; it measures nothing"),
    _option("--publish", "renew their sections of this page", metavar="PAGE"),
    _option("--storage", "results go to STORAGE/bench; default: outputs"),
)
PLAN = (*JOBS, _switch("--calibrate", "time 20 steps of unknown shapes"), JSON)
REPORT = (
    _switch("--publish", "renew NAME.md beside NAME.yaml"),
    _option("--evals", "first draw missing figures: reconstructions,couplings, or all"),
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
    EVAL[_name] = (_text, [SIGNATURE, DEVICE, DATA_DIR, *CELLS])
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
GROUPS = {
    "eval": ("ask more of finished cells than their errors", EVAL),
    "ledger": ("look at finished and failed cells, and keep the ledger in order", LEDGER),
    "data": ("data sets of shards: make, verify, look at them", DATA),
    "wandb": ("copy what the ledger has to Weights & Biases", WANDB),
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
    parser = commands.add_parser(name, help=text, description=text)
    for option, settings in options:
        parser.add_argument(option, **settings)
    if name in figures.FIGURES:
        parser.set_defaults(handler="eval:run_figure", figure=name)
    else:
        parser.set_defaults(handler=f"{module}:run_{name}".replace("-", "_"))
