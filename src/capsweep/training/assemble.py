"""From a cell to what Lightning trains: the task, its data, and how precisely it is computed."""

from collections.abc import Mapping
from typing import Literal

import torch

from capsweep.config.cell import Cell
from capsweep.config.places import Places
from capsweep.data.module import ImageDataModule
from capsweep.data.order import seed_of
from capsweep.training import build
from capsweep.training.module import CapsuleTask

PRECISION: Mapping[str, Literal["32-true", "bf16-mixed"]] = {
    "32": "32-true",
    "bf16-mixed": "bf16-mixed",
}


def task(cell: Cell) -> CapsuleTask:
    """The network, its weights drawn from the seed, with its objective and optimiser."""
    config = cell.config
    torch.manual_seed(seed_of(config["seed"], "weights"))
    return CapsuleTask(
        build.network(config),
        build.objective(config),
        build.optimizer(config),
        config["optim"]["schedule"],
        config["seed"],
    )


def data(cell: Cell, places: Places) -> ImageDataModule:
    """The data set of this node, in the cell's order."""
    dataset = cell.config["dataset"]
    return ImageDataModule(
        reader=build.reader(cell.config),
        folder=str(places.data),
        presenter=build.presenter(cell.config),
        batch_size=cell.config["batch_size"],
        validation=dataset["validation"],
        seed=cell.config["seed"],
        declared=dataset["examples"],
        image_shape=dataset["image_shape"],
    )
