"""Networks as configured, with first weights, whose routing is traced on real digits."""

from collections.abc import Sequence
from functools import cache

import torch

from capsweep.config import compose
from capsweep.data.batches import DeviceSplit
from capsweep.data.module import prepare_splits
from capsweep.evaluation.checkpoint import TrainedCell
from capsweep.evaluation.traces import RoutedCell, find_routed
from capsweep.training import build

CPU = torch.device("cpu")


@cache
def load_digits() -> DeviceSplit:
    """The test images of the embedded data set."""
    config = compose.cell([]).config
    data = config["dataset"]
    sizes = data["validation"], CPU, None, data["image_shape"]
    reader, presenter = build.build_reader(config), build.build_presenter(config)
    return prepare_splits(reader, "", presenter, *sizes)["test"]


def make_routed(
    overrides: Sequence[str], examples: int = 3, iterations: int | None = None
) -> RoutedCell:
    """Such a network, as a cell whose routing is traced."""
    config = compose.cell(overrides).config
    torch.manual_seed(0)
    network = build.build_network(config).eval().requires_grad_(False)
    return find_routed(TrainedCell("cell", config, network, load_digits()), examples, iterations)
