"""Captured steps of small networks, step by step: what they take, and what they refuse."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsweep.data.batches import Batch
from capsweep.model.capsules import NetworkOutput
from capsweep.model.losses import cross_entropy
from capsweep.training.graphs import StepGraphs
from capsweep.training.step import Objective, SplitMetrics, TrainingStep

UNEQUAL = "its captured step differs from its eager step: "
Run = Any  # what is captured: a method of CapturedStep


class Small(nn.Module):
    """A linear network of images of any type, which counts its steps in a buffer that no
    checkpoint has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 3)
        self.register_buffer("steps", torch.ones(()), persistent=False)
        self.steps: Tensor

    def forward(self, images_BCHW: Tensor) -> NetworkOutput:
        """Logits that depend on the step."""
        logits_BN = self.linear(images_BCHW.flatten(1).float()) / self.steps.clone()
        self.steps += 1
        return NetworkOutput(logits_BN, logits_BN=logits_BN)


class TooLarge(Small):
    """It leaves no memory for a copy."""

    def __deepcopy__(self, memo: Any) -> "TooLarge":
        raise torch.OutOfMemoryError("of a copy")


def make_graphs(network: nn.Module, capture: Callable[[Run], Run] | None) -> StepGraphs:
    """What trains a network; eagerly without a capture."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    objective = Objective(cross_entropy, 0, on_logits=True)
    step = TrainingStep(network, objective, optimizer, None, "32")
    return StepGraphs(step, SplitMetrics(), None if capture else "a test", capture)


def call(run: Run) -> Run:
    """A capture on a processor."""
    return run


def train_both(
    kind: type[Small], batches: list[Batch], capture: Callable[[Run], Run] = call
) -> StepGraphs:
    """Train a network by captured steps, and check that it is the one of ordinary steps."""
    ordinary, network = kind(), kind()
    network.load_state_dict(ordinary.state_dict())
    graphs, eagerly = make_graphs(network, capture), make_graphs(ordinary, None)
    for batch in batches:
        assert torch.equal(graphs.train(batch), eagerly.train(batch))
    for found, expected in zip(network.parameters(), ordinary.parameters(), strict=True):
        assert torch.equal(found, expected)
    assert graphs.metrics.compute("train") == eagerly.metrics.compute("train")
    return graphs


def make_small_batches(count: int) -> list[Batch]:
    """Of four images."""
    noise = torch.Generator().manual_seed(0)
    images_KBCHW = torch.rand(count, 4, 3, 2, 2, generator=noise)
    return [Batch(images_BCHW, torch.tensor([0, 1, 2, 0])) for images_BCHW in images_KBCHW]


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: {"images_BCHW": batch.images_BCHW.double() / 3},
        lambda batch: {"images_BCHW": batch.images_BCHW.mT.contiguous().mT},
        lambda batch: {"labels": batch.labels[:, None]},
        lambda batch: {"targets_BLCHW": batch.images_BCHW[:, None]},
    ],
    ids=["type", "layout", "labels", "targets"],
)
def test_batches_of_a_size_may_change_all_else(change: Callable[[Batch], dict]) -> None:
    made = make_small_batches(8)
    ordinary = [one._replace(images_BCHW=(255 * one.images_BCHW).byte()) for one in made]
    changed = [one._replace(**change(one)) for one in ordinary[4:]]
    train_both(Small, [*ordinary[:4], *changed, *ordinary[:2]])


class CountsItself(Small):
    """It counts its steps in a number of Python, and changes so little in each that no comparison
    of two steps shows it.
    """

    calls = 0

    def forward(self, images_BCHW: Tensor) -> NetworkOutput:
        """As before, and weaker."""
        self.calls += 1
        logits_BN = super().forward(images_BCHW).scores_BN / (1 + 1e-5 * self.calls)
        return NetworkOutput(logits_BN, logits_BN=logits_BN)


def repeat_python(run: Run) -> Run:
    """A capture whose replays, as those of CUDA, have the numbers of Python of its first."""
    first: list[int] = []

    def replay() -> None:
        network = run.__self__.step.network
        first.append(network.calls)
        network.calls = first[0]
        run()

    return replay


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


@pytest.mark.parametrize(
    ("kind", "capture", "why"),
    [
        (Small, lose_the_update, f"{UNEQUAL}the change of linear.weight"),
        (Small, halve_the_gradient, f"{UNEQUAL}the gradient of linear.weight"),
        (Small, repeat_the_first, f"{UNEQUAL}the loss differs by"),
        (TooLarge, call, "its network cannot be copied for a check: of a copy"),
        (CountsItself, repeat_python, "each step changes Python numbers: network.calls"),
    ],
)
def test_a_network_whose_steps_cannot_be_captured_rightly_is_trained_eagerly(
    kind: type[Small], capture: Callable[[Run], Run], why: str
) -> None:
    graphs = train_both(kind, make_small_batches(8), capture)
    assert graphs.describe().startswith(f"off: {why}")
