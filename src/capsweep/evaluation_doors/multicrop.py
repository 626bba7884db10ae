"""`capsweep eval multicrop`: the 13-crop test of every row."""

import argparse
import json
from collections.abc import Mapping

from capsweep.evaluation import multicrop
from capsweep.evaluation.multicrop import Answer
from capsweep.evaluation.trained import Loader, device_of
from capsweep.evaluation_doors import fields
from capsweep.evaluation_doors.fields import Chosen, Field
from capsweep.ledger.predictions import load_predictions
from capsweep.report.evaluation_tables import SeedsRow, make_seeds_table
from capsweep.sweep.expand import Point

SINGLE, TOGETHER = "single crop", "13 crops"
NOTE = (
    f"{SINGLE}: test error of the crop in the middle, which was checked to be what each cell "
    f"stored. {TOGETHER}: that crop and those 1, 2 and 3 pixels off it along both diagonals, each "
    "standardised by itself where the data set is, their scores averaged."
)


def main(parsed: argparse.Namespace) -> int:
    """Test every finished cell of a sweep; a file in each one's evals/, and a table.

    Raises UserError naming the cell.
    """
    device = device_of(parsed.device)
    chosen = fields.chosen(parsed, "crops are judged by test error")
    if not any(field.there for field in chosen.fields):
        return fields.none_finished(chosen)
    loader = Loader(chosen.ledger, chosen.here.data, device)
    chosen, answers = fields.ask_each(chosen, lambda point: _tested(chosen, loader, point))
    rows = tuple(_row(field, answers) for field in chosen.fields)
    answer = make_seeds_table(chosen.sweep, "13-crop test", rows, (SINGLE, TOGETHER), (NOTE,))
    fields.publish(chosen, "multicrop.md", answer)
    return chosen.status


def _row(field: Field, answers: Mapping[str, Answer]) -> SeedsRow:
    found = [answers[point.cell.signature] for point in field.there.values()]
    return SeedsRow(
        coordinates=field.coordinates,
        beside=(),
        wanted=field.wanted,
        missing=field.missing,
        stale=field.stale,
        examples=max((answer.examples for answer in found), default=0),
        values={
            SINGLE: [answer.single_error for answer in found],
            TOGETHER: [answer.multicrop_error for answer in found],
        },
        footnotes=field.footnotes,
    )


def _tested(chosen: Chosen, loader: Loader, point: Point) -> Answer:
    name = point.cell.signature
    trained = loader.load(name, point.cell.config)
    answer = multicrop.measure(trained, load_predictions(loader.ledger, name))
    content = json.dumps(answer.as_json(loader.device), indent=2, allow_nan=False)
    where = loader.ledger.write_evaluation(name, multicrop.FILE, f"{content}\n".encode())
    chosen.say(f"{point.name}: {where}")
    return answer
