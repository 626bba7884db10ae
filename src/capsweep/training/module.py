"""The LightningModule: one network, one objective, metrics that stay on the device; and the Trainer
that fits and tests it.

Shape letters: B batch, N classes.
"""

import math
import warnings
from collections.abc import Callable, Mapping
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
    OptimizerLRSchedulerConfig,
    TorchCheckpointIO,
    Trainer,
)
from capsweep.storage.files import write_atomically
from capsweep.training import devices
from capsweep.training.graphs import StepGraphs, print_reason
from capsweep.training.step import Objective, SplitMetrics, TrainingStep, autocast

OFF, NO_GPU = "trainer.graphs=off", "no GPU"  # reasons for eager steps that need no line
# Lightning asks torch for what is deprecated, and looks for an srun that starts nothing here.
IGNORED_WARNINGS = (
    ".*LeafSpec.*is deprecated",
    "The `srun` command is available",
)


class CapsuleTask(LightningModule):
    """Trains `network` on `objective`.

    Randomness inside an epoch (dropout) is a function of (seed, epoch), so a resumed run needs no
    random state.

    Attributes:
        config: of the cell.
        graphs: `trainer.graphs`, auto or off.
        parts: evaluates batches in parts that fit where a training batch does.
        captured: trains by captured steps, or eagerly and says why; None before training.
        epoch_metrics: what was measured last.
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
        self.config, self.graphs = config, config["trainer"].get("graphs", "auto")  # in new cells
        self.parts = EvaluationParts(config["batch_size"])
        self.captured: StepGraphs | None = None
        self.metrics = {split: SplitMetrics() for split in ("train", "val", "test")}
        self.losses: list[Tensor] = []  # of the steps since the last point, on the device
        self.steps = 0  # of the whole training, once it has begun
        self.epoch_metrics: dict[str, float] = {}
        self.test_outputs: list[tuple[Tensor, Tensor]] = []

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Adam, say, whose learning rate decays with every step."""
        optimizer = self.make_optimizer(self.network)
        settings = self.config["optim"]["schedule"]
        factor = partial(decay_continuously, lr=optimizer.defaults["lr"], **settings)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step))
        scheduler: Any = {"scheduler": schedule, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def make_graphs(self, optimizer: torch.optim.Optimizer) -> StepGraphs:
        """Return what trains by captured steps, or eagerly and says why."""
        step = TrainingStep(
            self.network,
            self.objective,
            optimizer,
            self.make_optimizer,
            self.config["optim"]["clip_norm"],
            self.config["precision"],
        )
        reason = None
        if self.graphs == "off":
            reason = OFF
        elif self.device.type != "cuda":
            reason = NO_GPU
        elif "capturable" not in optimizer.defaults:
            reason = f"{type(optimizer).__name__} has no capturable form"
        return StepGraphs(step, self.metrics["train"], reason)

    def on_train_start(self) -> None:
        """Ask how long training is."""
        assert self.trainer is not None
        self.steps = int(self.trainer.estimated_stepping_batches)
        self.captured = self.make_graphs(self.trainer.optimizers[0])
        reason = self.captured.reason
        if reason not in (None, OFF, NO_GPU):
            print_reason(reason)

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """Return the batch itself, which was made on the device."""
        return batch

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Train on the batch, backward pass and optimiser included, and return its loss."""
        assert self.captured is not None
        margin = self.objective.margin_at(self.global_step, self.steps)
        self.losses.append(self.captured.train(batch, margin))
        return self.losses[-1]

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Do nothing, since `training_step` has differentiated."""

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Call Lightning's closure of `training_step`, without another step of the optimiser."""
        closure = kwargs.get("optimizer_closure", args[-1])
        closure()

    def on_train_epoch_start(self) -> None:
        """Make the epoch's randomness a function of its place."""
        # 0 stays in the place so that old runs reproduce.
        torch.manual_seed(seed_of(self.config["seed"], "epoch", self.current_epoch, 0))
        self.losses.clear()

    def average_losses(self, step: int) -> float:
        """Return the mean loss of the steps before `step` since the last call.

        Raises NonFiniteLossError naming the first bad step. Synchronises.
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
        """Collect the epoch's metrics."""
        self._collect_metrics("train")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add one batch of held-out training examples."""
        self._evaluate("val", batch)

    def on_validation_epoch_end(self) -> None:
        """Collect the held-out examples' metrics."""
        self._collect_metrics("val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Add one batch of test examples and keep what the network said."""
        scores_BN = self._evaluate("test", batch)
        self.test_outputs.append((scores_BN, batch.labels))

    def on_test_epoch_end(self) -> None:
        """Collect the test metrics."""
        self._collect_metrics("test")

    def collect_predictions(self) -> tuple[Tensor, Tensor]:
        """Return scores [M, N] and labels, [M] or [M, L], of the M test examples, on the CPU."""
        scores, labels = zip(*self.test_outputs, strict=True)
        return torch.cat(scores).cpu(), torch.cat(labels).cpu()

    def _collect_metrics(self, split: str) -> None:
        """Raise NonFiniteLossError for a mean that is no number."""
        measured = self.metrics[split].compute(split)
        for name, value in measured.items():
            if not math.isfinite(value):
                raise NonFiniteLossError(
                    f"{name} was {value} in epoch {self.current_epoch}; lower optim.optimizer.lr, "
                    f"or look at the {split} examples"
                )
        self.epoch_metrics |= measured

    def _evaluate(self, split: str, batch: Batch) -> Tensor:
        """Add a batch in parts that fit into memory; its scores [B, N]."""
        scores = []
        with autocast(self.config["precision"], self.device):
            for part, losses in self.parts.evaluate(batch, partial(self.objective, self.network)):
                self.metrics[split].update(losses, part)
                scores.append(losses.scores_BN)
        return torch.cat(scores)


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes checkpoints as all files are written: whole, or not at all."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint to a path."""
        write_atomically(Path(path), lambda file: torch.save(checkpoint, file))


def decay_continuously(
    step: int, *, lr: float, rate: float, steps: int, floor: float, warmup: int = 0
) -> float:
    """The factor on `lr` at an optimiser step: rate ** (step / steps), never below floor / lr; in
    the first `warmup` steps it rises to that in equal parts.

    Continuous, as `tf.train.exponential_decay` without staircase, which the authors' code uses.
    """
    risen = min(1.0, (step + 1) / warmup) if warmup else 1.0
    return risen * max(rate ** (step / steps), floor / lr)


def fit_and_test(
    task: CapsuleTask, splits: PreparedSplits, called: list[Callback], resume: Path | None
) -> None:
    """Train a task, on from the checkpoint `resume` where there is one, and test it."""
    config = task.config
    limit = config["limit_batches"] or 1.0
    trainer = Trainer(
        max_epochs=config["epochs"],
        accelerator=devices.choose_device(config).type,
        devices=1,
        # Without the first, Lightning would detect an unrelated Slurm job.
        plugins=[LightningEnvironment(), AtomicCheckpoints()],
        callbacks=called,
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
        finally:  # the test, and after a failure the next cell, have the memory of the graphs
            if task.captured is not None:
                task.captured.release()
        trainer.test(task, test, verbose=False)
