"""How evenly children divide themselves: the entropy of couplings, by routing layer and iteration.

A child's couplings are shares among its parents: of all types at all positions above it, and the
share that no parent gets where there is none-of-the-above. With p its shares over their sum,

    H = - sum p ln p        in nats; between 0, all to one parent, and ln(number of shares)

and ln(number of shares) is the uniform control: equal couplings, as before routing. Children at the
border of a convolutional layer have fewer parents, so a smaller control. The share of the control,
H / ln(number of shares), compares children of all kinds. Children with one parent alone have no
choice, those without any no shares: neither count.

Where a routing divides children otherwise (routing.norm: types at each position, or positions for
each type), p is what it divides: a child has a distribution for each position, or type.

Shape letters: B images, M parent positions, K kernel offsets, N child positions, I child types, L =
K I children below a position, J parent types, G distributions, T iterations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from capsweep.errors import NotApplicableError
from capsweep.evaluation.traced_batches import Routed, Trace
from capsweep.model.coupling import CouplingRule, ReceptiveFields
from capsweep.model.matrix_capsules import MatrixCapsules
from capsweep.statistics.examples import Distribution

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the quantiles over children and images


@dataclass(frozen=True)
class Children:
    """Who divides what in a layer. fields: which children stand below which parents; None where all
    parents stand at one position. shape: M, L, J.
    """

    division: CouplingRule
    fields: ReceptiveFields | None
    shape: tuple[int, int, int]

    @cached_property
    def shares(self) -> np.ndarray:
        """Among how many each distribution is divided [G]; 0 for children without a parent."""
        counted_G = self._summed(torch.ones(1, *self.shape, dtype=torch.float64))[0]
        return (counted_G + self.division.none_of_the_above * (counted_G > 0)).numpy()

    @cached_property
    def chosen(self) -> np.ndarray:
        """Which distributions [G] have anything to choose."""
        return self.shares > 1

    def entropies(self, coupling_BMLJ: Tensor) -> np.ndarray:
        """H in nats of each image and of each distribution that has anything to choose."""
        coupling_BMLJ = coupling_BMLJ.cpu().double()
        whole_BG = self._summed(coupling_BMLJ)
        ordered_BG = self._summed(torch.xlogy(coupling_BMLJ, coupling_BMLJ))
        if self.division.none_of_the_above:
            none_BG = (1 - whole_BG).clamp(min=0)
            whole_BG = whole_BG + none_BG
            ordered_BG = ordered_BG + torch.xlogy(none_BG, none_BG)
        chosen_G = torch.from_numpy(self.chosen)
        whole_BG, ordered_BG = whole_BG[:, chosen_G], ordered_BG[:, chosen_G]
        entropy_BG = (whole_BG.log() - ordered_BG / whole_BG).numpy()
        return np.clip(entropy_BG, 0, np.log(self.shares[self.chosen]))  # but for rounding

    def _summed(self, value_BMLJ: Tensor) -> Tensor:
        """Over what one distribution is divided among [B, G]."""
        norm = "types" if self.fields is None else self.division.norm
        value_BMLE = value_BMLJ if norm == "positions" else value_BMLJ.sum(dim=3, keepdim=True)
        if norm == "types" or self.fields is None:
            return value_BMLE.flatten(1)
        child_E = self.fields.child_MK.flatten().cpu()
        value_BEF = value_BMLE.reshape(len(value_BMLE), len(child_E), -1)
        sums_BNF = value_BEF.new_zeros(
            len(value_BEF), self.fields.num_child_positions, value_BEF.shape[2]
        )
        return sums_BNF.index_add(1, child_E, value_BEF).flatten(1)


@dataclass
class Layer:
    """What is found of one layer. nats, share: of each iteration."""

    children: Children
    nats: list[Distribution] = field(default_factory=list)
    share: list[Distribution] = field(default_factory=list)

    @property
    def control(self) -> float:
        """The mean entropy of equal couplings, in nats."""
        return float(np.log(self.children.shares[self.children.chosen]).mean())

    def add(self, trace: Trace) -> None:
        """Some more images."""
        control_G = np.log(self.children.shares[self.children.chosen])
        if not self.nats:
            self.nats = [Distribution(float(control_G.max())) for _ in trace]
            self.share = [Distribution(1.0) for _ in trace]
        for one, nats, share in zip(trace, self.nats, self.share, strict=True):
            entropy_BG = self.children.entropies(one["coupling"])
            nats.add_values(entropy_BG)
            share.add_values(entropy_BG / control_G)


@dataclass(frozen=True)
class Entropies:
    """Of the layers that route, by name."""

    by_layer: Mapping[str, Layer]

    def arrays(self) -> dict[str, np.ndarray]:
        """LAYER.control (nats), .parents (fewest and most shares of a child), and of .nats and
        .share: .mean, .std [T] and .quantiles [5, T] over children and images; the levels.
        """
        found: dict[str, np.ndarray] = {"levels": np.array(LEVELS)}
        for name, layer in self.by_layer.items():
            shares = layer.children.shares[layer.children.chosen]
            found[f"{name}.control"] = np.array(layer.control)
            found[f"{name}.parents"] = np.array([shares.min(), shares.max()])
            for unit, iterations in (("nats", layer.nats), ("share", layer.share)):
                quantiles = [one.quantiles(LEVELS) for one in iterations]
                found[f"{name}.{unit}.mean"] = np.array([one.mean for one in iterations])
                found[f"{name}.{unit}.std"] = np.array([one.std for one in iterations])
                found[f"{name}.{unit}.quantiles"] = np.stack(quantiles, axis=1)
        return found


def measure(routed: Routed) -> Entropies:
    """The entropies of all images.

    Raises NotApplicableError for a routing without couplings, and where no child has a choice.
    """
    found: dict[str, Layer] = {}
    for by_layer in routed.traces():
        for name, trace in by_layer.items():
            if any("coupling" not in one for one in trace):
                raise NotApplicableError("its routing has no couplings")
            if name not in found:
                found[name] = Layer(_children(routed, name, trace))
            found[name].add(trace)
    return Entropies(found)


def _children(routed: Routed, name: str, trace: Trace) -> Children:
    layer, (_, *shape) = routed.layers[name], trace[0]["coupling"].shape
    division = getattr(layer.routing, "coupling_rule", None)
    if not isinstance(division, CouplingRule):
        raise NotApplicableError("its routing does not say among whom a child divides itself")
    fields = None
    if isinstance(layer, MatrixCapsules) and len(layer.child_MK) > 1:
        fields = ReceptiveFields(layer.child_MK, layer.num_child_positions)
    children = Children(division, fields, (shape[0], shape[1], shape[2]))
    if not children.chosen.any():
        raise NotApplicableError(f"the children of {name} have one parent each: nothing to divide")
    return children
