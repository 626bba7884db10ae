"""Dynamic routing by agreement (Sabour, Frosst, Hinton 2017, procedure 1).

    b_ij = prior_ij                         zero unless learned
    for t = 0 .. T-1:
        c_i. = softmax_j b_i.               each child divides itself among the parents
        s_j  = sum_i c_ij u_hat_ij + bias_j
        v_j  = squash(s_j)
        b_ij = b_ij + u_hat_ij . v_j        not after the last iteration: nothing reads it

With `none_of_the_above` (section 7) the softmax has one more slot, of logit 0 for ever: it gets no
votes and is no parent, so a child's couplings sum to less than 1.

Gradients flow through all iterations, and the bias is added in each, as in the authors' code.
`gradient: last` lets them flow through the last weighted sum alone, and through the learned prior:
earlier iterations only choose the couplings.

Votes cost B I J P D multiplications, every iteration 2 B I J D; memory is that of the votes, B I J
D.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

import torch
from torch import Tensor, nn

from capsweep.model.routing.base import choose
from capsweep.model.squash import squash
from capsweep.model.votes import DenseVotes, Routed

GRADIENTS = ("full", "last")


def reference(
    votes: DenseVotes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    with_trace: bool = False,
    *,
    prior_IJ: Tensor | None = None,
    none_of_the_above: bool = False,
    gradient: str = "full",
) -> Routed:
    """Route `votes` in `num_iters` iterations (procedure 1).

    Returns pose_BJD, act_BJ = |v_j|, the coupling_BIJ of the last iteration and, on request, a
    trace of {"coupling": [B, I, J], "pose": [B, J, D]} per iteration. Raises ValueError for
    num_iters < 1 and for an unknown gradient.
    """
    if num_iters < 1:
        raise ValueError(f"routing.num_iters must be >= 1, got {num_iters}")
    if gradient not in GRADIENTS:
        raise ValueError(f"routing.gradient must be one of {', '.join(GRADIENTS)}, got {gradient}")
    votes_BJID = votes.dense().transpose(1, 2).contiguous()  # read 2 T - 1 times, so once in order
    seen_BJID, seen_bias_JD = votes_BJID, bias_JD  # by the iterations before the last
    if gradient == "last":
        seen_BJID, seen_bias_JD = votes_BJID.detach(), None if bias_JD is None else bias_JD.detach()

    logit_BJI = votes_BJID.new_zeros(votes_BJID.shape[:-1])
    if prior_IJ is not None:
        logit_BJI = logit_BJI + prior_IJ.T
    coupling_BJI = _couplings(logit_BJI, none_of_the_above)
    trace: list[dict[str, Tensor]] = []
    for _ in range(num_iters - 1):
        seen_BJI = coupling_BJI if gradient == "full" else coupling_BJI.detach()
        v_BJD = _parents(seen_BJI, seen_BJID, seen_bias_JD)
        trace.append({"coupling": coupling_BJI.transpose(1, 2), "pose": v_BJD})
        logit_BJI = logit_BJI + torch.matmul(seen_BJID, v_BJD[..., None]).squeeze(-1)
        coupling_BJI = _couplings(logit_BJI, none_of_the_above)
    v_BJD = _parents(coupling_BJI, votes_BJID, bias_JD)
    trace.append({"coupling": coupling_BJI.transpose(1, 2), "pose": v_BJD})
    return Routed(
        pose_BJD=v_BJD,
        act_BJ=torch.linalg.vector_norm(v_BJD, dim=-1),
        coupling_BIJ=coupling_BJI.transpose(1, 2),
        trace=trace if with_trace else None,
    )


def _couplings(logit_BJI: Tensor, none_of_the_above: bool) -> Tensor:
    if not none_of_the_above:
        return torch.softmax(logit_BJI, dim=1)
    none_B1I = torch.zeros_like(logit_BJI[:, :1])
    return torch.softmax(torch.cat([none_B1I, logit_BJI], dim=1), dim=1)[:, 1:]


def _parents(coupling_BJI: Tensor, votes_BJID: Tensor, bias_JD: Tensor | None) -> Tensor:
    s_BJD = torch.matmul(coupling_BJI[:, :, None, :], votes_BJID).squeeze(2)
    return squash(s_BJD if bias_JD is None else s_BJD + bias_JD)


IMPLS = {"reference": reference}


class DynamicRouting(nn.Module):
    """The routing of one layer.

    Owns the parents' bias [J, D], at first 0.1 as the authors' is, and, with `learned_prior`, the
    log priors [I, J] of equation 3, at first zero: they depend on the capsules and not on the
    image.
    """

    def __init__(
        self,
        num_iters: int,
        bias: bool,
        impl: str,
        none_of_the_above: bool = False,
        learned_prior: bool = False,
        gradient: str = "full",
        *,
        num_children: int,
        num_parents: int,
        parent_pose: int,
    ) -> None:
        super().__init__()
        self.num_iters = num_iters
        self.route = choose(IMPLS, impl)
        self.none_of_the_above, self.gradient = none_of_the_above, gradient
        bias_JD = torch.full((num_parents, parent_pose), 0.1) if bias else None
        self.bias_JD = None if bias_JD is None else nn.Parameter(bias_JD)
        prior_IJ = torch.zeros(num_children, num_parents) if learned_prior else None
        self.prior_IJ = None if prior_IJ is None else nn.Parameter(prior_IJ)

    def shares(self, num_parents: int) -> int:
        """Among how many a child divides itself at first, `none_of_the_above` counted."""
        return num_parents + self.none_of_the_above

    def forward(self, votes: DenseVotes, with_trace: bool = False) -> Routed:
        """Route the votes of this layer's children."""
        return self.route(
            votes,
            self.num_iters,
            self.bias_JD,
            with_trace,
            prior_IJ=self.prior_IJ,
            none_of_the_above=self.none_of_the_above,
            gradient=self.gradient,
        )
