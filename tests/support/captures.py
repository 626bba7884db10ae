"""Ways to capture a training step on a processor, rightly and wrongly."""

import copy
from typing import Any

from torch import Tensor

Run = Any  # what is captured: a method of CapturedStep


def call(run: Run) -> Run:
    """A capture on a processor."""
    return run


def refuse(run: Run) -> Run:
    """A capture that CUDA refuses."""
    raise RuntimeError("operation not permitted when stream is capturing\nand more of CUDA's lines")


def lose_the_update(run: Run) -> Run:
    """A capture whose replay leaves the weights as they were."""

    def replay() -> None:
        network = run.__self__.step.network
        before = copy.deepcopy(network.state_dict())
        run()
        network.load_state_dict(before)

    return replay


def halve_the_gradient(run: Run) -> Run:
    """A capture whose gradients are wrong."""

    def replay() -> None:
        run()
        for gradient in run.__self__.gradients:
            gradient.mul_(0.5)

    return replay


def repeat_the_first(run: Run) -> Run:
    """A capture that keeps what it should be told: it replays its first batch for ever."""
    first: list[Tensor] = []

    def replay() -> None:
        images_BCHW = run.__self__.batch.images_BCHW
        first.append(images_BCHW.clone())
        images_BCHW.copy_(first[0])
        run()

    return replay
