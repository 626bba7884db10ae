"""`capsweep eval ensemble SWEEP` and `multicrop SWEEP`: scores of several networks, or crops."""

import argparse

from capsweep.cli.program import DEVICE, SWEEP, Command

COMMANDS: dict[str, Command] = {
    "ensemble": ("add the scores of each row's seeds, from stored predictions", SWEEP),
    "multicrop": ("average the scores of 13 crops of each test image", (*SWEEP, DEVICE)),
}
ENSEMBLE_NOTE = (
    "single: mean test error of the members. ensemble: the members' scores of each test "
    "example added; 95 % interval over test examples (Wilson), which does not hold the spread "
    "over other trainings."
)
CROPS_NOTE = (
    "single crop: test error of the crop in the middle, as each cell stored it. 13 crops: that and "
    "those 1, 2 and 3 pixels off it along both diagonals, their scores averaged."
)


def run_ensemble(parsed: argparse.Namespace) -> None:
    """Classify by the seeds of each row as one network, from stored predictions."""
    from statistics import fmean

    from capsweep.lab.evaluation import averaged_scores
    from capsweep.lab.evaluation.sweep_cells import load_cells
    from capsweep.ledger.ledger import load_predictions
    from capsweep.report.comparison import format_error
    from capsweep.report.grid import MISSING
    from capsweep.report.trained import find_published, format_published, note_published

    cells, lines, published = load_cells(parsed), [], []
    for place, names in cells.evaluate_points(lambda point: point.cell.signature):
        members = {name: load_predictions(cells.ledger, name) for name in names}
        single = [averaged_scores.measure_error(*member) for member in members.items()]
        together = MISSING
        if len(members) > 1:
            wrong_M = averaged_scores.find_wrong_together(members)
            together = format_error(int(wrong_M.sum()), len(wrong_M))
        numbers = find_published(cells.sweep, place.points[:1], members=len(single))
        published += numbers
        mean = f"{100 * fmean(single):.2f} %" if single else MISSING
        others = format_published(cells.sweep, numbers)
        lines.append((place, [place.counts, mean, together, others]))
    notes = [ENSEMBLE_NOTE, *note_published(cells.sweep, published)]
    header = ["members", "single", "ensemble", "published"]
    cells.publish_table("ensemble", "ensembles", header, lines, notes)


def run_multicrop(parsed: argparse.Namespace) -> None:
    """Test every cell on 13 crops of each image; a file in each one's evals/, and a table."""
    from capsweep.lab.evaluation.averaged_scores import CROPS_FILE, measure_crops
    from capsweep.lab.evaluation.sweep_cells import (
        SEEDS_HEADER,
        describe_seeds,
        load_cells,
    )
    from capsweep.ledger.records import Record

    cells, lines = load_cells(parsed), []
    for place, of_cells in cells.evaluate_networks(
        parsed.device, lambda *tested: [(CROPS_FILE, measure_crops(*tested))], (CROPS_FILE, Record)
    ):
        contents = [content for (content,) in of_cells]
        errors = [[c[f"{key}_error"] for c in contents] for key in ("single", "multicrop")]
        lines.append((place, describe_seeds(place, contents, errors)))
    header = [*SEEDS_HEADER, "single crop", "13 crops"]
    cells.publish_table("multicrop", "13-crop test", header, lines, [CROPS_NOTE])
