"""The LightningModule that trains one network, and the function that runs Lightning's Trainer.

Shape letters: B batch, N classes, M test examples, L classes shown in one image.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from capsweep.config.validation import count_validation_examples
from capsweep.data.batches import Batch, EvaluationLoader, EvaluationParts, seed_of
from capsweep.data.images import EVALUATION_BATCH, PreparedSplits
from capsweep.errors import NonFiniteLossError
from capsweep.runtime.lightning import (
    Callback,
    LightningEnvironment,
    LightningModule,
    TorchCheckpointIO,
    Trainer,
)
from capsweep.storage.files import write_atomically
from capsweep.training import devices
from capsweep.training.graphs import StepGraphs, print_reason
from capsweep.training.step import Objective, SplitMetrics, TrainingStep, autocast

OFF, NO_GPU = "trainer.graphs=off", "no GPU"  # these reasons for eager steps are not printed
# Lightning uses deprecated functions of torch, and recommends `srun`, which we do not use.
IGNORED_WARNINGS = (".*LeafSpec.*is deprecated", "The `srun` command is available")


class CapsuleTask(LightningModule):
    """A network with its objective and its optimiser, as a module that Lightning can train.

    Random numbers inside an epoch, for example for dropout, depend only on the cell's seed and the
    epoch. So a checkpoint need not contain the state of the random generator.

    Args:
        network: The network.
        objective: Computes the loss of a batch.
        optimizer: Makes the optimiser of a network.
        config: The configuration of the cell.

    Attributes:
        network: The network.
        objective: Computes the loss of a batch.
        make_optimizer: Makes the optimiser of a network.
        config: The configuration of the cell.
        graphs: `trainer.graphs`, "auto" or "off".
        parts: Splits evaluation batches into parts that need about as much memory as a training
            step.
        captured: Trains by captured steps (CUDA graphs) if possible, else eagerly; None before
            training.
        metrics: The metrics of each of the splits "train", "val" and "test".
        losses: The losses of the steps since the last row of steps.jsonl, on the device.
        steps: The number of optimiser steps of the whole training; 0 before training.
        epoch_metrics: The last value of each metric, by names such as "val/error".
        test_outputs: Scores and labels of each test batch.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        config: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.network, self.objective, self.make_optimizer = network, objective, optimizer
        # Configurations of earlier versions do not have the key `trainer.graphs`.
        self.config, self.graphs = config, config["trainer"].get("graphs", "auto")
        self.parts = EvaluationParts(config["batch_size"])
        self.captured: StepGraphs | None = None
        self.metrics = {split: SplitMetrics() for split in ("train", "val", "test")}
        self.losses: list[Tensor] = []
        self.steps = 0
        self.epoch_metrics: dict[str, float] = {}
        self.test_outputs: list[tuple[Tensor, Tensor]] = []

    def configure_optimizers(self) -> tuple[list[torch.optim.Optimizer], list[Any]]:
        """Make the optimiser, and a schedule that changes the learning rate with every step."""
        optimizer = self.make_optimizer(self.network)
        settings = self.config["optim"]["schedule"]
        factor = partial(compute_rate_factor, lr=optimizer.defaults["lr"], **settings)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def make_graphs(self, optimizer: torch.optim.Optimizer) -> StepGraphs:
        """Make the object that trains by captured steps, or eagerly if steps cannot be captured."""
        clip_norm, precision = self.config["optim"]["clip_norm"], self.config["precision"]
        step = TrainingStep(self.network, self.objective, optimizer, clip_norm, precision)
        reason = None
        if self.graphs == "off":
            reason = OFF
        elif self.device.type != "cuda":
            reason = NO_GPU
        elif "capturable" not in optimizer.defaults:
            reason = f"{type(optimizer).__name__} has no capturable form"
        return StepGraphs(step, self.metrics["train"], reason)

    def on_train_start(self) -> None:
        """Store the number of training steps, and prepare the captured steps."""
        self.steps = int(self.trainer.estimated_stepping_batches)
        self.captured = self.make_graphs(self.trainer.optimizers[0])
        reason = self.captured.reason
        if reason not in (None, OFF, NO_GPU):
            print_reason(reason)

    def transfer_batch_to_device(self, batch: Batch, *args: Any, **kwargs: Any) -> Batch:
        """Return the batch unchanged, because the batch was made on the device."""
        return batch

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Do the whole training step, with backward pass and optimiser, and return the loss."""
        assert self.captured is not None
        margin = self.objective.margin_at(self.global_step, self.steps)
        self.losses.append(self.captured.train(batch, margin))
        return self.losses[-1]

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Do nothing: Lightning wants the backward pass here, but `training_step` includes it."""

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Call Lightning's closure, which runs `training_step`.

        Nothing else is needed, because `training_step` includes the step of the optimiser.
        """
        closure = args[-1]
        closure()

    def on_train_epoch_start(self) -> None:
        """Seed torch with a value that is computed from the cell's seed and the epoch."""
        # Earlier versions passed the rank of the process as the last argument. With 0, the rank of
        # a single process, the runs of earlier versions can be repeated.
        torch.manual_seed(seed_of(self.config["seed"], "epoch", self.current_epoch, 0))
        self.losses.clear()

    def average_losses(self, step: int) -> float:
        """Wait for the device, and return the mean loss of the steps since the last call.

        Args:
            step: The number of optimiser steps so far.

        Raises:
            NonFiniteLossError: If a loss is not finite. The message names the first step whose loss
                is not finite.
        """
        losses = torch.stack(self.losses).tolist()
        self.losses.clear()
        for number, loss in enumerate(losses, step - len(losses)):
            if not math.isfinite(loss):
                raise NonFiniteLossError(
                    f"the loss was not finite at step {number} (epoch {self.current_epoch}); lower "
                    "optim.optimizer.lr, or look at that step's data"
                )
        return fmean(losses)

    def on_train_epoch_end(self) -> None:
        """Collect the training metrics of the epoch."""
        self._collect_metrics("train")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add one batch of validation examples to the metrics."""
        self._evaluate("val", batch)

    def on_validation_epoch_end(self) -> None:
        """Collect the validation metrics."""
        self._collect_metrics("val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Add one batch of test examples to the metrics, and keep scores and labels."""
        scores_BN = self._evaluate("test", batch)
        self.test_outputs.append((scores_BN, batch.labels))

    def on_test_epoch_end(self) -> None:
        """Collect the test metrics."""
        self._collect_metrics("test")

    def collect_predictions(self) -> tuple[Tensor, Tensor]:
        """Return the scores and the labels of all test examples, on the CPU.

        The scores are [M, N]. The labels are [M], or [M, L] if images show several classes.
        """
        scores, labels = zip(*self.test_outputs, strict=True)
        return torch.cat(scores).cpu(), torch.cat(labels).cpu()

    def _collect_metrics(self, split: str) -> None:
        """Move the metrics of a split into `epoch_metrics`.

        Raises:
            NonFiniteLossError: If a metric is not finite.
        """
        measured = self.metrics[split].compute(split)
        for name, value in measured.items():
            if not math.isfinite(value):
                raise NonFiniteLossError(
                    f"{name} was {value} in epoch {self.current_epoch}; lower optim.optimizer.lr, "
                    f"or look at the {split} examples"
                )
        self.epoch_metrics |= measured

    def _evaluate(self, split: str, batch: Batch) -> Tensor:
        """Add a batch to the metrics of a split, and return the scores [B, N] of the batch.

        The batch is evaluated in parts that fit into memory.
        """
        scores = []
        with autocast(self.config["precision"], self.device):
            for part, losses in self.parts.evaluate(batch, partial(self.objective, self.network)):
                self.metrics[split].update(losses, part)
                scores.append(losses.scores_BN)
        return torch.cat(scores)


class AtomicCheckpoints(TorchCheckpointIO):
    """A writer of Lightning's checkpoints that writes each file completely or not at all."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint to a path, completely or not at all."""
        write_atomically(Path(path), lambda file: torch.save(checkpoint, file))


def compute_rate_factor(
    step: int,
    *,
    lr: float,
    rate: float,
    steps: int,
    floor: float,
    warmup: int = 0,
    milestones: Sequence[int] | None = None,
) -> float:
    """Compute the factor that multiplies the learning rate at an optimiser step.

    The factor is ramp * max(decay, floor / lr), where ramp is min(1, (step + 1) / warmup), or 1 if
    `warmup` is 0. Without milestones, decay is rate ** (step / steps), as in the code of the
    authors of "Dynamic Routing Between Capsules", which calls `tf.train.exponential_decay` with
    `staircase=False`. With milestones, decay is rate ** (number of milestones reached).

    Args:
        step: The index of the optimiser step, from 0.
        lr: The initial learning rate. The factor multiplies this learning rate.
        rate: The base of the decay.
        steps: The number of steps in which the decay multiplies the learning rate by `rate`. It has
            no effect if there are milestones.
        floor: The smallest learning rate after the ramp.
        warmup: The number of steps of the ramp; 0: no ramp.
        milestones: The steps from which the learning rate is multiplied by `rate` once more; None:
            the learning rate decays continuously.
    """
    risen = min(1.0, (step + 1) / warmup) if warmup else 1.0
    decays = step / steps if milestones is None else sum(step >= each for each in milestones)
    return risen * max(rate**decays, floor / lr)


def fit_and_test(
    task: CapsuleTask, splits: PreparedSplits, callbacks: list[Callback], resume: Path | None
) -> None:
    """Train the network of a task, and test the network after the last epoch.

    Exceptions of the callbacks are passed on.

    Args:
        task: The task of a cell.
        splits: The splits of the data set, on the device.
        callbacks: Lightning callbacks.
        resume: The checkpoint from which training continues; None: training starts at epoch 0.

    Raises:
        NonFiniteLossError: If a loss or a metric is not finite.
    """
    config = task.config
    limit = config["limit_batches"] or 1.0
    trainer = Trainer(
        max_epochs=config["epochs"],
        accelerator=devices.choose_device(config).type,
        devices=1,
        # With LightningEnvironment, Lightning does not detect an unrelated Slurm job.
        plugins=[LightningEnvironment(), AtomicCheckpoints()],
        callbacks=callbacks,
        limit_train_batches=limit,
        limit_val_batches=limit if count_validation_examples(config["dataset"]) else 0,
        limit_test_batches=limit,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = splits["train"].make_loader(config["batch_size"], config["seed"])
    validation, test = (
        EvaluationLoader(splits[n], EVALUATION_BATCH) for n in ("validation", "test")
    )
    with warnings.catch_warnings():
        for message in IGNORED_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        try:
            trainer.fit(task, train, validation, ckpt_path=resume, weights_only=True)
        finally:  # free the graphs' memory for the test or, after a failure, for the next cell
            if task.captured is not None:
                task.captured.release()
        trainer.test(task, test, verbose=False)
