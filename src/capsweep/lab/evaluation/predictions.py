"""What a trained network says of a user's own pictures: `capsweep eval predict`.

Shape letters: M pictures, K drawn pictures, N = J classes, D pose of a class, L classes in one
image, C H W image.
"""

import csv
import io
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor

from capsweep.data.batches import Batch, Presenter
from capsweep.data.image_batches import ShiftedImages
from capsweep.data.images import EVALUATION_BATCH, LabelledImages
from capsweep.errors import UserError
from capsweep.lab.evaluation.checkpoint import TrainedCell, split_range
from capsweep.lab.evaluation.figures import decoded, finish_figure
from capsweep.lab.evaluation.pictures import Picture, PictureConverter
from capsweep.report import charts, grid
from capsweep.runtime import terminal
from capsweep.runtime.terminal import count_of
from capsweep.statistics.examples import predict_classes
from capsweep.storage.files import write_atomically, write_text
from capsweep.training import build

MOST_SHOWN = 20  # pictures in the drawing and in the printed table
MOST_LISTED = 5  # classes of one picture in the printed table
MOST_BARS = 10  # classes in the chart of one picture
SAMPLE = 1000  # training images whose mean is compared with the mean of the pictures
FAR = 0.2  # a difference of means (of values in 0..1) that is worth a message
WRONG = charts.COLOURS[1]  # the colour of the title of a picture with a wrong class
CARD = (4.6, 1.25)  # width and height in inches of a picture with its reconstruction and its chart


@dataclass
class Predictions:
    """The network's answers to the pictures that could be read.

    Attributes:
        stride: Of the pictures, those at index 0, `stride`, 2 `stride` and so on are shown.
        kind: What the scores are: `length` (of a class capsule), `activation` or `logit`.
        names: Names of the pictures.
        labels: Classes of the pictures; None if a picture has no class.
        scores: Scores [N] of each picture.
        inputs: Images [C, H, W] of the shown pictures, as the network sees them.
        poses: Poses [J, D] of the class capsules for `inputs`; empty if there are no capsules.
        sums: Sum of the values of all images, and number of values.
        faults: Pictures that could not be read, with their reasons.
    """

    stride: int
    kind: str = ""
    names: list[str] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    scores: list[np.ndarray] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    poses: list[Tensor] = field(default_factory=list)
    sums: np.ndarray = field(default_factory=lambda: np.zeros(2))
    faults: list[str] = field(default_factory=list)


def publish_predictions(
    cell: TrainedCell, pictures: Sequence[Picture], parsed: Namespace, folder: Path
) -> int:
    """Classify pictures; print a table, and write a table and a drawing.

    Args:
        cell: The trained cell.
        pictures: Pictures that `parsed.file` names.
        parsed: Options of the command: `file` and `invert`.
        folder: Folder for the table and the drawing.

    Returns:
        The number 1 if a picture could not be read, else 0.

    Raises:
        UserError: No picture could be read.
    """
    shown = cell.config["dataset"].get("labels_per_image", 1)
    converter = make_converter(cell, shown, parsed.invert)
    result = predict_pictures(cell, pictures, converter)
    if not result.names:
        raise UserError(f"--file {parsed.file}: no image could be read; {result.faults[0]}")
    classes = list(map(str, range(len(result.scores[0]))))
    top_ML = predict_classes(np.stack(result.scores), shown)
    rows = list_rows(result, top_ML, classes)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    stem = folder / f"{parsed.file.resolve().stem}{'-inverted' if parsed.invert else ''}"
    console = terminal.make_console()
    terminal.print_table(console, tabulate(result, rows, classes))
    for line in (*describe_result(cell, result, converter, top_ML, classes), *result.faults):
        terminal.print_paragraph(console, line)
    write_text(Path(f"{stem}.csv"), text.getvalue())
    picture = draw_predictions(cell, result, top_ML, classes)
    write_atomically(Path(f"{stem}.png"), lambda file: file.write(picture))
    console.out(f"{stem}.csv\n{stem}.png")
    return int(bool(result.faults))


def make_converter(cell: TrainedCell, shown: int, is_inverted: bool) -> PictureConverter:
    """Return an object that converts pictures to images like those in the data set's files.

    A picture that already has the size of the files' images, or of the network's input, keeps this
    size. If images are composed of several digits, all other pictures get the size of the network's
    input. Otherwise they get the size of the files' images.

    Args:
        cell: The trained cell.
        shown: Number of classes that each image of the data set shows.
        is_inverted: Whether bright and dark are exchanged.
    """
    channels, *source = cell.source_shape
    sizes = [(source[0], source[1]), tuple(cell.config["dataset"]["image_shape"][1:])]
    return PictureConverter(channels, sizes if shown == 1 else sizes[::-1], is_inverted)


def predict_pictures(
    cell: TrainedCell, pictures: Sequence[Picture], converter: PictureConverter
) -> Predictions:
    """Read, convert and classify pictures, EVALUATION_BATCH at a time."""
    result = Predictions(max(1, -(-len(pictures) // MOST_SHOWN)))
    present, label, device = (
        make_presenter(cell),
        torch.zeros(1, dtype=torch.int64),
        cell.test.device,
    )
    for part in split_range(len(pictures), EVALUATION_BATCH):
        images = []
        for picture in pictures[part]:
            try:
                pixels_CHW = converter.convert(picture.read())
            except Exception as error:  # a file that is no image can raise any exception
                result.faults.append(f"left out: {picture.name}: {describe_fault(error)}")
                continue
            result.names.append(picture.name)
            result.labels.append(picture.label)
            one = LabelledImages(torch.tensor(pixels_CHW[None]), label).to(device)
            images.append(present(one, "test").evaluation_batch(slice(0, 1)).images_BCHW)
        if images:
            _add_scores(cell, torch.cat(images), result)
    return result


def make_presenter(cell: TrainedCell) -> Presenter:
    """Return the function that prepares converted pictures like the cell's test images.

    If the data set composes its images of digits, pictures are shown as they are instead.
    """
    dataset = cell.config["dataset"]
    if dataset.get("labels_per_image", 1) > 1:
        return partial(ShiftedImages, shift=0, canvas=dataset["image_shape"][1])
    return build.build_presenter(cell.config)


def _add_scores(cell: TrainedCell, images_BCHW: Tensor, result: Predictions) -> None:
    batch = Batch(images_BCHW, torch.zeros(len(images_BCHW), dtype=torch.int64))
    result.sums += float(images_BCHW.double().sum()), images_BCHW.numel()
    with torch.no_grad():
        for part, output in cell.parts.evaluate(batch, lambda part: cell(part.images_BCHW)):
            scores_BN = output.scores_BN.float()
            shown = slice(-len(result.scores) % result.stride, None, result.stride)
            result.scores.extend(scores_BN.cpu().numpy())
            result.inputs.extend(part.images_BCHW[shown].cpu())
            result.kind = "logit"
            if output.pose_BJD is not None:
                result.poses.extend(output.pose_BJD.float()[shown])
                lengths_BJ = torch.linalg.vector_norm(output.pose_BJD.float(), dim=-1)
                is_length = torch.allclose(lengths_BJ, scores_BN, atol=1e-3)
                result.kind = "length" if is_length else "activation"
            if output.logits_BN is output.scores_BN:
                result.kind = "logit"


def describe_fault(error: Exception) -> str:
    """Return the reason why a picture could not be read, in one line."""
    is_unknown = type(error).__name__ == "UnidentifiedImageError"
    return "it is no image" if is_unknown else " ".join(str(error).split()) or type(error).__name__


def list_rows(
    result: Predictions, top_ML: np.ndarray, classes: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row for each picture by column: image, label, chosen classes, and all scores."""
    several = [f"class {place + 1}" for place in range(top_ML.shape[1])]
    answers = several if len(several) > 1 else ["class"]
    scored, rows = [f"{result.kind} {name}" for name in classes], []
    for place, top_L in enumerate(top_ML):
        row: dict[str, Any] = {"image": result.names[place]}
        if any(result.labels):
            row["label"] = result.labels[place]
        row |= dict(zip(answers, (classes[c] for c in top_L), strict=True))
        rows.append(row | dict(zip(scored, map(float, result.scores[place]), strict=True)))
    return rows


def tabulate(result: Predictions, rows: Sequence[dict[str, Any]], classes: Sequence[str]) -> Table:
    """Return a table of the shown pictures, each with the highest scores in order."""
    shown, scored = rows[:: result.stride], [f"{result.kind} {name}" for name in classes]
    header = [name for name in rows[0] if name not in scored]
    fields = []
    for row in shown:
        highest = sorted(zip((row[key] for key in scored), classes, strict=True), reverse=True)
        listed = ", ".join(f"{name} {score:.3f}" for score, name in highest[:MOST_LISTED])
        fields.append([*(row[name] or "" for name in header), listed])
    title = f"{len(shown)} of {count_of(len(rows), 'picture')}"
    return grid.grid_terminal(title, [*header, f"{result.kind}s, largest first"], fields)


def describe_result(
    cell: TrainedCell,
    result: Predictions,
    converter: PictureConverter,
    top_ML: np.ndarray,
    classes: Sequence[str],
) -> list[str]:
    """Return lines on the conversion of the pictures, on their brightness, and on the error."""
    changes = ", ".join(f"{count} {change}" for change, count in converter.counts.items())
    total = count_of(len(result.names), "picture")
    lines = [f"{total}: {changes or 'nothing was converted'}."]
    index = {name: place for place, name in enumerate(classes)}
    known = [
        (index[label], tops)
        for label, tops in zip(result.labels, top_ML, strict=True)
        if label in index
    ]
    if known and top_ML.shape[1] == 1:
        wrong = sum(label != tops[0] for label, tops in known)
        lines.append(f"error: {wrong} of {len(known)} ({100 * wrong / len(known):.2f} %).")
    if strange := sorted({label for label in result.labels if label and label not in index}):
        some = ", ".join(strange[:MOST_BARS])
        lines.append(f"no error for {some}: the classes are {', '.join(classes)[:200]}.")
    assert cell.train is not None
    trained = cell.train.evaluation_batch(slice(0, min(SAMPLE, len(cell.train)))).images_BCHW
    mean, own = float(trained.mean()), float(result.sums[0] / result.sums[1])
    if trained.min() >= 0 and abs(own - mean) > max(FAR, abs(1 - own - mean)):
        side = "brighter" if own > mean else "darker"
        cure = (
            "leave --invert out" if converter.is_inverted else "--invert exchanges bright and dark"
        )
        lines.append(
            f"The pictures are {side} than the training images (mean {own:.2f} against {mean:.2f} "
            f"on a scale from 0, black, to 1, white); {cure}."
        )
    return lines


def draw_predictions(
    cell: TrainedCell, result: Predictions, top_ML: np.ndarray, classes: Sequence[str]
) -> bytes:
    """Draw the shown pictures as the network sees them, reconstructions, and charts, as a PNG."""
    columns = [charts.to_rgb(charts.scale_images(torch.stack(result.inputs).numpy()))]
    top_KL = top_ML[:: result.stride]
    if result.poses and getattr(cell.network, "decoder", None) is not None:
        columns.append(reconstruct(cell, torch.stack(result.poses), top_KL))
    across = 1 if len(top_KL) <= 3 else 2
    down, wide = -(-len(top_KL) // across), len(columns) + 1
    figure = Figure(figsize=(CARD[0] * across, CARD[1] * down + 0.9), layout="constrained")
    ratios = [*[1.0] * len(columns), 2.2] * across
    axes: Any = figure.subplots(down, wide * across, squeeze=False, width_ratios=ratios)
    for each in axes.flat:
        each.set_axis_off()
    for k, top_L in enumerate(top_KL):
        row = axes[k // across, k % across * wide :][:wide]
        for column, picture_KHW3 in zip(row, columns, strict=False):
            column.imshow(picture_KHW3[k], interpolation="nearest")
            column.set_axis_on()
            column.set(xticks=(), yticks=())
            column.spines[:].set_color("0.75")
        place = k * result.stride
        label = result.labels[place]
        _draw_chart(row[-1], result.scores[place], top_L, classes)
        title = f"{result.names[place][-30:]}{'' if label is None else f', label {label}'}"
        is_wrong = label in classes and label not in [classes[c] for c in top_L]
        row[-1].set_title(
            title, fontsize=7, loc="left", parse_math=False, color=WRONG if is_wrong else "black"
        )
    chosen = "the largest" if top_KL.shape[1] == 1 else f"the {top_KL.shape[1]} largest"
    caption = (
        f"{len(top_KL)} of {count_of(len(result.names), 'picture')}. Left: the picture as the "
        f"network sees it. {describe_reconstruction(columns, top_KL)}Right: the {result.kind} of "
        f"each class; the network chooses {chosen}. Orange titles: the class is not the label."
    )
    return finish_figure(figure, f"cell {cell.name}: predictions", caption)


def describe_reconstruction(columns: Sequence[np.ndarray], top_KL: np.ndarray) -> str:
    """Return the sentence of the caption on the reconstructions, or why there are none."""
    if len(columns) == 1:
        return "The network has no decoder, so there is no reconstruction. "
    if top_KL.shape[1] == 1:
        return "Middle: what the decoder draws from the capsule of the chosen class. "
    return (
        "Middle: what the decoder draws from the first chosen class (red) and the second (green). "
    )


def reconstruct(cell: TrainedCell, pose_KJD: Tensor, top_KL: np.ndarray) -> np.ndarray:
    """Decode the chosen classes of each picture, one by one; return RGB images [K, H, W, 3]."""
    drawn = [
        decoded.draw_from_class(decoded.find_decoder(cell), pose_KJD, top_K).cpu().numpy()
        for top_K in top_KL.T
    ]
    return (
        charts.to_rgb(drawn[0]) if len(drawn) == 1 else decoded.overlay_digits(np.stack(drawn, 1))
    )


def _draw_chart(axes: Any, scores_N: np.ndarray, top_L: np.ndarray, classes: Sequence[str]) -> None:
    """Draw a bar for each class; of many classes, only those with the highest scores."""
    shown = np.sort(predict_classes(scores_N[None], MOST_BARS)[0])
    colours = [charts.COLOURS[0] if c in top_L else "0.75" for c in shown]
    axes.set_axis_on()
    axes.barh(range(len(shown)), scores_N[shown], color=colours)
    axes.set_yticks(range(len(shown)), [classes[c] for c in shown], fontsize=5.5)
    axes.invert_yaxis()
    if scores_N.min() >= 0:
        axes.set_xlim(0, 1)
    axes.tick_params(axis="x", labelsize=6)
    axes.spines[["top", "right"]].set_visible(False)
