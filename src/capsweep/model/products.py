"""Products of small pose matrices, numbers before children in memory.

For matrices of 4x4, sums of products, number by number, are faster than products of matrices; not
so their gradients, which autograd would sum from tensors of the size of the votes.

Shape letters: B batch, M parent positions, K kernel offsets, I child types, L = K I, J parent
types; Q rows of a weight, R S rows and columns of a product, D = R S.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def products(pose_BMKIRQ: Tensor, weight_KIJQS: Tensor) -> Tensor:
    """V_rs = sum_q M_rq W_qs, [B, M, J, D, L]."""
    return _Products.apply(pose_BMKIRQ.flatten(2, 3), weight_KIJQS.flatten(0, 1))


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pose_BMLRQ: Tensor, weight_LJQS: Tensor) -> Tensor:
        ctx.save_for_backward(pose_BMLRQ, weight_LJQS)
        batch, positions, children, rows, _ = pose_BMLRQ.shape
        _, parents, _, columns = weight_LJQS.shape
        sizes = (rows, columns, children)
        pose_QBM1RSL = pose_BMLRQ.permute(4, 0, 1, 3, 2)[:, :, :, None, :, None]
        pose_QBM1E = pose_QBM1RSL.expand(-1, -1, -1, -1, *sizes).flatten(4)
        weight_QJRSL = weight_LJQS.permute(2, 1, 3, 0)[:, :, None].expand(-1, -1, *sizes)
        weight_QJE = weight_QJRSL.flatten(2)
        votes_BMJE = pose_QBM1E[0] * weight_QJE[0]
        for pose_BM1E, weight_JE in zip(pose_QBM1E[1:], weight_QJE[1:], strict=True):
            votes_BMJE.addcmul_(pose_BM1E, weight_JE)
        return votes_BMJE.view(batch, positions, parents, rows * columns, children)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        return _gradients(ctx, *grad_outputs)


@once_differentiable
def _gradients(ctx: Any, by_votes_BMJDL: Tensor) -> tuple[Tensor, Tensor]:
    """For each child M' = V' W^T and W' = M^T V', over all parents and all positions. A second
    derivative is refused.
    """
    pose_BMLRQ, weight_LJQS = ctx.saved_tensors
    batch, positions, _, rows, _ = pose_BMLRQ.shape
    _, parents, _, columns = weight_LJQS.shape
    by_votes_BMJRSL = by_votes_BMJDL.unflatten(3, (rows, columns))
    by_votes_LEF = by_votes_BMJRSL.permute(5, 0, 1, 3, 2, 4).flatten(4).flatten(1, 3)
    pose_LEQ = pose_BMLRQ.permute(2, 0, 1, 3, 4).flatten(1, 3)
    weight_LFQ = weight_LJQS.transpose(2, 3).flatten(1, 2)
    by_pose_LEQ = torch.bmm(by_votes_LEF, weight_LFQ)
    by_weight_LQF = torch.bmm(pose_LEQ.transpose(1, 2), by_votes_LEF)
    by_pose_LBMRQ = by_pose_LEQ.unflatten(1, (batch, positions, rows))
    by_weight_LQJS = by_weight_LQF.unflatten(2, (parents, columns))
    return by_pose_LBMRQ.permute(1, 2, 0, 3, 4), by_weight_LQJS.transpose(1, 2)
