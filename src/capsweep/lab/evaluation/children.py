"""The children of a routed layer: among whom each divides itself, and how it does.

A child's couplings are shares among its parents: of all types at all positions above it, and the
share that no parent gets where there is none-of-the-above. Where a routing divides children
otherwise (routing.norm: types at each position, or positions for each type), a child has a
distribution for each position, or type. Children with one parent alone have no choice, those
without any no shares.

Shape letters: B images, M parent positions, K kernel offsets, N child positions, I child types, L =
K I children below a position, J parent types, G distributions.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsweep.model.matrix_capsnet import MatrixCapsules
from capsweep.model.routing import CouplingRule, ReceptiveFields


@dataclass(frozen=True)
class Children:
    """Who divides what in a layer. fields: which children stand below which parents; None where all
    parents stand at one position. shape: M, L, J.
    """

    rule: CouplingRule
    fields: ReceptiveFields | None
    shape: tuple[int, int, int]

    @cached_property
    def num_choices(self) -> np.ndarray:
        """Among how many each distribution is divided [G]; 0 for children without a parent."""
        counted_G = self._combine_shares(torch.ones(1, *self.shape, dtype=torch.float64))[0]
        return (counted_G + self.rule.none_of_the_above * (counted_G > 0)).numpy()

    @cached_property
    def has_choice(self) -> np.ndarray:
        """Which distributions [G] have anything to choose."""
        return self.num_choices > 1

    @property
    def choices(self) -> np.ndarray:
        """Return the numbers of choices of those that have any."""
        return self.num_choices[self.has_choice]

    def measure_entropies(self, coupling_BMLJ: Tensor) -> np.ndarray:
        """H in nats of each image and of each distribution that has anything to choose."""
        coupling_BMLJ = coupling_BMLJ.cpu().double()
        total_BG = self._combine_shares(coupling_BMLJ)
        ordered_BG = self._combine_shares(torch.xlogy(coupling_BMLJ, coupling_BMLJ))
        if self.rule.none_of_the_above:
            none_BG = (1 - total_BG).clamp(min=0)
            total_BG = total_BG + none_BG
            ordered_BG = ordered_BG + torch.xlogy(none_BG, none_BG)
        chosen_G = torch.from_numpy(self.has_choice)
        total_BG, ordered_BG = total_BG[:, chosen_G], ordered_BG[:, chosen_G]
        entropy_BG = (total_BG.log() - ordered_BG / total_BG).numpy()
        return np.clip(entropy_BG, 0, np.log(self.choices))  # but for rounding

    def measure_polarisation(self, coupling_BMLJ: Tensor) -> np.ndarray:
        """How far the largest share is from an equal one, of each image and of each distribution
        that has anything to choose: 0 of equal shares, 1 where one choice has all.
        """
        coupling_BMLJ = coupling_BMLJ.cpu().double()
        total_BG = self._combine_shares(coupling_BMLJ)
        largest_BG = self._combine_shares(coupling_BMLJ, largest=True)
        if self.rule.none_of_the_above:
            none_BG = (1 - total_BG).clamp(min=0)
            total_BG, largest_BG = total_BG + none_BG, torch.maximum(largest_BG, none_BG)
        chosen_G = torch.from_numpy(self.has_choice)
        share_BG = (largest_BG[:, chosen_G] / total_BG[:, chosen_G]).numpy()
        equal_G = 1 / self.choices
        return np.clip((share_BG - equal_G) / (1 - equal_G), 0, 1)  # but for rounding

    def mark_largest(self, coupling_BMLJ: Tensor) -> Tensor:
        """Which couplings [B, M, L, J] are the largest of their distribution; of equal ones all."""
        largest_BG = self._combine_shares(coupling_BMLJ, largest=True)
        if self._norm == "types" or self.fields is None:
            return coupling_BMLJ == largest_BG.view(*coupling_BMLJ.shape[:3], 1)
        child_E = self.fields.child_MK.flatten().to(coupling_BMLJ.device)
        largest_BNF = largest_BG.unflatten(1, (self.fields.num_child_positions, -1))
        return coupling_BMLJ == largest_BNF[:, child_E].view(*coupling_BMLJ.shape[:3], -1)

    @property
    def _norm(self) -> str:
        return "types" if self.fields is None else self.rule.norm

    def _combine_shares(self, value_BMLJ: Tensor, largest: bool = False) -> Tensor:
        """Over what one distribution is divided among [B, G]: the sum, or the largest."""
        value_BMLE = value_BMLJ
        if self._norm != "positions":
            value_BMLE = (value_BMLJ.amax if largest else value_BMLJ.sum)(dim=3, keepdim=True)
        if self._norm == "types" or self.fields is None:
            return value_BMLE.flatten(1)
        child_E = self.fields.child_MK.flatten().to(value_BMLE.device)
        value_BEF = value_BMLE.reshape(len(value_BMLE), len(child_E), -1)
        zeros_BNF = value_BEF.new_zeros(
            len(value_BEF), self.fields.num_child_positions, value_BEF.shape[2]
        )
        if largest:
            index_BEF = child_E[None, :, None].expand_as(value_BEF)
            largest_BNF = zeros_BNF.scatter_reduce(
                1, index_BEF, value_BEF, "amax", include_self=False
            )
            return largest_BNF.flatten(1)
        return zeros_BNF.index_add(1, child_E, value_BEF).flatten(1)


def find_children(layer: Any, rule: CouplingRule, shape: tuple[int, ...]) -> Children:
    """The children of a routed layer of a network, divided by a rule. shape: B, M, L, J of its
    couplings.
    """
    fields = None
    if isinstance(layer, MatrixCapsules) and len(layer.child_MK) > 1:
        fields = ReceptiveFields(layer.child_MK, layer.num_child_positions)
    _, positions, children, parents = shape
    return Children(rule, fields, (positions, children, parents))
