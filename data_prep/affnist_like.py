"""Not affNIST: test digits under affine transformations, as `capsweep.data.affine` makes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsweep.data import affine
from capsweep.data.affine import AffineTest
from capsweep.data.images import Splits
from capsweep.shards.layout import Maker
from capsweep.shards.manifest import DataSetContent, Fields, Origin, hash_declared

DATASET = "affnist_like"
NAMES = ("rotation", "shear", "scale", "canvas", "seed")
OVERRIDES = ("dataset.validation=0",)  # test images alone: no training image is held out


@dataclass(frozen=True)
class AffnistLike:
    """Transformed digits of the test examples.

    Example k is digit k modulo their number, transformed as drawn at k. The first copy of each is
    what `dataset=affnist_like` tests on.

    Attributes:
        digits: images [N, C, H, W] and labels [N] of the test digits, uint8.
    """

    content: DataSetContent
    digits: tuple[np.ndarray, np.ndarray]

    def list_fields(self) -> Fields:
        """Return images, labels, the digit each was made of, and its transformation.

        That is a matrix [row and column of the canvas, of the digit] about the middles of both, and
        a shift in pixels, float64.
        """
        canvas = self.content.settings["canvas"]
        return {
            "images": ("uint8", (self.digits[0].shape[1], canvas, canvas)),
            "labels": ("uint8", ()),
            "indices": ("uint32", ()),
            "matrix": ("float64", (2, 2)),
            "shift": ("float64", (2,)),
        }

    def build_maker(self, split: str) -> Maker:
        """Return what makes ranges of the sequence."""
        images_NCHW, labels_N = self.digits
        transform = AffineTest(**self.content.settings)

        def make_examples(start: int, stop: int) -> dict[str, np.ndarray]:
            made = transform.transform_range(images_NCHW, start, stop)
            return {**made, "labels": labels_N[made["indices"]]}

        return make_examples


def prepare_job(dataset: Mapping[str, Any], digits: Splits, pairs: int | None) -> AffnistLike:
    """Return the job of a composed `dataset=affnist_like`.

    digits: of its source, of which the test digits are used. pairs: copies of each, all transformed
    otherwise; None: 1.
    """
    copies = 1 if pairs is None else pairs
    origin = Origin(dataset["source"], hash_declared({"sha256": dataset["reader"]["sha256"]}))
    settings = {name: dataset["test"][name] for name in NAMES}
    content = DataSetContent(
        DATASET, affine.VERSION, settings, origin, {"test": copies * len(digits.test)}
    )
    labels_N = digits.test.labels_N.numpy().astype(np.uint8)
    return AffnistLike(content, (digits.test.images_NCHW.numpy(), labels_N))
