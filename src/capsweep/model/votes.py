"""Votes: the input of every routing algorithm.

A child capsule i votes for the pose of each parent j. Routing sees child poses and vote weights
apart, so that a fast path need not form the votes; `.dense()` forms them.

Shape letters: B batch, I children, J parents, P child pose, D parent pose; in the convolutional
form N child positions, M parent positions, K kernel offsets.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class DenseVotes(Protocol):
    """Votes whose children each vote for every parent: u_hat is [B, I, J, D]."""

    @property
    def num_parents(self) -> int:
        """J."""
        ...

    def dense(self) -> Tensor:
        """u_hat [B, I, J, D]."""
        ...


@dataclass(frozen=True)
class Votes:
    """Linear votes u_hat_ij = W_ij u_i (equation 2 of "Dynamic Routing Between Capsules").

    pose_BIP, weight_IJDP; activation_BI for algorithms that ask how present a child is.
    """

    pose_BIP: Tensor
    weight_IJDP: Tensor
    activation_BI: Tensor | None = None

    @property
    def num_parents(self) -> int:
        """J."""
        return self.weight_IJDP.shape[1]

    def dense(self) -> Tensor:
        """u_hat [B, I, J, D]: one matrix product per child, over the batch."""
        num_children, num_parents, parent_pose, child_pose = self.weight_IJDP.shape
        weight_IPE = self.weight_IJDP.reshape(num_children, -1, child_pose).transpose(1, 2)
        votes_IBE = torch.bmm(self.pose_BIP.transpose(0, 1), weight_IPE)  # E = J * D
        return votes_IBE.transpose(0, 1).unflatten(2, (num_parents, parent_pose))


@dataclass(frozen=True)
class ConvolutionalVotes:
    """Pose-matrix votes V = M W, pose on the left ("Matrix capsules with EM routing", section 1).

    pose_BNI44: N child positions of I types; weight_KIJ44: shared over parent positions; child_MK:
    the child position at kernel offset k of parent position m. One child position can stand under
    several parent positions, and a parent competes with all of them for the child: `child_MK` tells
    whom with.
    """

    pose_BNI44: Tensor
    activation_BNI: Tensor
    weight_KIJ44: Tensor
    child_MK: Tensor

    @property
    def num_parents(self) -> int:
        """Parent types J, at each of the M positions."""
        return self.weight_KIJ44.shape[2]

    def dense(self) -> Tensor:
        """Votes [B, M, K, I, J, 4, 4]."""
        pose_BMKI44 = self.pose_BNI44[:, self.child_MK]
        return torch.einsum("bmkipq,kijqr->bmkijpr", pose_BMKI44, self.weight_KIJ44)


class Routed(NamedTuple):
    """What routing returns.

    pose_BJD and act_BJ (0..1) of the parents; coupling_BIJ where the algorithm has one; trace, on
    request: per iteration what the algorithm's own file says.
    """

    pose_BJD: Tensor
    act_BJ: Tensor
    coupling_BIJ: Tensor | None = None
    trace: list[dict[str, Tensor]] | None = None
