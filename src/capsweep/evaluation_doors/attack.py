"""`capsweep eval attack`: the networks of every row on images changed to mislead them."""

import argparse
import json
from collections.abc import Mapping, Sequence

from capsweep.errors import UserError
from capsweep.evaluation import robustness
from capsweep.evaluation.robustness import Answer, Asked
from capsweep.evaluation.surface import SCALES
from capsweep.evaluation.trained import Loader, device_of
from capsweep.evaluation_doors import fields
from capsweep.evaluation_doors.fields import Chosen, Field
from capsweep.ledger.predictions import load_predictions
from capsweep.report.evaluation_tables import SeedsRow, make_seeds_table
from capsweep.sweep.expand import Point

CLEAN = "clean"


def main(parsed: argparse.Namespace) -> int:
    """Attack every finished cell of a sweep; a file in each one's evals/, and a table.

    Raises UserError naming the option or the cell.
    """
    asked, device = _asked(parsed), device_of(parsed.device)
    chosen = fields.chosen(parsed, "an attack is judged by test accuracy")
    if not any(field.there for field in chosen.fields):
        return fields.none_finished(chosen)
    loader = Loader(chosen.ledger, chosen.here.data, device)
    chosen, answers = fields.ask_each(chosen, lambda point: _attacked(chosen, loader, point, asked))
    rows = [row for field in chosen.fields for row in _rows(field, asked, answers)]
    every = [answer for cell in answers.values() for answer in cell]
    aim = robustness.aim(asked.targeted)
    columns = (CLEAN, *(f"eps {eps:g}" for eps in asked.eps))
    table = make_seeds_table(
        chosen.sweep, f"{aim} attacks", rows, columns, _notes(asked, every), ("method",)
    )
    fields.publish(chosen, f"attack-{aim}.md", table)
    return chosen.status


def _asked(parsed: argparse.Namespace) -> Asked:
    try:
        eps = tuple(float(text) for text in parsed.eps.split(","))
    except ValueError as error:
        raise UserError(f"--eps must be numbers such as 0.1,0.2, got {parsed.eps}") from error
    asked = Asked(
        methods=tuple(dict.fromkeys(parsed.method.split(","))),
        eps=tuple(dict.fromkeys(eps)),
        targeted=parsed.targeted,
        scale=parsed.eps_scale,
        steps=parsed.steps,
        restarts=parsed.restarts,
        examples=parsed.examples,
    )
    asked.check()
    return asked


def _attacked(chosen: Chosen, loader: Loader, point: Point, asked: Asked) -> list[Answer]:
    name = point.cell.signature
    trained = loader.load(name, point.cell.config)
    answers = []
    for answer in robustness.measure(trained, asked, load_predictions(loader.ledger, name)):
        content = json.dumps(answer.as_json(loader.device), indent=2, allow_nan=False)
        where = loader.ledger.write_evaluation(name, answer.file, f"{content}\n".encode())
        chosen.say(f"{point.name}: {where}")
        answers.append(answer)
    return answers


def _rows(field: Field, asked: Asked, answers: Mapping[str, Sequence[Answer]]) -> list[SeedsRow]:
    rows = []
    for place, method in enumerate(asked.methods):
        found = [answers[point.cell.signature][place] for point in field.there.values()]
        values = {CLEAN: [answer.clean_accuracy for answer in found]}
        for number, eps in enumerate(asked.eps):
            values[f"eps {eps:g}"] = [answer.rates[number] for answer in found]
        rows.append(
            SeedsRow(
                field.coordinates,
                (method,),
                field.wanted,
                field.missing,
                field.stale,
                max((answer.examples for answer in found), default=0),
                values,
                field.footnotes,
            )
        )
    return rows


def _notes(asked: Asked, answers: list[Answer]) -> list[str]:
    told = (
        "rate of success of attacks at each of the other classes in turn, mean over examples and "
        "classes"
        if asked.targeted
        else "test accuracy that is left"
    )
    notes = [
        "clean: test accuracy of the unchanged images, which was checked to be what each cell "
        f"stored. eps: {told} when no value is changed by more than eps; the attacker may leave an "
        "image alone. What an attack finds is the least that there is.",
        f"eps is in units of {SCALES[asked.scale]}; bounds of changed values: "
        f"{', '.join(dict.fromkeys(answer.bounds for answer in answers))}.",
    ]
    for method in asked.methods:
        one = asked.attacks(method, seed=0)[0]
        budget = f"{one.steps} steps of {one.step / one.eps:g} eps, {one.restarts} restarts"
        notes.append(
            f"{method}: {budget}, on the cross-entropy of logits; seeded by the cell's seed."
        )
    if flat := sum(answer.flat for answer in answers):
        tries = sum(count.tries for answer in answers for count in answer.counts)
        notes.append(
            f"In {flat} of {tries} tries the loss had no gradient at the image: what a network "
            "withstands for that reason is not robustness."
        )
    if ties := max((answer.ties for answer in answers), default=0):
        notes.append(f"Near ties fall otherwise than stored: of up to {ties} examples of a cell.")
    return notes
