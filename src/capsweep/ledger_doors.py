"""`capsweep ledger ...`: look at finished and failed cells, and keep the ledger in order."""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from capsweep import choosing
from capsweep.errors import UserError

if TYPE_CHECKING:
    from capsweep.ledger.ledger import Ledger

Door = Callable[[argparse.Namespace], int]


def add(doors: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `ledger` and its commands to the parser."""
    text = "look at finished and failed cells, and keep the ledger in order"
    ledger = doors.add_parser("ledger", help=text, description=text)
    commands = ledger.add_subparsers(metavar="COMMAND", required=True)
    ls = _command(commands, "ls", _ls, "a line per cell")
    ls.add_argument("--status", help="done, stale, running, stopped or failed")
    ls.add_argument("--json", action="store_true", help="for programs")
    show = _command(commands, "show", _show, "all that is known of a cell")
    why = _command(commands, "why", _why, "the keys that differ from the nearest finished cell")
    reproduce = _command(commands, "reproduce", _reproduce, "the command that makes a cell again")
    reproduce.add_argument("--run", action="store_true", help="run it, and compare the numbers")
    remove = _command(commands, "rm", _remove, "remove cells; they are run again when asked for")
    release = _command(commands, "release", _release, "forget a run whose machine is gone")
    compare = _command(commands, "compare", _compare, "two cells on the same test examples")
    gc = _command(commands, "gc", _gc, "remove what no result, failure or resume depends on")
    gc.add_argument("--dry-run", action="store_true", help="say what would go")
    export = _command(commands, "export", _export, "write finished cells to a file")
    export.add_argument("file", type=Path, help="a tar file")
    export.add_argument("--without-weights", action="store_true", help="leave weights.ckpt out")
    merge = _command(commands, "import", _import, "merge a file that export wrote, verified")
    merge.add_argument("file", type=Path)
    for command in (show, reproduce, release):
        command.add_argument("signature", help="a signature, or its first letters")
    why.add_argument("cell", nargs="+", help="a signature, or overrides: routing.num_iters=2")
    remove.add_argument("signature", nargs="+")
    compare.add_argument("signature", nargs=2)
    export.add_argument("signature", nargs="*", help="only these cells")
    failures = _command(commands, "failures", _failures, "failures of a sweep, grouped by cause")
    choosing.add(failures)


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


def _open(parsed: argparse.Namespace) -> "Ledger":
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger

    storage = parsed.storage or os.environ.get("STORAGE", "outputs")
    return Ledger(places.absolute(parsed.ledger or f"{storage}/ledger"))


def _ls(parsed: argparse.Namespace) -> int:
    ledger = _open(parsed)
    entries = ledger.entries(ledger.signatures())
    for signature, entry in entries.items():
        if parsed.status is not None and entry.status != parsed.status:
            continue
        error = None if entry.result is None else entry.result["metrics"].get("test/error")
        if parsed.json:
            line = {"signature": signature, "status": entry.status, "cause": entry.cause}
            print(json.dumps({**line, "result": entry.result}))
            continue
        told = entry.cause or entry.owner or ("" if error is None else f"{100 * error:.2f} %")
        print(f"{signature}  {entry.status:8}{told}")
    return 0


def _show(parsed: argparse.Namespace) -> int:
    from capsweep.config.cell import flat

    ledger = _open(parsed)
    signature = ledger.find(parsed.signature)
    entry, provenance = ledger.entry(signature), ledger.provenance(signature)
    print(f"{signature}: {entry.status}{f' ({entry.cause})' if entry.cause else ''}")
    sections = {"science": ledger.science(signature), "result": entry.result, "made": provenance}
    for title, section in sections.items():
        print(f"\n{title}")
        for key, value in flat(section or {}).items():
            print(f"  {key}: {value}")
    print(f"\n{_interval(ledger, signature)}" if entry.result else "")
    return 0


def _interval(ledger: "Ledger", signature: str) -> str:
    from capsweep.report import comparison

    scores, labels = comparison.predictions(ledger, signature)
    return comparison.one(scores, labels)


def _why(parsed: argparse.Namespace) -> int:
    from capsweep.config import compose
    from capsweep.ledger.difference import Finished

    ledger = _open(parsed)
    if len(parsed.cell) == 1 and "=" not in parsed.cell[0]:
        signature = ledger.find(parsed.cell[0])
        science = ledger.science(signature) or {}
    else:
        cell = compose.cell(parsed.cell)
        signature, science = cell.signature, cell.science
    print(f"cell {signature}: {ledger.entry(signature).status}")
    finished = [s for s in ledger.signatures() if s != signature and ledger.result(s) is not None]
    found = Finished({s: there for s in finished if (there := ledger.science(s))}).nearest(science)
    if found is None:
        print("there is no other finished cell")
        return 0
    print(f"the nearest finished cell is {found[0]}; it differs in")
    for difference in found[1]:
        print(f"  {difference}")
    return 0


def _reproduce(parsed: argparse.Namespace) -> int:
    from capsweep.sweep import reproduce

    ledger = _open(parsed)
    signature = ledger.find(parsed.signature)
    recipe = reproduce.recipe(ledger, signature)
    for remark in recipe.remarks:
        print(f"# {remark}")
    print(recipe.command)
    if not parsed.run:
        return 0
    if recipe.cell is None:
        raise UserError(f"{signature}: it cannot be run by this code; see above")
    return _run_again(ledger, signature, recipe.cell.overrides, parsed)


def _run_again(
    ledger: "Ledger", signature: str, overrides: tuple[str, ...], parsed: argparse.Namespace
) -> int:
    from capsweep.config import compose, places
    from capsweep.config.overrides import render
    from capsweep.sweep import reproduce
    from capsweep.training.run import run

    storage = parsed.storage or os.environ.get("STORAGE", "outputs")
    apart = f"{places.absolute(storage)}/reproduced/{signature}-{secrets.token_hex(3)}"
    kept = [o for o in overrides if o.partition("=")[0] not in ("logger", "rerun")]
    there = [render("places.storage", storage), render("places.ledger", apart)]
    cell = compose.cell([*kept, *there, "logger=csv"])
    again = run(cell, places.resolve(cell.config["places"]))
    recorded = ledger.result(signature)
    print(f"# made again in {apart}")
    if recorded is None:
        print("# the ledger has no result of it to compare with")
        return 0
    for line in reproduce.compare(recorded, again):
        print(line)
    return 0 if recorded["metrics"] == again["metrics"] else 1


def _remove(parsed: argparse.Namespace) -> int:
    from capsweep.ledger.ledger import folder_of

    ledger = _open(parsed)
    for signature in [ledger.find(prefix) for prefix in parsed.signature]:
        entry = ledger.entry(signature)
        if entry.status == "running":
            raise UserError(f"{signature} is being run by {entry.owner}; end it first")
        ledger.store.remove(folder_of(signature))
        print(f"removed {signature} ({entry.status})")
    return 0


def _release(parsed: argparse.Namespace) -> int:
    from capsweep.ledger import claim

    ledger = _open(parsed)
    claims = {s: c for s, c in ledger.claims().items() if s.startswith(parsed.signature)}
    if len(claims) != 1 or ledger.disk is None:
        raise UserError(f"{parsed.signature}: {len(claims)} claimed cells of {ledger.store.root}")
    ((signature, found),) = claims.items()
    if found.owner.is_alive:
        raise UserError(f"{signature} is being run by {found.owner}; end it first")
    claim.forget(ledger.disk, signature)
    print(f"released {signature} from {found.owner}")
    return 0


def _compare(parsed: argparse.Namespace) -> int:
    from capsweep.report import comparison

    ledger = _open(parsed)
    first, second = (ledger.find(prefix) for prefix in parsed.signature)
    comparison.check_same_examples(ledger, first, second)
    found = comparison.compare(
        *comparison.predictions(ledger, first), *comparison.predictions(ledger, second)
    )
    print(comparison.text(found, first, second))
    return 0


def _gc(parsed: argparse.Namespace) -> int:
    from capsweep.ledger import garbage

    ledger = _open(parsed)
    found = garbage.find(ledger)
    for item in found:
        print(f"{item.name}: {item.why} ({item.size:,} bytes)")
    freed = sum(item.size for item in found) if parsed.dry_run else garbage.remove(ledger, found)
    print(f"{len(found)} files or folders, {freed:,} bytes{' (dry run)' if parsed.dry_run else ''}")
    return 0


def _export(parsed: argparse.Namespace) -> int:
    from capsweep.ledger import transfer

    ledger = _open(parsed)
    asked = [ledger.find(prefix) for prefix in parsed.signature] or ledger.signatures()
    finished = [signature for signature in asked if ledger.result(signature) is not None]
    if not finished:
        raise UserError(f"{ledger.store.root}: no finished cell to export")
    size = transfer.export(ledger, finished, parsed.file, weights=not parsed.without_weights)
    print(f"{len(finished)} cells, {size:,} bytes: {parsed.file}")
    return 0


def _import(parsed: argparse.Namespace) -> int:
    from capsweep.ledger import transfer

    found = transfer.merge(_open(parsed), parsed.file)
    print(f"{found.new} cells merged, {found.known} were there already")
    return 0


def _failures(parsed: argparse.Namespace) -> int:
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger
    from capsweep.sweep import plan, triage

    _, points = choosing.chosen(parsed)
    ledger = Ledger(places.resolve(points[0].cell.config["places"]).ledger)
    planned = plan.make(points, ledger)
    groups = triage.triage(planned, ledger)
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
