"""The job that stores MultiMNIST in shards; `capsweep.data.pairs` composes the pairs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from capsweep.data.batches import Split
from capsweep.data.images import LabelledImages, Splits, divide_examples
from capsweep.data.pairs import VERSION
from capsweep.shards.layout import MULTIMNIST, Maker, compose_pairs, make_pair_source
from capsweep.shards.manifest import DataSetContent, Fields, Origin, hash_declared


@dataclass(frozen=True)
class MultiMnist:
    """A job that makes pairs of digits.

    Attributes:
        content: The description of the data set.
        digits: The single digits of "train" and "test": uint8 images [N, C, H, W] and int64 labels
            [N].
    """

    content: DataSetContent
    digits: Mapping[str, tuple[np.ndarray, np.ndarray]]

    def list_fields(self) -> Fields:
        """Return the dtype and the shape of each field of a pair; see `ShardJob.list_fields`."""
        channels, height, width = self.digits["train"][0].shape[1:]
        margins = 2 * self.content.settings["margin"]
        canvas = (channels, height + margins, width + margins)
        return {
            "images": ("uint8", canvas),
            "labels": ("uint8", (2,)),
            "indices": ("uint32", (2,)),
            "shifts": ("int8", (2, 2)),
        }

    def build_maker(self, split: str) -> Maker:
        """Return a function that composes the pairs of a split, one range per call.

        Args:
            split: Name of the split.
        """
        # The arrays are not copied, so that all workers of a node share those in Ray's store.
        train, test = (
            LabelledImages(*map(torch.from_dlpack, self.digits[name])) for name in ("train", "test")
        )
        source = make_pair_source(Splits(train, test), cast(Split, split), self.content.settings)
        return lambda start, stop: compose_pairs(source, torch.arange(start, stop))


def prepare_job(dataset: Mapping[str, Any], digits: Splits, pairs: int | None) -> MultiMnist:
    """Prepare the job that makes the pairs of a configuration with `dataset=multimnist`.

    Args:
        dataset: The group `dataset` of the configuration.
        digits: The data set of single digits from which the pairs are made.
        pairs: Number of pairs per digit in "train" and "test"; None takes `dataset.batches.pairs`.
            The validation split always has one pair per digit.

    Raises:
        ConfigError: If `dataset.validation` leaves no training digits.
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
    return MultiMnist(DataSetContent(MULTIMNIST, VERSION, settings, origin, splits), arrays)
