"""MultiMNIST: pairs of digits, as `capsweep.data.pairs` composes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from capsweep.data.batches import Split
from capsweep.data.images import LabelledImages, Splits, trained_and_validated
from capsweep.data.pairs import VERSION
from capsweep.shards.layout import MULTIMNIST, Maker, compose_pairs, make_pair_source
from capsweep.shards.manifest import DataSetContent, Fields, Origin, hash_declared


@dataclass(frozen=True)
class MultiMnist:
    """Pairs of the digits of each split.

    digits: images [N, C, H, W] and labels [N] of "train" and "test", uint8.
    """

    content: DataSetContent
    digits: Mapping[str, tuple[np.ndarray, np.ndarray]]

    def list_fields(self) -> Fields:
        """Composed images, labels, and where they come from."""
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
        """Composes ranges of the sequence."""
        train, test = (_build_examples(*self.digits[name]) for name in ("train", "test"))
        source = make_pair_source(Splits(train, test), cast(Split, split), self.content.settings)
        return lambda start, stop: compose_pairs(source, torch.arange(start, stop))


def prepare_job(dataset: Mapping[str, Any], digits: Splits, pairs: int | None) -> MultiMnist:
    """Return the job of a composed `dataset=multimnist`.

    digits: those of its source. pairs: for each digit of training and test, one for each that is
    held out; None: as configured.
    """
    origin = Origin(dataset["source"], hash_declared({"sha256": dataset["reader"]["sha256"]}))
    settings = {name: dataset["batches"][name] for name in ("seed", "margin", "shift")}
    settings["validation"] = dataset["validation"]
    count: int = dataset["batches"]["pairs"] if pairs is None else pairs
    train, held_out = trained_and_validated(digits, settings["validation"])
    splits = {
        "train": len(train) * count,
        "validation": len(held_out),
        "test": len(digits.test) * count,
    }
    splits = {split: examples for split, examples in splits.items() if examples}
    return MultiMnist(
        DataSetContent(MULTIMNIST, VERSION, settings, origin, splits),
        {"train": _build_arrays(digits.train), "test": _build_arrays(digits.test)},
    )


def _build_arrays(examples: LabelledImages) -> tuple[np.ndarray, np.ndarray]:
    return examples.images_NCHW.numpy(), examples.labels_N.numpy().astype(np.uint8)


def _build_examples(images_NCHW: np.ndarray, labels_N: np.ndarray) -> LabelledImages:
    # Not copied, though they cannot be written to: all workers of a node share Ray's one copy.
    return LabelledImages(
        torch.from_dlpack(images_NCHW), torch.from_numpy(labels_N.astype(np.int64))
    )
