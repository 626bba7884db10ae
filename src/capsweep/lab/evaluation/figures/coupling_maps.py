"""Pictures of the couplings themselves: by types, as a histogram, and by place in one image.

All pictures show the couplings of the last routing iteration.

Shape letters: M parent positions, L children below a position, I child types, J parent types,
G groups of children, B images, D distributions, T iterations.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from torch import Tensor, nn

from capsweep.config.cell import name_classes
from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.couplings import Children, LinkSpread, find_children
from capsweep.lab.evaluation.figures import Drawing, finish_figure
from capsweep.lab.evaluation.traces import RoutedCell
from capsweep.model.matrix_capsnet import MatrixCapsules
from capsweep.report import charts

EDGES = np.linspace(-4, 0, 41)  # edges of the histogram's bins: log10 of the coupling
MOST_WRITTEN = 160  # a map with more entries has colours only, without numbers
MOST_NAMES = 40  # a map with more parent types has numbers, not names, at its axis
MOST_PARENTS = 10  # parent types whose children are drawn by place
# Blue: less than an equal share; white: equal; red: more; grey: no child has parents.
COLOURS = matplotlib.colormaps["RdBu_r"].with_extremes(bad="0.8")
SMALL: Any = {"font.size": 7}
PALE = 0.2  # smaller relative differences from an equal share never have full colours
DARK = 0.35  # the numbers in colours that are at least this far from the middle are white


class LayerCouplings:
    """The couplings of one routed layer, added up over images.

    Args:
        network: The network that contains the layer.
        layer: A layer that routes.
        shape: Numbers of parent positions, children below a position, and parent types.
    """

    def __init__(self, network: nn.Module, layer: Any, shape: Sequence[int]) -> None:
        self.children: Children = find_children(layer, shape)
        self.links = LinkSpread(shape)
        self.nats: list[np.ndarray] = []  # of each batch: entropies [B, D, T]
        self.counts = np.zeros(len(EDGES) - 1, np.int64)
        self.one_MLJ: Tensor | None = None  # the couplings of the image that is drawn by place
        positions, below, _ = shape
        self.types, self.type_ML, self.place_ML = 1, torch.zeros(positions, below).long(), None
        if isinstance(layer, MatrixCapsules):
            self.types = layer.child_types
            self.type_ML = (torch.arange(below) % self.types).expand(positions, -1)
            self.place_ML = layer.child_MK.cpu().repeat_interleave(self.types, dim=1)
        elif (conv := getattr(getattr(network, "primary", None), "conv", None)) is not None:
            self.types = conv.out_channels // network.get_submodule("primary").pose
            index_1L = torch.arange(below)[None]
            self.type_ML = index_1L // (below // self.types)
            self.place_ML = index_1L % (below // self.types)

    @cached_property
    def rule(self) -> str:
        """How couplings add up: `all`, `types` or `positions` (see `CouplingRule`), or `none`."""
        if not self.children.has_sum:
            return "none"
        return "types" if self.children.fields is None else self.children.rule.norm

    def find_centre(self, values: np.ndarray) -> float:
        """Return the value that is drawn white: an equal share, or the mean if there is none."""
        if self.rule in ("all", "types"):
            return 1 / (self.children.shape[2] + self.children.rule.none_of_the_above)
        return float(np.nanmean(values))

    def find_entropies(self) -> np.ndarray:
        """Return the entropies [B, D, T] in nats of distributions with at least two choices."""
        return np.concatenate(self.nats)

    def add_images(self, couplings: Sequence[Tensor], image: int) -> None:
        """Add the couplings of a batch; keep the last of the image with the index `image`.

        Args:
            couplings: Couplings [B, M, L, J] of each iteration.
            image: Index of the image that is drawn by place.
        """
        # float32, because there is a number for every child of every image.
        nats = [self.children.measure(coupling_BMLJ)[0] for coupling_BMLJ in couplings]
        self.nats.append(np.stack(nats, axis=2, dtype=np.float32))
        coupling_BMLJ = couplings[-1]
        if 0 <= image - self.links.count < len(coupling_BMLJ):
            self.one_MLJ = coupling_BMLJ[image - self.links.count].cpu().double()
        self.links.add_images(coupling_BMLJ)
        values = coupling_BMLJ.cpu().numpy().clip(10 ** EDGES[0], 1)
        self.counts += np.histogram(np.log10(values), EDGES)[0]

    def average(self, coupling_MLJ: Tensor, group_ML: Tensor, groups: int) -> np.ndarray:
        """Average couplings over the children of each group, for each parent type.

        With the rule `all`, the couplings of a child with all parents of a type are added first.

        Returns:
            An array [G, J]; NaN for groups without children.
        """
        flat_E = group_ML.expand(len(coupling_MLJ), -1).flatten()
        sum_GJ = torch.zeros(groups, coupling_MLJ.shape[2], dtype=coupling_MLJ.dtype)
        sum_GJ.index_add_(0, flat_E, coupling_MLJ.flatten(0, 1))
        if self.rule == "all" and self.place_ML is not None:
            child_E = (self.place_ML * self.types + self.type_ML).flatten()
            flat_E = torch.stack([child_E, flat_E]).unique(dim=1)[1]
        return (sum_GJ / flat_E.bincount(minlength=groups)[:, None]).numpy()

    def describe(self) -> str:
        """Return what the numbers of a map mean in this layer."""
        is_whole = not self.children.rule.none_of_the_above
        total = "1" if is_whole else "at most 1; the rest goes to no parent"
        there = "" if self.children.fields is None else " at a position"
        return {
            "all": "the share of a child that goes to all parents of a type, and white is an equal "
            f"share. The shares of a child add up to {total}",
            "types": "the share of a child that goes to a parent of a type, and white is an equal "
            f"share. The shares of a child{there} add up to {total}",
            "positions": "the coupling of a child with a parent of a type, and white is the mean. "
            "For each type, a child's couplings with the parents at all positions add up to 1",
            "none": "the coupling of a child with a parent of a type, and white is the mean. In "
            "this routing, the couplings of a child do not add up to 1",
        }[self.rule]


@dataclass
class CouplingMaps:
    """An object that collects the couplings of all routed layers of a cell.

    Attributes:
        routed: The cell.
        image: Index of the test image whose children are drawn by place.
    """

    routed: RoutedCell
    image: int

    @cached_property
    def layers(self) -> dict[str, LayerCouplings]:
        """The couplings of each layer by its name, added up over the traced test images.

        Raises:
            NotApplicableError: The routing has no couplings, or there is a layer in which no child
                has a choice.
        """
        layers: dict[str, LayerCouplings] = {}
        for name, couplings in self.routed.trace_couplings():
            if name not in layers:
                layer, shape = self.routed.layers[name], couplings[0].shape[1:]
                layers[name] = LayerCouplings(self.routed.cell.network, layer, shape)
            if not layers[name].children.has_choice.any():
                raise NotApplicableError(f"the children of {name} have one parent each")
            layers[name].add_images(couplings, self.image)
        return layers

    def draw(self, ending: str) -> Iterator[Drawing]:
        """Yield the map with the histogram, and the places in one image if places are known.

        These arrays are stored for each layer: LAYER.map [I, J], LAYER.counts (of EDGES), and in
        the second file LAYER.places [rows, columns, J].

        Args:
            ending: Last part of the file names.
        """
        maps = {
            name: layer.average(layer.links.mean_MLJ, layer.type_ML, layer.types)
            for name, layer in self.layers.items()
        }
        arrays = {f"{name}.map": map_IJ for name, map_IJ in maps.items()}
        arrays |= {f"{name}.counts": layer.counts for name, layer in self.layers.items()}
        caption = (
            "Left: the mean over images and over all children of a type, active or not. Red is "
            f"more than white, blue is less. {self._describe_layers()}\nRight: how often each "
            "coupling occurs; the axis is logarithmic, the first bar has all couplings up to "
            "0.0001, the last all above 0.8. Dotted: the coupling of a child that divides itself "
            f"equally. Measured on the {self.routed.describe_images()}."
        )
        picture = self._draw_maps(maps, caption)
        yield Drawing(f"couplings-map{ending}", {**arrays, "edges": EDGES}, picture, caption)
        found = {name: self.find_places(name) for name in self.layers}
        places = {name: each for name, each in found.items() if each is not None}
        if places:
            caption = (
                f"Test image {self.image}. Each small square is a place of children in the layer "
                "below. Its colour is the mean over the child types at this place, active or not. "
                f"Red is more than white, blue is less. {self._describe_layers()}"
            )
            if any(np.isnan(each).any() for each in places.values()):
                caption += " Grey: children without parents."
            if max(each.shape[2] for each in places.values()) > MOST_PARENTS:
                caption += f" The {MOST_PARENTS} parent types with the largest shares are drawn."
            arrays = {f"{name}.places": places_RCJ for name, places_RCJ in places.items()}
            picture = self._draw_places(places, caption)
            yield Drawing(f"couplings-image{self.image}{ending}", arrays, picture, caption)

    def _describe_layers(self) -> str:
        texts: dict[str, list[str]] = {}
        for name, layer in self.layers.items():
            texts.setdefault(layer.describe(), []).append(name)
        if len(texts) == 1:
            return f"The number is {next(iter(texts))}."
        return " ".join(
            f"In {' and '.join(at)}, the number is {text}." for text, at in texts.items()
        )

    @matplotlib.rc_context(SMALL)
    def _draw_maps(self, maps: Mapping[str, np.ndarray], caption: str) -> bytes:
        """Draw a row for each layer: its map, and its histogram."""
        heights = [min(max(1.8, 0.25 * len(map_IJ)), 5) for map_IJ in maps.values()]
        figure = Figure(figsize=(9, sum(heights) + 1.6), layout="constrained")
        ratios: dict[str, Any] = {"height_ratios": heights, "width_ratios": (1.3, 1)}
        grid: Any = figure.subplots(len(maps), 2, squeeze=False, **ratios)
        for (left, right), (name, map_IJ) in zip(grid, maps.items(), strict=True):
            layer = self.layers[name]
            figure.colorbar(_draw_map(left, map_IJ, layer.find_centre(map_IJ)), ax=left)
            names = self._name_parents(name, map_IJ.shape[1])
            if 0 < len(names) <= MOST_NAMES:
                left.set_xticks(range(len(names)), names, rotation=90)
            left.set_title(name, loc="left")
            percent = 100 * layer.counts / layer.counts.sum()
            right.stairs(percent, 10**EDGES, fill=True, color=charts.COLOURS[0])
            right.set(xscale="log", xlabel="coupling", ylabel="% of couplings")
            right.axvline(1 / np.median(layer.children.choices), color="0.2", linestyle=":")
        return finish_figure(figure, f"cell {self.routed.cell.name}: couplings by type", caption)

    def _name_parents(self, name: str, types: int) -> list[str]:
        """Return the names of a layer's parents if these are classes with names; else nothing."""
        config = self.routed.cell.config
        is_named = name == list(self.layers)[-1] and config["dataset"].get("class_names")
        names = name_classes(config) if is_named else []
        return names if len(names) == types else []

    def find_places(self, name: str) -> np.ndarray | None:
        """Return the shares [rows, columns, J] by place; None if places form no square."""
        layer = self.layers[name]
        if layer.place_ML is None or layer.one_MLJ is None:
            return None
        fields = layer.children.fields
        count = int(layer.place_ML.max()) + 1 if fields is None else fields.num_child_positions
        height, width = self.routed.cell.config["dataset"]["image_shape"][1:]
        side = math.isqrt(count)
        if side**2 != count or height != width:
            return None
        return layer.average(layer.one_MLJ, layer.place_ML, count).reshape(side, side, -1)

    @matplotlib.rc_context(SMALL)
    def _draw_places(self, places: Mapping[str, np.ndarray], caption: str) -> bytes:
        """Draw the image, and a row for each layer: a heat map for each parent type."""
        across = min(MOST_PARENTS, max(each.shape[2] for each in places.values()))
        size = 1.15 * across + 1.75, 1.4 * len(places) + 1.2
        figure = Figure(figsize=size, layout="constrained")
        grid: Any = figure.subplots(len(places), across + 1, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        batch = self.routed.cell.test.evaluation_batch(slice(self.image, self.image + 1))
        pixels_1CHW = charts.scale_images(batch.images_BCHW.cpu().numpy())
        grid[0, 0].imshow(charts.to_rgb(pixels_1CHW)[0])
        names = name_classes(self.routed.cell.config)
        labels = ", ".join(names[label] for label in batch.labels.flatten().tolist())
        grid[0, 0].set_title(f"input\nlabel {labels}")
        for row, (name, places_RCJ) in zip(grid, places.items(), strict=True):
            largest_J = np.argsort(-np.nanmean(places_RCJ, axis=(0, 1)), kind="stable")
            centre = self.layers[name].find_centre(places_RCJ)
            parents = self._name_parents(name, places_RCJ.shape[2]) or range(places_RCJ.shape[2])
            for axes, parent in zip(row[1:], sorted(largest_J[:across]), strict=False):
                _draw_heat(axes, places_RCJ[..., parent], centre, places_RCJ)
                axes.set_title(f"{name}\n{parents[parent]}")
            figure.colorbar(row[1].images[0], ax=row.tolist(), fraction=0.015)
        title = f"cell {self.routed.cell.name}: couplings by place of the children"
        return finish_figure(figure, title, caption)


def _draw_map(axes: Any, map_IJ: np.ndarray, centre: float) -> Any:
    """Draw a map with its numbers, unless there are too many, and return the image."""
    image = _draw_heat(axes, map_IJ, centre, map_IJ)
    axes.set(xlabel="parent type", ylabel="child type", aspect="auto")
    axes.locator_params(integer=True, nbins=12)
    for (i, j), value in np.ndenumerate(map_IJ if map_IJ.size <= MOST_WRITTEN else np.empty(0)):
        colour = "white" if abs(image.norm(value) - 0.5) > DARK else "black"
        axes.text(j, i, f"{value:.3f}", ha="center", va="center", fontsize=5.5, color=colour)
    return image


def _draw_heat(axes: Any, values: np.ndarray, centre: float, shown: np.ndarray) -> Any:
    """Draw a heat map in which `centre` is white, with colours for the range of `shown`."""
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    least = max(1e-6, PALE * abs(centre))
    norm = TwoSlopeNorm(centre, min(low, centre - least), max(high, centre + least))
    return axes.imshow(values, cmap=COLOURS, norm=norm, interpolation="nearest")
