"""`capsweep ledger ...`: look at cells."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from capsweep.cli import choosing
from capsweep.errors import DamageError
from capsweep.ledger_doors.opened import opened

if TYPE_CHECKING:
    from capsweep.ledger.entry import Entry
    from capsweep.ledger.ledger import Ledger
    from capsweep.sweep.triage import Group

Found = TypeVar("Found")


def ls(parsed: argparse.Namespace) -> int:
    """A line per cell, or a list of them."""
    ledger = opened(parsed)
    entries = {
        signature: entry
        for signature, entry in ledger.entries(ledger.signatures()).items()
        if parsed.status is None or entry.status == parsed.status
    }
    if parsed.json:
        print(json.dumps([_known(*known) for known in entries.items()], indent=1))
        return 0
    for signature, entry in entries.items():
        error = None if entry.result is None else entry.result["metrics"].get("test/error")
        told = entry.cause or entry.owner or ("" if error is None else f"{100 * error:.2f} %")
        print(f"{signature}  {entry.status:8}{told}")
    return 0


def _known(signature: str, entry: "Entry") -> dict[str, Any]:
    known = {"status": entry.status, "cause": entry.cause, "owner": entry.owner}
    return {"signature": signature, **known, "result": entry.result}


def show(parsed: argparse.Namespace) -> int:
    """All that is known of a cell."""
    from capsweep.config.cell import flat

    ledger, damaged = opened(parsed), Damaged()
    signature = ledger.find(parsed.signature)
    entry = ledger.entry(signature)
    provenance = damaged.read(lambda: ledger.provenance(signature))
    science = damaged.read(lambda: ledger.science(signature))
    if parsed.json:
        more = {"science": science, "provenance": provenance or None}
        print(json.dumps({**_known(signature, entry), **more}, indent=1))
        return damaged.status
    print(f"{signature}: {entry.status}{f' ({entry.cause})' if entry.cause else ''}")
    sections = {"science": science, "result": entry.result, "made": provenance}
    for title, section in sections.items():
        print(f"\n{title}")
        for key, value in flat(section or {}).items():
            print(f"  {key}: {value}")
    interval = damaged.read(lambda: _interval(ledger, signature)) if entry.result else None
    print("" if interval is None else f"\n{interval}")
    return damaged.status


class Damaged:
    """Reads what may be damaged; that is told, and makes the status 1."""

    status = 0

    def read(self, read: Callable[[], Found]) -> Found | None:
        """What is read; None where that is damaged."""
        from capsweep.ledger import stored_files

        try:
            return read()
        except DamageError as error:
            stored_files.print_damage(error)
            self.status = 1
            return None


def _interval(ledger: "Ledger", signature: str) -> str:
    from capsweep.report import comparison

    scores, labels = comparison.read_predictions(ledger, signature)
    return comparison.describe_error(scores, labels)


def why(parsed: argparse.Namespace) -> int:
    """The keys in which a cell differs from the nearest finished one."""
    from capsweep.config import compose
    from capsweep.ledger.difference import Finished

    ledger = opened(parsed)
    if len(parsed.cell) == 1 and "=" not in parsed.cell[0]:
        signature = ledger.find(parsed.cell[0])
        science = ledger.science(signature) or {}
    else:
        cell = compose.cell(parsed.cell)
        signature, science = cell.signature, cell.science
    entry = ledger.entry(signature)
    finished = [s for s in ledger.signatures() if s != signature and ledger.result(s) is not None]
    damaged = Damaged()
    sciences = {s: damaged.read(partial(ledger.science, s)) for s in finished}
    found = Finished({s: there for s, there in sciences.items() if there}).nearest(science)
    if parsed.json:
        nearest, keys = (found[0], [asdict(d) for d in found[1]]) if found else (None, [])
        told = {"signature": signature, "status": entry.status, "cause": entry.cause}
        print(json.dumps({**told, "nearest": nearest, "differences": keys}, indent=1))
        return damaged.status
    print(f"cell {signature}: {entry.status}{f' ({entry.cause})' if entry.cause else ''}")
    if found is None:
        print("there is no other finished cell")
        return damaged.status
    print(f"the nearest finished cell is {found[0]}; it differs in")
    for difference in found[1]:
        print(f"  {difference}")
    return damaged.status


def compare(parsed: argparse.Namespace) -> int:
    """Two cells on the same test examples."""
    from capsweep.report import comparison

    ledger = opened(parsed)
    first, second = (ledger.find(prefix) for prefix in parsed.signature)
    comparison.check_same_examples(ledger, first, second)
    found = comparison.compare_predictions(
        *comparison.read_predictions(ledger, first), *comparison.read_predictions(ledger, second)
    )
    if parsed.json:
        print(json.dumps({"first": first, "second": second, **asdict(found)}, indent=1))
        return 0
    print(comparison.describe_comparison(found, first, second))
    return 0


def failures(parsed: argparse.Namespace) -> int:
    """The failures of a sweep, grouped by cause."""
    from capsweep.config import places
    from capsweep.ledger.ledger import Ledger
    from capsweep.sweep import plan, triage

    _, points = choosing.chosen(parsed)
    ledger = Ledger(places.resolve(points[0].cell.config["places"]).ledger)
    planned = plan.make(points, ledger)
    groups = triage.triage(planned, ledger)
    if parsed.json:
        print(json.dumps([_group(group) for group in groups], indent=1))
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


def _group(group: "Group") -> dict[str, Any]:
    return {
        "kind": group.kind,
        "cause": group.cause,
        "last_line": group.last_line,
        "telling": group.telling,
        "cells": [cell.cell.signature for cell in group.cells],
        "command": group.command,
    }
