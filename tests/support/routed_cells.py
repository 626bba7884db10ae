"""Networks as configured, with first weights, whose routing is traced on real digits."""

from collections.abc import Sequence
from functools import cache

import torch

from capsweep.config import compose
from capsweep.data.batches import DeviceSplit
from capsweep.data.module import prepare_splits
from capsweep.evaluation import traced_batches
from capsweep.evaluation.traced_batches import Asked, Routed
from capsweep.evaluation.trained import Trained
from capsweep.training import build

CPU = torch.device("cpu")


@cache
def digits() -> DeviceSplit:
    """The test images of the embedded data set."""
    config = compose.cell([]).config
    data = config["dataset"]
    sizes = data["validation"], CPU, None, data["image_shape"]
    return prepare_splits(build.build_reader(config), "", build.build_presenter(config), *sizes)[
        "test"
    ]


def routed(overrides: Sequence[str], asked: Asked) -> Routed:
    """Such a network, as a cell that is asked for its traces."""
    config = compose.cell(overrides).config
    torch.manual_seed(0)
    network = build.build_network(config).eval().requires_grad_(False)
    return traced_batches.of(Trained("cell", config, network, digits()), asked)
