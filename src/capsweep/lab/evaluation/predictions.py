"""What a trained network says of a user's own pictures: `capsweep eval predict`.

Shape letters: M pictures, K shown pictures, N = J classes, D pose of a class, L classes in one
image, C H W image.
"""

import csv
import io
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional as F

from capsweep.config.cell import name_classes
from capsweep.data.arrays import read_images
from capsweep.data.batches import Batch, Presenter
from capsweep.data.image_batches import ShiftedImages
from capsweep.data.images import EVALUATION_BATCH, LabelledImages
from capsweep.data.pictures import decode_picture
from capsweep.errors import UserError
from capsweep.lab.evaluation.checkpoint import TrainedCell, split_range
from capsweep.lab.evaluation.figures.predicted import draw_predictions
from capsweep.model.capsules import NetworkOutput
from capsweep.runtime import terminal
from capsweep.runtime.terminal import count_of
from capsweep.statistics.examples import predict_classes
from capsweep.storage.checked import open_npz
from capsweep.storage.files import write_atomically, write_text
from capsweep.training import build

# How the arrays of an .npz file may be called.
IMAGES, LABELS = ("images", "test_images", "x_test"), ("labels", "test_labels", "y_test")
MOST_SHOWN = 20  # pictures in the drawing and in the printed table
MOST_LISTED = 5  # classes of one picture in the printed table
SAMPLE = 1000  # training images whose mean is compared with the mean of the pictures
FAR = 0.2  # a difference of means (of values in 0..1) that is worth a message


class Picture(NamedTuple):
    """A picture that is not read yet.

    Attributes:
        name: Path of the file below the folder that the user named, or its index in an .npz file.
        label: Class of the picture: the name of its folder, or its label in an .npz file; None if
            the picture has no class.
        read: Function that returns the picture, uint8 [C, H, W]. It may stretch the picture to the
            height and width that it gets, if this argument is not None.
    """

    name: str
    label: str | None
    read: Callable[[tuple[int, int] | None], np.ndarray]

    @property
    def title(self) -> str:
        """The name and, if it is known, the label."""
        return self.name + ("" if self.label is None else f" (label {self.label})")


@dataclass(frozen=True)
class PictureReader:
    """A reader that prepares pictures in the way in which the test images of a cell are prepared.

    A picture keeps its size if this is the size of the images in the data set's files, or that of
    the network's input. Other pictures are stretched to the size of the images in the files. If the
    data set composes images of several digits, they are stretched to the size of the input instead.

    Attributes:
        cell: The trained cell.
        is_inverted: Whether bright and dark are exchanged.
        changes: Number of pictures by the way in which they were changed.
    """

    cell: TrainedCell
    is_inverted: bool
    changes: Counter[str] = field(default_factory=Counter[str])

    @cached_property
    def classes_per_image(self) -> int:
        """The number of classes that each image of the data set shows."""
        return self.cell.config["dataset"].get("labels_per_image", 1)

    @cached_property
    def present(self) -> Presenter:
        """The function that makes batches. It shows composed pictures as they are."""
        if self.classes_per_image == 1:
            return build.build_presenter(self.cell.config)
        side = self.cell.config["dataset"]["image_shape"][1]
        return partial(ShiftedImages, shift=0, canvas=side)

    def read(self, picture: Picture) -> Tensor:
        """Return a picture as the network's input [1, C, H, W].

        Raises:
            Exception: The file is no picture; it can be any exception.
        """
        channels, *file_size = self.cell.source_shape
        input_size = self.cell.config["dataset"]["image_shape"][1:]
        height, width = file_size if self.classes_per_image == 1 else input_size
        pixels_CHW = picture.read(None)
        if [*pixels_CHW.shape[1:]] not in (input_size, file_size):
            self.changes[f"stretched to {height}x{width} pixels"] += 1
            pixels_CHW = picture.read((height, width))
        if len(pixels_CHW) == 3 != channels:
            self.changes["made grey"] += bool((pixels_CHW != pixels_CHW[:1]).any())
            colours = Image.fromarray(pixels_CHW.transpose(1, 2, 0))
            pixels_CHW = np.asarray(colours.convert("L"))[None]
        if len(pixels_CHW) == 1:
            pixels_CHW = pixels_CHW.repeat(channels, axis=0)
        pixels_1CHW = torch.tensor(255 - pixels_CHW if self.is_inverted else pixels_CHW)[None]
        one = LabelledImages(pixels_1CHW, torch.zeros(1).long()).to(self.cell.test.device)
        return self.present(one, "test").evaluation_batch(slice(0, 1)).images_BCHW


@dataclass(frozen=True)
class Answers:
    """A network's answers to pictures.

    Attributes:
        pictures: Pictures that could be read.
        scores_MN: Scores of the classes.
        top_ML: Classes that the network chooses.
        names: Names of the classes.
        kind: What the scores are: `length` (of a class capsule), `activation` or `logit`.
    """

    pictures: Sequence[Picture]
    scores_MN: np.ndarray
    top_ML: np.ndarray
    names: Sequence[str]
    kind: str

    def list_rows(self) -> Iterator[list[Any]]:
        """Yield the header of the table, and a row for each picture."""
        count = self.top_ML.shape[1]
        chosen = [f"class {place + 1}" for place in range(count)] if count > 1 else ["class"]
        yield ["image", "label", *chosen, *(f"{self.kind} {name}" for name in self.names)]
        scores, tops = self.scores_MN.tolist(), self.top_ML.tolist()
        for picture, scores_N, top_L in zip(self.pictures, scores, tops, strict=True):
            yield [picture.name, picture.label, *(self.names[c] for c in top_L), *scores_N]

    def describe(self, place: int) -> str:
        """Return a line about a picture: its name, its label, and its highest scores."""
        picture, scores_N = self.pictures[place], self.scores_MN[place]
        (highest,) = predict_classes(scores_N[None], MOST_LISTED)
        listed = ", ".join(f"{self.names[c]} ({scores_N[c]:.3f})" for c in highest)
        return f"{picture.title}: {listed}"

    def is_wrong(self, place: int) -> bool | None:
        """Return whether the class of a picture is not its label; None if no label is known."""
        label = self.pictures[place].label
        return None if label not in self.names else label != self.names[self.top_ML[place, 0]]


def list_pictures(path: Path) -> list[Picture]:
    """List the pictures of an image file, an .npz file, or a folder with all its subfolders.

    Files of a folder are sorted by path. Hidden files are left out.

    Raises:
        UserError: There are no files, or the arrays of the .npz file are not images.
    """
    if path.suffix == ".npz":
        return _list_arrays(path)
    root, files = (path, sorted(path.rglob("[!.]*"))) if path.is_dir() else (path.parent, [path])
    pictures = [
        Picture(
            str(file.relative_to(root)),
            None if file.parent == root else file.parent.name,
            partial(decode_picture, file),
        )
        for file in files
        if file.is_file()
    ]
    if not pictures:
        cure = "name an image, a folder of images, or an .npz file"
        raise UserError(f"--file {path}: there are no files; {cure}")
    return pictures


def _list_arrays(path: Path) -> list[Picture]:
    try:
        with path.open("rb") as file, open_npz(file) as archive:
            present = [name for name in IMAGES if name in archive.files]
            images = read_images(archive, present[0]) if present else None
            labels = next((archive[name] for name in LABELS if name in archive.files), None)
        if images is None or images.dtype != np.uint8:
            raise ValueError(f"it needs an array {' or '.join(IMAGES)} of uint8 intensities")
        images_NCHW = torch.from_numpy(images)
        names = [None] * len(images) if labels is None else map(str, labels.flatten().tolist())
        return [
            Picture(f"{path.stem}[{place}]", name, partial(_read_array, image_CHW))
            for place, (image_CHW, name) in enumerate(zip(images_NCHW, names, strict=True))
        ]
    except Exception as error:  # zipfile and numpy can raise any error for a damaged file
        raise UserError(f"--file {path}: {error}") from error


def _read_array(image_CHW: Tensor, size: tuple[int, int] | None) -> np.ndarray:
    if size is None:
        return image_CHW.numpy()
    return F.interpolate(image_CHW[None], size, mode="bilinear", antialias=True)[0].numpy()


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
    reader, faults = PictureReader(cell, parsed.invert), list[str]()
    readable, scores = predict_pictures(reader, pictures, faults)
    if not readable:
        raise UserError(f"--file {parsed.file}: no picture could be read; {faults[0]}")
    lines = [f"{how}: {count_of(n, 'picture')}." for how, n in reader.changes.items() if n]
    shown = range(0, len(readable), -(-len(readable) // MOST_SHOWN))
    inputs_KCHW = torch.cat([reader.read(readable[place]) for place in shown])
    with torch.no_grad():
        output = cell(inputs_KCHW)
    scores_MN = np.concatenate(scores)
    names = name_classes(cell.config)
    numbers = {str(number): name for number, name in enumerate(names) if str(number) not in names}
    readable = [each._replace(label=numbers.get(each.label or "", each.label)) for each in readable]
    top_ML = predict_classes(scores_MN, reader.classes_per_image)
    answers = Answers(readable, scores_MN, top_ML, names, name_scores(output))
    console, text = terminal.make_console(), io.StringIO()
    console.out(
        f"{len(shown)} of {count_of(len(readable), 'picture')}, with the largest {answers.kind}s:",
        *map(answers.describe, shown),
        sep="\n",
    )
    lines += [*describe_errors(answers), *describe_brightness(reader, inputs_KCHW)]
    lines += faults[:MOST_SHOWN]
    if (more := len(faults) - MOST_SHOWN) > 0:
        lines.append(f"left out: {more:,} more files")
    terminal.print_paragraphs(console, *lines)
    stem = folder / f"{parsed.file.resolve().stem}{'-inverted' * parsed.invert}"
    csv.writer(text, lineterminator="\n").writerows(answers.list_rows())
    write_text(Path(f"{stem}.csv"), text.getvalue())
    picture = draw_predictions(cell, answers, shown, inputs_KCHW, output)
    write_atomically(Path(f"{stem}.png"), lambda file: file.write(picture))
    console.out(f"{stem}.csv\n{stem}.png")
    return int(bool(faults))


def predict_pictures(
    reader: PictureReader, pictures: Sequence[Picture], faults: list[str]
) -> tuple[list[Picture], list[np.ndarray]]:
    """Classify pictures, EVALUATION_BATCH at a time.

    Returns:
        The pictures that could be read, and their scores [B, N], batch by batch. For each other
        picture, a line is added to `faults`.
    """
    readable, scores = list[Picture](), list[np.ndarray]()
    for part in split_range(len(pictures), EVALUATION_BATCH):
        inputs = []
        for picture in pictures[part]:
            try:
                inputs.append(reader.read(picture))
            except Exception as error:  # Pillow can raise any exception for a damaged file
                is_other = isinstance(error, UnidentifiedImageError)
                faults.append(
                    f"left out: {picture.name}: {'it is no picture' if is_other else error}"
                )
            else:
                readable.append(picture)
        if inputs:
            batch = Batch(torch.cat(inputs), torch.zeros(len(inputs)).long())
            scores.append(reader.cell.predict_batch(batch).float().numpy())
    return readable, scores


def name_scores(output: NetworkOutput) -> str:
    """Return what the scores of a network are: `length`, `activation` or `logit`."""
    if output.pose_BJD is None or output.logits_BN is output.scores_BN:
        return "logit"
    length_BJ = torch.linalg.vector_norm(output.pose_BJD.float(), dim=-1)
    return (
        "length" if torch.allclose(length_BJ, output.scores_BN.float(), atol=1e-3) else "activation"
    )


def describe_errors(answers: Answers) -> Iterator[str]:
    """Yield lines on the error, and on labels that are no classes."""
    judged = [answers.is_wrong(place) for place in range(len(answers.pictures))]
    known = [is_wrong for is_wrong in judged if is_wrong is not None]
    if known and answers.top_ML.shape[1] == 1:
        share = 100 * sum(known) / len(known)
        yield f"error: {sum(known)} of {len(known)} ({share:.2f} %)."
    if strange := {picture.label for picture in answers.pictures} - {None, *answers.names}:
        right = ", ".join(answers.names[:MOST_SHOWN])
        yield f"no error for label {', '.join(map(str, strange))}: the classes are {right}."


def describe_brightness(reader: PictureReader, inputs_KCHW: Tensor) -> Iterator[str]:
    """Yield a line if the inverted pictures would be more like the training images.

    Means are compared. Data sets that scale images to other values than 0..1 get no line.
    """
    train = reader.cell.train
    seen = train.evaluation_batch(slice(0, min(SAMPLE, len(train)))).images_BCHW
    usual, mean = float(seen.mean()), float(inputs_KCHW.mean())
    if seen.min() >= 0 and abs(mean - usual) > max(FAR, abs(1 - mean - usual)):
        cure = "leave out --invert" if reader.is_inverted else "type --invert"
        yield (
            f"the pictures are {'brighter' if mean > usual else 'darker'} than the training images "
            f"(mean {mean:.2f} against {usual:.2f}, where 0 is black and 1 is white); to exchange "
            f"bright and dark, {cure}."
        )
