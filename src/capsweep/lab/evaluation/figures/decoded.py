"""What the decoder draws for test examples: figures 3 and 5 of "Dynamic Routing Between Capsules".

The decoder gets the pose of one chosen class capsule; all others are masked.

Shape letters: K examples or columns, N = J classes, D class pose, L classes shown in one image, C H
W image.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.checkpoint import CellLoader, TrainedCell
from capsweep.lab.evaluation.figures import Drawing
from capsweep.report import charts
from capsweep.report.charts import Grid
from capsweep.runtime.terminal import count_of
from capsweep.statistics.examples import find_wrong, predict_classes

# Arrays with an axis over the classes of an image.
BY_CLASS = ("labels", "predictions", "drawn_from", "reconstructions")


def draw_reconstructions(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure of test examples and their reconstructions.

    Correct examples come first, reconstructed from the capsule of their label. Each failure follows
    twice: reconstructed from the capsule of its label, then from the capsule of the predicted
    class.
    """
    arrays, examples = draw_columns(loader.load(name), options, classes=1)
    arrays |= {key: array[:, 0] for key, array in arrays.items() if key in BY_CLASS}
    classes = zip(arrays["labels"], arrays["predictions"], arrays["drawn_from"], strict=True)
    above = [f"({label}, {said}, {drawn})" for label, said, drawn in classes]
    caption = (
        "(l, p, r): label, prediction, and the class whose capsule is drawn, all others masked; "
        f"{examples}; each failure is drawn from its label's capsule, then its prediction's; "
        f"{charts.SCALED}"
    )
    below_KHW3 = charts.to_rgb(arrays["reconstructions"])
    yield _make_drawing(("reconstructions", name), options, arrays, below_KHW3, above, caption)


def draw_segmentation(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure of overlapping digits, which the decoder draws one by one.

    Correct examples come first, drawn from the capsules of their labels. Each failure follows
    twice: drawn from the capsules of its labels, then from the capsules of the predicted classes.
    """
    arrays, examples = draw_columns(loader.load(name), options, classes=2)
    above = []
    for drawn, labels in zip(arrays["drawn_from"], arrays["labels"], strict=True):
        predicted = "P:" if (drawn != labels).any() else ""
        above.append(f"R:{predicted}({drawn[0]},{drawn[1]})\nL:({labels[0]},{labels[1]})")
    caption = (
        "L: labels; R: the classes whose capsules are drawn one by one, all others masked, the "
        f"first in red, the second in green, pixels of both in yellow; {examples} (correct: the "
        "two most active classes are the labels); each failure is drawn from its labels, then from "
        "the predictions (P)"
    )
    below_KHW3 = overlay_digits(arrays["reconstructions"])
    yield _make_drawing(("segmentation", name), options, arrays, below_KHW3, above, caption)


def overlay_digits(drawn_KLCHW: np.ndarray) -> np.ndarray:
    """Overlay two drawn digits in one image [K, H, W, 3].

    The first is red, the second is green, and pixels of both are yellow.
    """
    intensity_KLHW = drawn_KLCHW.max(axis=2).clip(0, 1)
    red_KHW, green_KHW = intensity_KLHW[:, 0], intensity_KLHW[:, 1]
    return np.stack([red_KHW, green_KHW, np.zeros_like(red_KHW)], axis=-1)


def _make_drawing(
    names: tuple[str, str],
    options: Namespace,
    arrays: dict[str, np.ndarray],
    below_KHW3: np.ndarray,
    above: Sequence[str],
    caption: str,
) -> Drawing:
    """Make a drawing with a row of inputs above and a row of decoded images below.

    Args:
        names: Name of the figure, and signature of the cell.
        options: Options of the command.
        arrays: Numbers of the drawing.
        below_KHW3: Decoded images.
        above: Text above each column.
        caption: Caption of the figure.
    """
    figure, cell = names
    tiles = np.stack([charts.to_rgb(charts.scale_images(arrays["images"])), below_KHW3])
    grid = Grid(tiles, ("input", "output"), above, f"cell {cell}: {figure}", caption)
    stem = f"{figure}-correct{options.correct}-failures{options.failures}"
    return Drawing(stem, arrays, charts.draw_grid(grid), caption)


def draw_columns(
    cell: TrainedCell, options: Namespace, classes: int
) -> tuple[dict[str, np.ndarray], str]:
    """Decode some test examples into columns of images.

    The first correct examples have one column each, decoded from the capsules of their labels. The
    first failures have two columns each: decoded from their labels, then from the predicted
    classes.

    Args:
        cell: The trained cell.
        options: `correct` and `failures`, the numbers of correct and of failed examples to decode.
        classes: Number of classes that each image must show.

    Returns:
        Arrays by name, and a text that says which examples they show. Two arrays are added to those
        of `run_network`: `drawn_from` [K, L] has the decoded classes, and `reconstructions` [K, L,
        C, H, W] has the decoded images.

    Raises:
        NotApplicableError: The network has no decoder, images show another number of classes, or
            `options` select no example.
    """
    decoder, labels = find_decoder(cell), cell.stored[1]
    shown = labels.reshape(len(labels), -1).shape[1]
    if shown != classes:
        cure = "draw segmentation" if classes == 1 else "segmentation needs dataset=multimnist"
        raise NotApplicableError(f"each of its images has {count_of(shown, 'label')}; {cure}")
    wrong_M = find_wrong(*cell.stored)
    right, wrong = np.flatnonzero(~wrong_M), np.flatnonzero(wrong_M)
    correct, failures = right[: options.correct], wrong[: options.failures]
    places = [*correct.tolist(), *failures.repeat(2).tolist()]
    if not places:
        raise NotApplicableError("no test example is selected; raise --correct or --failures")
    arrays, pose_KJD = run_network(cell, places)
    from_KL = arrays["labels"].copy()
    from_KL[len(correct) + 1 :: 2] = arrays["predictions"][len(correct) + 1 :: 2]
    drawn = draw_from_class(decoder, pose_KJD.repeat_interleave(shown, dim=0), from_KL.reshape(-1))
    drawn_KLCHW = drawn.unflatten(0, (-1, shown)).cpu().numpy()
    text = (
        f"the first {len(correct)} of {len(right)} examples that are classified correctly, and the "
        f"first {len(failures)} of {len(wrong)} failures among {len(wrong_M)} test examples"
    )
    return {**arrays, "drawn_from": from_KL, "reconstructions": drawn_KLCHW}, text


def find_decoder(cell: TrainedCell) -> nn.Module:
    """Return the decoder of a cell's network.

    Raises:
        NotApplicableError: The network has no decoder.
    """
    decoder = getattr(cell.network, "decoder", None)
    if not isinstance(decoder, nn.Module):
        raise NotApplicableError(
            "its network has no decoder; train a model with a decoder and "
            "loss.reconstruction.weight=0.0005"
        )
    return decoder


def run_network(cell: TrainedCell, places: Sequence[int]) -> tuple[dict[str, np.ndarray], Tensor]:
    """Run the network on some test examples.

    The arrays of the result:

        places        indices of the examples
        images        inputs of the network [K, C, H, W]
        labels        classes that are shown [K, L]
        predictions   the L classes with the highest scores [K, L]; labels are in their own column
        digits        the single digits of images with overlapping digits [K, L, C, H, W]

    Args:
        cell: The trained cell.
        places: Indices of the examples in the test set; an index may be repeated.

    Returns:
        Arrays by name, and the class poses [K, J, D].

    Raises:
        NotApplicableError: The network has no class capsules.
        UserError: An example that is no near tie is classified differently from the stored
            prediction; the error names the cell.
    """
    batches = [cell.test.evaluation_batch(slice(place, place + 1)) for place in places]
    images_KCHW = torch.cat([batch.images_BCHW for batch in batches])
    digits = [batch.targets_BLCHW for batch in batches if batch.targets_BLCHW is not None]
    labels = torch.cat([batch.labels for batch in batches]).cpu().numpy()
    with torch.no_grad():
        output = cell(images_KCHW)
    if output.pose_BJD is None:
        raise NotApplicableError("its network has no class capsules")
    scores_KN = output.scores_BN.float().cpu().numpy()
    cell.count_ties((scores_KN, labels), places)
    labels_KL = labels.reshape(len(places), -1)
    arrays = {
        "places": np.array(places),
        "images": images_KCHW.cpu().numpy(),
        "labels": labels_KL,
        "predictions": match_predictions(scores_KN, labels_KL),
    }
    if digits:
        arrays["digits"] = torch.cat(digits).cpu().numpy()
    return arrays, output.pose_BJD.float()


def match_predictions(scores_KN: np.ndarray, labels_KL: np.ndarray) -> np.ndarray:
    """Return the L highest-scored classes of each example [K, L].

    A predicted class that is a label is in the column of this label. The other predicted classes
    fill the remaining columns, ordered by score.
    """
    rows = []
    highest_KL = predict_classes(scores_KN, labels_KL.shape[1])
    for highest, labels in zip(highest_KL.tolist(), labels_KL.tolist(), strict=True):
        others = iter([label for label in highest if label not in labels])
        rows.append([label if label in highest else next(others) for label in labels])
    return np.array(rows, dtype=labels_KL.dtype).reshape(labels_KL.shape)


def draw_from_class(decoder: nn.Module, pose_KJD: Tensor, class_K: np.ndarray) -> Tensor:
    """Decode one class capsule of each example. All other capsules are masked, as in training.

    Args:
        decoder: Decoder of the network.
        pose_KJD: Class poses of each example.
        class_K: For each example, the class whose capsule is decoded.

    Returns:
        Images [K, C, H, W] with values in 0..1.
    """
    classes_K = torch.as_tensor(class_K, device=pose_KJD.device)
    only_KJ = nn.functional.one_hot(classes_K, pose_KJD.shape[1]).to(pose_KJD.dtype)
    with torch.no_grad():
        return decoder(pose_KJD, only_KJ)
