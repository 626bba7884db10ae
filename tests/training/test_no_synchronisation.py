"""Nothing in a training step reads a number off the device: on a GPU the host would wait for it,
and could not capture the step. Steps that end with a point of `logger.every_n_steps` are the
exception.
"""

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from only_on_device import DEVICE, OnlyOnDevice
from routing_variants import IMPLEMENTATIONS, TOYS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from trained_cells import train

from capsweep.config import compose
from capsweep.data.batches import Batch
from capsweep.model.routing.dynamic import NORMALISERS
from capsweep.model.votes import ConvolutionalVotes, Votes
from capsweep.training import build
from capsweep.training.module import CapsuleTask
from capsweep.training.step import SplitMetrics

# What gives the host a number, or a size that depends on numbers.
WAITS = {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2", "equal"}
INDEXES = {"index", "index_put", "index_put_"}
STEPS = 4


class Waits(TorchDispatchMode):
    """Notes where torch was asked for what the host must wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.steps = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in WAITS or _by_mask(func, args):
            self.found.append(f"{func}: {''.join(traceback.format_stack(limit=6))}")
        return func(*args, **(kwargs or {}))


def _by_mask(func: Any, args: Any) -> bool:
    """Whether it indexes with a mask: how many numbers that gives depends on the mask's."""
    is_index = func.overloadpacket.__name__ in INDEXES
    return is_index and any(index is not None and index.dtype == torch.bool for index in args[1])


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Watches every step but the first and the last from its batch to its end: forward, loss,
    metrics, backward, clipping, optimiser, schedule, callbacks.

    Not the first: its activations are noted in the ledger. Nor the last, which has a point.
    """
    watched = Waits()

    def begin(task: CapsuleTask, batch: Batch, batch_idx: int) -> None:
        if 0 < task.global_step < STEPS - 1:
            watched.__enter__()

    def end(task: CapsuleTask, outputs: Any, batch: Batch, batch_idx: int) -> None:
        if 1 < task.global_step < STEPS:
            watched.__exit__(None, None, None)
            watched.steps += 1

    monkeypatch.setattr(CapsuleTask, "on_train_batch_start", begin)
    monkeypatch.setattr(CapsuleTask, "on_train_batch_end", end)
    return watched


CELLS = {
    "margin, bf16, clipped": ("precision=bf16-mixed", "optim.clip_norm=1.0"),
    "spread": ("model=matrix_capsnet_tiny", "loss=spread", "loss.class_weight=balanced"),
    "em": ("model=matrix_capsnet_tiny", "routing=em", "loss=spread", "optim.decayed=weights"),
    "pairs": ("experiment=overlap",),
}


@pytest.mark.parametrize("overrides", CELLS.values(), ids=CELLS)
def test_no_step_waits_for_the_device(
    overrides: tuple[str, ...], storage: Path, waits: Waits
) -> None:
    short = ["epochs=1", "logger.every_n_steps=100", f"limit_batches={STEPS}", "batch_size=4"]
    here = ["logger=csv", f"places.storage={storage}", "trainer.accelerator=cpu"]
    train(compose.cell([*overrides, *short, *here]))
    assert waits.steps == STEPS - 2
    assert not waits.found, waits.found[0]


def test_what_waits_is_found() -> None:
    numbers = torch.arange(3.0)
    with Waits() as waits:
        float(numbers.sum())
        numbers[numbers > 1]
    assert [text.split(".")[1] for text in waits.found] == ["_local_scalar_dense", "index"]


NETWORKS = {Votes: "capsnet_tiny", ConvolutionalVotes: "matrix_capsnet_tiny"}
ROUTED = {
    f"{variant}, {model}": (
        *(f"model={model}", f"routing={variant.stem}", f"routing.impl={variant.impl}"),
        *("model.head=linear", "loss=cross_entropy"),
    )
    for variant in IMPLEMENTATIONS
    if variant not in TOYS
    for kind, model in NETWORKS.items()
    if variant.routes(kind)
}
CAPTURED = {
    **ROUTED,
    **CELLS,
    **{f"dynamic, {name}": (f"routing.normaliser={name}",) for name in NORMALISERS},
    "static couplings": ("routing.gradient=last", "routing.learned_prior=true"),
    "none of the above": ("routing.none_of_the_above=true",),
    "binary cross-entropy": ("model.head=linear", "loss=binary_cross_entropy"),
    "the authors' EM": ("recipe=em_authors",),
    "cnn": ("model=cnn_small",),
}


@pytest.mark.parametrize("overrides", CAPTURED.values(), ids=CAPTURED)
def test_a_step_is_all_on_the_device_so_that_a_graph_can_be_captured(
    overrides: tuple[str, ...],
) -> None:
    config = compose.cell(list(overrides)).config
    dataset, digits = config["dataset"], config["dataset"].get("labels_per_image", 1)
    with DEVICE:
        network, metrics = build.build_network(config), SplitMetrics()
        images_BCHW = torch.rand(4, *dataset["image_shape"])
        labels = torch.zeros(4, *([digits] if digits > 1 else []), dtype=torch.long)
        targets_BLCHW = torch.rand(4, digits, *dataset["image_shape"])
    objective, batch = build.build_objective(config), Batch(images_BCHW, labels, targets_BLCHW)
    margin = None if objective.margin_at(1, 2) is None else torch.zeros((), device=DEVICE)
    with OnlyOnDevice():
        losses = objective(network, batch, margin)
        losses.total.backward()
        metrics.update(losses, batch)
    assert all(isinstance(p.grad, Tensor) for p in network.parameters() if p.dim() > 1)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x * torch.arange(3.0, device="cpu").to(DEVICE),
        lambda x: x * torch.tensor([1.0, 2.0, 3.0], device=DEVICE),
        lambda x: x[[0, 1]],
        lambda x: x.uniform_(generator=torch.Generator()),
        lambda x: x.aminmax(),
    ],
)
def test_what_no_graph_can_capture_is_found(step: Any) -> None:
    x = torch.zeros(3, device=DEVICE)
    with pytest.raises((AssertionError, RuntimeError)), OnlyOnDevice():
        step(x)
