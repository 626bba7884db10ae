"""What routing did with the first test images of a trained cell, some images at a time.

Shape letters: B batch, M parent positions, L children below one, J parent types, T iterations.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from capsweep.data.module import EVALUATION_BATCH
from capsweep.errors import NotApplicableError, UserError
from capsweep.evaluation import traces
from capsweep.evaluation.trained import Trained, batches

NUMBERS_AT_ONCE = 2**25  # of traces that are kept: two of every vote and iteration

Trace = Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True)
class Asked:
    """examples: the first so many test images. iterations: of routing; None: as in training."""

    examples: int
    iterations: int | None

    def check(self) -> None:
        """Raise UserError naming the option that cannot be meant."""
        if self.examples < 1:
            raise UserError(f"--examples must be >= 1, got {self.examples}")
        if self.iterations is not None and self.iterations < 1:
            raise UserError(f"--iterations must be >= 1, got {self.iterations}")


@dataclass(frozen=True)
class Routed:
    """A cell whose routing is traced: its layers that route, by name; `examples` test images.

    trained_iterations, iterations: in training, and here.
    """

    trained: Trained
    layers: Mapping[str, Any]
    examples: int
    trained_iterations: int
    iterations: int

    def traces(self) -> Iterator[Mapping[str, Trace]]:
        """By layer, of some images after the other; leaves the network with these iterations."""
        for layer in self.layers.values():
            layer.routing.num_iters = self.iterations
        votes = sum(layer.votes_per_image for layer in self.layers.values())
        images = max(1, NUMBERS_AT_ONCE // (2 * self.iterations * votes))
        for part in batches(self.examples, min(images, EVALUATION_BATCH)):
            yield traces.of(self.trained, self.trained.test.evaluation_batch(part).images_BCHW)

    @property
    def told(self) -> str:
        """Which images, and how they were routed."""
        images = f"first {self.examples} test image{'s' * (self.examples > 1)}"
        told = f"{images}, {self.iterations} routing iteration{'s' * (self.iterations > 1)}"
        if self.iterations == self.trained_iterations:
            return f"{told} as in training"
        return f"{told} (trained with {self.trained_iterations})"


def of(trained: Trained, asked: Asked) -> Routed:
    """The cell as it is asked; all test images, where there are not so many.

    Raises NotApplicableError for a network that does
    not route.
    """
    modules = trained.network.named_modules()
    layers: dict[str, Any] = {
        name: module for name, module in modules if hasattr(module, "votes_per_image")
    }
    if not layers:
        raise NotApplicableError("its network does not route; traces need routing=dynamic or em")
    usual = trained.config["routing"]["num_iters"]
    iterations = usual if asked.iterations is None else asked.iterations
    examples = min(asked.examples, len(trained.test))
    return Routed(trained, layers, examples, usual, iterations)
