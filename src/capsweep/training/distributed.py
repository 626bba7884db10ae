"""Collective operations, and modules, of several devices that train one cell.

Without a process group everything here does what one device does anyway.

Shape letters: B batch of one rank.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, distributed, nn
from torch.nn import functional as F

from capsweep.data.batches import RankShare
from capsweep.errors import ConfigError

# Modules of torch.nn that draw numbers or look at the whole batch, so that a share of it is not
# enough for them.
WHOLE_BATCH = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)


def all_reduce(tensor: Tensor, operation: Any = distributed.ReduceOp.SUM) -> Tensor:
    """In place: the sum, or what else, over all ranks."""
    if count_ranks() > 1:
        distributed.all_reduce(tensor, operation)
    return tensor


def count_ranks() -> int:
    """The processes that train the cell together."""
    has_group = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if has_group else 1


def gather_rows(parts: Sequence[tuple[Tensor, RankShare, slice]]) -> Tensor:
    """Rows of global batches, one after the other, of which this rank has a slice each.

    Exact: whatever a rank adds to a row that it does not have is zero.
    """
    count = sum(dealt.examples for _, dealt, _ in parts)
    first = parts[0][0]
    rows = first.new_zeros((count, *first.shape[1:]))
    start = 0
    for part, dealt, place in parts:
        if dealt.num_examples:
            rows[start : start + dealt.examples][place] = part
        start += dealt.examples
    return all_reduce(rows)


class SharedDropout(nn.Dropout):
    """Dropout of a rank's share of a batch, by the mask that one device draws for all of it."""

    dealt: RankShare | None = None

    def forward(self, input: Tensor) -> Tensor:
        """[B, ...] as it came, with elements set to zero."""
        if not self.training or self.dealt is None:
            return super().forward(input)
        ones = input.new_ones((self.dealt.examples, *input.shape[1:]))
        return input * F.dropout(ones, self.p)[self.dealt.training_rows]


def share_modules(network: nn.Module) -> list[SharedDropout]:
    """Replace in place modules that look at the whole batch by those that do so over all ranks.

    Before every step their `dealt` is set. Raises ConfigError for a module without such a form.
    """
    replaced: list[SharedDropout] = []
    for name, module in list(network.named_modules()):
        if not isinstance(module, WHOLE_BATCH):
            continue
        if type(module) is not nn.Dropout:
            raise ConfigError(
                f"trainer.devices: {name} is a {type(module).__name__}, which several devices "
                "cannot share; set trainer.devices=1"
            )
        replaced.append(SharedDropout(module.p))
        parent, _, last = name.rpartition(".")
        setattr(network.get_submodule(parent), last, replaced[-1])
    return replaced
