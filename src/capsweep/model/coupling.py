"""Couplings: a child divides itself among all parents above it, which compete for it.

One child position stands below several parent positions, so its parents are spread over the local
votes of all of them.

Shape letters: B batch, M parent positions, K kernel offsets, N child positions, L = K I children
below a parent position, J parent types.
"""

from typing import NamedTuple

import torch
from torch import Tensor

NORMS = ("all", "types", "positions")


class ReceptiveFields(NamedTuple):
    """Which children stand below which parents: child_MK, the child position at kernel offset k of
    parent position m; of how many child positions.
    """

    child_MK: Tensor
    num_child_positions: int


class CouplingRule(NamedTuple):
    """How the children of a routing divide themselves: as in `coupling_softmax`."""

    norm: str = "all"
    none_of_the_above: bool = False


def coupling_softmax(
    logit_BMLJ: Tensor,
    fields: ReceptiveFields | None,
    norm: str = "all",
    none_of_the_above: bool = False,
) -> Tensor:
    """The shares [B, M, L, J] of each child: a softmax of the logits over its parents.

    fields None: every child stands below one position only. norm: among whom a child divides
    itself. all: the parents of all types at all positions above it; types: at each position anew,
    the types there; positions: for each type anew, the positions, but where there is one position
    alone, the types, as in the authors' last layer. none_of_the_above: one more slot, of
    logit 0, takes a share that no parent gets. Raises ValueError for another norm.
    """
    if norm not in NORMS:
        raise ValueError(f"routing.norm must be one of {', '.join(NORMS)}, got {norm}")
    if fields is None:
        norm = "types"
    if norm == "types" and not none_of_the_above:
        return torch.softmax(logit_BMLJ, dim=3)
    # A child's largest logit is subtracted before the exponential, and is no part of the gradient.
    largest_BMLE = logit_BMLJ.detach()
    if norm != "positions":
        largest_BMLE = largest_BMLE.amax(dim=3, keepdim=True)
    if fields is not None and norm != "types":
        largest_BMLE = _largest_by_child(largest_BMLE, fields)
    if none_of_the_above:
        largest_BMLE = largest_BMLE.clamp(min=0)
    part_BMLJ = (logit_BMLJ - largest_BMLE).exp()
    whole_BMLE = part_BMLJ if norm == "positions" else part_BMLJ.sum(dim=3, keepdim=True)
    if fields is not None and norm != "types":
        whole_BMLE = _sum_by_child(whole_BMLE, fields)
    if none_of_the_above:
        whole_BMLE = whole_BMLE + (-largest_BMLE).exp()
    return part_BMLJ / whole_BMLE


def _largest_by_child(part_BMLE: Tensor, fields: ReceptiveFields) -> Tensor:
    """Of each child the largest over its positions, at each of these."""
    part_BEF, child_E, children_BNF = _group_by_child(part_BMLE, fields)
    index_BEF = child_E[None, :, None].expand_as(part_BEF)
    children_BNF.fill_(-torch.inf).scatter_reduce_(1, index_BEF, part_BEF, "amax")
    return children_BNF[:, child_E].view_as(part_BMLE)


def _sum_by_child(part_BMLE: Tensor, fields: ReceptiveFields) -> Tensor:
    """Of each child the sum over its positions, at each of these."""
    part_BEF, child_E, children_BNF = _group_by_child(part_BMLE, fields)
    return children_BNF.index_add(1, child_E, part_BEF)[:, child_E].view_as(part_BMLE)


def _group_by_child(part_BMLE: Tensor, fields: ReceptiveFields) -> tuple[Tensor, Tensor, Tensor]:
    """The parts [B, M K, I times their width], of which child position each is, and zeros for every
    child position.
    """
    child_E = fields.child_MK.flatten()
    part_BEF = part_BMLE.reshape(len(part_BMLE), len(child_E), -1)
    children = (len(part_BEF), fields.num_child_positions, part_BEF.shape[2])
    return part_BEF, child_E, part_BEF.new_zeros(children)
