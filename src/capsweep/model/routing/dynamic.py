"""Dynamic routing by agreement (Sabour, Frosst, Hinton 2017, procedure 1).

    b_ij = 0
    for t = 0 .. T-1:
        c_i. = softmax_j b_i.               each child divides itself among the parents
        s_j  = sum_i c_ij u_hat_ij + bias_j
        v_j  = squash(s_j)
        b_ij = b_ij + u_hat_ij . v_j        not after the last iteration: nothing reads it

Gradients flow through all iterations, and the bias is added in each, as in the authors' code.
Votes cost B I J P D multiplications, every iteration 2 B I J D; memory is that of the votes, B I J
D.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import torch
from torch import Tensor, nn

from capsweep.model.routing.base import choose
from capsweep.model.squash import squash
from capsweep.model.votes import DenseVotes, Routed


def reference(
    votes: DenseVotes, num_iters: int, bias_JD: Tensor | None = None, with_trace: bool = False
) -> Routed:
    """Route `votes` in `num_iters` iterations (procedure 1).

    Returns pose_BJD, act_BJ = |v_j|, the coupling_BIJ of the last iteration and, on request, a
    trace of {"coupling": [B, I, J], "pose": [B, J, D]} per iteration. Raises ValueError for
    num_iters < 1.
    """
    if num_iters < 1:
        raise ValueError(f"routing.num_iters must be >= 1, got {num_iters}")
    votes_BJID = votes.dense().transpose(1, 2).contiguous()  # read 2 T - 1 times, so once in order

    def parents(coupling_BJI: Tensor) -> Tensor:
        s_BJD = torch.matmul(coupling_BJI[:, :, None, :], votes_BJID).squeeze(2)
        return squash(s_BJD if bias_JD is None else s_BJD + bias_JD)

    logit_BJI = votes_BJID.new_zeros(votes_BJID.shape[:-1])
    coupling_BJI = torch.softmax(logit_BJI, dim=1)
    v_BJD = parents(coupling_BJI)
    trace = [{"coupling": coupling_BJI.transpose(1, 2), "pose": v_BJD}]
    for _ in range(num_iters - 1):
        logit_BJI = logit_BJI + torch.matmul(votes_BJID, v_BJD[..., None]).squeeze(-1)
        coupling_BJI = torch.softmax(logit_BJI, dim=1)
        v_BJD = parents(coupling_BJI)
        trace.append({"coupling": coupling_BJI.transpose(1, 2), "pose": v_BJD})
    return Routed(
        pose_BJD=v_BJD,
        act_BJ=torch.linalg.vector_norm(v_BJD, dim=-1),
        coupling_BIJ=coupling_BJI.transpose(1, 2),
        trace=trace if with_trace else None,
    )


IMPLS = {"reference": reference}


class DynamicRouting(nn.Module):
    """The routing of one layer; owns the parents' bias [J, D], at first 0.1 as the authors' is."""

    def __init__(
        self,
        num_iters: int,
        bias: bool,
        impl: str,
        *,
        num_children: int,
        num_parents: int,
        parent_pose: int,
    ) -> None:
        super().__init__()
        self.num_iters = num_iters
        self.route = choose(IMPLS, impl)
        bias_JD = torch.full((num_parents, parent_pose), 0.1) if bias else None
        self.bias_JD = None if bias_JD is None else nn.Parameter(bias_JD)

    def forward(self, votes: DenseVotes, with_trace: bool = False) -> Routed:
        """Route the votes of this layer's children."""
        return self.route(votes, self.num_iters, self.bias_JD, with_trace)
