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

Shape letters: B images, G distributions, T iterations.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.children import Children, find_children
from capsweep.lab.evaluation.figures import Drawing
from capsweep.lab.evaluation.panels import BAND, LEVELS, Panel, Spread, draw_panels
from capsweep.statistics.examples import Distribution

if TYPE_CHECKING:
    from capsweep.lab.evaluation.checkpoint import CellLoader
    from capsweep.lab.evaluation.traces import RoutedCell, Trace


@dataclass
class LayerEntropy:
    """The entropies of one layer. nats, share: of each iteration."""

    children: Children
    nats: list[Distribution] = field(default_factory=list)
    share: list[Distribution] = field(default_factory=list)

    @property
    def uniform_entropy(self) -> np.ndarray:
        """The entropy of equal couplings in nats [G], of distributions that have a choice."""
        return np.log(self.children.num_choices[self.children.has_choice])

    def add_trace(self, trace: "Trace") -> None:
        """Add some more images."""
        control_G = self.uniform_entropy
        if not self.nats:
            self.nats = [Distribution(float(control_G.max())) for _ in trace]
            self.share = [Distribution(1.0) for _ in trace]
        for iteration, nats, share in zip(trace, self.nats, self.share, strict=True):
            entropy_BG = self.children.measure_entropies(iteration["coupling"])
            nats.add_values(entropy_BG)
            share.add_values(entropy_BG / control_G)

    def collect_arrays(self) -> dict[str, np.ndarray]:
        """control (nats), parents (fewest and most shares of a child), nats.* and share.*."""
        shares = self.children.num_choices[self.children.has_choice]
        return {
            "control": np.array(self.uniform_entropy.mean()),
            "parents": np.array([shares.min(), shares.max()]),
            **_summarise(self.nats).collect_arrays("nats"),
            **_summarise(self.share).collect_arrays("share"),
        }


def _summarise(iterations: list[Distribution]) -> Spread:
    """Over children and images."""
    return Spread(
        np.array([values.mean for values in iterations]),
        np.array([values.std for values in iterations]),
        np.stack([values.quantiles(LEVELS) for values in iterations], axis=1),
    )


def draw_cell(loader: "CellLoader", name: str, options: Namespace) -> Iterator[Drawing]:
    """One figure."""
    from capsweep.lab.evaluation import traces

    routed = traces.load_routed(loader, name, options)
    layers = measure(routed)
    arrays: dict[str, np.ndarray] = {"levels": np.array(LEVELS)}
    for layer, entropy in layers.items():
        arrays |= {f"{layer}.{key}": array for key, array in entropy.collect_arrays().items()}
    caption = describe_figure(layers, routed)
    picture = draw(layers, f"cell {name}: how evenly children divide themselves", caption)
    yield Drawing(traces.name_files("couplings", options), arrays, picture, caption)


def measure(routed: "RoutedCell") -> dict[str, LayerEntropy]:
    """The entropies of all images, by layer that routes.

    Raises NotApplicableError for a routing without couplings, and where no child has a choice.
    """
    layers: dict[str, LayerEntropy] = {}
    for by_layer in routed.trace_batches():
        for name, trace in by_layer.items():
            if any("coupling" not in iteration for iteration in trace):
                raise NotApplicableError("its routing has no couplings")
            if name not in layers:
                layers[name] = LayerEntropy(_find_children(routed, name, trace))
            layers[name].add_trace(trace)
    return layers


def _find_children(routed: "RoutedCell", name: str, trace: "Trace") -> Children:
    from capsweep.model.routing import CouplingRule

    layer = routed.layers[name]
    rule = getattr(layer.routing, "coupling_rule", None)
    if not isinstance(rule, CouplingRule):
        raise NotApplicableError("its routing does not say among whom a child divides itself")
    children = find_children(layer, rule, trace[0]["coupling"].shape)
    if not children.has_choice.any():
        raise NotApplicableError(f"the children of {name} have one parent each: nothing to divide")
    return children


def draw(layers: Mapping[str, LayerEntropy], title: str, caption: str) -> bytes:
    """A PNG: a curve for each routing layer beside its control, in nats and as a share."""
    nats, share = [], []
    for name, layer in layers.items():
        control = float(layer.uniform_entropy.mean())
        nats.append(_summarise(layer.nats).make_curve(name, control))
        share.append(_summarise(layer.share).make_curve(name, 1.0))
    panels = [
        Panel("entropy of couplings, nats", nats),
        Panel("entropy / that of equal couplings", share),
    ]
    return draw_panels(panels, "routing iteration", title, caption)


def describe_figure(layers: Mapping[str, LayerEntropy], routed: "RoutedCell") -> str:
    """The caption: every choice."""
    texts = []
    for name, layer in layers.items():
        children = layer.children
        shares = children.num_choices[children.has_choice]
        texts.append(
            f"{name}: {shares.min():.0f} to {shares.max():.0f} shares by place, divided by "
            f"{children.rule.norm}, {len(children.num_choices) - len(shares)} left out that have "
            "no choice"
        )
    return (
        "entropy of the couplings that an iteration's weighted sums are made with; dotted: equal "
        f"couplings, the mean of ln(shares of a child)\n{'; '.join(texts)}\n"
        f"mean over children, present or not, and images, band: {BAND} of "
        f"them; {routed.describe_images()}"
    )
