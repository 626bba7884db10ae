"""The job that stores MultiMNIST in shards; `capsweep.data.pairs` composes the pairs."""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from capsweep.data.batches import Split
from capsweep.data.images import LabelledImages, Splits, divide_examples
from capsweep.data.pairs import VERSION
from capsweep.shards.layout import MULTIMNIST, Maker, ShardJob, compose_pairs, make_pair_source
from capsweep.shards.manifest import DataSetContent, Origin, hash_declared


def build_maker(
    digits: Mapping[str, tuple[np.ndarray, np.ndarray]], settings: Mapping[str, Any], split: str
) -> Maker:
    """Return a function that composes the pairs of a split, one range per call.

    Args:
        digits: The single digits of "train" and "test": uint8 images [N, C, H, W] and int64 labels
            [N].
        settings: The settings of the pairs.
        split: Name of the split.
    """
    # The arrays are not copied, so that all workers of a node share those in Ray's store.
    train, test = (
        LabelledImages(*map(torch.from_dlpack, digits[name])) for name in ("train", "test")
    )
    source = make_pair_source(Splits(train, test), cast(Split, split), settings)
    return lambda start, stop: compose_pairs(source, torch.arange(start, stop))


def prepare_job(dataset: Mapping[str, Any], digits: Splits, pairs: int | None) -> ShardJob:
    """Prepare the job that makes the pairs of a configuration with `dataset=multimnist`.

    Args:
        dataset: The group `dataset` of the configuration.
        digits: The data set of single digits from which the pairs are made.
        pairs: Number of pairs per digit in "train" and "test"; None takes `dataset.batches.pairs`.
            The validation split always has one pair per digit.

    Raises:
        ConfigError: If `dataset.validation` leaves no training digits, or digits of one class.
    """
    origin = Origin(dataset["source"], hash_declared({"sha256": dataset["reader"]["sha256"]}))
    settings = {name: dataset["batches"][name] for name in ("seed", "margin", "shift")}
    settings["validation"] = dataset["validation"]
    count: int = dataset["batches"]["pairs"] if pairs is None else pairs
    splits = {
        split: len(examples) * (1 if split == "validation" else count)
        for split, examples in divide_examples(digits, settings["validation"]).items()
        if len(examples)
    }
    arrays = {
        name: (examples.images_NCHW.numpy(), examples.labels_N.numpy())
        for name, examples in (("train", digits.train), ("test", digits.test))
    }
    build = partial(build_maker, arrays, settings)
    example = build("train")(0, 1)
    fields = {name: (str(array.dtype), array.shape[1:]) for name, array in example.items()}
    return ShardJob(DataSetContent(MULTIMNIST, VERSION, settings, origin, splits), fields, build)
