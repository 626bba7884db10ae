"""The couplings of a routed layer: among whom each child divides itself, how it does, and what that
says of routing over many images.

    entropy       H(c) / ln n                  1 of a child in equal parts among n choices
    polarisation  (max c - 1/n) / (1 - 1/n)    0 there, 1 where one choice has all of the child
    variety       variance of couplings between images / their variance over images and links
    dead          share of parents whose activation stays below DEAD
    trees         distinct parse trees / images; a tree is the largest coupling of every child

A child's couplings are shares among its parents: of all types at all positions above it, and the
share that no parent gets where there is none-of-the-above. Where a routing divides children
otherwise (routing.norm: types at each position, or positions for each type), a child has a
distribution for each position, or type. Children with one parent alone have no choice, those
without any no shares.

All measures are of the last iteration; the first two are means over distributions that have a
choice, and images. Couplings that do not sum to 1 are divided, for those two and for trees, by
their sum over the parents at a position; those below 0 count as 0.

Shape letters: B images, M parent positions, K kernel offsets, N child positions, I child types, L =
K I children below a position, J parent types, E = M L J links of an image, G distributions.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsweep.lab.evaluation.traces import RoutedCell
from capsweep.model.matrix_capsnet import MatrixCapsules
from capsweep.model.routing import CouplingRule, ReceptiveFields

DEAD = 0.01  # of an activation
ROUNDING = 1e-6  # of a coupling: what float32 does not tell apart


@dataclass(frozen=True)
class Children:
    """Who divides what in a layer. fields: which children stand below which parents; None where all
    parents stand at one position. shape: M, L, J. has_sum: of couplings without one, those among
    the types at each position are divided by theirs.
    """

    rule: CouplingRule
    fields: ReceptiveFields | None
    shape: Sequence[int]
    has_sum: bool = True

    @cached_property
    def distributions(self) -> tuple[Tensor, int]:
        """The distribution of each link [E], and how many there are; some may have no link."""
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
        """Among how many each distribution is divided [G]; 0 for children without a parent."""
        distribution_E, count = self.distributions
        counted_G = distribution_E.bincount(minlength=count)
        return (counted_G + self.rule.none_of_the_above * (counted_G > 0)).numpy()

    @cached_property
    def has_choice(self) -> np.ndarray:
        """Which distributions [G] have anything to choose."""
        return self.num_choices > 1

    @property
    def choices(self) -> np.ndarray:
        """Return the numbers of choices of those that have any."""
        return self.num_choices[self.has_choice]

    def measure(self, coupling_BMLJ: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return of each image and each distribution that has anything to choose its entropy in
        nats, and how far its largest share is from an equal one: 0 of equal shares, 1 where one
        choice has all.
        """
        coupling_BE = self._divide(coupling_BMLJ).double().flatten(1)
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
        # Within their bounds but for rounding.
        return entropy_BG.clip(0, np.log(self.choices)), polarisation_BG.clip(0, 1)

    def mark_largest(self, coupling_BMLJ: Tensor) -> Tensor:
        """Return which couplings [B, E] are the largest of their distribution; of equal ones
        all.
        """
        coupling_BE = self._divide(coupling_BMLJ).flatten(1)
        return coupling_BE == self._combine(coupling_BE, "amax")[:, self.distributions[0]]

    def _divide(self, coupling_BMLJ: Tensor) -> Tensor:
        return coupling_BMLJ.cpu() if self.has_sum else divide_by_sum(coupling_BMLJ.cpu())

    def _combine(self, value_BE: Tensor, how: str) -> Tensor:
        """Return the sum, or the largest, over what one distribution is divided among [B, G]."""
        distribution_E, count = self.distributions
        empty_BG = value_BE.new_zeros(len(value_BE), count)
        index_BE = distribution_E.expand_as(value_BE)
        return empty_BG.scatter_reduce(1, index_BE, value_BE, how, include_self=False)


def find_children(layer: Any, shape: Sequence[int]) -> Children:
    """Return the children of a routed layer of a network. shape: M, L, J of its couplings."""
    rule, fields = getattr(layer.routing, "coupling_rule", None), None
    if isinstance(layer, MatrixCapsules) and len(layer.child_MK) > 1:
        fields = ReceptiveFields(layer.child_MK, layer.num_child_positions)
    return Children(rule or CouplingRule("types"), fields, shape, has_sum=rule is not None)


class LinkSpread:
    """How couplings differ: moments of every link over images, in float64. shape: M, L, J."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.count = 0
        self.mean_MLJ = torch.zeros(*shape, dtype=torch.float64)
        self.squares_MLJ = torch.zeros(*shape, dtype=torch.float64)  # of differences from the mean

    def add_images(self, coupling_BMLJ: Tensor) -> None:
        """Add some more, by the parallel form of Welford's sums: nothing cancels out."""
        coupling_BMLJ = coupling_BMLJ.cpu().double()
        mean_MLJ, images = coupling_BMLJ.mean(dim=0), len(coupling_BMLJ)
        total, moved_MLJ = self.count + images, mean_MLJ - self.mean_MLJ
        self.squares_MLJ += (coupling_BMLJ - mean_MLJ).square().sum(dim=0)
        self.squares_MLJ += moved_MLJ.square() * (self.count * images / total)
        self.mean_MLJ += moved_MLJ * (images / total)
        self.count = total

    @property
    def variety(self) -> float | None:
        """The part of all variance that is between images; None where all couplings are equal."""
        between = float(self.squares_MLJ.mean()) / self.count
        total = between + float(self.mean_MLJ.var(correction=0))
        is_equal = total <= (ROUNDING * float(self.mean_MLJ.abs().mean())) ** 2
        return None if is_equal else between / total


class LayerMeasures:
    """The measures of one layer, of images that are added some at a time.

    layer: of a network, one that routes; shape: M, L, J of its couplings.
    """

    def __init__(self, layer: Any, shape: Sequence[int]) -> None:
        self.children = find_children(layer, shape)
        self.has_activations: bool = getattr(layer.routing, "has_activations", True)
        self.links = LinkSpread(shape)
        self.largest_J = torch.tensor(-torch.inf)  # of all activations, of each parent
        self.trees: set[bytes] = set()
        self.sums, self.count = np.zeros(2), 0  # of entropies, as shares, and polarisations

    def add_images(self, coupling_BMLJ: Tensor, act_BJ: Tensor) -> None:
        """Add some more, with the activations of all M J parents."""
        self.links.add_images(coupling_BMLJ)
        self.largest_J = torch.maximum(self.largest_J, act_BJ.amax(dim=0).cpu())
        bits = np.packbits(self.children.mark_largest(coupling_BMLJ).numpy(), axis=1)
        self.trees |= {row.tobytes() for row in bits}
        entropy_BG, polarisation_BG = self.children.measure(coupling_BMLJ)
        self.sums += (entropy_BG / np.log(self.children.choices)).sum(), polarisation_BG.sum()
        self.count += entropy_BG.size

    def summarise(self) -> dict[str, float | None]:
        """Return the measures by name; None for those that the layer does not have."""
        is_dead_J = (self.largest_J < DEAD).double()
        means = (self.sums / self.count).tolist() if self.count else (None, None)
        return {
            **dict(zip(("entropy", "polarisation"), means, strict=True)),
            "variety": self.links.variety,
            "dead": float(is_dead_J.mean()) if self.has_activations else None,
            "trees": len(self.trees) / self.links.count,
        }


def divide_by_sum(coupling_BMLJ: Tensor) -> Tensor:
    """Return couplings without a sum as shares among the types at each position, those below 0 as
    0; equal shares of a child that has none above it.
    """
    positive_BMLJ = coupling_BMLJ.clamp(min=0)
    total_BML1 = positive_BMLJ.sum(dim=3, keepdim=True)
    equal = 1 / coupling_BMLJ.shape[3]
    return torch.where(total_BML1 > 0, positive_BMLJ / total_BML1, equal)


def measure_layers(routed: RoutedCell) -> dict[str, LayerMeasures]:
    """Return the measures of all test images, by layer that routes.

    Raises NotApplicableError for a routing without traces or couplings.
    """
    layers: dict[str, LayerMeasures] = {}
    with record_activations(routed.layers) as activations:
        for name, (*_, coupling_BMLJ) in routed.trace_couplings():
            if name not in layers:
                layers[name] = LayerMeasures(routed.layers[name], coupling_BMLJ.shape[1:])
            layers[name].add_images(coupling_BMLJ, activations[name])
    return layers


@contextmanager
def record_activations(layers: Mapping[str, Any]) -> Iterator[Mapping[str, Tensor]]:
    """Yield the activations [B, M J] that the routing of each layer returned last; not all variants
    trace them.
    """
    last: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        for name, layer in layers.items():
            hook = layer.routing.register_forward_hook(
                lambda _module, _votes, routed, name=name: last.update({name: routed.act_BJ})
            )
            hooks.callback(hook.remove)
        yield last
