"""An eager training step on one device, and what belongs to it: precision, clipping, rates."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from capsweep.data.batches import Batch
from capsweep.training.objective import Losses, Objective


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
