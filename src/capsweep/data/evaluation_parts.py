"""Evaluates a batch in parts that fit into memory: smaller ones from when it first runs out.

An evaluation keeps no activations for a backward pass, so that twice as many examples as a training
step has need about as much memory. Results do not depend on the parts but for rounding.
"""

import gc
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from capsweep.data.batches import Batch
from capsweep.errors import is_short_of_memory
from capsweep.runtime import terminal

TRAINING_BATCHES = 2  # that are evaluated at once

Result = TypeVar("Result")


class EvaluationParts:
    """How many examples are evaluated at once. batch_size: of a training step on one device."""

    def __init__(self, batch_size: int) -> None:
        self.examples = max(1, TRAINING_BATCHES * batch_size)

    def evaluate(
        self, batch: Batch, compute: Callable[[Batch], Result]
    ) -> Iterator[tuple[Batch, Result]]:
        """Yield the parts of a batch in order, each with what `compute` returns for it.

        Where memory runs out, the part is halved, and a line says so; all later parts are as small.
        Raises what `compute` raises, also for lack of memory where a part is one example.
        """
        start, count = 0, len(batch.labels)
        while start < count:
            even = -(-count // -(-count // self.examples))  # few sizes: their memory is used again
            part = batch.select(slice(start, start + even))
            try:
                result = compute(part)
            except (RuntimeError, MemoryError) as error:
                if len(part.labels) == 1 or not is_short_of_memory(error):
                    raise
            else:
                start += len(part.labels)
                yield part, result
                continue
            self._halve(len(part.labels))  # when the traceback holds no tensors any more

    def _halve(self, examples: int) -> None:
        self.examples = examples // 2
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        terminal.print_aside(
            f"memory ran out while {examples} examples were evaluated at once; from now on "
            f"{self.examples} are"
        )
