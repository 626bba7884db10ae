"""`capsweep eval ensemble`: the seeds of a row as one network, from what they stored."""

import argparse
import sys
from collections.abc import Mapping

from capsweep.evaluation.ensemble import Member, evaluate
from capsweep.evaluation_doors import fields
from capsweep.evaluation_doors.fields import Chosen, Field
from capsweep.ledger.predictions import load_predictions
from capsweep.report import table
from capsweep.report.evaluation_tables import EnsembleRow, make_ensemble_table
from capsweep.sweep.expand import Point

FEWEST = 2  # members of an ensemble


def main(parsed: argparse.Namespace) -> int:
    """Print and write the ensembles of every row and column of a sweep.

    Raises UserError naming cells that do not belong together.
    """
    chosen = fields.chosen(parsed, "an ensemble is judged by its test error")
    chosen, members = fields.ask_each(chosen, lambda point: _member(chosen, point))
    rows = [_row(chosen, field, members) for field in chosen.fields]
    written = make_ensemble_table(chosen.sweep, rows)
    if all(row.wrong is None for row in rows):
        if not chosen.json:
            fields.show(written)
        print(f"no row of {parsed.sweep} has {FEWEST} finished cells", file=sys.stderr)
        return 1
    fields.publish(chosen, "ensemble.md", written)
    return chosen.status


def _member(chosen: Chosen, point: Point) -> Member:
    name = point.cell.signature
    return Member(name, *load_predictions(chosen.ledger, name))


def _row(chosen: Chosen, field: Field, known: Mapping[str, Member]) -> EnsembleRow:
    members = [known[point.cell.signature] for point in field.there.values()]
    found = evaluate(members) if members else None
    return EnsembleRow(
        coordinates=field.coordinates,
        wanted=field.wanted,
        missing=field.missing,
        stale=field.stale,
        single=found.single if found else (),
        wrong=found.wrong if found and len(members) >= FEWEST else None,
        total=found.total if found else 0,
        published=table.format_published(chosen.sweep, field.row),
        footnotes=field.footnotes,
    )
