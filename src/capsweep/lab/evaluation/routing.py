"""How the routing of a trained cell affects the cell's predictions: `capsweep eval routing`.

The couplings are measured (see `couplings`). The test error of the cell is computed in three ways:
as trained; with frozen couplings; and with each of several numbers of iterations. Frozen couplings
are means over training images. They are the same for every test image.

Shape letters: B images, M parent positions, L children below a position, J parent types.
"""

from argparse import Namespace
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation import sweep_cells
from capsweep.lab.evaluation.checkpoint import TrainedCell
from capsweep.lab.evaluation.couplings import LinkSpread, measure_layers
from capsweep.lab.evaluation.sweep_cells import Content, SweepCells
from capsweep.lab.evaluation.traces import RoutedCell, find_routed, hook_routings
from capsweep.ledger.ledger import Predictions
from capsweep.ledger.records import Couplings
from capsweep.model.routing import Routed
from capsweep.model.votes import LocalVotes
from capsweep.report.grid import describe_row
from capsweep.report.publish import COLUMNS, ROUTING, ROUTING_NOTES, collect_measures
from capsweep.runtime.terminal import count_of
from capsweep.statistics.examples import find_wrong, predict_classes

ITERATIONS = (1, 2, 3, 5, 10)
WITHOUT_SUM = (
    "Couplings of some routings do not sum to 1 (normalisers sigmoid and max_min, self_attention). "
    "For their entropy and polarisation, couplings are divided by their sum over the parents at "
    "each position, and negative couplings count as 0."
)


def publish_routing(cells: SweepCells, parsed: Namespace) -> None:
    """Measure the routing of a sweep's finished cells, and publish a table of the results.

    The table has a row for each pair of a layer and a group of cells that differ only in the seed.
    A group is left out if one of its cells cannot be measured; a note gives the reason. The results
    of each cell are stored in the folder `evals/` of the cell.

    Raises:
        NotApplicableError: No cell can be measured, for example because no network routes.
        UserError: No cell is finished, or a network does not reproduce its stored predictions.
    """
    reasons: dict[str, str] = {}

    def evaluate(cell: TrainedCell) -> list[tuple[str, Content]]:
        try:
            return [(ROUTING, measure_routing(cell, parsed.examples))]
        except NotApplicableError as error:
            reasons[cell.name] = str(error)
            return []

    lines, measured, left_out = [], [], []
    loader = cells.make_loader(parsed.device)
    for group, of_cells in cells.evaluate_networks(loader, evaluate, (ROUTING, Couplings)):
        names = [cell.signature for cell in group.finished.values()]
        if why := [reasons[name] for name in names if name in reasons]:
            left_out.append(f"left out: {describe_row(group.coordinates)}: {why[0]}.")
            continue
        contents = [content for contents in of_cells for content in contents]
        measured += contents
        for layer, columns in collect_measures(contents).items():
            lines.append((group, [layer, *sweep_cells.describe_seeds(group, contents, columns)]))
    if not measured:
        raise NotApplicableError(f"{cells.table.sweep.name}: none of its cells routes")
    notes = [*ROUTING_NOTES, *left_out, sweep_cells.SEEDS_NOTE]
    if any(content["without_sum"] for content in measured):
        notes.append(WITHOUT_SUM)
    if ties := sum(content["ties"] for content in measured):
        notes.append(f"{count_of(ties, 'near tie')} differ from the stored predictions.")
    header = ["layer", *sweep_cells.SEEDS_HEADER, *COLUMNS]
    cells.publish_table("routing", "routing", header, lines, notes)


def measure_routing(cell: TrainedCell, examples: int) -> dict[str, Any]:
    """Measure the routing of a cell on test images, and return the results as data for JSON.

    Args:
        cell: The trained cell.
        examples: Number of test images, counted from the first.

    Raises:
        NotApplicableError: The network does not route, or its routing keeps no traces or has no
            couplings.
        UserError: The network does not reproduce the stored predictions; the error names the cell.
    """
    routed = find_routed(cell, examples, None)
    retest = cell.verify(routed.examples)
    layers = measure_layers(routed)
    return {
        "examples": routed.examples,
        "ties": retest.ties,
        "layers": {name: layer.summarise() for name, layer in layers.items()},
        "without_sum": [name for name, layer in layers.items() if not layer.children.has_sum],
        "error": measure_error(routed.predict_scores()),
        "frozen_error": measure_frozen(routed),
        "trained_iterations": cell.config["routing"].get("num_iters"),
        "iterations": vary_iterations(routed),
    }


def measure_error(predictions: Predictions) -> float | None:
    """Return the share of images that are classified wrongly; None if a score is not finite."""
    if not np.isfinite(predictions[0]).all():
        return None
    return float(find_wrong(*predictions).mean())


def measure_frozen(routed: RoutedCell) -> float | None:
    """Return the test error with each coupling fixed at its mean over training images.

    The mean is over the first `routed.examples` training images. The result is None if the routing
    of a layer has no `form_parents`, or if a score is not finite.
    """
    if not all(hasattr(layer.routing, "form_parents") for layer in routed.layers.values()):
        return None
    # The same cell, with its training images in the place of test images.
    training = replace(routed, cell=replace(routed.cell, test=routed.cell.train))
    with freeze_couplings(routed, average_couplings(training)):
        return measure_error(routed.predict_scores())


def average_couplings(routed: RoutedCell) -> dict[str, Tensor]:
    """Return the mean couplings [M, L, J] of each layer in the last iteration, by layer name.

    The mean is over the first `routed.examples` images of the cell's test split.
    """
    links: dict[str, LinkSpread] = {}
    dtype = torch.float32
    for name, (*_, coupling_BMLJ) in routed.trace_couplings():
        dtype = coupling_BMLJ.dtype
        links.setdefault(name, LinkSpread(coupling_BMLJ.shape[1:])).add_images(coupling_BMLJ)
    return {name: each.mean_MLJ.to(dtype) for name, each in links.items()}


def freeze_couplings(
    routed: RoutedCell, couplings: Mapping[str, Tensor]
) -> AbstractContextManager[None]:
    """Make each routed layer use its fixed couplings [M, L, J] inside a `with` block.

    A hook forms the parents again, and replaces the result of the routing.
    """

    def form_parents(name: str, routing: Any, inputs: tuple[LocalVotes], _: Routed) -> Routed:
        pose_BMLP = inputs[0].local_poses()
        coupling_MLJ = couplings[name].to(pose_BMLP.device)
        return routing.form_parents(inputs[0], coupling_MLJ.expand(len(pose_BMLP), -1, -1, -1))

    return hook_routings(routed.layers, form_parents)


def vary_iterations(routed: RoutedCell) -> list[dict[str, Any]] | None:
    """Route the test images with each number of iterations in ITERATIONS.

    Returns:
        For each number, a dictionary with the keys `iterations` (the number), `changed` and
        `error`. `changed` is the share of images for which this number and the number of iterations
        in training give different classes. `error` is the test error. `changed` and `error` are
        None if a score is not finite. For a routing without iterations, the result is None instead
        of a list.
    """
    trained = routed.cell.config["routing"].get("num_iters")
    if trained is None:
        return None
    # The number of iterations in training comes last, so that the network keeps this number.
    predictions = {number: _predict_with(routed, number) for number in (*ITERATIONS, int(trained))}
    scores_MN, labels = predictions[trained]
    shown = labels.reshape(len(labels), -1).shape[1]
    answers = find_top_classes(scores_MN, shown)
    reroutings = []
    for number in ITERATIONS:
        error, changed = measure_error(predictions[number]), None
        if error is not None:
            others = find_top_classes(predictions[number][0], shown)
            changed = float((others != answers).any(axis=1).mean())
        reroutings.append({"iterations": number, "changed": changed, "error": error})
    return reroutings


def find_top_classes(scores_MN: np.ndarray, classes: int) -> np.ndarray:
    """Return the classes with the highest scores for each image, sorted by class.

    Args:
        scores_MN: Scores of M images and N classes.
        classes: Number of classes to return for each image.

    Returns:
        An array [M, classes].
    """
    return np.sort(predict_classes(scores_MN, classes), axis=1)


def _predict_with(routed: RoutedCell, iterations: int) -> Predictions:
    for layer in routed.layers.values():
        layer.routing.num_iters = iterations
    return routed.predict_scores()
