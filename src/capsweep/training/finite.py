"""Notices the first step whose loss is not finite, without a device synchronisation per step."""

import torch
from torch import Tensor

from capsweep.errors import NonFiniteLossError

NEVER = torch.iinfo(torch.int64).max
CHECK_EVERY = 100  # steps between two synchronisations


class FiniteLossWatch:
    """Keeps the number of the first bad step on the device; `check` reads it."""

    def __init__(self, first_step: int, device: torch.device) -> None:
        self.step = torch.tensor(first_step, device=device)
        self.first_bad = torch.tensor(NEVER, device=device)

    def update(self, loss: Tensor) -> None:
        """Note the loss of the next step."""
        bad = torch.where(torch.isfinite(loss.detach()), NEVER, self.step)
        self.first_bad = torch.minimum(self.first_bad, bad)
        self.step = self.step + 1

    def check(self, epoch: int) -> None:
        """Raise NonFiniteLossError naming the first bad step, if there was one. Synchronises."""
        first_bad = int(self.first_bad)
        if first_bad != NEVER:
            raise NonFiniteLossError(
                f"the loss was not finite at step {first_bad} (epoch {epoch}); "
                "lower optim.optimizer.lr, or look at that step's data"
            )
