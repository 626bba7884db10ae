"""Traces of the routing of a trained cell on its first test images, some images at a time.

Shape letters: B batch, M parent positions, L children below one, J parent types, T iterations.
"""

import argparse
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from capsweep.data.batches import Batch, EvaluatedSplit
from capsweep.data.images import EVALUATION_BATCH
from capsweep.errors import NotApplicableError
from capsweep.lab.evaluation.checkpoint import (
    CellLoader,
    TrainedCell,
    split_range,
    verify_predictions,
)
from capsweep.lab.evaluation.figures import TRACED_EXAMPLES
from capsweep.ledger.ledger import Predictions

NUMBERS_AT_ONCE = 2**25  # of traces: every vote, and two numbers of it for each iteration
POSE = 16  # numbers of a vote

Trace = Sequence[Mapping[str, Tensor]]  # of a layer: tensors by name, for each iteration


@dataclass(frozen=True)
class RoutedCell:
    """A cell whose routing is traced with `iterations` on the first `examples` test images.

    layers: those that route, by name.
    """

    cell: TrainedCell
    layers: Mapping[str, Any]
    examples: int
    iterations: int

    def trace_batches(self, split: EvaluatedSplit | None = None) -> Iterator[Mapping[str, Trace]]:
        """Traces by layer, of batch after batch; leaves the network with these iterations.

        split: whose first images, at most `examples`; None: the test's. Raises NotApplicableError
        for a routing without traces.
        """
        for layer in self.layers.values():
            layer.routing.num_iters = self.iterations
        for batch in self._iterate_batches(self.cell.test if split is None else split):
            for _, traces in self.cell.parts.evaluate(
                batch, lambda part: trace_images(self.cell, part.images_BCHW)
            ):
                if None in traces.values():
                    raise NotApplicableError("its routing keeps no trace")
                yield traces

    def predict_scores(self) -> Predictions:
        """Return scores and labels of the test images, as many at a time as are traced."""
        scores, labels = [], []
        with torch.no_grad():
            for batch in self._iterate_batches(self.cell.test):
                scores.append(self.cell.predict_batch(batch).float())
                labels.append(batch.labels.cpu())
        return torch.cat(scores).numpy(), torch.cat(labels).numpy()

    def _iterate_batches(self, split: EvaluatedSplit) -> Iterator[Batch]:
        votes = sum(layer.votes_per_image for layer in self.layers.values())
        images = max(1, NUMBERS_AT_ONCE // ((POSE + 2 * self.iterations) * votes))
        for part in split_range(min(self.examples, len(split)), min(images, EVALUATION_BATCH)):
            yield split.evaluation_batch(part)

    def describe_images(self) -> str:
        """For a caption: which images, and how they were routed."""
        images = f"first {self.examples} test image{'s' * (self.examples > 1)}"
        text = f"{images}, {self.iterations} routing iteration{'s' * (self.iterations > 1)}"
        trained = self.cell.config["routing"].get("num_iters", 1)
        return text + (
            " as in training" if self.iterations == trained else f" (trained with {trained})"
        )


def trace_images(cell: TrainedCell, images_BCHW: Tensor) -> Mapping[str, Trace]:
    """By layer; empty where the network traces nothing."""
    if "with_trace" not in inspect.signature(cell.network.forward).parameters:
        return {}
    with torch.no_grad():
        return cell(images_BCHW, with_trace=True).traces or {}


def find_routed(cell: TrainedCell, examples: int, iterations: int | None) -> RoutedCell:
    """The cell with its routed layers; at most as many examples as there are.

    iterations: None: as in training. Raises NotApplicableError for a network that does not route.
    """
    modules = cell.network.named_modules()
    layers = {name: module for name, module in modules if hasattr(module, "votes_per_image")}
    if not layers:
        raise NotApplicableError("its network does not route; take one of capsules")
    trained = cell.config["routing"].get("num_iters")
    if iterations is not None and trained is None:
        raise NotApplicableError("its routing has no num_iters; leave --iterations out")
    iterations = int(trained or 1) if iterations is None else iterations
    return RoutedCell(cell, layers, min(examples, len(cell.test)), iterations)


def load_routed(loader: CellLoader, name: str, options: argparse.Namespace) -> RoutedCell:
    """The same of a cell of the ledger, as the options of a figure say, once it is verified."""
    cell, predictions = loader.load_tested(name)
    routed = find_routed(cell, options.examples, options.iterations)
    verify_predictions(cell, predictions, routed.examples)
    return routed


def name_files(figure: str, options: argparse.Namespace) -> str:
    """The stem of a figure's files: options that are not the defaults are part of it."""
    iterations = "" if options.iterations is None else f"-iterations{options.iterations}"
    changed = options.examples != TRACED_EXAMPLES
    return f"{figure}{iterations}" + (f"-first{options.examples}" if changed else "")
