"""Figure 4 of "Dynamic Routing Between Capsules": what each dimension of a class pose stands for.

Shape letters: J classes, D class pose, T tweaks, C H W image.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from capsweep.evaluation import decoded
from capsweep.evaluation.decoded import Stored
from capsweep.evaluation.trained import Trained
from capsweep.statistics.examples import find_wrong

TWEAKS = np.arange(-5, 6) / 20  # -0.25 to 0.25 by 0.05; the middle one is exactly 0


@dataclass(frozen=True)
class Perturbed:
    """One example drawn with each dimension of its class capsule's pose tweaked by itself.

    label: the class whose capsule that is. prediction: what the network says in its place. length:
    of the capsule, untouched. drawn_DTCHW: in 0..1. digit_CHW: what the decoder shall draw, where
    that is not the image.
    """

    place: int
    label: int
    prediction: int
    length: float
    image_CHW: np.ndarray
    digit_CHW: np.ndarray | None
    drawn_DTCHW: np.ndarray


def first_of_classes(stored: Stored, classes: Sequence[int] | None) -> list[tuple[int, int]]:
    """(class, place) for each class: its first correctly classified example, else its first.

    classes: None: every class that the test examples show; one that they do not show has none.
    """
    labels_ML, wrong_M = stored[1].reshape(len(stored[1]), -1), find_wrong(*stored)
    found = []
    for label in np.unique(labels_ML).tolist() if classes is None else classes:
        shows_M = (labels_ML == label).any(axis=1)
        for among_M in (shows_M & ~wrong_M, shows_M):
            if among_M.any():
                found.append((label, int(among_M.argmax())))
                break
    return found


def of_examples(stored: Stored, places: Sequence[int]) -> list[tuple[int, int]]:
    """(class, place) for each class that each of these examples shows."""
    labels_KL = stored[1][list(places)].reshape(len(places), -1)
    return [
        (label, place)
        for place, labels in zip(places, labels_KL.tolist(), strict=True)
        for label in labels
    ]


def of(trained: Trained, stored: Stored, asked: Sequence[tuple[int, int]]) -> Iterator[Perturbed]:
    """Each (class, place) asked. Raises NotApplicableError for a network without a decoder."""
    decoder = decoded.decoder_of(trained)
    examples = decoded.ask(trained, stored, [place for _, place in asked])
    digits = examples.digits_KLCHW
    for k, (label, place) in enumerate(asked):
        shown = examples.labels_KL[k].tolist().index(label)
        pose_JD = examples.pose_KJD[k]
        yield Perturbed(
            place=place,
            label=label,
            prediction=int(examples.predictions_KL[k, shown]),
            length=float(pose_JD[label].norm()),
            image_CHW=examples.images_KCHW[k].cpu().numpy(),
            digit_CHW=None if digits is None else digits[k, shown].cpu().numpy(),
            drawn_DTCHW=tweaked(decoder, pose_JD, label).cpu().numpy(),
        )


def tweaked(decoder: nn.Module, pose_JD: Tensor, label: int) -> Tensor:
    """[D, T, C, H, W]: drawn with TWEAKS added to each dimension of the pose of class `label`."""
    dimensions = pose_JD.shape[1]
    tweak_T = torch.as_tensor(TWEAKS, dtype=pose_JD.dtype, device=pose_JD.device)
    each_DD = torch.eye(dimensions, dtype=pose_JD.dtype, device=pose_JD.device)
    pose_DTJD = pose_JD.repeat(dimensions, len(TWEAKS), 1, 1)
    pose_DTJD[:, :, label] += each_DD[:, None] * tweak_T[:, None]
    from_K = np.full(dimensions * len(TWEAKS), label)
    drawn = decoded.draw(decoder, pose_DTJD.flatten(0, 1), from_K)
    return drawn.unflatten(0, (dimensions, len(TWEAKS)))
