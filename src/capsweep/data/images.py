"""Labelled images in memory.

Shape letters: N examples, C H W image.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from capsweep.errors import ConfigError

VALIDATION_SEED = 20171026  # which training examples are held out is part of the data set


@dataclass(frozen=True)
class LabelledImages:
    """uint8 images [N, C, H, W] and int64 labels [N]."""

    images_NCHW: Tensor
    labels_N: Tensor

    def __len__(self) -> int:
        return len(self.labels_N)

    def select(self, index_N: Tensor) -> "LabelledImages":
        """The examples at `index_N`, in that order."""
        return LabelledImages(self.images_NCHW[index_N], self.labels_N[index_N])

    def to(self, device: torch.device) -> "LabelledImages":
        """The same examples on `device`."""
        return LabelledImages(self.images_NCHW.to(device), self.labels_N.to(device))


@dataclass(frozen=True)
class Splits:
    """A data set as its publisher splits it.

    validation: where the protocol of a data set names these examples; None: held out of train.
    """

    train: LabelledImages
    test: LabelledImages
    validation: LabelledImages | None = None


class Reader(Protocol):
    """Reads one data set from its official files."""

    def check(self, folder: str) -> None:
        """Prove that `read` would succeed. Raises DataError naming the file and the cure."""
        ...

    def read(self, folder: str) -> Splits:
        """The verified data set. Raises DataError."""
        ...


class TestReader(Protocol):
    """Other test images than those of the data set itself: its files, or what is made of them."""

    def check(self, folder: str) -> None:
        """Prove that `read` would succeed. Raises DataError naming the file and the cure."""
        ...

    def read(self, folder: str, test: LabelledImages) -> LabelledImages:
        """The images to be tested on, given the data set's own. Raises DataError."""
        ...


@dataclass(frozen=True)
class TestedElsewhere:
    """A reader whose training images are of one data set and whose test images of another."""

    reader: Reader
    test: TestReader

    def check(self, folder: str) -> None:
        """Prove that both can be read."""
        self.reader.check(folder)
        self.test.check(folder)

    def read(self, folder: str) -> Splits:
        """Both, verified."""
        splits = self.reader.read(folder)
        return replace(splits, test=self.test.read(folder, splits.test))


def trained_and_validated(splits: Splits, held_out: int) -> tuple[LabelledImages, LabelledImages]:
    """What is trained on, and what validates it: the data set's own, or so many held out."""
    if splits.validation is None:
        return hold_out(splits.train, held_out, VALIDATION_SEED)
    if held_out > 0:
        raise ConfigError(
            f"dataset.validation must be 0 for a data set that has validation examples of its own, "
            f"got {held_out}"
        )
    return splits.train, splits.validation


def hold_out(
    examples: LabelledImages, count: int, seed: int
) -> tuple[LabelledImages, LabelledImages]:
    """Split off `count` examples, the classes in the proportions of the whole.

    Returns (kept, held out), each in the order of the original; a function of (labels, count,
    seed). Raises ConfigError when `count` leaves nothing.
    """
    if count >= len(examples):
        raise ConfigError(f"dataset.validation must be < {len(examples)} examples, got {count}")
    if count == 0:  # as it mostly is: all images would be copied
        return examples, examples.select(torch.arange(0))
    held = stratified_sample(examples.labels_N.numpy(), count, seed)
    mask = np.zeros(len(examples), dtype=bool)
    mask[held] = True
    return (
        examples.select(torch.from_numpy(np.flatnonzero(~mask))),
        examples.select(torch.from_numpy(np.flatnonzero(mask))),
    )


def stratified_sample(labels_N: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Indices of `count` examples, the classes in the proportions of the whole, in random order.

    Example r of a class of n is ranked (r + 1/2) / n; the sample is the lowest ranks of all
    classes.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(labels_N))
    rank = np.empty(len(labels_N))
    for label in np.unique(labels_N):
        members = order[labels_N[order] == label]
        rank[members] = (np.arange(len(members)) + 0.5) / len(members)
    tie_break = generator.permutation(len(labels_N))
    return np.lexsort((tie_break, rank))[:count]
