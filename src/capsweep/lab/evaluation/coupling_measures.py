"""What the couplings of a routed layer say of its routing, over many images.

    entropy       H(c) / ln n                  1 of a child in equal parts among n choices
    polarisation  (max c - 1/n) / (1 - 1/n)    0 there, 1 where one choice has all of the child
    variety       variance of couplings between images / their variance over images and links
    dead          share of parents whose activation stays below DEAD
    trees         distinct parse trees / images; a tree is the largest coupling of every child

All are those of the last iteration; the first two are means over children that have a choice, and
images. Couplings that do not sum to 1 are divided, for those two and for trees, by their sum over
the parents at a position; those below 0 count as 0.

Shape letters: B images, M parent positions, L children below one, J parent types, E links of an
image, M L J.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.children import Children, find_children
from capsweep.lab.evaluation.traces import RoutedCell
from capsweep.model.routing import CouplingRule, Routed

DEAD = 0.01  # of an activation
ROUNDING = 1e-6  # of a coupling: what float32 does not tell apart
AT_POSITIONS = CouplingRule("types")


class LinkSpread:
    """How couplings differ: moments of every link over images, in float64."""

    def __init__(self, links: int) -> None:
        self.count = 0
        self.mean_E = torch.zeros(links, dtype=torch.float64)
        self.squares_E = torch.zeros(links, dtype=torch.float64)  # of differences from the mean

    def add_images(self, coupling_BE: Tensor) -> None:
        """Add some more, by the parallel form of Welford's sums: nothing cancels out."""
        coupling_BE = coupling_BE.cpu().double()
        mean_E, images = coupling_BE.mean(dim=0), len(coupling_BE)
        total, moved_E = self.count + images, mean_E - self.mean_E
        self.squares_E += (coupling_BE - mean_E).square().sum(dim=0)
        self.squares_E += moved_E.square() * (self.count * images / total)
        self.mean_E += moved_E * (images / total)
        self.count = total

    @property
    def variety(self) -> float | None:
        """The part of all variance that is between images; None where all couplings are equal."""
        between = float(self.squares_E.mean()) / self.count
        total = between + float(self.mean_E.var(correction=0))
        is_equal = total <= (ROUNDING * float(self.mean_E.abs().mean())) ** 2
        return None if is_equal else between / total


class LayerMeasures:
    """The measures of one layer, of images that are added some at a time.

    layer: of a network, one that routes; shape: B, M, L, J of its couplings.
    """

    def __init__(self, layer: Any, shape: tuple[int, ...]) -> None:
        rule = getattr(layer.routing, "coupling_rule", None)
        self.has_rule = isinstance(rule, CouplingRule)
        self.children: Children = find_children(layer, rule or AT_POSITIONS, shape)
        self.has_activations: bool = getattr(layer.routing, "has_activations", True)
        self.links = LinkSpread(int(np.prod(shape[1:])))
        self.largest_J: Tensor | None = None
        self.trees: set[bytes] = set()
        self.entropies, self.polarisations, self.count = 0.0, 0.0, 0

    def add_images(self, coupling_BMLJ: Tensor, act_BJ: Tensor) -> None:
        """Add some more, with the activations of all M J parents."""
        self.links.add_images(coupling_BMLJ.flatten(1))
        largest_J = act_BJ.amax(dim=0).cpu()
        if self.largest_J is not None:
            largest_J = torch.maximum(largest_J, self.largest_J)
        self.largest_J = largest_J
        if not self.has_rule:
            coupling_BMLJ = divide_by_sum(coupling_BMLJ)
        self._count_trees(self.children.mark_largest(coupling_BMLJ))
        if self.children.has_choice.any():
            self._add_shares(coupling_BMLJ)

    def summarise(self) -> dict[str, float | None]:
        """The measures by name; None for those that the layer does not have."""
        assert self.largest_J is not None
        is_dead_J = (self.largest_J < DEAD).double()
        return {
            "entropy": self.entropies / self.count if self.count else None,
            "polarisation": self.polarisations / self.count if self.count else None,
            "variety": self.links.variety,
            "dead": float(is_dead_J.mean()) if self.has_activations else None,
            "trees": len(self.trees) / self.links.count,
        }

    def _add_shares(self, coupling_BMLJ: Tensor) -> None:
        entropy_BG = self.children.measure_entropies(coupling_BMLJ)
        equal_G = np.log(self.children.choices)
        self.entropies += float((entropy_BG / equal_G).sum())
        self.polarisations += float(self.children.measure_polarisation(coupling_BMLJ).sum())
        self.count += entropy_BG.size

    def _count_trees(self, is_largest_BMLJ: Tensor) -> None:
        """A digest stands for a tree: the trees of many images are large."""
        bits_BE = np.packbits(is_largest_BMLJ.flatten(1).cpu().numpy(), axis=1)
        self.trees |= {hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in bits_BE}


def divide_by_sum(coupling_BMLJ: Tensor) -> Tensor:
    """Couplings without a sum as shares among the types at each position, those below 0 as 0; equal
    shares of a child that has none above it.
    """
    positive_BMLJ = coupling_BMLJ.clamp(min=0)
    total_BML1 = positive_BMLJ.sum(dim=3, keepdim=True)
    equal = 1 / coupling_BMLJ.shape[3]
    return torch.where(total_BML1 > 0, positive_BMLJ / total_BML1, equal)


def measure_layers(routed: RoutedCell) -> dict[str, LayerMeasures]:
    """The measures of all test images, by layer that routes.

    Raises NotApplicableError for a routing without traces or couplings.
    """
    layers: dict[str, LayerMeasures] = {}
    with record_activations(routed.layers) as activations:
        for traces in routed.trace_batches():
            for name, trace in traces.items():
                coupling_BMLJ = trace[-1].get("coupling")
                if coupling_BMLJ is None:
                    raise NotApplicableError("its routing has no couplings")
                if name not in layers:
                    layers[name] = LayerMeasures(routed.layers[name], tuple(coupling_BMLJ.shape))
                layers[name].add_images(coupling_BMLJ, activations[name])
    return layers


@contextmanager
def record_activations(layers: Mapping[str, Any]) -> Iterator[Mapping[str, Tensor]]:
    """The activations [B, M J] that the routing of each layer returned last; not all variants trace
    them.
    """
    last: dict[str, Tensor] = {}

    def make_hook(name: str) -> Any:
        def keep_activations(_module: Any, _votes: Any, routed: Routed) -> None:
            last[name] = routed.act_BJ

        return keep_activations

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.callback(layer.routing.register_forward_hook(make_hook(name)).remove)
        yield last
