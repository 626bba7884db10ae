"""Collective operations, and modules, of several devices that train one cell.

Without a process group everything here does what one device does anyway.

Shape letters: B batch of one rank, C channels, H W grid.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from capsweep.data.randomness import RankShare
from capsweep.errors import ConfigError

# Modules of torch.nn that draw numbers or look at the whole batch, so that a share of it is not
# enough for them.
WHOLE_BATCH = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)


def all_reduce(tensor: Tensor, operation: Any = distributed.ReduceOp.SUM) -> Tensor:
    """In place: the sum, or what else, over all ranks."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(tensor, operation)
    return tensor


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


class _SumOverRanks(torch.autograd.Function):
    """Every rank's loss depends on every rank's summand, so that gradients add up too."""

    @staticmethod
    def forward(ctx: Any, summand: Tensor) -> Tensor:
        return all_reduce(summand.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return all_reduce(gradients[0].clone())


class SharedDropout(nn.Dropout):
    """Dropout of a rank's share of a batch, by the mask that one device draws for all of it."""

    dealt: RankShare | None = None

    def forward(self, input: Tensor) -> Tensor:
        """[B, ...] as it came, with elements set to zero."""
        if not self.training or self.dealt is None:
            return super().forward(input)
        ones = input.new_ones((self.dealt.examples, *input.shape[1:]))
        return input * F.dropout(ones, self.p)[self.dealt.training_rows]


class SharedBatchNorm(nn.BatchNorm2d):
    """Batch normalisation by the statistics of the global batch.

    Not torch's SyncBatchNorm, which is for GPUs alone and would count a stand-in.
    """

    dealt: RankShare | None = None

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, H, W], normalised for every channel."""
        if not self.training or self.dealt is None:
            return super().forward(input)
        normalised: Any = torch.compiler.disable(self._normalised)
        return normalised(input, self.dealt)

    def _normalised(self, input: Tensor, dealt: RankShare) -> Tensor:
        images_BCHW = input.float()
        counted_BCHW = images_BCHW[: dealt.num_examples]
        count = dealt.examples * input[0, 0].numel()
        mean_C11 = _sum_images(counted_BCHW) / count
        variance_C11 = _sum_images((counted_BCHW - mean_C11).square()) / count
        self._update_statistics(
            mean_C11.flatten(), variance_C11.flatten() * count / max(count - 1, 1)
        )
        normal_BCHW = (images_BCHW - mean_C11) * torch.rsqrt(variance_C11 + self.eps)
        return (normal_BCHW * self.weight[:, None, None] + self.bias[:, None, None]).to(input.dtype)

    @torch.no_grad()
    def _update_statistics(self, mean_C: Tensor, variance_C: Tensor) -> None:
        buffers: Any = self
        buffers.running_mean.lerp_(mean_C, self.momentum)
        buffers.running_var.lerp_(variance_C, self.momentum)
        buffers.num_batches_tracked.add_(1)


def _sum_images(values_BCHW: Tensor) -> Tensor:
    """[C, 1, 1]: of all images of all ranks."""
    total: Any = _SumOverRanks.apply(values_BCHW.sum(dim=(0, 2, 3)))
    return total[:, None, None]


SharedModule = SharedDropout | SharedBatchNorm


def share_modules(network: nn.Module) -> list[SharedModule]:
    """Replace in place modules that look at the whole batch by those that do so over all ranks.

    Before every step their `dealt` is set. Raises ConfigError for a module without such a form.
    """
    replaced: list[SharedModule] = []
    for name, module in list(network.named_modules()):
        if not isinstance(module, WHOLE_BATCH):
            continue
        replaced.append(_make_shared(name, module))
        parent, _, last = name.rpartition(".")
        setattr(network.get_submodule(parent), last, replaced[-1])
    return replaced


def _make_shared(name: str, module: nn.Module) -> SharedModule:
    if type(module) is nn.Dropout:
        return SharedDropout(module.p)
    if type(module) is nn.BatchNorm2d and module.affine and module.momentum is not None:
        shared = SharedBatchNorm(module.num_features, module.eps, module.momentum)
        shared.load_state_dict(module.state_dict())
        return shared
    raise ConfigError(
        f"trainer.devices: {name} is a {type(module).__name__}, which several devices cannot share "
        "yet; set trainer.devices=1"
    )
