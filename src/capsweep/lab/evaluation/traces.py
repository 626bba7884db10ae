"""Traces of a trained cell's routing on the first test images, batch by batch.

Shape letters: B batch, M parent positions, L children below a position, J parent types, T
iterations.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from capsweep.data.images import EVALUATION_BATCH
from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.checkpoint import TrainedCell, iterate_batches
from capsweep.ledger.ledger import Predictions
from capsweep.model.routing import Routed
from capsweep.runtime.terminal import count_of

# Largest number of tensor elements in the traces of a batch. Each vote needs POSE + 2 T elements.
NUMBERS_AT_ONCE = 2**25
POSE = 16  # elements of a vote

Trace = Sequence[Mapping[str, Tensor]]  # of one layer: for each iteration, tensors by name


@dataclass(frozen=True)
class RoutedCell:
    """A cell whose routing is traced.

    Attributes:
        cell: The trained cell.
        layers: The layers that route, by their names in the network.
        examples: Number of test images to trace, counted from the first.
        iterations: Number of routing iterations, which may differ from the number in training.
    """

    cell: TrainedCell
    layers: Mapping[str, Any]
    examples: int
    iterations: int

    @property
    def images_at_once(self) -> int:
        """The batch size with which the traces of a batch fit into memory."""
        votes = sum(layer.votes_per_image for layer in self.layers.values())
        images = NUMBERS_AT_ONCE // ((POSE + 2 * self.iterations) * votes)
        return min(max(1, images), EVALUATION_BATCH)

    def trace_layers(self) -> Iterator[tuple[str, Trace]]:
        """Yield the name and the trace of each layer, for one batch of images after another.

        The number of routing iterations in the network is set to `iterations`, and is not reset.

        Raises:
            NotApplicableError: The routing keeps no traces.
        """
        for layer in self.layers.values():
            layer.routing.num_iters = self.iterations
        for batch in iterate_batches(self.cell.test, self.examples, self.images_at_once):
            for _, traces in self.cell.parts.evaluate(
                batch, lambda part: trace_images(self.cell, part.images_BCHW)
            ):
                for name, trace in traces.items():
                    if trace is None:
                        raise NotApplicableError("its routing keeps no trace")
                    yield name, trace

    def trace_couplings(self) -> Iterator[tuple[str, list[Tensor]]]:
        """Yield the name and the couplings of each layer, for one batch of images after another.

        The couplings are a list with a tensor [B, M, L, J] for each iteration.

        Raises:
            NotApplicableError: The routing keeps no traces or has no couplings.
        """
        for name, trace in self.trace_layers():
            if any("coupling" not in iteration for iteration in trace):
                raise NotApplicableError("its routing has no couplings")
            yield name, [iteration["coupling"] for iteration in trace]

    def predict_scores(self) -> Predictions:
        """Return scores and labels of the first `examples` test images.

        The network is run on batches of `images_at_once` images.
        """
        return self.cell.predict_scores(self.examples, self.images_at_once)

    def describe_images(self) -> str:
        """Return a text for captions about the traced images and the number of iterations."""
        images = count_of(self.examples, "test image")
        routing = count_of(self.iterations, "routing iteration")
        trained = self.cell.config["routing"].get("num_iters", 1)
        return f"first {images}, {routing} (trained with {trained})"


def trace_images(cell: TrainedCell, images_BCHW: Tensor) -> Mapping[str, Trace | None]:
    """Return the trace of each layer by name; empty if the network cannot record traces.

    A trace is None if the routing of its layer keeps no trace.
    """
    if "with_trace" not in inspect.signature(cell.network.forward).parameters:
        return {}
    with torch.no_grad():
        return cell(images_BCHW, with_trace=True).traces or {}


@contextmanager
def hook_routings(
    layers: Mapping[str, Any], hook: Callable[[str, Any, Any, Routed], Routed | None]
) -> Iterator[None]:
    """Call a hook after each call of the layers' routings inside the block.

    Args:
        layers: Layers that route, by name.
        hook: Function of the name of the layer, its routing, the inputs of the routing and the
            result. It may return another result.
    """
    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.routing.register_forward_hook(partial(hook, name)))
        yield


def find_routed(cell: TrainedCell, examples: int, iterations: int | None) -> RoutedCell:
    """Return a cell with its routed layers, ready to be traced.

    Args:
        cell: The trained cell.
        examples: Number of test images to trace; all if there are fewer.
        iterations: Number of routing iterations; None: as in training.

    Raises:
        NotApplicableError: The network does not route, or `iterations` is given and the routing has
            no option `num_iters`.
    """
    modules = cell.network.named_modules()
    layers = {name: module for name, module in modules if hasattr(module, "votes_per_image")}
    if not layers:
        raise NotApplicableError("its network does not route; use a capsule network")
    trained = cell.config["routing"].get("num_iters")
    if iterations is not None and trained is None:
        raise NotApplicableError("its routing has no num_iters; leave out --iterations")
    iterations = int(trained or 1) if iterations is None else iterations
    return RoutedCell(cell, layers, min(examples, len(cell.test)), iterations)
