"""The splits of one data set: moved to the training device once, or read as training goes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from capsweep.data.batches import EvaluatedSplit, Presenter
from capsweep.data.images import Reader, trained_and_validated
from capsweep.errors import ConfigError, DataError

EVALUATION_BATCH = 500


class PreparedSplits(dict[str, Any]):
    """The splits of a data set on a device: "train", "validation" and "test".

    digests: of the arrays or shards that were read for them, as `Splits.digests` has them.
    """

    def __init__(self, parts: Mapping[str, Any], digests: Mapping[str, str]) -> None:
        super().__init__(parts)
        self.digests = dict(digests)

    @property
    def test_fingerprint(self) -> str | None:
        """Identity of test examples that no file holds; None where files do."""
        fingerprint = getattr(self["test"], "fingerprint", None)
        return None if fingerprint is None else fingerprint()


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
    parts = {
        "train": presenter(train.to(device), "train"),
        "validation": presenter(validated.to(device), "validation"),
        "test": presenter(splits.test.to(device), "test"),
    }
    sizes = {"train": len(parts["train"]) + validation, "test": len(parts["test"])}
    if splits.validation is not None:
        sizes["validation"] = len(splits.validation)
    _check_splits(parts["test"], sizes, declared, image_shape)
    return PreparedSplits(parts, splits.digests)


def _check_splits(
    test: EvaluatedSplit,
    sizes: Mapping[str, int],
    declared: Mapping[str, int] | None,
    image_shape: Sequence[int] | None,
) -> None:
    if declared is not None and dict(declared) != sizes:
        raise DataError(
            f"dataset.examples: {dict(declared)} declared, {dict(sizes)} read; correct the data "
            "set's file in conf/dataset"
        )
    shape = list(test.evaluation_batch(slice(0, 1)).images_BCHW.shape[1:])
    if image_shape is not None and list(image_shape) != shape:
        raise ConfigError(
            f"dataset.image_shape is {list(image_shape)}, and dataset.batches makes images of "
            f"{shape}; set both alike"
        )
