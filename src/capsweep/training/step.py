"""The objective of a batch, an eager training step on one device, and the metrics of a split.

Shape letters: B batch, N classes, L classes shown in one image, C channels, H height and W width of
an image.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsweep.config.validation import METRICS
from capsweep.data.batches import Batch
from capsweep.errors import DataError
from capsweep.model.losses import reconstruction_loss

Classification = Callable[..., Tensor]
# The sigmoid at the decoder's output is never exactly zero. An intensity below this value counts as
# zero, because it rounds to zero in eight bits.
SMALLEST_INTENSITY = 0.5 / 255


class Losses(NamedTuple):
    """The losses, the scores and the reconstructions of one batch.

    Attributes:
        total: The loss that is minimised, a scalar.
        reconstruction: The reconstruction loss before it is multiplied by its weight: squared pixel
            errors, summed over the pixels and the L digits of an image, and averaged over the
            batch. None: the weight of the reconstruction loss is 0.
        scores_BN: The scores of the classes.
        drawn_BLCHW: The reconstructions of the decoder; None: the weight of the reconstruction loss
            is 0.
    """

    total: Tensor
    reconstruction: Tensor | None
    scores_BN: Tensor
    drawn_BLCHW: Tensor | None = None


@dataclass(frozen=True)
class Objective:
    """The objective of training: classification loss + weight * reconstruction loss.

    The decoder gets the capsule of the true class, in training and in testing, as in section 4.1 of
    "Dynamic Routing Between Capsules" and in the code of its authors. If an image shows several
    classes, the decoder draws one picture for each class (section 6.2). For each picture, the
    decoder gets only the capsule of the picture's class. The errors of the pictures are added.

    Attributes:
        classification: Computes the classification loss from scores or logits, and from one-hot
            targets.
        reconstruction_weight: The weight of the reconstruction loss; 0: no reconstruction.
        on_logits: Whether the classification loss gets logits instead of scores. If a network
            returns no logits, the loss gets the scores.
        class_weight_N: The weight of each class in the classification loss, on the device of the
            batches; None: all images have the same weight.
    """

    classification: Classification
    reconstruction_weight: float
    on_logits: bool = False
    class_weight_N: Tensor | None = None

    def margin_at(self, step: int, steps: int) -> float | None:
        """Return the margin of the loss at a step, or None if the margin does not grow.

        Args:
            step: The index of the optimiser step, from 0.
            steps: The number of optimiser steps of the whole training.
        """
        margin_at: Any = getattr(self.classification, "margin_at", None)
        return None if margin_at is None else margin_at(step, steps)

    def __call__(
        self, network: nn.Module, batch: Batch, margin: float | Tensor | None = None
    ) -> Losses:
        """Compute the losses of a network on a batch.

        Args:
            network: The network.
            batch: The batch.
            margin: The margin of the loss at this step, as returned by `margin_at` or as a scalar
                tensor. None: if the margin grows during training, the final margin is used.

        Raises:
            DataError: If there is a reconstruction loss, and images show several classes, but the
                batch has no separate picture of each class.
        """
        output = network(batch.images_BCHW)
        scores_BN = output.scores_BN.float()
        labels_BL = batch.labels.reshape(len(batch.labels), -1)
        target_BN = torch.zeros_like(scores_BN).scatter(1, labels_BL, 1.0)
        judged_BN = scores_BN
        if self.on_logits and output.logits_BN is not None:
            judged_BN = output.logits_BN.float()
        given: dict[str, Any] = {} if margin is None else {"margin": margin}
        classification = self._classify(judged_BN, target_BN, **given)
        if self.reconstruction_weight == 0:
            return Losses(classification, None, scores_BN)
        # All L pictures of an image are drawn in one pass, each from the capsule of its class.
        digits, decoder = labels_BL.shape[1], network.get_submodule("decoder")
        pose_BLJD = output.pose_BJD[:, None].expand(-1, digits, -1, -1)
        only_BLJ = pose_BLJD.new_zeros(pose_BLJD.shape[:3]).scatter(2, labels_BL[..., None], 1.0)
        drawn_BLCHW = decoder(pose_BLJD.flatten(0, 1), only_BLJ.flatten(0, 1))
        drawn_BLCHW = drawn_BLCHW.unflatten(0, (-1, digits))
        true_BLCHW = batch.targets_BLCHW
        if true_BLCHW is None:
            if digits > 1:
                raise DataError(
                    "loss.reconstruction.weight: the data set does not have a separate picture of "
                    "each class in an image; set the weight to 0, or use a data set that has them"
                )
            true_BLCHW = batch.images_BCHW[:, None]
        reconstruction = reconstruction_loss(drawn_BLCHW.float(), true_BLCHW)
        total = classification + self.reconstruction_weight * reconstruction
        return Losses(total, reconstruction, scores_BN, drawn_BLCHW)

    def _classify(self, judged_BN: Tensor, target_BN: Tensor, **given: Any) -> Tensor:
        """Compute the classification loss: the mean over the images, with their weights if any.

        With weights, the loss is sum(w_i l_i) / sum(w_i), as of `weight` of PyTorch's
        CrossEntropyLoss. The weight w_i of an image is the mean weight of its classes. The loss l_i
        of an image is the loss of a batch that has only this image.
        """
        if self.class_weight_N is None:
            return self.classification(judged_BN, target_BN, **given)
        classify = partial(self.classification, **given)
        loss_B = torch.vmap(classify)(judged_BN[:, None], target_BN[:, None])
        weight_B = (target_BN * self.class_weight_N).sum(dim=1) / target_BN.sum(dim=1)
        return (weight_B * loss_B).sum() / weight_B.sum()


@dataclass(frozen=True)
class TrainingStep:
    """An eager training step of a network, with its objective and its optimiser.

    Attributes:
        network: The network, which is trained in place.
        objective: Computes the loss of a batch.
        optimizer: The optimiser of the network's parameters.
        clip_norm: The largest allowed norm of all gradients together. If the norm is larger, the
            gradients are scaled down. None: gradients are not clipped.
        precision: The key `precision` of the configuration: "32", "tf32" or "bf16-mixed".
    """

    network: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    clip_norm: float | None
    precision: str

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.network.parameters()).device

    def __call__(self, batch: Batch, margin: float | Tensor | None = None) -> Losses:
        """Train on a batch, and return the losses that were computed before the update."""
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
        """Round the learning rates of an optimiser on a GPU to float32.

        Captured steps read learning rates from float32 tensors. Because of the rounding, eager
        steps use exactly the same learning rates.
        """
        for group in self.optimizer.param_groups if self.device.type == "cuda" else ():
            if not isinstance(group["lr"], Tensor):
                group["lr"] = torch.tensor(group["lr"], dtype=torch.float32).item()

    def copy(self) -> "TrainingStep":
        """Return a step that trains a copy of the network with a copy of the optimiser."""
        # One call copies both, so that the new optimiser has the parameters of the new network.
        network, optimizer = copy.deepcopy((self.network, self.optimizer))
        return replace(self, network=network, optimizer=optimizer)

    def take_over(self, other: "TrainingStep") -> None:
        """Overwrite the parameters, buffers and optimiser state of this step with those of `other`.

        Args:
            other: A step that `copy` returned.
        """
        # A state_dict would not contain buffers that are not persistent.
        with torch.no_grad():
            for tensor, taken in zip(*map(_list_tensors, (self, other)), strict=True):
                tensor.copy_(taken)
        self.optimizer.load_state_dict(other.optimizer.state_dict())


def _list_tensors(step: TrainingStep) -> list[Tensor]:
    return [*step.network.parameters(), *step.network.buffers()]


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return a context in which torch multiplies in bfloat16 if `precision` is "bf16-mixed".

    With every other precision, the context changes nothing.
    """
    mixed = precision == "bf16-mixed"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed)


def list_numbers(step: TrainingStep) -> dict[str, float]:
    """Return all int and float attributes of the network's modules and the classification loss.

    Returns:
        The value of each attribute, by a name such as "network.capsules.calls".
    """
    owners: dict[str, object] = dict(step.network.named_modules(prefix="network"))
    owners["loss"] = step.objective.classification
    return {
        f"{owner}.{name}": value
        for owner, one in owners.items()
        for name, value in {**vars(type(one)), **getattr(one, "__dict__", {})}.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


class SplitMetrics:
    """Metrics of a split, as means over its examples.

    The metrics are:

    - loss: the total loss.
    - error: the fraction of images that are classified wrongly. An image is classified correctly if
      the L classes with the highest scores are exactly the L classes in the image, as in section
      6.2 of "Dynamic Routing Between Capsules".
    - balanced_error: the mean over the classes of their errors. The error of a class is the
      fraction of its images in which the class is not among the L classes with the highest scores.
      A class without images is left out.
    - reconstruction: the reconstruction loss before it is multiplied by its weight.
    - at_least_one: the fraction of images for which at least one of the L classes with the highest
      scores is in the image. This metric exists only if images show several classes.
    - segmentation: the mean over all true digits of the overlap that `measure_overlap` computes. A
      digit counts as 0 if its class is not among the L classes with the highest scores. This metric
      exists only if images show several classes and there is a reconstruction loss.

    The sums stay on the device in float64 until `compute` is called, so that a step does not wait
    for the device.

    Attributes:
        sums: The sum of each metric. For balanced_error, the number of found classes [N], and then
            the number of missed classes [N].
        images: The number of images that were added.
        digits: The number of classes in each image.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.images, self.digits = 0, 1

    def update(self, losses: Losses, batch: Batch) -> None:
        """Add one batch to the sums and to the number of images."""
        self.images += len(batch.labels)
        self.add_sums(losses, batch)

    def add_sums(self, losses: Losses, batch: Batch) -> None:
        """Add one batch to the sums on the device, but not to `images`.

        The caller adds the number of images, because a replay of a captured step repeats only work
        on the device.
        """
        count = len(batch.labels)
        self._add("loss", losses.total.detach(), count)
        if losses.reconstruction is not None:
            self._add("reconstruction", losses.reconstruction.detach(), count)
        scores_BN = losses.scores_BN.detach()
        labels_BL = batch.labels.reshape(count, -1)
        self.digits = labels_BL.shape[1]
        detected_BL = is_detected(scores_BN, labels_BL)
        self._add("error", (~detected_BL.all(dim=1)).sum())
        self._count_classes(detected_BL, labels_BL, scores_BN.shape[1])
        if batch.labels.dim() == 1:
            return
        self._add("at_least_one", detected_BL.any(dim=1).sum())
        if losses.drawn_BLCHW is not None and batch.targets_BLCHW is not None:
            overlap_BL = measure_overlap(losses.drawn_BLCHW.detach(), batch.targets_BLCHW)
            self._add("segmentation", (overlap_BL * detected_BL).sum(dtype=torch.float64))

    def compute(self, split: str) -> dict[str, float]:
        """Return the metrics by name, such as "val/loss" for the split "val", and reset the sums.

        The call waits for the device. The tensors of the sums are kept and filled with zeros,
        because captured steps add to these tensors.
        """
        names = [name for name in METRICS if name in self.sums and self.images]
        means = {f"{split}/{name}": self._average(name) for name in names}
        for value in self.sums.values():
            value.zero_()
        self.images = 0
        return means

    def _average(self, name: str) -> float:
        """Return the mean of a metric."""
        if name == "balanced_error":
            found_N, missed_N = self.sums[name].chunk(2)
            return float((missed_N / (found_N + missed_N)).nanmean())  # NaN: a class without images
        digits = self.digits if name == "segmentation" else 1
        return float(self.sums[name]) / (self.images * digits)

    def _count_classes(self, detected_BL: Tensor, labels_BL: Tensor, classes: int) -> None:
        """Count how often each class was found and missed, in three operations on the device."""
        place = torch.add(labels_BL, ~detected_BL, alpha=classes).flatten()
        ones = torch.ones_like(place, dtype=torch.float64)
        if "balanced_error" not in self.sums:
            self.sums["balanced_error"] = ones.new_zeros(2 * classes)
        self.sums["balanced_error"].index_add_(0, place, ones)

    def _add(self, name: str, value: Tensor, times: int = 1) -> None:
        """Add `times * value` to a sum, in one operation on the device."""
        if name not in self.sums:
            self.sums[name] = torch.zeros((), dtype=torch.float64, device=value.device)
        self.sums[name].add_(value, alpha=times)


def is_detected(scores_BN: Tensor, labels_BL: Tensor) -> Tensor:
    """Return for each class in an image whether it is among the L classes with the highest scores.

    The result is [B, L], a bool for each of the L classes in each image. If L is 1, and classes
    have equal scores, the class with the lower index counts as higher.
    """
    if labels_BL.shape[1] == 1:
        return scores_BN.argmax(dim=1, keepdim=True) == labels_BL
    active_BL = scores_BN.topk(labels_BL.shape[1], dim=1).indices
    return (labels_BL[:, :, None] == active_BL[:, None, :]).any(dim=2)


def measure_overlap(drawn_BLCHW: Tensor, digit_BLCHW: Tensor) -> Tensor:
    """Compute the intersection over union of the nonzero pixels of drawn and true digits.

    In section 6.2 of "Dynamic Routing Between Capsules", a pixel belongs to a digit if the digit's
    reconstruction is not zero at this pixel. In the paper, a digit has no reconstruction if its
    class is not among the L classes with the highest scores. The caller therefore counts the
    overlap of such a digit as 0.

    Args:
        drawn_BLCHW: The reconstructions.
        digit_BLCHW: The true digits.

    Returns:
        The overlap of each digit, [B, L].
    """
    drawn, true = drawn_BLCHW >= SMALLEST_INTENSITY, digit_BLCHW > 0
    both_BL = (drawn & true).flatten(2).sum(dim=2)
    either_BL = (drawn | true).flatten(2).sum(dim=2)
    return both_BL / either_BL.clamp(min=1)
