"""The pairs of a data set of shards: the same that are composed on the fly, by the same function.

Shape letters: B batch, L = 2 digits of an image, C H W image.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from capsweep.data.batches import Split
from capsweep.data.images import Splits, trained_and_validated
from capsweep.data.pairs import VERSION, PairSource
from capsweep.shards.manifest import Content, Origin

DATASET = "multimnist"


def describe_pairs(
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
    return PairSource(examples, split, *(settings[name] for name in ("seed", "margin", "shift")))


def compose_pairs(
    source: PairSource, k_B: Tensor, with_digits: bool = True
) -> dict[str, np.ndarray]:
    """Examples k, by the fields of `layout`; the digits alone where asked for."""
    drawn = source.draw_pairs(k_B)
    arrays = {
        "labels": drawn.labels_BL.numpy().astype(np.uint8),
        "indices": drawn.sources_BL.numpy().astype(np.uint32),
        "shifts": drawn.shifts_BL2.numpy().astype(np.int8),
    }
    if not with_digits:
        return {"images": source.compose_images(drawn).numpy(), **arrays}
    pairs = source.compose_drawn(drawn)
    return {"images": pairs.images_BCHW.numpy(), **arrays, "digits": pairs.digits_BLCHW.numpy()}
