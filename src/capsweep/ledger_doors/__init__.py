"""`capsweep ledger ...`: look at finished and failed cells, and keep the ledger in order."""

import argparse
from pathlib import Path
from typing import get_args

from capsweep.cli import choosing
from capsweep.cli.command import Commands, Door, add_command, add_group, add_places
from capsweep.ledger.entry import Status
from capsweep.ledger_doors import keep, look


def add(doors: Commands) -> None:
    """Add `ledger` and its commands to the parser."""
    text = "look at finished and failed cells, and keep the ledger in order"
    commands = add_group(doors, "ledger", text)
    ls = _of_cells(commands, "ls", look.ls, "a line per cell")
    ls.add_argument("--status", choices=get_args(Status), help="only these cells")
    show = _of_cells(commands, "show", look.show, "all that is known of a cell")
    why = _of_cells(
        commands, "why", look.why, "the keys that differ from the nearest finished cell"
    )
    reproduce = _of_cells(commands, "reproduce", keep.again, "the command that makes a cell again")
    reproduce.add_argument("--run", action="store_true", help="run it, and compare the numbers")
    remove = _of_cells(
        commands, "rm", keep.remove, "remove cells; they are run again when asked for"
    )
    release = _of_cells(commands, "release", keep.release, "forget a run whose machine is gone")
    compare = _of_cells(commands, "compare", look.compare, "two cells on the same test examples")
    verify = _of_cells(commands, "verify", _verify, "whether stored files are what was stored")
    verify.add_argument("signature", nargs="*", help="only these cells")
    gc = _of_cells(commands, "gc", keep.gc, "remove what no result, failure or resume depends on")
    gc.add_argument("--dry-run", action="store_true", help="say what would go")
    export = _of_cells(commands, "export", keep.export, "write finished cells to a file")
    export.add_argument("file", type=Path, help="a tar file")
    export.add_argument("--without-weights", action="store_true", help="leave weights.ckpt out")
    merge = _of_cells(commands, "import", keep.merge, "merge a file that export wrote, verified")
    merge.add_argument("file", type=Path)
    for command in (show, reproduce, release):
        command.add_argument("signature", help="a signature, or its first letters")
    why.add_argument("cell", nargs="+", help="a signature, or overrides: routing.num_iters=2")
    remove.add_argument("signature", nargs="+")
    compare.add_argument("signature", nargs=2)
    export.add_argument("signature", nargs="*", help="only these cells")
    text = "failures of a sweep, grouped by cause"
    failures = add_command(commands, "failures", look.failures, text)
    choosing.add(failures)
    for command in (ls, show, why, compare, failures):
        command.add_argument("--json", action="store_true", help="for programs")


def _verify(parsed: argparse.Namespace) -> int:
    from capsweep.ledger_doors import verifying

    return verifying.verify(parsed)


def _of_cells(commands: Commands, name: str, door: Door, text: str) -> argparse.ArgumentParser:
    command = add_command(commands, name, door, text)
    add_places(command)
    return command
