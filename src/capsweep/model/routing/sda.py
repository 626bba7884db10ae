"""Routing by scaled distance agreement (Peer, Stabinger, Rodriguez-Sanchez 2018).

Source: "Training Deep Capsule Networks", gamma-capsules.

    u_hat_ij = u_hat_ij min(|u_hat_ij|, |u_i|) / |u_hat_ij|      with `clip`
    b_ij = 0
    for t = 0 .. T-1:
        c_ij = softmax_j b_ij
        v_j  = squash(sum_i c_ij u_hat_ij + bias_j)
        d_ij = |v_j - u_hat_ij|;  d = mean of d_ij over all i and j
        b_ij = - 2 ln(9 (J - 1)) d_ij / d    replaces the old b_ij; skipped after the last iteration

Here u_hat_ij is the vote of child i for parent j, u_i the pose of the child, and v_j the pose of
the parent. With the option `clip`, a vote that is longer than its child's pose is shortened to the
length of that pose.

A vote and a parent agree if their distance is small. Suppose that the distance of a vote to one
parent is half the mean distance d, and its distance to all other parents is d. The logits are
scaled so that the coupling with the near parent is then 0.9. The couplings are therefore nearly
one-hot by construction, as in a parse tree. The authors' code takes the mean distance over the
whole batch, so the result of an image depends on the other images. Here the mean is over all votes
of an image.

If a child is below several positions, the softmax divides the child among the parents at all these
positions, but J is the number of parents at one position. An iteration costs 2 B M L J D
multiplications. The reference keeps two tensors of the size of the votes per iteration.

Shape letters: B batch, M parent positions, L children below a position, J parent types at a
position, D parent pose, T iterations.
"""

import math

import torch
from torch import Tensor, nn

from capsweep.model.capsules import squash
from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes, VoteProducts, form_votes, make_fast
from capsweep.model.votes import LocalVotes


class MeasuredVotes(FormedVotes):
    """Formed votes with methods that clip votes and measure their distances to parent poses."""

    def clip_votes(self) -> None:
        """Shorten each vote that is longer than its child's pose to the length of that pose."""
        length_BMJL = torch.linalg.vector_norm(self.votes_BMJLD, dim=4)
        most_BML = torch.linalg.vector_norm(self.votes.local_poses(), dim=3)
        self.votes_BMJLD = self.votes_BMJLD * _compute_clip(length_BMJL, most_BML)[..., None]

    def measure_distances(self, pose_BMJD: Tensor) -> Tensor:
        """Compute the distances [B, M, J, L] between the votes and the poses of their parents."""
        return torch.linalg.vector_norm(pose_BMJD[..., None, :] - self.votes_BMJLD, dim=4)


class MeasuredProducts(VoteProducts):
    """The fast form of `MeasuredVotes`. It clips products with votes instead of the votes.

    The squared distance of a vote u and a pose v is computed as |u|^2 - 2 u . v + |v|^2. Its
    rounding error is relative to the larger of |u|^2 and |v|^2. The errors of the gradients were
    measured in single precision, with 16 numbers per vote, for votes that differ by 0.01 of their
    length. The errors are at most 3e-4, and with the reference at most 1e-5.
    """

    clip_BMJL: Tensor | float = 1.0

    @staticmethod
    def read_constants(votes: LocalVotes, votes_BMJDL: Tensor) -> list[Tensor]:
        """Return the length of each vote [B, M, J, L] and of each child pose [B, M, L]."""
        length_BMJL = _take_root(votes_BMJDL.square().sum(dim=3))
        return [length_BMJL, torch.linalg.vector_norm(votes.local_poses(), dim=3)]

    def clip_votes(self) -> None:
        """Shorten each vote that is longer than its child's pose to the length of that pose.

        The stored votes do not change. Instead, every later product with a vote is multiplied by
        the factor that shortens this vote.
        """
        self.clip_BMJL = _compute_clip(*self.constants)

    def sum_votes(self, share_BMJL: Tensor) -> Tensor:
        """Compute the weighted sums of the votes over the children, sum_l s_l V_l [B, M, J, D]."""
        return super().sum_votes(self.clip_BMJL * share_BMJL)

    def measure_distances(self, pose_BMJD: Tensor) -> Tensor:
        """Compute the distances [B, M, J, L] between the votes and the poses of their parents."""
        product_BMJL = self.clip_BMJL * self.compare_votes(pose_BMJD)
        squared_BMJL = (self.clip_BMJL * self.constants[0]).square()
        squared_BMJ1 = pose_BMJD.square().sum(dim=3, keepdim=True)
        return _take_root(squared_BMJL - 2 * product_BMJL + squared_BMJ1)


def reference(
    votes: LocalVotes | MeasuredProducts,
    num_iters: int,
    bias_JD: Tensor | None = None,
    clip: bool = True,
    with_trace: bool = False,
) -> Routed:
    """Route votes by scaled distance agreement, with plain tensor operations.

    Args:
        votes: Votes of the children.
        num_iters: Number of iterations T, at least 1.
        bias_JD: Bias added to the sum of the votes in each iteration. None: no bias.
        clip: Whether votes longer than their child's pose are shortened to the pose's length.
        with_trace: Whether to return a trace.

    Returns:
        The poses of the M J parents. The activation of a parent is the length of its pose. If there
        is only one position, the result also has the couplings of the last iteration.
    """
    formed, trace = form_votes(votes, MeasuredVotes), list[dict[str, Tensor]]()
    if clip:
        formed.clip_votes()
    logit_BMJL = formed.zero_BMJL
    while True:
        coupling_BMJL = formed.apply_given(formed.divide_children(logit_BMJL))
        s_BMJD = formed.sum_votes(coupling_BMJL)
        pose_BMJD = squash(s_BMJD if bias_JD is None else s_BMJD + bias_JD)
        trace.append({"coupling": coupling_BMJL.mT, "pose": pose_BMJD})
        if len(trace) == num_iters:
            return make_routed(trace, with_trace)
        logit_BMJL = _scale_distances(formed.measure_distances(pose_BMJD))


def _compute_clip(length_BMJL: Tensor, most_BML: Tensor) -> Tensor:
    """Compute the factors [B, M, J, L] that shorten the votes; 1 for votes that are not clipped."""
    tiny = torch.finfo(length_BMJL.dtype).tiny
    most_BM1L = most_BML[:, :, None]
    return torch.where(length_BMJL > most_BM1L, most_BM1L / length_BMJL.clamp(min=tiny), 1.0)


def _scale_distances(distance_BMJL: Tensor) -> Tensor:
    """Compute the logits b_ij [B, M, J, L] from the distances d_ij.

    All logits are 0 if there is only one parent type, or if all distances are 0.
    """
    mean_B111 = distance_BMJL.mean(dim=(1, 2, 3), keepdim=True)
    tiny = torch.finfo(mean_B111.dtype).tiny ** 0.5
    parents = distance_BMJL.shape[2]
    factor = -2 * math.log(9 * (parents - 1)) if parents > 1 else 0.0
    return factor * distance_BMJL / mean_B111.clamp(min=tiny)


def _take_root(squared: Tensor) -> Tensor:
    """Compute the square root; if a number is not positive, its root and gradient are 0."""
    is_more = squared > 0
    return torch.where(is_more, squared, 1.0).sqrt() * is_more


fast = make_fast(reference, MeasuredProducts)

IMPLS = {"reference": reference, "fast": fast}


class SDARouting(RoutingLayer):
    """Scaled distance agreement of one layer, with an optional bias of the parents.

    The bias [J, D] is learned and starts at 0.1.

    Args:
        num_iters: Number of routing iterations.
        bias: Whether the parents have a bias.
        clip: Whether votes longer than their child's pose are shortened to the pose's length.
        impl: Name of an implementation in `IMPLS`, or `auto`.
        sizes: Sizes of the layer.
    """

    coupling_rule = CouplingRule()
    squashes = True

    def __init__(
        self, num_iters: int, bias: bool, clip: bool, impl: str, *, sizes: LayerSizes
    ) -> None:
        super().__init__(IMPLS, impl)
        self.num_iters, self.clip = num_iters, clip
        bias_JD = torch.full((sizes.parents, sizes.parent_pose), 0.1)
        self.bias_JD = nn.Parameter(bias_JD) if bias else None
