"""Notices the first step whose loss is not finite, without a device synchronisation per step."""

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from capsweep.errors import NonFiniteLossError
from capsweep.training import across

CHECK_EVERY = 100  # steps between two synchronisations


class FiniteLossWatch:
    """Keeps the losses of the steps since the last check on the device; `check` reads them."""

    def __init__(self, first_step: int) -> None:
        self.first_step = first_step
        self.losses: list[Tensor] = []

    def update(self, loss: Tensor) -> None:
        """Note the loss of the next step."""
        self.losses.append(loss.detach())

    def check(self, epoch: int) -> None:
        """Raise NonFiniteLossError naming the first bad step, if there was one. Synchronises."""
        if not self.losses:
            return
        # As all ranks saw them: each raises the same, and none waits for another.
        of_all = across.reduced(torch.stack(self.losses).isfinite().int(), ReduceOp.MIN)
        finite = of_all.bool().tolist()
        if not all(finite):
            raise NonFiniteLossError(
                f"the loss was not finite at step {self.first_step + finite.index(False)} (epoch "
                f"{epoch}); lower optim.optimizer.lr, or look at that step's data"
            )
        self.first_step += len(finite)
        self.losses.clear()
