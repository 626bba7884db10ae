"""What dynamic routing is measured against: two versions that people write, under autograd.

`textbook`: procedure 1 of "Dynamic Routing Between Capsules" as it is printed and as public PyTorch
code has it, every intermediate a tensor of its own. `bmm`: plain products of matrices, the honest
rival. Both take full gradients through all iterations, and are no variants of this project.

Shape letters: B batch, I children, J parents, P child pose, D parent pose.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from capsweep.model.routing.dynamic import DynamicRouting
from capsweep.model.routing.em import EMRouting
from capsweep.model.squash import squash
from capsweep.model.votes import Routed, Votes

Route = Callable[..., Routed]


def textbook(
    votes: Votes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    with_trace: bool = False,
    *,
    prior_LJ: Tensor | None = None,
    none_of_the_above: bool = False,
    gradient: str = "full",
) -> Routed:
    """Procedure 1, line by line; the logits are updated after the last iteration too, as printed.

    Raises ValueError for the options that it does not know.
    """
    _check_plain(num_iters, with_trace, prior_LJ, none_of_the_above, gradient)
    weight_1IJDP, pose_BI1P1 = votes.weight_IJDP[None], votes.pose_BIP[:, :, None, :, None]
    votes_BIJD = torch.matmul(weight_1IJDP, pose_BI1P1).squeeze(-1)
    logit_BIJ = votes_BIJD.new_zeros(votes_BIJD.shape[:3])
    coupling_BIJ, v_BJD, logit_BIJ = _printed_iteration(votes_BIJD, logit_BIJ, bias_JD)
    for _ in range(num_iters - 1):
        coupling_BIJ, v_BJD, logit_BIJ = _printed_iteration(votes_BIJD, logit_BIJ, bias_JD)
    return Routed(v_BJD, torch.linalg.vector_norm(v_BJD, dim=-1), coupling_BIJ)


def _printed_iteration(
    votes_BIJD: Tensor, logit_BIJ: Tensor, bias_JD: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    coupling_BIJ = torch.softmax(logit_BIJ, dim=2)
    s_BJD = (coupling_BIJ[..., None] * votes_BIJD).sum(dim=1)
    v_BJD = squash(s_BJD if bias_JD is None else s_BJD + bias_JD)
    return coupling_BIJ, v_BJD, logit_BIJ + (votes_BIJD * v_BJD[:, None]).sum(dim=-1)


def bmm(
    votes: Votes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    with_trace: bool = False,
    *,
    prior_LJ: Tensor | None = None,
    none_of_the_above: bool = False,
    gradient: str = "full",
) -> Routed:
    """Procedure 1 in products of matrices: votes by one product per child, laid out so that sums
    and agreements are products too; constant first couplings, no update that nothing reads.

    Raises ValueError for the options that it does not know.
    """
    _check_plain(num_iters, with_trace, prior_LJ, none_of_the_above, gradient)
    children, parents, parent_pose, child_pose = votes.weight_IJDP.shape
    weight_IPE = votes.weight_IJDP.reshape(children, -1, child_pose).transpose(1, 2)  # E = J D
    votes_IBE = torch.bmm(votes.pose_BIP.transpose(0, 1), weight_IPE)
    votes_BJID = votes_IBE.unflatten(2, (parents, parent_pose)).permute(1, 2, 0, 3).contiguous()
    coupling_BJ1I = votes_BJID.new_full((len(votes_BJID), parents, 1, children), 1 / parents)
    logit_BJI1: Tensor | None = None
    v_BJD = _parents(coupling_BJ1I, votes_BJID, bias_JD)
    for _ in range(num_iters - 1):
        agreement_BJI1 = torch.matmul(votes_BJID, v_BJD[..., None])
        logit_BJI1 = agreement_BJI1 if logit_BJI1 is None else logit_BJI1 + agreement_BJI1
        coupling_BJ1I = torch.softmax(logit_BJI1, dim=1).transpose(2, 3)
        v_BJD = _parents(coupling_BJ1I, votes_BJID, bias_JD)
    coupling_BIJ = coupling_BJ1I.squeeze(2).transpose(1, 2)
    return Routed(v_BJD, torch.linalg.vector_norm(v_BJD, dim=-1), coupling_BIJ)


def _parents(coupling_BJ1I: Tensor, votes_BJID: Tensor, bias_JD: Tensor | None) -> Tensor:
    s_BJD = torch.matmul(coupling_BJ1I, votes_BJID).squeeze(2)
    return squash(s_BJD if bias_JD is None else s_BJD + bias_JD)


def _check_plain(
    num_iters: int,
    with_trace: bool,
    prior_LJ: Tensor | None,
    none_of_the_above: bool,
    gradient: str,
) -> None:
    if num_iters < 1:
        raise ValueError(f"routing.num_iters must be >= 1, got {num_iters}")
    if with_trace or prior_LJ is not None or none_of_the_above or gradient != "full":
        raise ValueError(
            "the baselines know neither traces, priors, none_of_the_above nor gradient=last"
        )


def routed_by(network: nn.Module, route: Route) -> nn.Module:
    """The network, all of its layers routed by `route`. Raises ValueError where nothing routes."""
    routings = [
        module for module in network.modules() if isinstance(module, DynamicRouting | EMRouting)
    ]
    if not routings:
        raise ValueError(f"{type(network).__name__} has no routing to replace")
    for module in routings:
        module.route = route
    return network
