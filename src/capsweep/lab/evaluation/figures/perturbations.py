"""Figure 4 of "Dynamic Routing Between Capsules": what each dimension of a class pose stands for.

Shape letters: J classes, D class pose, T tweaks, M test examples, C H W image.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from capsweep.lab.evaluation import decoded
from capsweep.lab.evaluation.checkpoint import CellLoader, TrainedCell
from capsweep.lab.evaluation.figures import Drawing
from capsweep.ledger.ledger import Predictions
from capsweep.report import charts
from capsweep.report.charts import Grid
from capsweep.statistics.examples import find_wrong

TWEAKS = np.arange(-5, 6) / 20  # -0.25 to 0.25 by 0.05; the middle one is exactly 0
SIDE = 84  # pixels: there are many pictures


@dataclass(frozen=True)
class Perturbed:
    """One example drawn with each dimension of its class capsule's pose tweaked by itself.

    label: the class whose capsule that is. prediction: what the network says in its place. length:
    of the capsule, untouched. image: [C, H, W]; digit: what the decoder shall draw, where that is
    not the image; reconstructions: [D, T, C, H, W] in 0..1.
    """

    place: int
    label: int
    prediction: int
    length: float
    image: np.ndarray
    reconstructions: np.ndarray
    digit: np.ndarray | None = None


def draw_cell(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """Yield a page for each class."""
    cell, stored = loader.load_tested(name)
    if options.examples is None:
        pairs = find_first(stored)
    else:
        cell.check_places(options.examples)
        pairs = list_classes(stored, options.examples)
    for page in measure(cell, stored, pairs):
        example = "" if options.examples is None else f"-example{page.place}"
        caption = describe_page(page)
        yield Drawing(
            stem=f"perturbations-class{page.label}{example}",
            arrays={"tweaks": TWEAKS} | {k: v for k, v in vars(page).items() if v is not None},
            picture=draw(page, f"cell {name}: perturbations of class {page.label}", caption),
            caption=caption,
        )


def find_first(stored: Predictions) -> list[tuple[int, int]]:
    """Return (class, place) for each class that the test examples show: its first correctly
    classified example, else its first.
    """
    labels_ML, wrong_M = stored[1].reshape(len(stored[1]), -1), find_wrong(*stored)
    pairs = []
    for label in np.unique(labels_ML).tolist():
        places = np.flatnonzero((labels_ML == label).any(axis=1))
        correct = places[~wrong_M[places]]
        pairs.append((label, int((correct if len(correct) else places)[0])))
    return pairs


def list_classes(stored: Predictions, places: Sequence[int]) -> list[tuple[int, int]]:
    """(class, place) for each class that each of these examples shows."""
    return [(int(label), place) for place in places for label in stored[1][place].reshape(-1)]


def measure(
    cell: TrainedCell, stored: Predictions, pairs: Sequence[tuple[int, int]]
) -> Iterator[Perturbed]:
    """Each (class, place). Raises NotApplicableError for a network without a decoder."""
    decoder = decoded.find_decoder(cell)
    examples = decoded.ask_network(cell, stored, [place for _, place in pairs])
    digits = examples.digits_KLCHW
    for k, (label, place) in enumerate(pairs):
        shown = examples.labels_KL[k].tolist().index(label)
        pose_JD = examples.pose_KJD[k]
        yield Perturbed(
            place=place,
            label=label,
            prediction=int(examples.predictions_KL[k, shown]),
            length=float(pose_JD[label].norm()),
            image=examples.images_KCHW[k],
            reconstructions=draw_tweaked(decoder, pose_JD, label).cpu().numpy(),
            digit=None if digits is None else digits[k, shown],
        )


def draw_tweaked(decoder: nn.Module, pose_JD: Tensor, label: int) -> Tensor:
    """[D, T, C, H, W]: drawn with TWEAKS added to each dimension of the pose of class `label`."""
    dimensions = pose_JD.shape[1]
    tweak_T = pose_JD.new_tensor(TWEAKS)
    each_DD = pose_JD.new_ones(dimensions).diag()
    pose_DTJD = pose_JD.repeat(dimensions, len(TWEAKS), 1, 1)
    pose_DTJD[:, :, label] += each_DD[:, None] * tweak_T[:, None]
    class_K = np.full(dimensions * len(TWEAKS), label)
    drawn = decoded.draw_from_class(decoder, pose_DTJD.flatten(0, 1), class_K)
    return drawn.unflatten(0, (dimensions, len(TWEAKS)))


def draw(page: Perturbed, title: str, caption: str) -> bytes:
    """A PNG: at the left the input, then a row per dimension, a column per tweak."""
    drawn_DTHW3 = np.stack([charts.to_rgb(row) for row in page.reconstructions])
    left_D1HW3 = np.full_like(drawn_DTHW3[:, :1], np.nan)
    left_D1HW3[0] = charts.to_rgb(charts.scale_images(page.image[None]))
    if page.digit is not None:
        left_D1HW3[1] = charts.to_rgb(page.digit[None])
    grid = Grid(
        tiles_RKHW3=np.concatenate([left_D1HW3, drawn_DTHW3], axis=1),
        beside=[f"dimension {d}" for d in range(len(drawn_DTHW3))],
        above=["input", *(f"{tweak:+.2f}" if tweak else "0" for tweak in TWEAKS)],
        title=title,
        caption=caption,
        side=SIDE,
    )
    return charts.draw_grid(grid)


def describe_page(page: Perturbed) -> str:
    """The caption: every choice."""
    said = "correctly" if page.prediction == page.label else f"wrongly, as {page.prediction}"
    digit = "" if page.digit is None else "below the input: the digit of that class alone; "
    return (
        f"test example {page.place}, classified {said}; drawn from the capsule of its class "
        f"{page.label} alone, of length {page.length:.3g}; each row adds to one dimension of that "
        "capsule's pose, from -0.25 to 0.25 by 0.05; its length changes with it; column 0 is the "
        f"plain reconstruction; {digit}{charts.SCALED}"
    )
