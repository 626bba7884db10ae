"""Labelled images, readers of data sets, and functions that split a data set.

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

EVALUATION_BATCH = 500  # examples per batch in an evaluation
# Seed of the choice of held-out examples, the same in all cells: the date of the paper by Sabour et
# al.
HELD_OUT_SEED = 20171026


@dataclass(frozen=True)
class LabelledImages:
    """Images and their classes, in memory.

    Attributes:
        images_NCHW: uint8 images [N, C, H, W].
        labels_N: int64 classes [N], counted from 0.
    """

    images_NCHW: Tensor
    labels_N: Tensor

    def __len__(self) -> int:
        return len(self.labels_N)

    @cached_property
    def digest(self) -> str:
        """The sha256 of the images and labels, including their dtypes and shapes.

        The images and labels must be on the CPU.
        """
        digest = hashlib.sha256()
        for array in (self.images_NCHW.numpy(), self.labels_N.numpy().astype("<i8", copy=False)):
            digest.update(f"{array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def select(self, index_N: Tensor) -> "LabelledImages":
        """Copy some of the examples.

        Args:
            index_N: int64 indices of the examples, in the order of the result; or a bool mask [N]
                that is True for the examples to copy.
        """
        return LabelledImages(self.images_NCHW[index_N], self.labels_N[index_N])

    def to(self, device: torch.device) -> "LabelledImages":
        """Move the examples to a device.

        Args:
            device: The new device of the images and labels.

        Returns:
            The examples on the device.
        """
        return LabelledImages(self.images_NCHW.to(device), self.labels_N.to(device))


def join_examples(parts: Sequence[LabelledImages]) -> LabelledImages:
    """Join several sets of examples into one set, in the given order.

    Args:
        parts: Sets of examples with images of equal shape.
    """
    images_NCHW = torch.cat([part.images_NCHW for part in parts])
    return LabelledImages(images_NCHW, torch.cat([part.labels_N for part in parts]))


Decoded = Mapping[str, LabelledImages]  # examples by name of the split


def label_images(images_NCHW: np.ndarray, labels_N: np.ndarray, classes: int) -> LabelledImages:
    """Check the arrays of a decoded file and convert them to examples.

    Args:
        images_NCHW: Images [N, C, H, W].
        labels_N: Classes [N], of any numeric dtype.
        classes: How many classes there are.

    Returns:
        The examples, with contiguous images and int64 labels.

    Raises:
        ValueError: If the images are not uint8, if the arrays are empty or differ in length, or if
            a label is not a whole number in 0 .. classes - 1.
    """
    labels = labels_N.astype(np.int64)
    if images_NCHW.dtype != np.uint8 or len(images_NCHW) != len(labels) or len(labels) == 0:
        raise ValueError(f"images {images_NCHW.dtype} {images_NCHW.shape}, {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= classes or (labels != labels_N).any():
        raise ValueError(f"labels {labels_N.min()}..{labels_N.max()}, not 0..{classes - 1}")
    images = np.ascontiguousarray(images_NCHW)
    return LabelledImages(torch.from_numpy(images), torch.from_numpy(labels))


@dataclass(frozen=True)
class Splits:
    """A data set in the splits that its publisher defines.

    Attributes:
        train: Training examples.
        test: Test examples.
        validation: Validation examples; None if the publisher defines none. Then validation
            examples are held out from `train`.
        parts: If the examples are composed of source images: the sha256 of each set of source
            images, by name. Otherwise empty.
    """

    train: LabelledImages
    test: LabelledImages
    validation: LabelledImages | None = None
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def digests(self) -> dict[str, str]:
        """The sha256 of each split that is not empty, and the hashes in `parts`, by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: part.digest for name, part in splits.items() if part} | dict(self.parts)


class Reader(Protocol):
    """A reader of one data set; each reader verifies the files that it reads."""

    def check(self, folder: str) -> None:
        """Check that `read` can succeed.

        By default, the whole data set is read. Readers of large data sets override this method with
        a faster check.

        Args:
            folder: The data folder, a path or the URL of an object store.

        Raises:
            DataError: If a file is missing, if its hash is not the declared one, or if it cannot be
                decoded.
            StoreError: If the object store does not answer.
        """
        self.read(folder)

    @abstractmethod
    def read(self, folder: str) -> Splits:
        """Read the data set and verify it.

        Args:
            folder: The data folder, a path or the URL of an object store.

        Returns:
            The splits, as the publisher of the data set defines them.

        Raises:
            DataError: If a file is missing, if its hash is not the declared one, or if it cannot be
                decoded.
            StoreError: If the object store does not answer.
        """


class TestReader(Protocol):
    """A source of test images, which replace the test images of a data set.

    The new images are read from other files, or computed from the test images that they replace.
    """

    def read(self, folder: str, test: LabelledImages) -> LabelledImages:
        """Return the test images to use.

        Args:
            folder: The data folder, a path or the URL of an object store.
            test: The test images of the data set.

        Raises:
            DataError: If a file is missing, if its hash is not the declared one, or if it cannot be
                decoded.
            StoreError: If the object store does not answer.
        """
        ...


@dataclass(frozen=True)
class TestedElsewhere(Reader):
    """A reader of two sources: one of training and validation images, one of test images.

    Attributes:
        reader: Reads the data set that provides training and validation images.
        test: Provides the test images.
    """

    reader: Reader
    test: TestReader

    def read(self, folder: str) -> Splits:
        """Read and verify both sources; see `Reader.read`."""
        splits = self.reader.read(folder)
        return replace(splits, test=self.test.read(folder, splits.test))


def divide_examples(splits: Splits, held_out: int) -> dict[Split, LabelledImages]:
    """Return the training, the validation and the test examples of a data set.

    Args:
        splits: The data set.
        held_out: How many training examples to hold out for validation; ignored if the data set has
            a validation split.

    Raises:
        ConfigError: If `held_out` leaves no training examples.
    """
    train, validation = splits.train, splits.validation
    if validation is None:
        train, validation = hold_out(train, held_out)
    return {"train": train, "validation": validation, "test": splits.test}


def hold_out(examples: LabelledImages, count: int) -> tuple[LabelledImages, LabelledImages]:
    """Split examples at random into two sets, stratified by class.

    The choice depends only on the labels and on `count`.

    Args:
        examples: The examples to split.
        count: How many examples to hold out.

    Returns:
        The remaining examples and the held-out examples, both in their original order.

    Raises:
        ConfigError: If `count` leaves no examples.
    """
    if count >= len(examples):
        raise ConfigError(f"dataset.validation must be < {len(examples)} examples, got {count}")
    if count == 0:  # the usual case: no example is copied
        return examples, examples.select(torch.arange(0))
    is_held_N = torch.zeros(len(examples), dtype=torch.bool)
    is_held_N[torch.from_numpy(_draw_stratified(examples.labels_N.numpy(), count))] = True
    return examples.select(~is_held_N), examples.select(is_held_N)


def _draw_stratified(labels_N: np.ndarray, count: int) -> np.ndarray:
    """Draw a random sample of examples, stratified by class.

    The n examples of each class are put in random order. The example at index r of this order gets
    the rank (r + 1/2) / n. The sample consists of the `count` examples with the lowest ranks of all
    classes. Examples of equal rank are put in random order.

    Args:
        labels_N: Classes [N].
        count: How many examples to draw.

    Returns:
        Indices [count] of the drawn examples, in the order of their ranks.
    """
    generator = np.random.default_rng(HELD_OUT_SEED)
    order = generator.permutation(len(labels_N))
    rank = np.empty(len(labels_N))
    for label in np.unique(labels_N):
        members = order[labels_N[order] == label]
        rank[members] = (np.arange(len(members)) + 0.5) / len(members)
    tie_break = generator.permutation(len(labels_N))
    return np.lexsort((tie_break, rank))[:count]


class PreparedSplits(dict[str, Any]):
    """A dictionary of the splits of a data set, prepared for training.

    The keys are "train", "validation" and "test".

    Args:
        parts: For each split, the object that makes its batches, by name of the split.
        digests: The sha256 of the examples from which the splits were prepared, by name; see
            `Splits.digests`.
        source_shape: C, H and W of the images that the reader returned for training, before they
            are cropped, or placed on a canvas, or composed.
        trained_N: The labels [N] of the examples from which training batches are made; None if the
            examples are in shards.
    """

    def __init__(
        self,
        parts: Mapping[str, Any],
        digests: Mapping[str, str],
        source_shape: Sequence[int],
        trained_N: Tensor | None = None,
    ) -> None:
        super().__init__(parts)
        self.digests, self.source_shape, self.trained_N = digests, tuple(source_shape), trained_N


def prepare_splits(
    splits: Splits, presenter: Presenter, dataset: Mapping[str, Any], device: torch.device
) -> PreparedSplits:
    """Hold out validation examples of a data set, and move all examples to the training device.

    If the data set is in shards, its examples stay on disk, and only one test image is read here,
    to check its shape.

    Args:
        splits: The data set.
        presenter: Builds the object that makes the batches of a split.
        dataset: The group `dataset` of the configuration. `validation` is how many training
            examples to hold out. `image_shape` is the expected shape of the images in a batch.
            `examples` may have the expected number of examples of each split that the reader
            returns; held-out examples count as "train".
        device: The training device.

    Returns:
        The objects that make the batches of "train", "validation" and "test".

    Raises:
        DataError: If the numbers of examples differ from the expected ones.
        ConfigError: If the settings of the data set contradict each other or the images.
    """
    examples = divide_examples(splits, dataset["validation"])
    parts = {split: presenter(each.to(device), split) for split, each in examples.items()}
    sizes = {"train": len(parts["train"]) + dataset["validation"], "test": len(parts["test"])}
    if splits.validation is not None:
        sizes["validation"] = len(splits.validation)
    declared = dataset.get("examples")
    if declared is not None and declared != sizes:
        raise DataError(
            f"dataset.examples declares {declared}, but {sizes} were read; correct the file of the "
            "data set in conf/dataset"
        )
    shape = list(parts["test"].evaluation_batch(slice(0, 1)).images_BCHW.shape[1:])
    if dataset["image_shape"] != shape:
        raise ConfigError(
            f"dataset.image_shape is {dataset['image_shape']}, but dataset.batches makes images of "
            f"{shape}; correct one of them"
        )
    train = examples["train"]
    if not isinstance(train, LabelledImages):  # the examples are in shards
        return PreparedSplits(parts, splits.digests, shape)
    return PreparedSplits(parts, splits.digests, train.images_NCHW.shape[1:], train.labels_N)
