"""One pass of EM routing over the votes: Gaussians fitted, and how far each vote is from them.

These are the only operations of a routing iteration on tensors of the size of the votes; all else
is D times smaller. Left to autograd, each would keep such tensors for the backward pass. Here an
iteration keeps the votes, which it does not own, and computes the differences from the mean anew.

Numbers come before children in memory: sums over either then read them in order.

Shape letters: B batch, M parent positions, J parent types, D parent pose, L children below a
position; E = B M J Gaussians.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Moments(NamedTuple):
    """Mean and variance [B, M, J, D] of the votes for each parent; scaled: the squared distances of
    the votes from the mean in units of the variance [B, M, J, L], None where not asked for.
    """

    mean: Tensor
    variance: Tensor
    scaled: Tensor | None


def moments(votes_BMJDL: Tensor, share_BMJL: Tensor, floor: float, with_distance: bool) -> Moments:
    """Of votes that weigh `share`, whose sum over children is 1; floor: added to the variance.

    Exact where the shares sum to less, as they do for parents without active children.
    """
    gaussians = votes_BMJDL.shape[:3]
    mean_ED, variance_ED, scaled_EL = _Moments.apply(
        votes_BMJDL.flatten(0, 2), share_BMJL.flatten(0, 2), floor, with_distance
    )
    return Moments(
        mean_ED.unflatten(0, gaussians),
        variance_ED.unflatten(0, gaussians),
        scaled_EL.unflatten(0, gaussians) if with_distance else None,
    )


class _Moments(torch.autograd.Function):
    """mu = sum s V; var = sum s (V - mu)^2 + floor; scaled = sum_d (V_d - mu_d)^2 / var_d."""

    @staticmethod
    def forward(
        ctx: Any, votes_EDL: Tensor, share_EL: Tensor, floor: float, with_distance: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        share_E1L = share_EL[:, None]
        mean_ED = torch.linalg.vecdot(votes_EDL, share_E1L)
        squared_EDL = _differences(votes_EDL, mean_ED).square_()
        variance_ED = torch.linalg.vecdot(squared_EDL, share_E1L) + floor
        scaled_EL = None
        if with_distance:
            scaled_EL = torch.bmm(variance_ED.reciprocal()[:, None], squared_EDL)[:, 0]
        ctx.save_for_backward(votes_EDL, share_EL, mean_ED, variance_ED)
        ctx.set_materialize_grads(False)
        return mean_ED, variance_ED, scaled_EL

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        by_mean_ED: Tensor | None,
        by_variance_ED: Tensor | None,
        by_scaled_EL: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        # With U = V - mu and S = U^2, and x' the gradient by x:
        #     var' = by_variance - sum_l q'_l S_l / var^2
        #     S'_l = q'_l / var + s_l var'
        #     mu'  = by_mean - sum_l 2 U_l S'_l, and sum_l s_l U_l = mu (1 - sum_l s_l)
        #     s'_l = sum_d S_ld var'_d + V_ld mu'_d;   V'_l = 2 U_l S'_l + s_l mu'
        votes_EDL, share_EL, mean_ED, variance_ED = ctx.saved_tensors
        by_mean_ED = torch.zeros_like(mean_ED) if by_mean_ED is None else by_mean_ED
        by_variance_ED = torch.zeros_like(mean_ED) if by_variance_ED is None else by_variance_ED
        difference_EDL = _differences(votes_EDL, mean_ED)
        squared_EDL = difference_EDL.square()
        if by_scaled_EL is not None:
            by_scaled_E1L, precision_ED = by_scaled_EL[:, None], variance_ED.reciprocal()
            pull_ED = precision_ED * torch.linalg.vecdot(difference_EDL, by_scaled_E1L)
            spread_ED = torch.linalg.vecdot(squared_EDL, by_scaled_E1L)
            by_variance_ED = by_variance_ED - spread_ED * precision_ED.square()
            by_mean_ED = by_mean_ED - 2 * pull_ED
        missing_E1 = 1 - share_EL.sum(dim=1, keepdim=True)
        by_mean_ED = by_mean_ED - 2 * by_variance_ED * mean_ED * missing_E1
        by_share_EL = torch.bmm(by_variance_ED[:, None], squared_EDL)
        by_share_EL = by_share_EL.baddbmm_(by_mean_ED[:, None], votes_EDL)[:, 0]
        if by_scaled_EL is None:
            by_squared_EDL = torch.mul(
                by_variance_ED[:, :, None], share_EL[:, None], out=squared_EDL
            )
        else:
            by_squared_EDL = torch.bmm(
                torch.stack((precision_ED, by_variance_ED), dim=2),
                torch.stack((by_scaled_EL, share_EL), dim=1),
                out=squared_EDL,
            )
        by_votes_EDL = by_squared_EDL.mul_(difference_EDL).mul_(2)
        by_votes_EDL.addcmul_(by_mean_ED[:, :, None], share_EL[:, None])
        return by_votes_EDL, by_share_EL, None, None


def _differences(votes_EDL: Tensor, mean_ED: Tensor) -> Tensor:
    return votes_EDL - mean_ED[:, :, None]
