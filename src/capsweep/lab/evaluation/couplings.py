"""Measures of a routed layer's couplings over many images.

    entropy       H(c) / ln n                  1 for equal shares
    polarisation  (max c - 1/n) / (1 - 1/n)    0 for equal shares, 1 if one choice has everything
    variety       (mean of V over links) / variance of couplings over images and links
    dead          share of parents whose activation is below DEAD on all images

Here c are the couplings of a child, n is the number of its choices, and H(c) = - sum c ln c. A link
is a pair of a child and a parent. V is the variance of a link's coupling over images.

A child's choices are all its parents, of all types at all positions above the child. With
none-of-the-above, "no parent" is one more choice. A child's couplings are its shares for these
choices. With `routing.norm=types`, a child divides itself once per position, among the types. With
`routing.norm=positions`, a child divides itself once per type, among the positions. In both cases,
a child has several distributions, and each distribution counts like a child in the formulas above.
Without none-of-the-above, a child with a single parent has no choice. A child without parents has
no shares.

All measures use the couplings of the last iteration. Entropy and polarisation are means over images
and over the distributions with at least two choices. In some routings, the couplings of a child do
not sum to 1. Then entropy and polarisation use couplings that are divided by their sum over the
parent types at each position; negative couplings count as 0.

Shape letters: B images, M parent positions, K kernel offsets, N child positions, I child types,
L = K I children below a position, J parent types, E = M L J links of an image, G distributions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsweep.lab.evaluation.traces import RoutedCell, hook_routings
from capsweep.model.matrix_capsnet import MatrixCapsules
from capsweep.model.routing import CouplingRule, ReceptiveFields, Routed

DEAD = 0.01  # a parent is dead if its activation is below this in all images
ROUNDING = 1e-6  # smaller relative differences of couplings come from rounding in float32


@dataclass(frozen=True)
class Children:
    """The children of a routed layer, and how they divide themselves among their parents.

    A link is a pair of a child and a parent. A distribution is a set of links of one child, among
    which the child divides itself once. A child can have several distributions.

    Attributes:
        rule: The rule that says which parents share a child, and whether a share may go to no
            parent.
        fields: Which children are below which parent positions; None if there is only one position.
        shape: Numbers of parent positions, children below a position, and parent types.
        has_sum: Whether the couplings of a child sum to 1. If not, the measures divide couplings by
            their sum over the types at each position.
    """

    rule: CouplingRule
    fields: ReceptiveFields | None
    shape: Sequence[int]
    has_sum: bool = True

    @cached_property
    def distributions(self) -> tuple[Tensor, int]:
        """For each link [E], the index of its distribution; and the number of distributions."""
        positions, below, types = self.shape
        child_ML, count = torch.arange(positions * below).view(positions, below), positions * below
        if self.fields is None or self.rule.norm == "types":
            return child_ML.repeat_interleave(types), count
        child_MK1 = self.fields.child_MK.cpu()[..., None]
        child_types = below // child_MK1.shape[1]
        child_ML = (child_MK1 * child_types + torch.arange(child_types)).flatten(1)
        count = self.fields.num_child_positions * child_types
        if self.rule.norm == "all":
            return child_ML.repeat_interleave(types), count
        return (child_ML[..., None] * types + torch.arange(types)).flatten(), count * types

    @cached_property
    def num_choices(self) -> np.ndarray:
        """The number of choices of each distribution [G]; 0 for a child without parents."""
        distribution_E, count = self.distributions
        counted_G = distribution_E.bincount(minlength=count)
        return (counted_G + self.rule.none_of_the_above * (counted_G > 0)).numpy()

    @cached_property
    def has_choice(self) -> np.ndarray:
        """Whether each distribution [G] has at least two choices."""
        return self.num_choices > 1

    @property
    def choices(self) -> np.ndarray:
        """The number of choices of each distribution that has at least two choices."""
        return self.num_choices[self.has_choice]

    def measure(self, coupling_BMLJ: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Compute entropy and polarisation of each distribution with at least two choices.

        Args:
            coupling_BMLJ: Couplings of one iteration.

        Returns:
            Two arrays with a value for each image and distribution: the entropies in nats, and the
            polarisations. A polarisation is 0 for equal shares, and 1 if one choice has everything.
        """
        coupling_BMLJ = coupling_BMLJ.cpu() if self.has_sum else divide_by_sum(coupling_BMLJ.cpu())
        coupling_BE = coupling_BMLJ.double().flatten(1)
        total_BG = self._combine(coupling_BE, "sum")
        ordered_BG = self._combine(torch.xlogy(coupling_BE, coupling_BE), "sum")
        largest_BG = self._combine(coupling_BE, "amax")
        if self.rule.none_of_the_above:
            none_BG = (1 - total_BG).clamp(min=0)
            total_BG = total_BG + none_BG
            ordered_BG = ordered_BG + torch.xlogy(none_BG, none_BG)
            largest_BG = torch.maximum(largest_BG, none_BG)
        total_BG, ordered_BG, largest_BG = (
            each.numpy()[:, self.has_choice] for each in (total_BG, ordered_BG, largest_BG)
        )
        entropy_BG, equal_G = np.log(total_BG) - ordered_BG / total_BG, 1 / self.choices
        polarisation_BG = (largest_BG / total_BG - equal_G) / (1 - equal_G)
        # Clipped, because rounding can exceed the bounds.
        return entropy_BG.clip(0, np.log(self.choices)), polarisation_BG.clip(0, 1)

    def _combine(self, value_BE: Tensor, how: str) -> Tensor:
        """Return for each distribution [B, G] the sum (`sum`) or maximum (`amax`) of its values."""
        distribution_E, count = self.distributions
        empty_BG = value_BE.new_zeros(len(value_BE), count)
        index_BE = distribution_E.expand_as(value_BE)
        return empty_BG.scatter_reduce(1, index_BE, value_BE, how, include_self=False)


def find_children(layer: Any, shape: Sequence[int]) -> Children:
    """Return how the children of a routed layer divide themselves among their parents.

    Args:
        layer: A layer that routes.
        shape: Numbers of parent positions, children below a position, and parent types.
    """
    rule, fields = getattr(layer.routing, "coupling_rule", None), None
    if isinstance(layer, MatrixCapsules) and len(layer.child_MK) > 1:
        fields = ReceptiveFields(layer.child_MK, layer.num_child_positions)
    return Children(rule or CouplingRule("types"), fields, shape, has_sum=rule is not None)


class LinkSpread:
    """Mean and variance over images of each coupling of a child and a parent, in float64.

    Args:
        shape: Numbers of parent positions, children below a position, and parent types.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.count = 0
        self.mean_MLJ = torch.zeros(*shape, dtype=torch.float64)
        self.squares_MLJ = torch.zeros(*shape, dtype=torch.float64)  # sums of squared deviations

    def add_images(self, coupling_BMLJ: Tensor) -> None:
        """Add the couplings of a batch of images.

        The batch is merged by the parallel form of Welford's method, which avoids cancellation.
        """
        coupling_BMLJ = coupling_BMLJ.cpu().double()
        mean_MLJ, images = coupling_BMLJ.mean(dim=0), len(coupling_BMLJ)
        total, moved_MLJ = self.count + images, mean_MLJ - self.mean_MLJ
        self.squares_MLJ += (coupling_BMLJ - mean_MLJ).square().sum(dim=0)
        self.squares_MLJ += moved_MLJ.square() * (self.count * images / total)
        self.mean_MLJ += moved_MLJ * (images / total)
        self.count = total

    @property
    def variety(self) -> float | None:
        """The ratio (mean over links of V) / (variance of couplings over images and links).

        V is the variance of a link's coupling over images. The ratio is None if all couplings are
        equal, except for rounding.
        """
        between = float(self.squares_MLJ.mean()) / self.count
        total = between + float(self.mean_MLJ.var(correction=0))
        is_equal = total <= (ROUNDING * float(self.mean_MLJ.abs().mean())) ** 2
        return None if is_equal else between / total


class LayerMeasures:
    """The measures of one routed layer: entropy, polarisation, variety and dead parents.

    Images are added batch by batch.

    Args:
        layer: A layer that routes.
        shape: Numbers of parent positions, children below a position, and parent types.
    """

    def __init__(self, layer: Any, shape: Sequence[int]) -> None:
        self.children = find_children(layer, shape)
        self.has_activations: bool = getattr(layer.routing, "has_activations", True)
        self.links = LinkSpread(shape)
        self.largest_J = torch.tensor(-torch.inf)  # largest activation of each parent
        self.sums, self.count = np.zeros(2), 0  # sums of relative entropies and of polarisations

    def add_images(self, coupling_BMLJ: Tensor, act_BJ: Tensor) -> None:
        """Add the couplings and the activations [B, M J] of all parents for a batch of images."""
        self.links.add_images(coupling_BMLJ)
        self.largest_J = torch.maximum(self.largest_J, act_BJ.amax(dim=0).cpu())
        entropy_BG, polarisation_BG = self.children.measure(coupling_BMLJ)
        self.sums += (entropy_BG / np.log(self.children.choices)).sum(), polarisation_BG.sum()
        self.count += entropy_BG.size

    def summarise(self) -> dict[str, float | None]:
        """Return the measures by name. Measures that the layer does not have are None."""
        is_dead_J = (self.largest_J < DEAD).double()
        means = (self.sums / self.count).tolist() if self.count else (None, None)
        return {
            **dict(zip(("entropy", "polarisation"), means, strict=True)),
            "variety": self.links.variety,
            "dead": float(is_dead_J.mean()) if self.has_activations else None,
        }


def divide_by_sum(coupling_BMLJ: Tensor) -> Tensor:
    """Divide couplings by their sum over the parent types at each position.

    Negative couplings count as 0. If a child has no positive couplings at a position, all parent
    types there get equal shares.
    """
    positive_BMLJ = coupling_BMLJ.clamp(min=0)
    total_BML1 = positive_BMLJ.sum(dim=3, keepdim=True)
    equal = 1 / coupling_BMLJ.shape[3]
    return torch.where(total_BML1 > 0, positive_BMLJ / total_BML1, equal)


def measure_layers(routed: RoutedCell) -> dict[str, LayerMeasures]:
    """Collect the measures of each routed layer over the traced test images, by layer name.

    Raises:
        NotApplicableError: The routing keeps no traces or has no couplings.
    """
    layers: dict[str, LayerMeasures] = {}
    activations: dict[str, Tensor] = {}  # [B, M J], of the last batch

    def record(name: str, _module: Any, _votes: Any, result: Routed) -> None:
        activations[name] = result.act_BJ

    with hook_routings(routed.layers, record):  # not all variants trace their activations
        for name, (*_, coupling_BMLJ) in routed.trace_couplings():
            if name not in layers:
                layers[name] = LayerMeasures(routed.layers[name], coupling_BMLJ.shape[1:])
            layers[name].add_images(coupling_BMLJ, activations[name])
    return layers
