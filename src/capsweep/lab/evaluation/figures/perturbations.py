"""Figure 4 of "Dynamic Routing Between Capsules": what each dimension of a class pose represents.

Shape letters: J classes, D dimensions of a class pose, T tweaks, M test examples, C H W image.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from capsweep.lab.evaluation.checkpoint import CellLoader, TrainedCell
from capsweep.lab.evaluation.figures import Drawing, decoded
from capsweep.ledger.ledger import Predictions
from capsweep.report import charts
from capsweep.report.charts import Grid
from capsweep.statistics.examples import find_wrong

TWEAKS = np.arange(-5, 6) / 20  # -0.25 to 0.25 in steps of 0.05; the middle number is exactly 0
SIDE = 84  # width of each image in pixels; small, because a page has many images


def draw_perturbations(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """Yield a page for each class in the test labels.

    The page shows how each dimension of the class pose changes the decoded image.

    Raises:
        NotApplicableError: The network has no decoder or no class capsules.
        UserError: The cell cannot be loaded, or its network does not reproduce the stored
            predictions.
    """
    cell = loader.load(name)
    for page in tweak_poses(cell, find_first(cell.stored)):
        caption = _describe_page(page)
        picture = _draw_page(page, f"cell {name}: perturbations of class {page['label']}", caption)
        yield Drawing(f"perturbations-class{page['label']}", page, picture, caption)


def find_first(stored: Predictions) -> list[tuple[int, int]]:
    """Choose a test example for each class in the test labels.

    The first correctly classified example of a class is chosen. If all examples of a class are
    classified wrongly, the first example of the class is chosen.

    Returns:
        Pairs of a class and the index of the chosen example.
    """
    labels_ML, wrong_M = stored[1].reshape(len(stored[1]), -1), find_wrong(*stored)
    pairs = []
    for label in np.unique(labels_ML).tolist():
        places = np.flatnonzero((labels_ML == label).any(axis=1))
        pairs.append((label, int(places[wrong_M[places].argmin()])))  # False is less than True
    return pairs


def tweak_poses(cell: TrainedCell, pairs: Sequence[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Decode class poses with one dimension changed: each dimension by each number of TWEAKS.

    Each pair of a class and a test example gives a page with these arrays:

        tweaks            numbers that are added to a dimension (TWEAKS)
        place             index of the test example
        label             class whose pose is decoded
        prediction        `label` if this class is predicted, else the class predicted instead
        length            length of the unchanged class pose
        image             input of the network [C, H, W]
        reconstructions   decoded images [D, T, C, H, W] with values in 0..1

    Args:
        cell: The trained cell.
        pairs: Pairs of a class and the index of a test example of this class.

    Yields:
        For each pair, the arrays by name.

    Raises:
        NotApplicableError: The network has no decoder or no class capsules.
        UserError: The network does not reproduce the stored predictions of these examples.
    """
    decoder = decoded.find_decoder(cell)
    arrays, pose_KJD = decoded.run_network(cell, [place for _, place in pairs])
    for k, (label, place) in enumerate(pairs):
        shown = arrays["labels"][k].tolist().index(label)
        yield {
            "tweaks": TWEAKS,
            "place": place,
            "label": label,
            "prediction": int(arrays["predictions"][k, shown]),
            "length": float(pose_KJD[k, label].norm()),
            "image": arrays["images"][k],
            "reconstructions": draw_tweaked(decoder, pose_KJD[k], label).cpu().numpy(),
        }


def draw_tweaked(decoder: nn.Module, pose_JD: Tensor, label: int) -> Tensor:
    """Decode the pose of class `label`, with each dimension changed by each number of TWEAKS.

    Returns:
        Images [D, T, C, H, W], one for each dimension and tweak.
    """
    dimensions = pose_JD.shape[1]
    tweak_T = pose_JD.new_tensor(TWEAKS)
    each_DD = pose_JD.new_ones(dimensions).diag()
    pose_DTJD = pose_JD.repeat(dimensions, len(TWEAKS), 1, 1)
    pose_DTJD[:, :, label] += each_DD[:, None] * tweak_T[:, None]
    class_K = np.full(dimensions * len(TWEAKS), label)
    drawn = decoded.draw_from_class(decoder, pose_DTJD.flatten(0, 1), class_K)
    return drawn.unflatten(0, (dimensions, len(TWEAKS)))


def _draw_page(page: Mapping[str, Any], title: str, caption: str) -> bytes:
    """Draw the page of a class, and return the PNG.

    The first column has the input of the network, in the first row only. The other columns are a
    grid of decoded images: a row for each dimension of the pose, and a column for each tweak.
    """
    drawn_DTHW3 = np.stack([charts.to_rgb(row) for row in page["reconstructions"]])
    left_D1HW3 = np.full_like(drawn_DTHW3[:, :1], np.nan)
    left_D1HW3[0] = charts.to_rgb(charts.scale_images(page["image"][None]))
    grid = Grid(
        tiles_RKHW3=np.concatenate([left_D1HW3, drawn_DTHW3], axis=1),
        beside=[f"dimension {d}" for d in range(len(drawn_DTHW3))],
        above=["input", *(f"{tweak:+.2f}" if tweak else "0" for tweak in TWEAKS)],
        title=title,
        caption=caption,
        side=SIDE,
    )
    return charts.draw_grid(grid)


def _describe_page(page: Mapping[str, Any]) -> str:
    """Return the caption of a page. The caption says how the page was made."""
    return (
        f"test example {page['place']}, classified as {page['prediction']}; drawn only from the "
        f"capsule of its class {page['label']}, of length {page['length']:.3g}; each row changes "
        "one dimension of the capsule's pose by -0.25 to 0.25 in steps of 0.05, and so also the "
        f"capsule's length; column 0 is the unchanged reconstruction; {charts.SCALED}"
    )
