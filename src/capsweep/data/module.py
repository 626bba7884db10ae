"""The LightningDataModule: one data set, moved to the training device once, or read as it goes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from capsweep.data.batches import Batch, BatchLoader, EvaluatedSplit, EvaluationLoader, Presenter
from capsweep.data.images import Reader, trained_and_validated
from capsweep.errors import ConfigError, DataError
from capsweep.runtime.lightning import LightningDataModule

EVALUATION_BATCH = 500


class PreparedSplits(dict[str, Any]):
    """The splits of a data set on a device: "train", "validation" and "test".

    digests: of the arrays or shards that were read for them, as `Splits.digests` has them.
    """

    def __init__(self, parts: Mapping[str, Any], digests: Mapping[str, str]) -> None:
        super().__init__(parts)
        self.digests = dict(digests)


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


class ImageDataModule(LightningDataModule):
    """Train, validation and test batches of one data set.

    prepare: `prepare_splits` for a device, the rest of its arguments given.
    """

    def __init__(
        self, prepare: Callable[[torch.device], PreparedSplits], batch_size: int, seed: int
    ) -> None:
        super().__init__()
        self.prepare, self.batch_size, self.seed = prepare, batch_size, seed
        self._splits = PreparedSplits({}, {})

    def setup(self, stage: str) -> None:
        """Prepare the data set the first time it is asked for."""
        assert self.trainer is not None
        self._splits = self._splits or self.prepare(self.trainer.strategy.root_device)

    @property
    def num_train(self) -> int:
        """Training examples of an epoch, without those held out."""
        return len(self._splits["train"])

    @property
    def digests(self) -> dict[str, str]:
        """The digests of the data that were read."""
        return self._splits.digests

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the data: their digests."""
        return {"digests": self.digests}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise DataError unless a checkpoint's epochs were trained on these data."""
        if state_dict["digests"] != self.digests:
            raise DataError(
                f"the data were altered since the first epochs of this cell: sha256 {self.digests} "
                f"now, {state_dict['digests']} in its resume.ckpt; restore the data, or remove the "
                "cell (capsweep ledger rm) and run it again"
            )

    def test_fingerprint(self) -> str | None:
        """Identity of test examples that no file holds; None where files do."""
        fingerprint = getattr(self._splits["test"], "fingerprint", None)
        return None if fingerprint is None else fingerprint()

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """The batch itself: it was made on the device."""
        return batch

    def train_dataloader(self) -> BatchLoader:
        """Return the shuffled training batches."""
        return self._splits["train"].make_loader(self.batch_size, self.seed)

    def val_dataloader(self) -> EvaluationLoader:
        """The held-out training examples, or those that the data set itself validates on."""
        return EvaluationLoader(self._splits["validation"], EVALUATION_BATCH)

    def test_dataloader(self) -> EvaluationLoader:
        """The test examples, in order."""
        return EvaluationLoader(self._splits["test"], EVALUATION_BATCH)
