"""From a cell to what Lightning trains: the task, its data, and how precisely it is computed."""

from collections.abc import Mapping
from typing import Literal

import torch

from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.data.module import ImageDataModule
from capsweep.data.randomness import seed_of
from capsweep.training import build, distributed
from capsweep.training.devices import compile_network
from capsweep.training.module import CapsuleTask

PRECISION: Mapping[str, Literal["32-true", "bf16-mixed"]] = {
    "32": "32-true",
    "bf16-mixed": "bf16-mixed",
}


def without_tf32() -> None:
    """Let a GPU compute what is float32 in float32: its tensor cores would round products to TF32.

    torch's own default lets convolutions be rounded, and matrix products not. Of this process.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def make_task(cell: Cell, devices: int = 1) -> CapsuleTask:
    """The network, its weights drawn from the seed, with its objective and optimiser.

    devices: that share a batch. Raises ConfigError where `trainer.compile` cannot be had on this
    node, or the network cannot be shared.
    """
    config = cell.config
    without_tf32()
    torch.manual_seed(seed_of(config["seed"], "weights"))
    network = build.build_network(config)
    shared = distributed.share_modules(network) if devices > 1 else []
    compile_network(network, config["trainer"]["compile"])
    return CapsuleTask(
        network,
        build.build_objective(config),
        build.build_optimizer(config),
        config["optim"]["schedule"],
        config["seed"],
        shared,
    )


def make_data(cell: Cell, places: Places) -> ImageDataModule:
    """The data set of this node, in the cell's order."""
    dataset = cell.config["dataset"]
    return ImageDataModule(
        reader=build.build_source(cell.config),
        folder=str(places.data),
        presenter=build.build_presenter(cell.config),
        batch_size=cell.config["batch_size"],
        validation=dataset["validation"],
        seed=cell.config["seed"],
        declared=dataset["examples"],
        image_shape=dataset["image_shape"],
    )
