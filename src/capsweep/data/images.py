"""Labelled images, and their splits: read, held out, and moved to the training device once.

Shape letters: N examples, C H W image.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from capsweep.data.batches import Presenter, Split
from capsweep.errors import ConfigError, DataError

EVALUATION_BATCH = 500
VALIDATION_SEED = 20171026  # which training examples are held out is part of the data set


@dataclass(frozen=True)
class LabelledImages:
    """uint8 images [N, C, H, W] and int64 labels [N]."""

    images_NCHW: Tensor
    labels_N: Tensor

    def __len__(self) -> int:
        return len(self.labels_N)

    @cached_property
    def digest(self) -> str:
        """The sha256 of images and labels, each with its type and shape, on the processor."""
        digest = hashlib.sha256()
        for array in (self.images_NCHW.numpy(), self.labels_N.numpy().astype("<i8", copy=False)):
            digest.update(f"{array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def select(self, index_N: Tensor) -> "LabelledImages":
        """The examples at `index_N`, in that order."""
        return LabelledImages(self.images_NCHW[index_N], self.labels_N[index_N])

    def to(self, device: torch.device) -> "LabelledImages":
        """The same examples on `device`."""
        return LabelledImages(self.images_NCHW.to(device), self.labels_N.to(device))


def join_examples(parts: Sequence[LabelledImages]) -> LabelledImages:
    """Return all examples of all parts, in their order."""
    images_NCHW = torch.cat([part.images_NCHW for part in parts])
    return LabelledImages(images_NCHW, torch.cat([part.labels_N for part in parts]))


Decoded = Mapping[str, LabelledImages]  # by split


def label_images(images_NCHW: np.ndarray, labels_N: np.ndarray, classes: int) -> LabelledImages:
    """Arrays of a file as examples. Raises ValueError unless they are bytes and their classes."""
    labels = labels_N.astype(np.int64)
    if images_NCHW.dtype != np.uint8 or len(images_NCHW) != len(labels) or len(labels) == 0:
        raise ValueError(f"{images_NCHW.dtype} {images_NCHW.shape} with {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= classes or (labels != labels_N).any():
        raise ValueError(f"labels {labels_N.min()}..{labels_N.max()}, not 0..{classes - 1}")
    images = np.ascontiguousarray(images_NCHW)
    return LabelledImages(torch.from_numpy(images), torch.from_numpy(labels))


@dataclass(frozen=True)
class Splits:
    """A data set as its publisher splits it.

    validation: where the protocol of a data set names these examples; None: held out of train.
    parts: digests of what else examples are composed of, by name.
    """

    train: LabelledImages
    test: LabelledImages
    validation: LabelledImages | None = None
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def digests(self) -> dict[str, str]:
        """The sha256 of each split that has examples, by its name, and those of `parts`."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        own = {name: each.digest for name, each in splits.items() if each is not None and len(each)}
        return {**own, **self.parts}


class Reader(Protocol):
    """Reads one data set from its official files."""

    def check(self, folder: str) -> None:
        """Prove that `read` succeeds. Raises DataError naming the file and the cure."""
        self.read(folder)

    @abstractmethod
    def read(self, folder: str) -> Splits:
        """Return the verified data set. Raises DataError naming the file and the cure."""


class TestReader(Protocol):
    """Other test images than those of the data set itself: its files, or what is made of them."""

    def read(self, folder: str, test: LabelledImages) -> LabelledImages:
        """The images to be tested on, given the data set's own. Raises DataError."""
        ...


@dataclass(frozen=True)
class TestedElsewhere(Reader):
    """A reader whose training images are of one data set and whose test images of another."""

    reader: Reader
    test: TestReader

    def read(self, folder: str) -> Splits:
        """Both, verified."""
        splits = self.reader.read(folder)
        return replace(splits, test=self.test.read(folder, splits.test))


def trained_and_validated(splits: Splits, held_out: int) -> tuple[LabelledImages, LabelledImages]:
    """What is trained on, and what validates it: the data set's own, or so many held out."""
    if splits.validation is None:
        return hold_out(splits.train, held_out, VALIDATION_SEED)
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
    is_held_N = torch.zeros(len(examples), dtype=torch.bool)
    is_held_N[torch.from_numpy(stratified_sample(examples.labels_N.numpy(), count, seed))] = True
    return examples.select(~is_held_N), examples.select(is_held_N)


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


class PreparedSplits(dict[str, Any]):
    """The splits of a data set on a device: "train", "validation" and "test".

    digests: of the arrays or shards that were read for them, as `Splits.digests` has them.
    """

    def __init__(self, parts: Mapping[str, Any], digests: Mapping[str, str]) -> None:
        super().__init__(parts)
        self.digests = dict(digests)


def prepare_splits(
    reader: Reader,
    folder: str,
    presenter: Presenter,
    validation: int,
    device: torch.device,
    declared: Mapping[str, int] | None = None,
    image_shape: Sequence[int] | None = None,
) -> PreparedSplits:
    """Return a data set, read, verified, split and moved to the device; or one of shards, of which
    nothing but one test image is read yet. By "train", "validation" and "test".

    validation: examples held out of train. declared: examples of "train", "test" and, where the
    reader gives it, "validation" that must be there, None: any; image_shape: C, H, W that images
    must have, None: any. Raises DataError when they differ, ConfigError when the data set's own
    settings do not fit together.
    """
    splits = reader.read(folder)
    train, validated = trained_and_validated(splits, validation)
    examples: dict[Split, Any] = {"train": train, "validation": validated, "test": splits.test}
    parts = {split: presenter(each.to(device), split) for split, each in examples.items()}
    sizes = {"train": len(parts["train"]) + validation, "test": len(parts["test"])}
    if splits.validation is not None:
        sizes["validation"] = len(splits.validation)
    if declared is not None and dict(declared) != sizes:
        raise DataError(
            f"dataset.examples: {dict(declared)} declared, {sizes} read; correct the data "
            "set's file in conf/dataset"
        )
    shape = list(parts["test"].evaluation_batch(slice(0, 1)).images_BCHW.shape[1:])
    if image_shape is not None and list(image_shape) != shape:
        raise ConfigError(
            f"dataset.image_shape is {list(image_shape)}, and dataset.batches makes images of "
            f"{shape}; set both alike"
        )
    return PreparedSplits(parts, splits.digests)
