"""Competition: a child divides itself among all parents above it.

One child position stands below several parent positions, so its parents are spread over the local
votes of all of them.

Shape letters: B batch, M parent positions, K kernel offsets, N child positions, L = K I children
below a parent position, J parent types.
"""

import torch
from torch import Tensor

NORMS = ("all", "types", "positions")


def divided(
    logit_BMLJ: Tensor, child_MK: Tensor | None, num_child_positions: int, norm: str = "all"
) -> Tensor:
    """The shares [B, M, L, J] of each child: a softmax of the logits over its parents.

    norm: among whom it divides itself. all: over parents of all types at all positions above it;
    types: at each position anew, over the types there; positions: for each type anew, over the
    positions. child_MK None: there is one position only. Raises ValueError for another norm.
    """
    if norm not in NORMS:
        raise ValueError(f"routing.norm must be one of {', '.join(NORMS)}, got {norm}")
    if norm == "types" or (norm == "all" and child_MK is None):
        return torch.softmax(logit_BMLJ, dim=3)
    if child_MK is None:
        return torch.ones_like(logit_BMLJ)
    rival_BMLE = logit_BMLJ if norm == "positions" else logit_BMLJ.logsumexp(dim=3, keepdim=True)
    total_BMLE = _over_positions(rival_BMLE, child_MK, num_child_positions)
    return torch.exp(logit_BMLJ - total_BMLE)


def _over_positions(rival_BMLE: Tensor, child_MK: Tensor, num_child_positions: int) -> Tensor:
    """Of each child the log of the summed exponentials over its positions, at each of these."""
    batch, positions, _, width = rival_BMLE.shape
    child_E = child_MK.flatten()
    rival_BEF = rival_BMLE.reshape(batch, len(child_E), -1)  # E = M K, F = I times the width
    sums = (batch, num_child_positions, rival_BEF.shape[2])
    # The largest is subtracted before the exponential, and is no part of the gradient. A child
    # position without a parent keeps -inf, and nobody reads it.
    largest_BNF = rival_BEF.new_full(sums, -torch.inf)
    index_BEF = child_E[None, :, None].expand_as(rival_BEF)
    largest_BNF.scatter_reduce_(1, index_BEF, rival_BEF.detach(), "amax")
    largest_BEF = largest_BNF[:, child_E]
    summed_BNF = rival_BEF.new_zeros(sums).index_add(1, child_E, (rival_BEF - largest_BEF).exp())
    total_BEF = largest_BEF + summed_BNF[:, child_E].log()
    return total_BEF.view(batch, positions, -1, width)
