"""Not affNIST: test digits under affine transformations, as `capsweep.data.affine` makes them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capsweep.data import affine
from capsweep.data.affine import AffineTest
from capsweep.data.images import TestedElsewhere
from capsweep.data.shards.layout import Field
from capsweep.data.shards.manifest import Content, Origin, digest_of
from capsweep.data_prep.job import Maker, without_validation
from capsweep.errors import ConfigError

DATASET = "affnist_like"
SETTINGS = ("rotation", "shear", "scale", "canvas", "seed")


@dataclass(frozen=True)
class AffnistLike:
    """Example k is digit k modulo their number, transformed as drawn at k: the first copy of each
    is what `dataset=affnist_like` tests on.

    digits: images [N, C, H, W] and labels [N] of the test digits, uint8.
    """

    content: Content
    digits: tuple[np.ndarray, np.ndarray]

    def fields(self) -> Sequence[Field]:
        """Images, labels, the digit each was made of, and how: matrix [row and column of the
        canvas, of the digit] about the middles of both, and shift in pixels, float64.
        """
        canvas = self.content.settings["canvas"]
        return [
            Field("images", "uint8", (self.digits[0].shape[1], canvas, canvas)),
            Field("labels", "uint8", ()),
            Field("indices", "uint32", ()),
            Field("matrix", "float64", (2, 2)),
            Field("shift", "float64", (2,)),
        ]

    def maker(self, split: str) -> Maker:
        """Transforms stretches of the sequence."""
        images_NCHW, labels_N = self.digits
        transform = AffineTest(**self.content.settings)

        def make(start: int, stop: int) -> dict[str, np.ndarray]:
            made = transform.stretch(images_NCHW, start, stop)
            return {
                "images": made.images_NCHW,
                "labels": labels_N[made.source_N],
                "indices": made.source_N.astype(np.uint32),
                "matrix": made.matrix_NVU,
                "shift": made.shift_NV,
            }

        return make

    def portion(self, split: str, start: int, stop: int) -> "AffnistLike":
        """Itself: any stretch is made of any digits."""
        return self


def prepare(overrides: Sequence[str], copies: int = 1) -> AffnistLike:
    """The job of `dataset=affnist_like`, its settings overridden as `capsweep train` would have
    them; copies: of each test digit.

    Raises ConfigError naming the key, DataError where the digits are not there.
    """
    # Not at the top: a worker unpickles a job, and neither composes nor trains.
    from capsweep.config import compose, places
    from capsweep.training import build

    if copies < 1:
        raise ConfigError(f"--pairs must be >= 1 copy of each test digit, got {copies}")
    config = compose.cell([f"dataset={DATASET}", *without_validation(overrides)]).config
    dataset = config["dataset"]
    whole = build.reader(config)
    digits = whole.reader if isinstance(whole, TestedElsewhere) else whole
    test = digits.read(str(places.resolve(config["places"]).data)).test
    origin = Origin(dataset["source"], digest_of({"sha256": dataset["reader"]["sha256"]}))
    settings = {name: dataset["test"][name] for name in SETTINGS}
    splits = {"test": copies * len(test)}
    return AffnistLike(
        Content(DATASET, affine.VERSION, settings, origin, splits),
        (test.images_NCHW.numpy(), test.labels_N.numpy().astype(np.uint8)),
    )
