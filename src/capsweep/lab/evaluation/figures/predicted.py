"""The drawing of a network's answers to a user's own pictures.

Shape letters: K shown pictures, N = J classes, D pose of a class, L classes in one image, C H W
image.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from capsweep.lab.evaluation.checkpoint import TrainedCell
from capsweep.lab.evaluation.figures import decoded, finish_figure
from capsweep.model.capsules import NetworkOutput
from capsweep.report import charts
from capsweep.runtime.terminal import count_of
from capsweep.statistics.examples import predict_classes

if TYPE_CHECKING:
    from capsweep.lab.evaluation.predictions import Answers

MOST_BARS = 10  # classes in the chart of one picture
CARD = (4.6, 1.25)  # width and height in inches of a picture with its reconstruction and its chart


def draw_predictions(
    cell: TrainedCell,
    answers: "Answers",
    shown: range,
    inputs_KCHW: Tensor,
    output: NetworkOutput,
) -> bytes:
    """Draw the shown pictures, their reconstructions, and charts of their scores, as a PNG.

    Args:
        cell: The trained cell.
        answers: The answers to all pictures.
        shown: Indices of the shown pictures.
        inputs_KCHW: The shown pictures as inputs of the network.
        output: Output of the network for these inputs.
    """
    columns = [charts.to_rgb(charts.scale_images(inputs_KCHW.cpu().numpy()))]
    middle, top_KL = "The network has no decoder.", answers.top_ML[:: shown.step]
    if output.pose_BJD is not None and getattr(cell.network, "decoder", None) is not None:
        middle = "Middle: what the decoder draws from the capsule of the chosen class."
        columns.append(reconstruct(cell, output.pose_BJD.float(), top_KL))
        if top_KL.shape[1] == 2:
            middle = "Middle: what the decoder draws from the two chosen classes, in red and green."
    across = 1 if len(shown) <= 3 else 2
    down, wide = -(-len(shown) // across), len(columns) + 1
    figure = Figure(figsize=(CARD[0] * across, CARD[1] * down + 0.9), layout="constrained")
    ratios = [*[1.0] * len(columns), 2.2] * across
    axes: Any = figure.subplots(down, wide * across, squeeze=False, width_ratios=ratios)
    cards = axes.reshape(-1, wide)
    for unused in cards[len(shown) :].flat:
        unused.set_axis_off()
    for k, (card, place) in enumerate(zip(cards, shown, strict=False)):
        for picture, images_KHW3 in zip(card, columns, strict=False):
            picture.imshow(images_KHW3[k], interpolation="nearest")
            picture.set(xticks=(), yticks=())
        _draw_chart(card[-1], answers, place)
    caption = (
        f"{len(shown)} of {count_of(len(answers.pictures), 'picture')}. Left: the picture as the "
        f"network sees it. {middle} Right: the {answers.kind} of each class; blue: chosen. An "
        "orange title: the chosen class is not the label."
    )
    return finish_figure(figure, f"cell {cell.name}: predictions", caption)


def reconstruct(cell: TrainedCell, pose_KJD: Tensor, top_KL: np.ndarray) -> np.ndarray:
    """Decode the chosen classes of each picture, one by one; return RGB images [K, H, W, 3]."""
    decoder = decoded.find_decoder(cell)
    drawn = [decoded.draw_from_class(decoder, pose_KJD, top_K).cpu().numpy() for top_K in top_KL.T]
    if len(drawn) == 1:
        return charts.to_rgb(drawn[0])
    return decoded.overlay_digits(np.stack(drawn, axis=1))


def _draw_chart(axes: Any, answers: "Answers", place: int) -> None:
    """Draw a bar for each class; of many classes, only those with the highest scores."""
    picture, scores_N = answers.pictures[place], answers.scores_MN[place]
    bars = np.sort(predict_classes(scores_N[None], MOST_BARS)[0])
    colours = [charts.COLOURS[0] if c in answers.top_ML[place] else "0.75" for c in bars]
    axes.barh(range(len(bars)), scores_N[bars], color=colours)
    axes.set_yticks(range(len(bars)), [answers.names[c] for c in bars], fontsize=5.5)
    axes.invert_yaxis()
    if answers.kind != "logit":
        axes.set_xlim(0, 1)
    axes.tick_params(axis="x", labelsize=6)
    axes.spines[["top", "right"]].set_visible(False)
    colour = charts.COLOURS[1] if answers.is_wrong(place) else "black"
    axes.set_title(picture.title[-40:], fontsize=7, loc="left", parse_math=False, color=colour)
