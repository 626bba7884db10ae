"""The LightningDataModule: one data set, moved to the training device once."""

from collections.abc import Mapping

from pytorch_lightning import LightningDataModule

from capsweep.data.images import LabelledImages, Reader, hold_out
from capsweep.data.loader import EvaluationLoader, TrainLoader
from capsweep.errors import DataError

EVALUATION_BATCH = 500
VALIDATION_SEED = 20171026  # which training examples are held out is part of the data set


class ImageDataModule(LightningDataModule):
    """Train, validation and test batches of one data set.

    batch_size: over all ranks. shift: pixels, training only. validation: examples held out of
    train. declared: examples of "train" and "test" that must be there, None: any.
    """

    def __init__(
        self,
        reader: Reader,
        folder: str,
        batch_size: int,
        shift: int,
        validation: int,
        seed: int,
        declared: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.declared = declared
        self.reader, self.folder = reader, folder
        self.batch_size, self.shift, self.seed = batch_size, shift, seed
        self.validation = validation
        self._splits: dict[str, LabelledImages] = {}

    def setup(self, stage: str) -> None:
        """Read, verify, split and move the data set, the first time it is asked for."""
        if self._splits:
            return
        assert self.trainer is not None
        device = self.trainer.strategy.root_device
        splits = self.reader.read(self.folder)
        self._check_counts({"train": len(splits.train), "test": len(splits.test)})
        train, held_out = hold_out(splits.train, self.validation, VALIDATION_SEED)
        parts = {"train": train, "validation": held_out, "test": splits.test}
        self._splits = {name: part.to(device) for name, part in parts.items()}

    def _check_counts(self, found: Mapping[str, int]) -> None:
        if self.declared is not None and dict(self.declared) != dict(found):
            raise DataError(
                f"dataset.examples: {dict(self.declared)} declared, {dict(found)} read; correct "
                "the data set's file in conf/dataset"
            )

    @property
    def num_train(self) -> int:
        """Training examples, without those held out."""
        return len(self._splits["train"])

    @property
    def test_examples(self) -> LabelledImages:
        """The test split, on the training device."""
        return self._splits["test"]

    def train_dataloader(self) -> TrainLoader:
        """Shuffled, shifted batches of this rank."""
        assert self.trainer is not None
        return TrainLoader(
            self._splits["train"],
            self.batch_size,
            self.shift,
            self.seed,
            self.trainer.global_rank,
            self.trainer.world_size,
        )

    def val_dataloader(self) -> EvaluationLoader:
        """The held-out training examples."""
        return self._evaluation("validation")

    def test_dataloader(self) -> EvaluationLoader:
        """The test examples, in the order of the file."""
        return self._evaluation("test")

    def _evaluation(self, split: str) -> EvaluationLoader:
        assert self.trainer is not None
        return EvaluationLoader(
            self._splits[split], EVALUATION_BATCH, self.trainer.global_rank, self.trainer.world_size
        )
