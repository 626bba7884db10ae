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
        squared_EDL = (votes_EDL - mean_ED[:, :, None]).square_()
        variance_ED = torch.linalg.vecdot(squared_EDL, share_E1L) + floor
        scaled_EL = None
        if with_distance:
            scaled_EL = torch.bmm(variance_ED.reciprocal()[:, None], squared_EDL)[:, 0]
        ctx.save_for_backward(votes_EDL, share_EL, mean_ED, variance_ED)
        ctx.set_materialize_grads(False)
        return mean_ED, variance_ED, scaled_EL

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
        # A second derivative is refused by torch: out= below has none.
        # With U = V - mu, S = U^2, p = 1 / var and x' the gradient by x:
        #     var' = by_variance - p^2 sum_l scaled'_l S_l
        #     S'_l = p scaled'_l + var' s_l
        #     mu'  = by_mean - sum_l 2 U_l S'_l, where sum_l s_l U_l = mu (1 - sum_l s_l)
        #     s'_l = sum_d (S_ld var'_d + V_ld mu'_d);   V'_l = 2 U_l S'_l + s_l mu'
        votes_EDL, share_EL, mean_ED, variance_ED = ctx.saved_tensors
        nothing_ED = torch.zeros_like(mean_ED)
        by_mean_ED, by_variance_ED, by_scaled_EL = grad_outputs
        by_mean_ED = nothing_ED if by_mean_ED is None else by_mean_ED
        by_variance_ED = nothing_ED if by_variance_ED is None else by_variance_ED
        difference_EDL = votes_EDL - mean_ED[:, :, None]
        squared_EDL = difference_EDL.square()
        left_EDX: list[Tensor] = []  # S' is the product of a left and a right matrix
        right_EXL: list[Tensor] = []
        if by_scaled_EL is not None:
            precision_ED, by_scaled_E1L = variance_ED.reciprocal(), by_scaled_EL[:, None]
            pulled_ED = torch.linalg.vecdot(difference_EDL, by_scaled_E1L)
            spread_ED = torch.linalg.vecdot(squared_EDL, by_scaled_E1L)
            by_mean_ED = by_mean_ED - 2 * precision_ED * pulled_ED
            by_variance_ED = by_variance_ED - precision_ED.square() * spread_ED
            left_EDX, right_EXL = [precision_ED], [by_scaled_EL]
        missing_E1 = 1 - share_EL.sum(dim=1, keepdim=True)
        by_mean_ED = by_mean_ED - 2 * by_variance_ED * mean_ED * missing_E1
        by_share_E1L = torch.bmm(by_variance_ED[:, None], squared_EDL)
        by_share_E1L.baddbmm_(by_mean_ED[:, None], votes_EDL)
        by_squared_EDX = 2 * torch.stack([*left_EDX, by_variance_ED], dim=2)
        by_squared_EXL = torch.stack([*right_EXL, share_EL], dim=1)
        by_votes_EDL = torch.bmm(by_squared_EDX, by_squared_EXL, out=squared_EDL)
        by_votes_EDL.mul_(difference_EDL).addcmul_(by_mean_ED[:, :, None], share_EL[:, None])
        return by_votes_EDL, by_share_E1L[:, 0], None, None
