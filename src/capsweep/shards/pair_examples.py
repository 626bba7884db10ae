"""The pairs of a data set of shards: the same that are composed on the fly, by the same function.

Shape letters: B batch, L = 2 digits of an image, C H W image.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsweep.data.batches import Split
from capsweep.data.images import Splits, trained_and_validated
from capsweep.data.pairs import VERSION, PairSource
from capsweep.shards.manifest import Content, Origin

DATASET = "multimnist"
NAMES = ("images", "labels", "indices", "shifts", "digits")  # fields of an example


def pair_content(
    origin: Origin, digits: Splits, pairs: int, settings: Mapping[str, Any]
) -> Content:
    """What the pairs of these digits are: `pairs` of each digit of training and test, one of each
    that is held out.

    settings: seed, margin, shift, validation, as `dataset=multimnist` has them.
    """
    train, held_out = trained_and_validated(digits, settings["validation"])
    counts = {
        "train": len(train) * pairs,
        "validation": len(held_out),
        "test": len(digits.test) * pairs,
    }
    splits = {split: count for split, count in counts.items() if count}
    return Content(DATASET, VERSION, dict(settings), origin, splits)


def make_pair_source(digits: Splits, split: Split, settings: Mapping[str, Any]) -> PairSource:
    """What composes example k of a split."""
    train, held_out = trained_and_validated(digits, settings["validation"])
    examples = {"train": train, "validation": held_out, "test": digits.test}[split]
    seed, margin, shift = (settings[name] for name in ("seed", "margin", "shift"))
    return PairSource(examples, split, seed, margin, shift)


def pair_arrays(
    source: PairSource, start: int, stop: int, with_digits: bool = True
) -> dict[str, np.ndarray]:
    """Examples start .. stop - 1; see `arrays_at`."""
    return pair_arrays_at(source, torch.arange(start, stop), with_digits)


def pair_arrays_at(
    source: PairSource, k_B: Tensor, with_digits: bool = True
) -> dict[str, np.ndarray]:
    """Examples k, by the fields of `layout`; the digits alone where asked for."""
    drawn = source.draw_pairs(k_B)
    pairs = source.compose_drawn(drawn) if with_digits else None
    images_BCHW = source.compose_images(drawn) if pairs is None else pairs.images_BCHW
    digits = {} if pairs is None else {"digits": pairs.digits_BLCHW.numpy()}
    return {
        "images": images_BCHW.numpy(),
        "labels": drawn.labels_BL.numpy().astype(np.uint8),
        "indices": drawn.sources_BL.numpy().astype(np.uint32),
        "shifts": drawn.shifts_BL2.numpy().astype(np.int8),
        **digits,
    }
