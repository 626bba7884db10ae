"""A training step, eagerly on one device: the objective of one batch, classification plus weighted
reconstruction, and what belongs to the step: precision, clipping, rates. Last the metrics of a
split, accumulated on the device in float64.

Shape letters: B batch, N classes, L classes shown in one image, C H W image.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsweep.config.validation import METRICS
from capsweep.data.batches import Batch
from capsweep.errors import DataError
from capsweep.model.losses import reconstruction_loss

Classification = Callable[..., Tensor]
# What eight bits round to zero is zero: a sigmoid never is.
SMALLEST_INTENSITY = 0.5 / 255


class Losses(NamedTuple):
    """Scalars of one batch, the scores_BN they were computed from, and what the decoder drew.

    reconstruction is the sum of squared pixel errors per image, over its L digits, before its
    weight.
    """

    total: Tensor
    reconstruction: Tensor | None
    scores_BN: Tensor
    drawn_BLCHW: Tensor | None = None


@dataclass(frozen=True)
class Objective:
    """total = classification + weight * reconstruction.

    on_logits: the classification loss takes logits; scores are those of a network that gives none.

    The decoder sees the capsule of the true class, at training and at test, as in section 4.1 of
    "Dynamic Routing Between Capsules" and in its authors' code; where an image shows several, it
    draws one after the other (section 6.2), each from its own capsule alone, and the errors add up.
    """

    classification: Classification
    reconstruction_weight: float
    on_logits: bool = False

    def margin_at(self, step: int, steps: int) -> float | None:
        """Return the margin of the loss at one of so many steps; None where it has no margin that
        grows.
        """
        margin_at: Any = getattr(self.classification, "margin_at", None)
        return None if margin_at is None else margin_at(step, steps)

    def __call__(
        self, network: nn.Module, batch: Batch, margin: float | Tensor | None = None
    ) -> Losses:
        """Compute the losses of `network` on `batch`.

        margin: of `margin_at`, a number or a tensor without axes; None: as at the end of training.
        """
        output = network(batch.images_BCHW)
        scores_BN = output.scores_BN.float()
        labels_BL = batch.labels.reshape(len(batch.labels), -1)
        target_BN = torch.zeros_like(scores_BN).scatter(1, labels_BL, 1.0)
        judged_BN = scores_BN
        if self.on_logits and output.logits_BN is not None:
            judged_BN = output.logits_BN.float()
        given: dict[str, Any] = {} if margin is None else {"margin": margin}
        classification = self.classification(judged_BN, target_BN, **given)
        if self.reconstruction_weight == 0:
            return Losses(classification, None, scores_BN)
        decoder = network.get_submodule("decoder")
        if labels_BL.shape[1] == 1:
            drawn_BLCHW = decoder(output.pose_BJD, target_BN.to(output.pose_BJD))[:, None]
        else:
            drawn_BLCHW = self._draw_digits(decoder, output.pose_BJD, labels_BL)
        true_BLCHW = batch.targets_BLCHW
        if true_BLCHW is None:
            if labels_BL.shape[1] > 1:
                raise DataError(
                    "loss.reconstruction.weight: images of several classes have no one picture of "
                    "each to be drawn; read the digits alone, or set it to 0"
                )
            true_BLCHW = batch.images_BCHW[:, None]
        reconstruction = reconstruction_loss(drawn_BLCHW.float(), true_BLCHW)
        total = classification + self.reconstruction_weight * reconstruction
        return Losses(total, reconstruction, scores_BN, drawn_BLCHW)

    def _draw_digits(self, decoder: nn.Module, pose_BJD: Tensor, labels_BL: Tensor) -> Tensor:
        """All digits of all images in one pass of the one decoder."""
        only_BLN = torch.zeros(*labels_BL.shape, pose_BJD.shape[1], device=labels_BL.device)
        only_BLN.scatter_(2, labels_BL[..., None], 1.0)
        digits = labels_BL.shape[1]
        drawn = decoder(pose_BJD.repeat_interleave(digits, dim=0), only_BLN.flatten(0, 1))
        return drawn.unflatten(0, (-1, digits))


@dataclass(frozen=True)
class TrainingStep:
    """Trains a network on one batch after another, eagerly, on one device.

    Attributes:
        network: what is trained, in place.
        objective: its loss.
        optimizer: of its parameters.
        make_optimizer: makes another such optimiser, of a copy.
        clip_norm: the length of the longest gradient; None: any.
        precision: as in a configuration.
    """

    network: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    clip_norm: float | None
    precision: str

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters."""
        return next(self.network.parameters()).device

    def __call__(self, batch: Batch, margin: float | Tensor | None = None) -> Losses:
        """Train on a batch, and return its losses."""
        with autocast(self.precision, self.device):
            losses = self.objective(self.network, batch, margin)
        self.optimizer.zero_grad()
        losses.total.backward()
        if self.clip_norm:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.clip_norm)
        self._round_rates()
        self.optimizer.step()
        return losses._replace(total=losses.total.detach(), scores_BN=losses.scores_BN.detach())

    def _round_rates(self) -> None:
        """Round the learning rates of a GPU's optimiser to float32.

        Kernels read them so off a tensor; eager and captured steps have the same bits.
        """
        for group in self.optimizer.param_groups if self.device.type == "cuda" else ():
            if not isinstance(group["lr"], Tensor):
                group["lr"] = torch.tensor(group["lr"], dtype=torch.float32).item()

    def copy(self) -> "TrainingStep":
        """Return the step of a copy of the network, with an optimiser in the same state."""
        network = copy.deepcopy(self.network)
        optimizer = self.make_optimizer(network)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return replace(self, network=network, optimizer=optimizer)

    def take_over(self, other: "TrainingStep") -> None:
        """Go on from where a copy of this step has got to."""
        # Not by a state_dict, which lacks the buffers that are not persistent.
        with torch.no_grad():
            for own, reached in zip(*map(_list_tensors, (self, other)), strict=True):
                own.copy_(reached)
        self.optimizer.load_state_dict(other.optimizer.state_dict())


def _list_tensors(step: TrainingStep) -> list[Tensor]:
    return [*step.network.parameters(), *step.network.buffers()]


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Let what a network multiplies be bfloat16 where a cell's precision is mixed."""
    mixed = precision == "bf16-mixed"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed)


def list_numbers(step: TrainingStep) -> dict[str, float]:
    """Return the numbers that the modules of a network, and its loss, keep as Python's, by name."""
    owners: dict[str, object] = {
        f"network.{name}".rstrip("."): module for name, module in step.network.named_modules()
    }
    owners["loss"] = step.objective.classification
    return {
        f"{owner}.{name}": value
        for owner, one in owners.items()
        for name, value in {**vars(type(one)), **getattr(one, "__dict__", {})}.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


class SplitMetrics:
    """Means over the examples of a split.

    loss; error, a fraction: an image is right when its L most active classes are exactly those it
    shows (section 6.2); reconstruction, as in `Losses`. Of images of several classes also
    at_least_one, the fraction with one of them among the most active, and, where there is a
    decoder, segmentation: see `measure_overlap`.

    Sums stay on the device until `compute`, so that a step does not wait for it.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.images, self.digits = 0, 1  # that were added, and classes shown in each

    def update(self, losses: Losses, batch: Batch) -> None:
        """Add one batch."""
        self.images += len(batch.labels)
        self.add_sums(losses, batch)

    def add_sums(self, losses: Losses, batch: Batch) -> None:
        """Add one batch to the sums on the device, and not to the number of images."""
        count = len(batch.labels)
        self._add("loss", losses.total.detach(), count)
        if losses.reconstruction is not None:
            self._add("reconstruction", losses.reconstruction.detach(), count)
        scores_BN = losses.scores_BN.detach()
        if batch.labels.dim() == 1:
            self._add("error", (scores_BN.argmax(dim=1) != batch.labels).sum())
            return
        self.digits = batch.labels.shape[1]
        detected_BL = is_detected(scores_BN, batch.labels)
        self._add("error", (~detected_BL.all(dim=1)).sum())
        self._add("at_least_one", detected_BL.any(dim=1).sum())
        if losses.drawn_BLCHW is not None and batch.targets_BLCHW is not None:
            overlap_BL = measure_overlap(losses.drawn_BLCHW.detach(), batch.targets_BLCHW)
            self._add("segmentation", (overlap_BL * detected_BL).sum(dtype=torch.float64))

    def compute(self, split: str) -> dict[str, float]:
        """Return what was measured, as `split/loss` and so on, and start again. Synchronises.

        The sums stay the same tensors, which captured steps add to.
        """
        counts = {name: self.images for name in self.sums}
        if "segmentation" in counts:
            counts["segmentation"] *= self.digits
        means = {
            f"{split}/{name}": float(self.sums[name]) / counts[name]
            for name in METRICS
            if counts.get(name)
        }
        for value in self.sums.values():
            value.zero_()
        self.images = 0
        return means

    def _add(self, name: str, value: Tensor, times: int = 1) -> None:
        """One operation on the device; in float64, since the sum is."""
        if name not in self.sums:
            self.sums[name] = torch.zeros((), dtype=torch.float64, device=value.device)
        self.sums[name].add_(value, alpha=times)


def is_detected(scores_BN: Tensor, labels_BL: Tensor) -> Tensor:
    """[B, L]: whether each class shown is among the L most active."""
    active_BL = scores_BN.topk(labels_BL.shape[1], dim=1).indices
    return (labels_BL[:, :, None] == active_BL[:, None, :]).any(dim=2)


def measure_overlap(drawn_BLCHW: Tensor, digit_BLCHW: Tensor) -> Tensor:
    """[B, L]: intersection over union of the pixels of non-zero intensity, drawn and true.

    Section 6.2 assigns to a digit every pixel of its reconstruction that is not zero. A digit whose
    class is not among the most active has no reconstruction: the caller counts it as 0.
    """
    drawn, true = drawn_BLCHW >= SMALLEST_INTENSITY, digit_BLCHW > 0
    both_BL = (drawn & true).flatten(2).sum(dim=2)
    either_BL = (drawn | true).flatten(2).sum(dim=2)
    return both_BL / either_BL.clamp(min=1)
