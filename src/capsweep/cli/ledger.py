"""`capsweep ledger ...`: look at finished and failed cells, and keep the ledger in order."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from capsweep.cli import sweep_options
from capsweep.cli.command import Commands, Handler, add_command, add_group, add_places
from capsweep.errors import DamageError
from capsweep.ledger.causes import Status

if TYPE_CHECKING:
    from capsweep.ledger.ledger import Entry, Ledger
    from capsweep.sweep.triage import Group

Value = TypeVar("Value")


def add_parser(commands: Commands) -> None:
    """Add `ledger` and its commands to the parser."""
    text = "look at finished and failed cells, and keep the ledger in order"
    commands = add_group(commands, "ledger", text)

    def add_one(name: str, run: Handler, text: str) -> argparse.ArgumentParser:
        command = add_command(commands, name, run, text)
        add_places(command)
        return command

    ls = add_one("ls", list_cells, "a line per cell")
    ls.add_argument("--status", choices=get_args(Status), help="only these cells")
    show = add_one("show", show_cell, "all that is known of a cell")
    why = add_one("why", explain_cell, "the keys that differ from the nearest finished cell")
    text = "the command that makes a cell again"
    reproduce = add_one("reproduce", _upkeep("reproduce_cell"), text)
    reproduce.add_argument("--run", action="store_true", help="run it, and compare the numbers")
    text = "remove cells; they are run again when asked for"
    remove = add_one("rm", _upkeep("remove_cells"), text)
    release = add_one("release", _upkeep("release_claim"), "forget a run whose machine is gone")
    compare = add_one("compare", compare_cells, "two cells on the same test examples")
    verify = add_one("verify", _upkeep("verify_cells"), "whether stored files are what was stored")
    verify.add_argument("signature", nargs="*", help="only these cells")
    text = "remove what no result, failure or resume depends on"
    gc = add_one("gc", _upkeep("collect_garbage"), text)
    gc.add_argument("--dry-run", action="store_true", help="say what would go")
    export = add_one("export", _upkeep("export_cells"), "write finished cells to a file")
    export.add_argument("file", type=Path, help="a tar file")
    export.add_argument("--without-weights", action="store_true", help="leave weights.ckpt out")
    merge = add_one("import", _upkeep("import_cells"), "merge a file that export wrote, verified")
    merge.add_argument("file", type=Path)
    for command in (show, reproduce, release):
        command.add_argument("signature", help="a signature, or its first letters")
    why.add_argument("cell", nargs="+", help="a signature, or overrides: routing.num_iters=2")
    remove.add_argument("signature", nargs="+")
    compare.add_argument("signature", nargs=2)
    export.add_argument("signature", nargs="*", help="only these cells")
    text = "failures of a sweep, grouped by cause"
    failures = add_command(commands, "failures", list_failures, text)
    sweep_options.add_options(failures)
    for command in (ls, show, why, compare, failures):
        command.add_argument("--json", action="store_true", help="for programs")


def _upkeep(name: str) -> Handler:
    """A command of `ledger_upkeep`, which is imported when the command runs."""

    def run(parsed: argparse.Namespace) -> int:
        from capsweep.cli import ledger_upkeep

        return getattr(ledger_upkeep, name)(parsed)

    return run


def open_ledger(parsed: argparse.Namespace) -> "Ledger":
    """The ledger of --ledger, else of --storage, else of the environment's STORAGE."""
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger

    storage = parsed.storage or os.environ.get("STORAGE", "outputs")
    return Ledger(places.ledger_of(storage, parsed.ledger))


def list_cells(parsed: argparse.Namespace) -> int:
    """A line per cell, or a list of them."""
    ledger = open_ledger(parsed)
    entries = {
        signature: entry
        for signature, entry in ledger.entries(ledger.list_signatures()).items()
        if parsed.status is None or entry.status == parsed.status
    }
    if parsed.json:
        print(json.dumps([_as_json(*pair) for pair in entries.items()], indent=1))
        return 0
    for signature, entry in entries.items():
        error = None if entry.result is None else entry.result["metrics"].get("test/error")
        remark = entry.cause or entry.owner or ("" if error is None else f"{100 * error:.2f} %")
        print(f"{signature}  {entry.status:8}{remark}")
    return 0


def _as_json(signature: str, entry: "Entry") -> dict[str, Any]:
    state = {"status": entry.status, "cause": entry.cause, "owner": entry.owner}
    return {"signature": signature, **state, "result": entry.result}


def show_cell(parsed: argparse.Namespace) -> int:
    """All that is known of a cell."""
    from capsweep.config.cell import flat

    ledger, reader = open_ledger(parsed), DamageReporter()
    signature = ledger.find_signature(parsed.signature)
    entry = ledger.entry(signature)
    provenance = reader.read(lambda: ledger.read_provenance(signature))
    science = reader.read(lambda: ledger.read_science(signature))
    if parsed.json:
        more = {"science": science, "provenance": provenance or None}
        print(json.dumps({**_as_json(signature, entry), **more}, indent=1))
        return reader.status
    print(f"{signature}: {entry.status}{f' ({entry.cause})' if entry.cause else ''}")
    sections = {"science": science, "result": entry.result, "made": provenance}
    for title, section in sections.items():
        print(f"\n{title}")
        for key, value in flat(section or {}).items():
            print(f"  {key}: {value}")
    interval = reader.read(lambda: _describe_error(ledger, signature)) if entry.result else None
    print("" if interval is None else f"\n{interval}")
    return reader.status


class DamageReporter:
    """Reads files that may be damaged: it prints the damage, and its status is then 1."""

    status = 0

    def read(self, read: Callable[[], Value]) -> Value | None:
        """What is read; None where that is damaged."""
        from capsweep.ledger import stored_files

        try:
            return read()
        except DamageError as error:
            stored_files.print_damage(error)
            self.status = 1
            return None


def _describe_error(ledger: "Ledger", signature: str) -> str:
    from capsweep.ledger.predictions import load_predictions
    from capsweep.report import comparison

    return comparison.describe_error(*load_predictions(ledger, signature))


def explain_cell(parsed: argparse.Namespace) -> int:
    """The keys in which a cell differs from the nearest finished one."""
    from capsweep.config import compose
    from capsweep.ledger.difference import FinishedCells

    ledger, reader = open_ledger(parsed), DamageReporter()
    if len(parsed.cell) == 1 and "=" not in parsed.cell[0]:
        signature = ledger.find_signature(parsed.cell[0])
        science = ledger.read_science(signature) or {}
    else:
        cell = compose.cell(parsed.cell)
        signature, science = cell.signature, cell.science
    entry = ledger.entry(signature)
    finished = [
        s for s in ledger.list_signatures() if s != signature and ledger.read_result(s) is not None
    ]
    sciences = {s: reader.read(partial(ledger.read_science, s)) for s in finished}
    others = FinishedCells({s: other for s, other in sciences.items() if other})
    nearest, differences = others.find_nearest(science) or (None, [])
    if parsed.json:
        state = {"signature": signature, "status": entry.status, "cause": entry.cause}
        keys = [asdict(difference) for difference in differences]
        print(json.dumps({**state, "nearest": nearest, "differences": keys}, indent=1))
        return reader.status
    print(f"cell {signature}: {entry.status}{f' ({entry.cause})' if entry.cause else ''}")
    if nearest is None:
        print("there is no other finished cell")
        return reader.status
    print(f"the nearest finished cell is {nearest}; it differs in")
    for difference in differences:
        print(f"  {difference}")
    return reader.status


def compare_cells(parsed: argparse.Namespace) -> int:
    """Two cells on the same test examples."""
    from capsweep.ledger.predictions import load_predictions
    from capsweep.report import comparison

    ledger = open_ledger(parsed)
    first, second = (ledger.find_signature(prefix) for prefix in parsed.signature)
    comparison.check_same_examples(ledger, first, second)
    compared = comparison.compare_predictions(
        *load_predictions(ledger, first), *load_predictions(ledger, second)
    )
    if parsed.json:
        print(json.dumps({"first": first, "second": second, **asdict(compared)}, indent=1))
        return 0
    print(comparison.describe_comparison(compared, first, second))
    return 0


def list_failures(parsed: argparse.Namespace) -> int:
    """The failures of a sweep, grouped by cause."""
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger
    from capsweep.sweep import plan, triage

    _, points = sweep_options.load_points(parsed)
    ledger = Ledger(places.resolve(points[0].cell.config["places"]).ledger)
    groups = triage.triage(plan.make_plan(points, ledger), ledger)
    if parsed.json:
        print(json.dumps([_group_as_json(group) for group in groups], indent=1))
        return 0
    for group in groups:
        print(f"{group.kind}: {len(group.cells)} cells: {group.cause}")
        print(f"  last line: {group.last_line}")
        if group.telling:
            print(f"  only these have: {' '.join(group.telling)}")
        print(f"  cells: {' '.join(cell.cell.signature for cell in group.cells)}")
        print(f"  again: {group.command}")
    if not groups:
        print(f"no failed cell of {parsed.sweep} in {ledger.store.root}", file=sys.stderr)
    return 0


def _group_as_json(group: "Group") -> dict[str, Any]:
    names = ("kind", "cause", "last_line", "telling", "command")
    cells = [cell.cell.signature for cell in group.cells]
    return {**{name: getattr(group, name) for name in names}, "cells": cells}
