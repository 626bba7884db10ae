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
from dataclasses import dataclass

import numpy as np

from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation import traces
from capsweep.lab.evaluation.checkpoint import CellLoader
from capsweep.lab.evaluation.children import Children, find_children
from capsweep.lab.evaluation.figures import Drawing
from capsweep.lab.evaluation.panels import BAND, LEVELS, Panel, Spread, draw_panels
from capsweep.lab.evaluation.traces import RoutedCell, Trace
from capsweep.model.routing import CouplingRule


@dataclass(frozen=True)
class LayerEntropy:
    """The entropies of one layer in nats [B, G, T], of distributions that have a choice."""

    children: Children
    nats_BGT: np.ndarray

    @property
    def control(self) -> float:
        """Return the entropy of equal couplings in nats, the mean over distributions."""
        return float(np.log(self.children.choices).mean())

    def summarise(self) -> dict[str, Spread]:
        """Return the spread over children and images of nats, and of shares of the control."""
        share_BGT = self.nats_BGT / np.log(self.children.choices)[:, None]
        iterations = self.nats_BGT.shape[2]
        each = {"nats": self.nats_BGT, "share": share_BGT}
        return {name: Spread.of(values.reshape(-1, iterations)) for name, values in each.items()}

    def collect_arrays(self) -> dict[str, np.ndarray]:
        """Return control (nats), parents (fewest and most shares of a child), nats.*, share.*."""
        parents = np.array([self.children.choices.min(), self.children.choices.max()])
        arrays = {"control": np.array(self.control), "parents": parents}
        for name, spread in self.summarise().items():
            arrays |= spread.collect_arrays(name)
        return arrays


def draw_cell(loader: CellLoader, name: str, options: Namespace) -> Iterator[Drawing]:
    """Yield one figure."""
    routed = traces.load_routed(loader, name, options)
    layers = measure(routed)
    arrays: dict[str, np.ndarray] = {"levels": np.array(LEVELS)}
    for layer, entropy in layers.items():
        arrays |= {f"{layer}.{key}": array for key, array in entropy.collect_arrays().items()}
    caption = describe_figure(layers, routed)
    picture = draw(layers, f"cell {name}: how evenly children divide themselves", caption)
    yield Drawing(traces.name_files("couplings", options), arrays, picture, caption)


def measure(routed: RoutedCell) -> dict[str, LayerEntropy]:
    """Return the entropies of all images, by layer that routes.

    Raises NotApplicableError for a routing without couplings, and where no child has a choice.
    """
    children: dict[str, Children] = {}
    parts: dict[str, list[np.ndarray]] = {}
    for by_layer in routed.trace_batches():
        for name, trace in by_layer.items():
            if name not in children:
                children[name] = _find_children(routed, name, trace)
            # As many numbers as children of all images: float32 halves them.
            nats = [children[name].measure_entropies(each["coupling"]) for each in trace]
            parts.setdefault(name, []).append(np.stack(nats, axis=2, dtype=np.float32))
    return {name: LayerEntropy(children[name], np.concatenate(parts[name])) for name in parts}


def _find_children(routed: RoutedCell, name: str, trace: Trace) -> Children:
    layer = routed.layers[name]
    if any("coupling" not in iteration for iteration in trace):
        raise NotApplicableError("its routing has no couplings")
    rule = getattr(layer.routing, "coupling_rule", None)
    if not isinstance(rule, CouplingRule):
        raise NotApplicableError("its routing does not say among whom a child divides itself")
    children = find_children(layer, rule, trace[0]["coupling"].shape)
    if not children.has_choice.any():
        raise NotApplicableError(f"the children of {name} have one parent each: nothing to divide")
    return children


def draw(layers: Mapping[str, LayerEntropy], title: str, caption: str) -> bytes:
    """Return a PNG: a curve for each routing layer beside its control, in nats and as a share."""
    spreads = {name: layer.summarise() for name, layer in layers.items()}
    nats = [each["nats"].make_curve(n, layers[n].control) for n, each in spreads.items()]
    share = [each["share"].make_curve(n, 1.0) for n, each in spreads.items()]
    panels = [
        Panel("entropy of couplings, nats", nats),
        Panel("entropy / that of equal couplings", share),
    ]
    return draw_panels(panels, "routing iteration", title, caption)


def describe_figure(layers: Mapping[str, LayerEntropy], routed: RoutedCell) -> str:
    """Return the caption: every choice."""
    texts = []
    for name, layer in layers.items():
        few, many = layer.children.choices.min(), layer.children.choices.max()
        without = (~layer.children.has_choice).sum()
        texts.append(
            f"{name}: {few:.0f} to {many:.0f} shares by place, divided by "
            f"{layer.children.rule.norm}, {without} left out that have no choice"
        )
    return (
        "entropy of the couplings that an iteration's weighted sums are made with; dotted: equal "
        f"couplings, the mean of ln(shares of a child)\n{'; '.join(texts)}\n"
        f"mean over children, present or not, and images, band: {BAND} of "
        f"them; {routed.describe_images()}"
    )
