"""The LightningDataModule: one data set, moved to the training device once."""

from collections.abc import Mapping, Sequence

import torch
from pytorch_lightning import LightningDataModule

from capsweep.data.images import Reader, trained_and_validated
from capsweep.data.loader import EvaluationLoader, TrainLoader
from capsweep.data.presented import Batch, Presented, Presenter
from capsweep.errors import ConfigError, DataError

EVALUATION_BATCH = 500


def presented(
    reader: Reader,
    folder: str,
    presenter: Presenter,
    validation: int,
    device: torch.device,
    declared: Mapping[str, int] | None = None,
    image_shape: Sequence[int] | None = None,
) -> dict[str, Presented]:
    """Read, verify, split and move a data set: "train", "validation" and "test".

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
    found = {"train": len(splits.train), "test": len(parts["test"])}
    if splits.validation is not None:
        found["validation"] = len(splits.validation)
    if declared is not None and dict(declared) != found:
        raise DataError(
            f"dataset.examples: {dict(declared)} declared, {found} read; correct the data set's "
            "file in conf/dataset"
        )
    shown = list(parts["test"].evaluated(slice(0, 1)).images_BCHW.shape[1:])
    if image_shape is not None and list(image_shape) != shown:
        raise ConfigError(
            f"dataset.image_shape is {list(image_shape)}, and dataset.batches makes images of "
            f"{shown}; set both alike"
        )
    return parts


class ImageDataModule(LightningDataModule):
    """Train, validation and test batches of one data set; see `presented`.

    batch_size: over all ranks.
    """

    def __init__(
        self,
        reader: Reader,
        folder: str,
        presenter: Presenter,
        batch_size: int,
        validation: int,
        seed: int,
        declared: Mapping[str, int] | None = None,
        image_shape: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.declared, self.image_shape = declared, image_shape
        self.reader, self.folder, self.presenter = reader, folder, presenter
        self.batch_size, self.seed = batch_size, seed
        self.validation = validation
        self._splits: dict[str, Presented] = {}

    def setup(self, stage: str) -> None:
        """Prepare the data set the first time it is asked for."""
        if self._splits:
            return
        assert self.trainer is not None
        self._splits = presented(
            self.reader,
            self.folder,
            self.presenter,
            self.validation,
            self.trainer.strategy.root_device,
            self.declared,
            self.image_shape,
        )

    @property
    def num_train(self) -> int:
        """Training examples, without those held out."""
        return len(self._splits["train"])

    def test_fingerprint(self) -> str | None:
        """Identity of test examples that no file holds; None where files do."""
        fingerprint = getattr(self._splits["test"], "fingerprint", None)
        return None if fingerprint is None else fingerprint()

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """The batch itself: it was made on the device."""
        return batch

    def train_dataloader(self) -> TrainLoader:
        """Shuffled batches of this rank."""
        assert self.trainer is not None
        return TrainLoader(
            self._splits["train"],
            self.batch_size,
            self.seed,
            self.trainer.global_rank,
            self.trainer.world_size,
        )

    def val_dataloader(self) -> EvaluationLoader:
        """The held-out training examples, or those that the data set itself validates on."""
        return self._evaluation("validation")

    def test_dataloader(self) -> EvaluationLoader:
        """The test examples, in order."""
        return self._evaluation("test")

    def _evaluation(self, split: str) -> EvaluationLoader:
        assert self.trainer is not None
        return EvaluationLoader(
            self._splits[split], EVALUATION_BATCH, self.trainer.global_rank, self.trainer.world_size
        )
