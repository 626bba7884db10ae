"""Heinsen routing (Heinsen 2019, "An Algorithm for Routing Capsules in All Domains", algorithm 1).

    R_ij = 1 / J
    for t = 0 .. T-1:
        use_ij = a_i R_ij;  ignore_ij = a_i - use_ij                                    D-step
        z_j   = sum_i beta_use_ij use_ij - sum_i beta_ignore_ij ignore_ij               M-step
        mu_jd = sum_i use_ij V_ijd / m_j;   m_j = sum_i use_ij + 1e-5
        var_jd = sum_i use_ij (V_ijd - mu_jd)^2 / m_j + 1e-5
        fit_ij = logsigmoid(z_j)                       E-step; skipped after the last iteration
                 - sum_d [(V_ijd - mu_jd)^2 / var_jd + log(2 pi var_jd)] / 2
        R_ij = softmax_j fit_ij
    a_j = sigmoid(z_j)

Here V_ij is the vote of child i for parent j, a_i the activation of the child, mu_j the pose of the
parent, and a_j the activation of the parent.

Children are assigned as in EM routing, but the activation is computed differently. z_j is the
benefit of using the children minus the benefit of ignoring them. The prices beta_use_ij and
beta_ignore_ij are learned for each pair of child and parent. There is no description length and no
temperature.

In the paper the input is a logit of each child, and the algorithm takes the sigmoid of the logit.
Here the input is the probability a_i. The prices start at 0, so before training the activation of
every parent is 0.5 for all votes.

A child below several positions divides itself at each position separately. An iteration costs 4 B M
L J D multiplications; the reference keeps about two tensors of the size of the votes per iteration.
The prices are 2 L J parameters.

Shape letters: B batch, M parent positions, L children below a position, J parent types at a
position, D parent pose, T iterations.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.model.routing import CouplingRule, LayerSizes, Routed, RoutingLayer, make_routed
from capsweep.model.routing.vote_products import FormedVotes, VoteMoments, form_votes, make_fast
from capsweep.model.votes import LocalVotes

FLOOR = 1e-5  # added to every m_j and var_jd, so that they are above 0


def reference(
    votes: LocalVotes | FormedVotes,
    num_iters: int,
    beta_use_LJ: Tensor,
    beta_ignore_LJ: Tensor,
    with_trace: bool = False,
) -> Routed:
    """Route votes by Heinsen's algorithm, with plain tensor operations.

    Args:
        votes: Votes of the children, with activations.
        num_iters: Number of iterations T, at least 1.
        beta_use_LJ: Price of using a child.
        beta_ignore_LJ: Price of ignoring a child.
        with_trace: Whether to return a trace. Besides "coupling" and "pose", each iteration of the
            trace has "activation" [B, M, J].

    Returns:
        The poses and activations of the M J parents, and the logits of the activations. If there
        is only one position, the result also has the couplings R_ij of the last iteration.

    Raises:
        ValueError: If the votes have no activations.
    """
    formed, trace = form_votes(votes), list[dict[str, Tensor]]()
    activation_BML = formed.local_activation()
    beta_use_JL, beta_ignore_JL = beta_use_LJ.T.contiguous(), beta_ignore_LJ.T.contiguous()
    logit_BMJL = formed.zero_BMJL
    while True:
        coupling_BMJL = formed.apply_given(formed.divide_children(logit_BMJL, "types"))
        activation_BM1L = activation_BML[:, :, None]
        used_BMJL = activation_BM1L * coupling_BMJL
        ignored_BMJL = activation_BM1L - used_BMJL
        logit_BMJ = (beta_use_JL * used_BMJL - beta_ignore_JL * ignored_BMJL).sum(dim=3)
        share_BMJL = used_BMJL / (used_BMJL.sum(dim=3, keepdim=True) + FLOOR)
        mean_BMJD, variance_BMJD = formed.fit_gaussians(share_BMJL, FLOOR)
        act_BMJ = logit_BMJ.sigmoid()
        trace.append({"coupling": coupling_BMJL.mT, "pose": mean_BMJD, "activation": act_BMJ})
        if len(trace) == num_iters:
            return make_routed(trace, with_trace, act_BMJ=act_BMJ, logit_BMJ=logit_BMJ)
        log_act_BMJ = F.logsigmoid(logit_BMJ)
        logit_BMJL = formed.compute_log_fit(mean_BMJD, variance_BMJD, log_act_BMJ)


fast = make_fast(reference, VoteMoments)

IMPLS = {"reference": reference, "fast": fast}


class HeinsenRouting(RoutingLayer):
    """Heinsen routing of one layer, with learned prices of using and of ignoring a child.

    Both prices are [L, J] and start at 0.

    Args:
        num_iters: Number of routing iterations.
        impl: Name of an implementation in `IMPLS`, or `auto`.
        sizes: Sizes of the layer.
    """

    coupling_rule = CouplingRule("types")
    reads_activations = True

    def __init__(self, num_iters: int, impl: str, *, sizes: LayerSizes) -> None:
        super().__init__(IMPLS, impl)
        self.num_iters = num_iters
        self.beta_use_LJ = nn.Parameter(torch.zeros(sizes.children, sizes.parents))
        self.beta_ignore_LJ = nn.Parameter(torch.zeros(sizes.children, sizes.parents))
