"""`capsweep ledger ...`: look at finished and failed cells, and keep the ledger in order."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from capsweep.cli import sweep_options
from capsweep.cli.command import Commands, add_command, add_group, add_json, add_places
from capsweep.errors import DamageError, UserError
from capsweep.ledger.causes import Status

if TYPE_CHECKING:
    from capsweep.ledger.ledger import Entry, Ledger

# By the name of a command: its function in `ledger_upkeep`, which is imported when it runs.
UPKEEP = {
    "reproduce": ("reproduce_cell", "the command that makes a cell again"),
    "rm": ("remove_cells", "remove cells; they are run again when asked for"),
    "release": ("release_claim", "forget a run whose machine is gone"),
    "verify": ("verify_cells", "whether stored files are what was stored"),
    "gc": ("collect_garbage", "remove what no result, failure or resume depends on"),
    "export": ("export_cells", "write finished cells to a file"),
    "import": ("import_cells", "merge a file that export wrote, verified"),
}


def add_parser(commands: Commands) -> None:
    """Add `ledger` and its commands to the parser."""
    text = "look at finished and failed cells, and keep the ledger in order"
    commands = add_group(commands, "ledger", text)
    text = "the keys that differ from the nearest finished cell"
    parsers = {
        "ls": add_command(commands, "ls", list_cells, "a line per cell"),
        "show": add_command(commands, "show", show_cell, "all that is known of a cell"),
        "why": add_command(commands, "why", explain_cell, text),
    }
    text = "two cells on the same test examples"
    parsers["compare"] = add_command(commands, "compare", compare_cells, text)
    for name, (function, text) in UPKEEP.items():
        parsers[name] = add_command(commands, name, partial(_call_upkeep, function), text)
    for parser in parsers.values():
        add_places(parser)
    text = "failures of a sweep, grouped by cause"
    failures = add_command(commands, "failures", list_failures, text)
    sweep_options.add_options(failures)
    for parser in (*(parsers[name] for name in ("ls", "show", "why", "compare")), failures):
        add_json(parser)
    _add_arguments(parsers)


def _add_arguments(parsers: dict[str, argparse.ArgumentParser]) -> None:
    parsers["ls"].add_argument("--status", choices=get_args(Status), help="only these cells")
    for name in ("show", "reproduce", "release"):
        parsers[name].add_argument("signature", help="a signature, or its first letters")
    text = "a signature, or overrides: routing.num_iters=2"
    parsers["why"].add_argument("cell", nargs="+", help=text)
    parsers["compare"].add_argument("signature", nargs=2)
    parsers["rm"].add_argument("signature", nargs="+")
    text = "run it, and compare the numbers"
    parsers["reproduce"].add_argument("--run", action="store_true", help=text)
    parsers["gc"].add_argument("--dry-run", action="store_true", help="say what would go")
    for name in ("export", "import"):
        parsers[name].add_argument("file", type=Path, help="a tar file")
    for name in ("verify", "export"):
        parsers[name].add_argument("signature", nargs="*", help="only these cells")
    text = "leave weights.ckpt out"
    parsers["export"].add_argument("--without-weights", action="store_true", help=text)


def _call_upkeep(function: str, parsed: argparse.Namespace) -> int:
    from capsweep.cli import ledger_upkeep

    try:
        return getattr(ledger_upkeep, function)(parsed)
    except UserError:
        raise
    except OSError as error:
        place = parsed.file if function == "export_cells" else open_ledger(parsed).store.root
        raise UserError(f"{place} cannot be written ({error.strerror or error})") from error


def open_ledger(parsed: argparse.Namespace) -> "Ledger":
    """The ledger of --ledger, else of --storage, else of the environment's STORAGE."""
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger

    storage = parsed.storage or os.environ.get("STORAGE", "outputs")
    return Ledger(places.ledger_of(storage, parsed.ledger))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


def _describe_state(signature: str, entry: "Entry") -> str:
    return f"{signature}: {entry.status}{f' ({entry.cause})' if entry.cause else ''}"


def _as_json(signature: str, entry: "Entry", *names: str) -> dict[str, Any]:
    return {"signature": signature} | {name: getattr(entry, name) for name in names}


def list_cells(parsed: argparse.Namespace) -> int:
    """A line per cell, or a list of them."""
    ledger = open_ledger(parsed)
    entries = {
        signature: entry
        for signature, entry in ledger.entries(ledger.list_signatures()).items()
        if parsed.status is None or entry.status == parsed.status
    }
    if parsed.json:
        names = ("status", "cause", "owner", "result")
        _print_json([_as_json(*pair, *names) for pair in entries.items()])
        return 0
    for signature, entry in entries.items():
        error = None if entry.result is None else entry.result["metrics"].get("test/error")
        remark = entry.cause or entry.owner or ("" if error is None else f"{100 * error:.2f} %")
        print(f"{signature}  {entry.status:8}{remark}")
    return 0


def show_cell(parsed: argparse.Namespace) -> int:
    """All that is known of a cell."""
    from capsweep.config.cell import flat

    ledger = open_ledger(parsed)
    signature = ledger.find_signature(parsed.signature)
    entry = ledger.entry(signature)
    provenance, science = ledger.read_provenance(signature), ledger.read_science(signature)
    if parsed.json:
        state = _as_json(signature, entry, "status", "cause", "owner", "result")
        _print_json({**state, "science": science, "provenance": provenance or None})
        return 0
    print(_describe_state(signature, entry))
    sections = {"science": science, "result": entry.result, "made": provenance}
    for title, section in sections.items():
        print(f"\n{title}")
        for key, value in flat(section or {}).items():
            print(f"  {key}: {value}")
    if entry.result is not None:
        from capsweep.ledger.ledger import load_predictions
        from capsweep.report import evaluation_tables

        print(f"\n{evaluation_tables.describe_error(*load_predictions(ledger, signature))}")
    return 0


def explain_cell(parsed: argparse.Namespace) -> int:
    """The keys in which a cell differs from the nearest finished one."""
    from capsweep.config import compose
    from capsweep.ledger.causes import find_nearest

    ledger = open_ledger(parsed)
    if len(parsed.cell) == 1 and "=" not in parsed.cell[0]:
        signature = ledger.find_signature(parsed.cell[0])
        science = ledger.read_science(signature) or {}
    else:
        cell = compose.cell(parsed.cell)
        signature, science = cell.signature, cell.science
    others, status = _read_finished(ledger, signature)
    nearest, differences = find_nearest(science, others) or (None, [])
    entry = ledger.entry(signature)
    if parsed.json:
        state = _as_json(signature, entry, "status", "cause")
        keys = [asdict(difference) for difference in differences]
        _print_json({**state, "nearest": nearest, "differences": keys})
        return status
    print(f"cell {_describe_state(signature, entry)}")
    if nearest is None:
        print("there is no other finished cell")
    else:
        print(f"the nearest finished cell is {nearest}; it differs in")
    for difference in differences:
        print(f"  {difference}")
    return status


def _read_finished(ledger: "Ledger", besides: str) -> tuple[dict[str, dict[str, Any]], int]:
    """The science of all other finished cells; 1 where a damaged one, which is printed, is left
    out, else 0.
    """
    from capsweep.ledger import stored_files

    sciences, status = {}, 0
    for signature in ledger.list_signatures():
        if signature == besides or ledger.read_result(signature) is None:
            continue
        try:
            if science := ledger.read_science(signature):
                sciences[signature] = science
        except DamageError as error:
            stored_files.print_damage(error)
            status = 1
    return sciences, status


def compare_cells(parsed: argparse.Namespace) -> int:
    """Two cells on the same test examples."""
    from capsweep.ledger.ledger import load_predictions
    from capsweep.report import evaluation_tables

    ledger = open_ledger(parsed)
    first, second = (ledger.find_signature(prefix) for prefix in parsed.signature)
    evaluation_tables.check_same_examples(ledger, first, second)
    compared = evaluation_tables.compare_predictions(
        *load_predictions(ledger, first), *load_predictions(ledger, second)
    )
    if parsed.json:
        _print_json({"first": first, "second": second, **asdict(compared)})
        return 0
    print(evaluation_tables.describe_comparison(compared, first, second))
    return 0


def list_failures(parsed: argparse.Namespace) -> int:
    """The failures of a sweep, grouped by cause."""
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger
    from capsweep.sweep import plan

    _, points = sweep_options.load_points(parsed)
    ledger = Ledger(places.resolve(points[0].cell.config["places"]).ledger)
    groups = plan.group_failures(plan.make_plan(points, ledger), ledger)
    if parsed.json:
        _print_json(groups)
        return 0
    for group in groups:
        print(f"{group['kind']}: {len(group['cells'])} cells: {group['cause']}")
        print(f"  last line: {group['last_line']}")
        print(f"  cells: {' '.join(group['cells'])}\n  again: {group['command']}")
    if not groups:
        print(f"no failed cell of {parsed.sweep} in {ledger.store.root}", file=sys.stderr)
    return 0
