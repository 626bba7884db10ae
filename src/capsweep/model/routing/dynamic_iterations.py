"""The iterations of `dynamic_fast`, and the two products with votes that they are made of.

Shape letters: B batch, I children, J parents, P child pose, D parent pose; i children at a time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from capsweep.model.squash import squash
from capsweep.model.votes import NUMBERS_AT_ONCE

GRADIENTS = ("full", "last")


def check(num_iters: int, gradient: str) -> None:
    """Raise ValueError for what no implementation can do."""
    if num_iters < 1:
        raise ValueError(f"routing.num_iters must be >= 1, got {num_iters}")
    if gradient not in GRADIENTS:
        raise ValueError(f"routing.gradient must be one of {', '.join(GRADIENTS)}, got {gradient}")


@dataclass(frozen=True)
class Options:
    """As in `dynamic.reference`; full: whether gradients flow through all iterations."""

    num_iters: int
    none_of_the_above: bool
    full: bool


@dataclass(frozen=True)
class Iteration:
    """What the backward pass needs of one: V_JDB it began with, its couplings, [J, I, B] or, in the
    first, [J, I, 1], and s_JDB.
    """

    seen_JDB: Tensor | None
    coupling_JIB: Tensor
    s_JDB: Tensor


class Linear:
    """The two products with the votes of the children of a batch.

    Their intermediate results take turns in one room: fresh memory for each costs as much as the
    product.
    """

    def __init__(self, pose_BIP: Tensor, weight_IJDP: Tensor) -> None:
        self.pose_IPB = pose_BIP.permute(1, 2, 0).contiguous()
        self.weight_JDIP = weight_IJDP.permute(1, 2, 0, 3).contiguous()
        self.room = pose_BIP.new_empty(0)

    def parts(self, pose: int) -> Iterator[slice]:
        """Children whose numbers, so many a pose, parent and image, stay in the cache."""
        children, _, images = self.pose_IPB.shape
        numbers = max(1, len(self.weight_JDIP) * pose * images)
        step = max(1, NUMBERS_AT_ONCE[self.pose_IPB.is_cuda] // numbers)
        if len(self.room) < min(step, children) * numbers:
            self.room = self.room.new_empty(min(step, children) * numbers)
        return (slice(start, start + step) for start in range(0, children, step))

    def numbers(self, *shape: int) -> Tensor:
        """Some of the room, for what is read before the room is used again."""
        return self.room[: math.prod(shape)].view(shape)

    def agreement(self, part: slice, parent_JDB: Tensor) -> Tensor:
        """u_hat_ij . parent_j of some children, [J, i, B]."""
        weight_JDE, pose_iPB = self.weight_JDIP[:, :, part].flatten(2), self.pose_IPB[part]
        seen_JiPB = self.numbers(len(weight_JDE), *pose_iPB.shape)
        torch.bmm(weight_JDE.transpose(1, 2), parent_JDB, out=seen_JiPB.flatten(1, 2))  # E = i P
        return seen_JiPB.mul_(pose_iPB).sum(dim=2)

    def add_weighted(self, sum_JDB: Tensor, part: slice, weight_JiB: Tensor) -> None:
        """Add sum_i weight_ij u_hat_ij over some children."""
        weight_JDE, pose_iPB = self.weight_JDIP[:, :, part].flatten(2), self.pose_IPB[part]
        weighted_JiPB = self.numbers(len(weight_JDE), *pose_iPB.shape)
        torch.mul(weight_JiB[:, :, None], pose_iPB, out=weighted_JiPB)
        sum_JDB.baddbmm_(weight_JDE, weighted_JiPB.flatten(1, 2))

    def first_sum(self, coupling_JI1: Tensor) -> Tensor:
        """sum_i c_ij u_hat_ij [J, D, B], the couplings those of every image."""
        shared_EX = (self.weight_JDIP * coupling_JI1[:, None]).flatten(2).flatten(0, 1)  # X = I P
        return (shared_EX @ self.pose_IPB.flatten(0, 1)).unflatten(0, self.weight_JDIP.shape[:2])


def couplings(logit_JIB: Tensor, none_of_the_above: bool) -> Tensor:
    """Each child's shares among the parents, of logits [J, I, B] or [J, I]."""
    if not none_of_the_above:
        return torch.softmax(logit_JIB, dim=0)
    with_none = torch.cat([torch.zeros_like(logit_JIB[:1]), logit_JIB])
    return torch.softmax(with_none, dim=0)[1:]


def traced(
    pose_BIP: Tensor, weight_IJDP: Tensor, coupling_BIJ: Tensor, v_BJD: Tensor
) -> dict[str, Tensor]:
    """What `dynamic.reference` says of an iteration, without gradients."""
    with torch.no_grad():
        linear, v_JDB = Linear(pose_BIP, weight_IJDP), v_BJD.permute(1, 2, 0).contiguous()
        parts = linear.parts(pose_BIP.shape[2])
        agreement_JIB = torch.cat([linear.agreement(part, v_JDB) for part in parts], dim=1)
        agreement_BIJ = agreement_JIB.permute(2, 1, 0)
    one = {"coupling": coupling_BIJ, "pose": v_BJD, "agreement": agreement_BIJ}
    return {key: tensor.detach()[:, None] for key, tensor in one.items()}


def iterate(
    linear: Linear, prior_JI1: Tensor, bias_JD: Tensor | None, options: Options
) -> list[Iteration]:
    """All iterations; of a single one autograd knows the gradient."""
    bias_JD1 = prior_JI1.new_zeros(()) if bias_JD is None else bias_JD[..., None]
    coupling_JI1 = couplings(prior_JI1, options.none_of_the_above)
    seen_JDB, s_JDB = None, linear.first_sum(coupling_JI1) + bias_JD1
    done = [Iteration(seen_JDB, coupling_JI1, s_JDB)]
    for _ in range(options.num_iters - 1):
        v_JDB = squash(s_JDB, dim=1)
        seen_JDB = v_JDB if seen_JDB is None else seen_JDB + v_JDB
        coupling_JIB, s_JDB = _iteration(linear, prior_JI1, seen_JDB, options)
        s_JDB += bias_JD1
        done.append(Iteration(seen_JDB, coupling_JIB, s_JDB))
    return done


def _iteration(
    linear: Linear, prior_JI1: Tensor, seen_JDB: Tensor, options: Options
) -> tuple[Tensor, Tensor]:
    """Couplings and the weighted sums of votes."""
    coupling_JIB = prior_JI1.new_empty(*prior_JI1.shape[:2], seen_JDB.shape[2])
    s_JDB = torch.zeros_like(seen_JDB)
    for part in linear.parts(linear.pose_IPB.shape[1]):
        logit_JiB = linear.agreement(part, seen_JDB).add_(prior_JI1[:, part])
        coupling_JiB = couplings(logit_JiB, options.none_of_the_above)
        linear.add_weighted(s_JDB, part, coupling_JiB)
        coupling_JIB[:, part] = coupling_JiB
    return coupling_JIB, s_JDB
