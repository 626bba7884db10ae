"""Competition: a child divides itself among all parents above it.

One child position stands below several parent positions, so its parents are spread over the local
votes of all of them.

Shape letters: B batch, M parent positions, K kernel offsets, N child positions, L = K I children
below a parent position, J parent types.
"""

from typing import NamedTuple

import torch
from torch import Tensor

NORMS = ("all", "types", "positions")


class Fields(NamedTuple):
    """Which children stand below which parents: child_MK, the child position at kernel offset k of
    parent position m; of how many child positions.
    """

    child_MK: Tensor
    num_child_positions: int


def divided(
    logit_BMLJ: Tensor, fields: Fields | None, norm: str = "all", nowhere: bool = False
) -> Tensor:
    """The shares [B, M, L, J] of each child: a softmax of the logits over its parents.

    fields None: every child stands below one position only. norm: among whom a child divides
    itself. all: the parents of all types at all positions above it; types: at each position anew,
    the types there; positions: for each type anew, the positions, but where there is one position
    alone, the types, as in the authors' last layer. nowhere: one more slot, of logit
    0, takes a share that no parent gets. Raises ValueError for another norm.
    """
    if norm not in NORMS:
        raise ValueError(f"routing.norm must be one of {', '.join(NORMS)}, got {norm}")
    if fields is None:
        norm = "types"
    if norm == "types" and not nowhere:
        return torch.softmax(logit_BMLJ, dim=3)
    total_BMLE = logit_BMLJ if norm == "positions" else logit_BMLJ.logsumexp(dim=3, keepdim=True)
    if fields is not None and norm != "types":
        total_BMLE = _over_positions(total_BMLE, fields)
    if nowhere:
        total_BMLE = torch.logaddexp(total_BMLE, torch.zeros_like(total_BMLE))
    return torch.exp(logit_BMLJ - total_BMLE)


def _over_positions(rival_BMLE: Tensor, fields: Fields) -> Tensor:
    """Of each child the log of the summed exponentials over its positions, at each of these."""
    batch, positions, _, width = rival_BMLE.shape
    child_E = fields.child_MK.flatten()
    rival_BEF = rival_BMLE.reshape(batch, len(child_E), -1)  # E = M K, F = I times the width
    sums = (batch, fields.num_child_positions, rival_BEF.shape[2])
    # The largest is subtracted before the exponential, and is no part of the gradient. A child
    # position without a parent keeps -inf, and nobody reads it.
    largest_BNF = rival_BEF.new_full(sums, -torch.inf)
    index_BEF = child_E[None, :, None].expand_as(rival_BEF)
    largest_BNF.scatter_reduce_(1, index_BEF, rival_BEF.detach(), "amax")
    largest_BEF = largest_BNF[:, child_E]
    summed_BNF = rival_BEF.new_zeros(sums).index_add(1, child_E, (rival_BEF - largest_BEF).exp())
    total_BEF = largest_BEF + summed_BNF[:, child_E].log()
    return total_BEF.view(batch, positions, -1, width)
