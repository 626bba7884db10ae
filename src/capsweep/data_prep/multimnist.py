"""MultiMNIST: pairs of digits, as `capsweep.data.pairs` composes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from capsweep.data.images import LabelledImages, Splits
from capsweep.data.presented import Split
from capsweep.data.shards import sequence
from capsweep.data.shards.layout import Field
from capsweep.data.shards.manifest import Content, Origin, digest_of
from capsweep.data_prep.job import Maker

SETTINGS = ("seed", "margin", "shift")


@dataclass(frozen=True)
class MultiMnist:
    """Pairs of the digits of each split.

    digits: images [N, C, H, W] and labels [N] of "train" and "test", uint8. with_sources: the two
    digits of each image are stored too.
    """

    content: Content
    digits: Mapping[str, tuple[np.ndarray, np.ndarray]]
    with_sources: bool = False

    def fields(self) -> Sequence[Field]:
        """Composed images, labels, and where they come from."""
        channels, height, width = self.digits["train"][0].shape[1:]
        margins = 2 * self.content.settings["margin"]
        canvas = (channels, height + margins, width + margins)
        stored = [
            Field("images", "uint8", canvas),
            Field("labels", "uint8", (2,)),
            Field("indices", "uint32", (2,)),
            Field("shifts", "int8", (2, 2)),
        ]
        return [*stored, Field("digits", "uint8", (2, *canvas))] if self.with_sources else stored

    def maker(self, split: str) -> Maker:
        """Composes stretches of the sequence."""
        digits = Splits(**{name: _examples(*pair) for name, pair in self.digits.items()})
        source = sequence.pair_source(digits, cast(Split, split), self.content.settings)
        return lambda start, stop: sequence.arrays(source, start, stop, self.with_sources)

    def portion(self, split: str, start: int, stop: int) -> "MultiMnist":
        """Itself: any stretch is composed of any digits."""
        return self


def prepare(overrides: Sequence[str], with_sources: bool = False) -> MultiMnist:
    """The job of `dataset=multimnist`, its settings overridden as `capsweep train` would have them.

    Raises ConfigError naming the key, DataError where the digits are not there.
    """
    # Not at the top: a worker unpickles a job, and neither composes nor trains.
    from capsweep.config import compose, places
    from capsweep.training import build

    config = compose.cell(["dataset=multimnist", *overrides]).config
    dataset = config["dataset"]
    digits = build.reader(config).read(str(places.resolve(config["places"]).data))
    origin = Origin(dataset["source"], digest_of({"sha256": dataset["reader"]["sha256"]}))
    settings = {name: dataset["batches"][name] for name in SETTINGS}
    settings["validation"] = dataset["validation"]
    return MultiMnist(
        sequence.content(origin, digits, dataset["batches"]["pairs"], settings),
        {"train": _arrays(digits.train), "test": _arrays(digits.test)},
        with_sources,
    )


def _arrays(examples: LabelledImages) -> tuple[np.ndarray, np.ndarray]:
    return examples.images_NCHW.numpy(), examples.labels_N.numpy().astype(np.uint8)


def _examples(images_NCHW: np.ndarray, labels_N: np.ndarray) -> LabelledImages:
    # Not copied, though they cannot be written to: all workers of a node share Ray's one copy.
    return LabelledImages(
        torch.from_dlpack(images_NCHW), torch.from_numpy(labels_N.astype(np.int64))
    )
