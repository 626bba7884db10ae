"""The LightningModule: one network, one objective, metrics that stay on the device.

Shape letters: B batch, N classes.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from capsweep.data.batches import Batch, seed_of
from capsweep.data.evaluation_parts import EvaluationParts
from capsweep.data.module import EVALUATION_BATCH
from capsweep.errors import NonFiniteLossError
from capsweep.runtime.lightning import LightningModule, OptimizerLRSchedulerConfig
from capsweep.training import build
from capsweep.training.graphs import StepGraphs, print_reason
from capsweep.training.objective import Objective, SplitMetrics
from capsweep.training.step import TrainingStep, clip_gradient, round_rates

OFF, NO_GPU = "trainer.graphs=off", "no GPU"  # reasons for eager steps that need no line


class CapsuleTask(LightningModule):
    """Trains `network` on `objective`.

    Randomness inside an epoch (dropout) is a function of (seed, epoch), so a resumed run needs no
    random state.

    Attributes:
        optim: its schedule, and clip_norm, the length of the longest gradient.
        parts: evaluates batches in parts that fit where a training batch does.
        precision: as in a configuration.
        graphs: `trainer.graphs`, auto or off.
        captured: trains by captured steps, or says why steps are eager; None before training.
        epoch_metrics: what was measured last.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        optim: Mapping[str, Any],
        seed: int,
        batch_size: int = EVALUATION_BATCH,
        precision: str = "32",
        graphs: str = "off",
    ) -> None:
        super().__init__()
        self.precision, self.graphs = precision, graphs
        self.captured: StepGraphs | None = None
        self.batch: Batch | None = None
        self.replayed: Tensor | None = None  # the loss of a step that is trained already
        self.network, self.objective, self.make_optimizer = network, objective, optimizer
        self.optim, self.seed = optim, seed
        self.parts = EvaluationParts(batch_size)
        self.train_metrics = SplitMetrics()
        self.val_metrics = SplitMetrics()
        self.test_metrics = SplitMetrics()
        self.losses: list[Tensor] = []  # of the steps since the last point, on the device
        self.steps = 0  # of the whole training, once it has begun
        self.epoch_metrics: dict[str, float] = {}
        self.test_outputs: list[tuple[Tensor, Tensor]] = []

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Adam, say, whose learning rate decays with every step."""
        optimizer = self.make_optimizer(self.network)
        factor = partial(
            build.decay_continuously, lr=optimizer.defaults["lr"], **self.optim["schedule"]
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def make_graphs(self, optimizer: torch.optim.Optimizer) -> StepGraphs:
        """Return what trains by captured steps, or says why steps are not captured."""
        step = TrainingStep(
            self.network,
            self.objective,
            optimizer,
            self.make_optimizer,
            self.optim["clip_norm"],
            self.precision,
        )
        reason = None
        if self.graphs == "off":
            reason = OFF
        elif self.device.type != "cuda":
            reason = NO_GPU
        elif "capturable" not in optimizer.defaults:
            reason = f"{type(optimizer).__name__} has no capturable form"
        return StepGraphs(step, self.train_metrics, reason)

    def on_train_start(self) -> None:
        """Ask how long training is."""
        assert self.trainer is not None
        self.steps = int(self.trainer.estimated_stepping_batches)
        self.captured = self.make_graphs(self.trainer.optimizers[0])
        reason = self.captured.reason
        if reason not in (None, OFF, NO_GPU):
            print_reason(reason)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Keep the batch for `optimizer_step`."""
        self.batch = batch

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Train on the batch by a captured step, or as Lightning does.

        After a captured step Lightning's closure only counts.
        """
        self.replayed = None
        if self.captured is None or self.captured.reason is not None:
            super().optimizer_step(*args, **kwargs)
            return
        assert self.batch is not None
        margin = self.objective.margin_at(self.global_step, self.steps)
        self.replayed = self.captured.train(self.batch, margin)
        closure = kwargs.get("optimizer_closure", args[-1])
        closure()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Differentiate, where no captured step has done it."""
        if self.replayed is None:
            super().backward(loss, *args, **kwargs)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Shorten the gradient, and round learning rates as a GPU does.

        Lightning itself shortens none for fused optimisers in mixed precision, for the sake of
        float16, whose gradients are scaled.
        """
        clip_gradient(self.network, self.optim["clip_norm"])
        round_rates(optimizer, self.device)

    def on_train_epoch_start(self) -> None:
        """Make the epoch's randomness a function of its place."""
        # 0 stays in the place so that old runs reproduce.
        torch.manual_seed(seed_of(self.seed, "epoch", self.current_epoch, 0))
        self.losses.clear()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        if self.replayed is not None:
            self.losses.append(self.replayed)
            return self.replayed
        margin = self.objective.margin_at(self.global_step, self.steps)
        losses = self.objective(self.network, batch, margin)
        self.train_metrics.update(losses, batch)
        self.losses.append(losses.total.detach())
        return losses.total

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
        self._collect_metrics(self.train_metrics, "train")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add one batch of held-out training examples."""
        self._evaluate(self.val_metrics, batch)

    def on_validation_epoch_end(self) -> None:
        """Collect the held-out examples' metrics."""
        self._collect_metrics(self.val_metrics, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Add one batch of test examples and keep what the network said."""
        scores_BN = self._evaluate(self.test_metrics, batch)
        self.test_outputs.append((scores_BN, batch.labels))

    def on_test_epoch_end(self) -> None:
        """Collect the test metrics."""
        self._collect_metrics(self.test_metrics, "test")

    def predictions(self) -> tuple[Tensor, Tensor]:
        """Return scores [M, N] and labels, [M] or [M, L], of the M test examples, on the CPU."""
        scores, labels = zip(*self.test_outputs, strict=True)
        return torch.cat(scores).cpu(), torch.cat(labels).cpu()

    def _collect_metrics(self, metrics: SplitMetrics, split: str) -> None:
        """Raise NonFiniteLossError for a mean that is no number."""
        measured = metrics.compute(split)
        for name, value in measured.items():
            if not math.isfinite(value):
                raise NonFiniteLossError(
                    f"{name} was {value} in epoch {self.current_epoch}; lower optim.optimizer.lr, "
                    f"or look at the {split} examples"
                )
        self.epoch_metrics |= measured

    def _evaluate(self, metrics: SplitMetrics, batch: Batch) -> Tensor:
        """Add a batch in parts that fit into memory; its scores [B, N]."""
        scores = []
        for part, losses in self.parts.evaluate(batch, partial(self.objective, self.network)):
            metrics.update(losses, part)
            # A copy: what a CUDA graph returned is overwritten by its next run.
            scores.append(losses.scores_BN.clone())
        return torch.cat(scores)
