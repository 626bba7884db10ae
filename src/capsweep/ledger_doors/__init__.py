"""`capsweep ledger ...`: look at finished and failed cells, and keep the ledger in order."""

import argparse
from collections.abc import Callable
from pathlib import Path

from capsweep import choosing
from capsweep.ledger_doors import keep, look

Door = Callable[[argparse.Namespace], int]


def add(doors: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `ledger` and its commands to the parser."""
    text = "look at finished and failed cells, and keep the ledger in order"
    ledger = doors.add_parser("ledger", help=text, description=text)
    commands = ledger.add_subparsers(metavar="COMMAND", required=True)
    ls = _command(commands, "ls", look.ls, "a line per cell")
    ls.add_argument("--status", help="done, stale, running, stopped or failed")
    show = _command(commands, "show", look.show, "all that is known of a cell")
    why = _command(commands, "why", look.why, "the keys that differ from the nearest finished cell")
    reproduce = _command(commands, "reproduce", keep.again, "the command that makes a cell again")
    reproduce.add_argument("--run", action="store_true", help="run it, and compare the numbers")
    remove = _command(
        commands, "rm", keep.remove, "remove cells; they are run again when asked for"
    )
    release = _command(commands, "release", keep.release, "forget a run whose machine is gone")
    compare = _command(commands, "compare", look.compare, "two cells on the same test examples")
    gc = _command(commands, "gc", keep.gc, "remove what no result, failure or resume depends on")
    gc.add_argument("--dry-run", action="store_true", help="say what would go")
    export = _command(commands, "export", keep.export, "write finished cells to a file")
    export.add_argument("file", type=Path, help="a tar file")
    export.add_argument("--without-weights", action="store_true", help="leave weights.ckpt out")
    merge = _command(commands, "import", keep.merge, "merge a file that export wrote, verified")
    merge.add_argument("file", type=Path)
    for command in (show, reproduce, release):
        command.add_argument("signature", help="a signature, or its first letters")
    why.add_argument("cell", nargs="+", help="a signature, or overrides: routing.num_iters=2")
    remove.add_argument("signature", nargs="+")
    compare.add_argument("signature", nargs=2)
    export.add_argument("signature", nargs="*", help="only these cells")
    failures = _command(
        commands, "failures", look.failures, "failures of a sweep, grouped by cause"
    )
    choosing.add(failures)
    for command in (ls, show, why, compare, failures):
        command.add_argument("--json", action="store_true", help="for programs")


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    door: Door,
    text: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(door=door)
    if name == "failures":  # has the options of a sweep
        return parser
    parser.add_argument("--storage", help="where results are; default: outputs")
    parser.add_argument("--ledger", help="a folder or URL; default: STORAGE/ledger")
    return parser
