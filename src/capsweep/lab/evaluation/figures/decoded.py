"""What the decoder draws: figures 3, 4 and 5 of "Dynamic Routing Between Capsules".

The figures show reconstructions of test examples, what each dimension of a class pose represents
(perturbations), and overlapping digits one by one (segmentation). The decoder gets the pose of one
chosen class capsule; all other class capsules are masked.

Shape letters: K examples or columns, M test examples, N = J classes, D dimensions of a class pose,
T tweaks, L classes in one image, C H W image.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.checkpoint import TrainedCell
from capsweep.lab.evaluation.figures import Drawing
from capsweep.ledger.ledger import Predictions
from capsweep.report import charts
from capsweep.runtime.terminal import count_of
from capsweep.statistics.examples import find_wrong, predict_classes

# Names of the arrays in which axis 1 has the classes of an image.
BY_CLASS = ("labels", "predictions", "drawn_from", "reconstructions")
TWEAKS = np.arange(-5, 6) / 20  # -0.25 to 0.25 in steps of 0.05; the middle number is exactly 0
SIDE = 84  # width of each image in pixels; small, because a page has many images


def draw_reconstructions(cell: TrainedCell, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure of test examples and their reconstructions.

    The first columns show up to `options.correct` correctly classified examples, reconstructed from
    the capsule of the label. Then up to `options.failures` wrongly classified examples have two
    columns each: the first is reconstructed from the capsule of the label, the second from the
    capsule of the predicted class.

    Raises:
        NotApplicableError: The network has no decoder or no class capsules, the images show several
            classes, or `options` select no example.
        UserError: The network does not reproduce the stored predictions.
    """
    arrays, examples = draw_columns(cell, options, classes=1)
    arrays |= {key: array[:, 0] for key, array in arrays.items() if key in BY_CLASS}
    classes = zip(arrays["labels"], arrays["predictions"], arrays["drawn_from"], strict=True)
    above = [f"({label}, {said}, {drawn})" for label, said, drawn in classes]
    caption = (
        "(l, p, r): label, prediction, and the class whose capsule is drawn, all others masked; "
        f"{examples}; each failure is drawn from its label's capsule, then its prediction's; "
        f"{charts.SCALED}"
    )
    below_KHW3 = charts.to_rgb(arrays["reconstructions"])
    yield _make_drawing("reconstructions", cell, options, arrays, below_KHW3, above, caption)


def draw_segmentation(cell: TrainedCell, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure of overlapping digits. The decoder draws each digit separately.

    The first columns show up to `options.correct` correctly classified examples, drawn from the
    capsules of the labels. Then up to `options.failures` wrongly classified examples have two
    columns each: the first is drawn from the capsules of the labels, the second from the capsules
    of the predicted classes.

    Raises:
        NotApplicableError: The network has no decoder or no class capsules, the images do not show
            two classes, or `options` select no example.
        UserError: The network does not reproduce the stored predictions.
    """
    arrays, examples = draw_columns(cell, options, classes=2)
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
    yield _make_drawing("segmentation", cell, options, arrays, below_KHW3, above, caption)


def overlay_digits(drawn_KLCHW: np.ndarray) -> np.ndarray:
    """Overlay the two drawn digits of each example in one RGB image [K, H, W, 3].

    The first digit is red, the second is green, and pixels of both digits are yellow.
    """
    intensity_KLHW = drawn_KLCHW.max(axis=2).clip(0, 1)
    red_KHW, green_KHW = intensity_KLHW[:, 0], intensity_KLHW[:, 1]
    return np.stack([red_KHW, green_KHW, np.zeros_like(red_KHW)], axis=-1)


def _make_drawing(
    figure: str,
    cell: TrainedCell,
    options: Namespace,
    arrays: dict[str, np.ndarray],
    below_KHW3: np.ndarray,
    above: Sequence[str],
    caption: str,
) -> Drawing:
    """Make a drawing with a row of inputs above and a row of decoded images below.

    Args:
        figure: Name of the figure.
        cell: The trained cell.
        options: Options of the command. `correct` and `failures` are parts of the file names.
        arrays: Numbers to store with the picture; `images` has the inputs of the upper row.
        below_KHW3: Decoded images of the lower row.
        above: Text above each column.
        caption: Caption of the figure.
    """
    tiles = np.stack([charts.to_rgb(charts.scale_images(arrays["images"])), below_KHW3])
    title = f"cell {cell.name}: {figure}"
    picture = charts.draw_grid(tiles, ("input", "output"), above, title, caption)
    stem = f"{figure}-correct{options.correct}-failures{options.failures}"
    return Drawing(stem, arrays, picture, caption)


def draw_columns(
    cell: TrainedCell, options: Namespace, classes: int
) -> tuple[dict[str, np.ndarray], str]:
    """Decode test examples for the columns of a figure.

    The first correctly classified examples have one column each, decoded from the capsules of the
    labels. The first wrongly classified examples have two columns each. The first column is decoded
    from the capsules of the labels, the second from the capsules of the predicted classes.

    Args:
        cell: The trained cell.
        options: Options of the command. At most `correct` correctly classified examples and
            `failures` wrongly classified examples are decoded.
        classes: Number of classes that each image must show.

    Returns:
        Arrays by name, and a text that says which examples are decoded. The arrays are those of
        `run_network` and two more: `drawn_from` has the decoded classes [K, L], and
        `reconstructions` has the decoded images [K, L, C, H, W].

    Raises:
        NotApplicableError: The network has no decoder or no class capsules, the images do not show
            `classes` classes, or `options` select no example.
        UserError: The network does not reproduce the stored predictions of these examples.
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
        labels        classes in each image [K, L]
        predictions   the L classes with the highest scores, sorted by `match_predictions` [K, L]
        digits        single digits [K, L, C, H, W]; only if images show overlapping digits

    Args:
        cell: The trained cell.
        places: Indices of the examples in the test set; an index may be repeated.

    Returns:
        Arrays by name, and the class poses [K, J, D].

    Raises:
        NotApplicableError: The network has no class capsules.
        UserError: The network does not reproduce the stored predictions of these examples (see
            `TrainedCell.count_ties`); the error names the cell.
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
    """Return the L classes with the highest scores for each example [K, L].

    If one of these classes is a label, the class is in the column of this label. The other classes
    fill the remaining columns, in the order of their scores.
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
        pose_KJD: Poses of the class capsules.
        class_K: For each example, the class whose capsule is decoded.

    Returns:
        Images [K, C, H, W] with values in 0..1.
    """
    classes_K = torch.as_tensor(class_K, device=pose_KJD.device)
    only_KJ = nn.functional.one_hot(classes_K, pose_KJD.shape[1]).to(pose_KJD.dtype)
    with torch.no_grad():
        return decoder(pose_KJD, only_KJ)


def draw_perturbations(cell: TrainedCell, options: Namespace) -> Iterator[Drawing]:
    """Yield a page for each class in the test labels.

    The page shows how each dimension of the class pose changes the decoded image.

    Raises:
        NotApplicableError: The network has no decoder or no class capsules.
        UserError: The network does not reproduce the stored predictions.
    """
    for page in tweak_poses(cell, find_first(cell.stored)):
        caption, label = _describe_page(page), page["label"]
        picture = _draw_page(page, f"cell {cell.name}: perturbations of class {label}", caption)
        yield Drawing(f"perturbations-class{label}", page, picture, caption)


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
    decoder = find_decoder(cell)
    arrays, pose_KJD = run_network(cell, [place for _, place in pairs])
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
    drawn = draw_from_class(decoder, pose_DTJD.flatten(0, 1), class_K)
    return drawn.unflatten(0, (dimensions, len(TWEAKS)))


def _draw_page(page: Mapping[str, Any], title: str, caption: str) -> bytes:
    """Draw the page of a class, and return the PNG.

    The first column has the input of the network, in the first row only. The other columns are a
    grid of decoded images: a row for each dimension of the pose, and a column for each tweak.
    """
    drawn_DTHW3 = np.stack([charts.to_rgb(row) for row in page["reconstructions"]])
    left_D1HW3 = np.full_like(drawn_DTHW3[:, :1], np.nan)
    left_D1HW3[0] = charts.to_rgb(charts.scale_images(page["image"][None]))
    tiles_RKHW3 = np.concatenate([left_D1HW3, drawn_DTHW3], axis=1)
    beside = [f"dimension {d}" for d in range(len(drawn_DTHW3))]
    above = ["input", *(f"{tweak:+.2f}" if tweak else "0" for tweak in TWEAKS)]
    return charts.draw_grid(tiles_RKHW3, beside, above, title, caption, SIDE)


def _describe_page(page: Mapping[str, Any]) -> str:
    """Return the caption of a page. The caption says how the page was made."""
    return (
        f"test example {page['place']}, classified as {page['prediction']}; drawn only from the "
        f"capsule of its class {page['label']}, of length {page['length']:.3g}; each row changes "
        "one dimension of the capsule's pose by -0.25 to 0.25 in steps of 0.05, and so also the "
        f"capsule's length; column 0 is the unchanged reconstruction; {charts.SCALED}"
    )
