"""Honest variants of a few lines, each without something that those of `src` have. What every
variant promises must hold for them too: a user's own may be as plain.

Shape letters: B batch, I children, J parents, D parent pose; M parent positions, L children below
one.
"""

import torch
from torch import Tensor, nn

from capsweep.model.capsules import squash
from capsweep.model.routing import LayerSizes, Routed
from capsweep.model.votes import ConvolutionalVotes, LocalVotes, Votes


def _return_poses(v_BMJD: Tensor) -> Routed:
    act_BMJ = torch.linalg.vector_norm(v_BMJD, dim=-1)
    return Routed(v_BMJD.flatten(1, 2), act_BMJ.flatten(1))


class UniformRouting(nn.Module):
    """A mean of all votes: without parameters, iterations and couplings."""

    def __init__(self, *, sizes: LayerSizes) -> None:
        super().__init__()

    def forward(self, votes: LocalVotes, with_trace: bool = False) -> Routed:
        """No traces: it has no iterations."""
        return _return_poses(squash(votes.form_local().mean(dim=2)))


class SigmoidRouting(nn.Module):
    """Agreement raises a share whatever the others are, so a child's couplings have no sum; of
    vector capsules alone.
    """

    votes_kind = Votes

    def __init__(self, num_iters: int, *, sizes: LayerSizes) -> None:
        super().__init__()
        self.num_iters = num_iters
        self.logit_J = nn.Parameter(torch.zeros(sizes.parents))

    def forward(self, votes: Votes, with_trace: bool = False) -> Routed:
        """With its couplings."""
        votes_BIJD = votes.dense()
        coupling_BIJ = torch.sigmoid(self.logit_J).expand(votes_BIJD.shape[:-1])
        v_BJD = self._weigh(coupling_BIJ, votes_BIJD)
        for _ in range(self.num_iters - 1):
            agreement_BIJ = (votes_BIJD * v_BJD[:, None]).sum(dim=3)
            coupling_BIJ = torch.sigmoid(self.logit_J + agreement_BIJ)
            v_BJD = self._weigh(coupling_BIJ, votes_BIJD)
        return _return_poses(v_BJD[:, None])._replace(coupling_BIJ=coupling_BIJ)

    def _weigh(self, coupling_BIJ: Tensor, votes_BIJD: Tensor) -> Tensor:
        return squash((coupling_BIJ[..., None] * votes_BIJD).mean(dim=1))


class AttentionRouting(nn.Module):
    """Children attend to each other below a position, by scaled products of their votes: without
    iterations; of matrix capsules alone.
    """

    votes_kind = ConvolutionalVotes
    reads_activations = True

    def __init__(self, *, sizes: LayerSizes) -> None:
        super().__init__()
        self.bias_JD = nn.Parameter(torch.zeros(sizes.parents, sizes.parent_pose))

    def forward(self, votes: ConvolutionalVotes, with_trace: bool = False) -> Routed:
        """No traces: it has no iterations."""
        side = votes.pose_BNIRS.shape[3]
        present_BMLJD = votes.form_local() * votes.local_activation()[..., None, None]
        votes_BMJLD = present_BMLJD.transpose(2, 3)
        attended_BMJLD = nn.functional.scaled_dot_product_attention(
            votes_BMJLD, votes_BMJLD, votes_BMJLD, scale=1 / side
        )
        return _return_poses(squash(attended_BMJLD.mean(dim=3) + self.bias_JD))
