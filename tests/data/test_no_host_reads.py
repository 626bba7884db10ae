"""No batch makes the host wait for the device: nothing is read from it, nothing is copied to it."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from only_on_device import DEVICE, OnlyOnDevice
from torch import Tensor

from capsweep.config import compose
from capsweep.data.batches import DeviceSplit, TrainLoader
from capsweep.data.images import LabelledImages
from capsweep.data.pairs import PairSource
from capsweep.training import build

DATASETS: Mapping[str, tuple[int, int, int]] = {
    "mnist": (1, 28, 28),
    "affnist": (1, 28, 28),
    "affnist_like": (1, 28, 28),
    "multimnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "smallnorb": (2, 48, 48),
    "svhn": (3, 32, 32),
}
COUNT = 50


def moved(thing: Any) -> Any:
    """All tensors of an object on the device; made on the CPU, where a constructor may read."""
    for name, value in vars(thing).items():
        if isinstance(value, Tensor):
            setattr(thing, name, value.to(DEVICE))
        elif isinstance(value, torch.device):
            setattr(thing, name, DEVICE)
        elif isinstance(value, PairSource):
            moved(value)
    return thing


def present(dataset: str, split: str) -> DeviceSplit:
    """Images of zeros as a data set presents them, on the device."""
    config = compose.cell([f"dataset={dataset}"]).config
    images_NCHW = torch.zeros(COUNT, *DATASETS[dataset], dtype=torch.uint8)
    examples = LabelledImages(images_NCHW, torch.arange(COUNT) % 5)
    return moved(build.build_presenter(config)(examples, split))


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_batch_stays_on_the_device(dataset: str) -> None:
    make_batch = present(dataset, "train").prepare_epoch(0, 3)
    index_B = torch.arange(8, device=DEVICE)
    evaluated = [present(dataset, split) for split in ("validation", "test")]
    with OnlyOnDevice():
        batches = [make_batch(index_B), *(part.evaluation_batch(slice(0, 8)) for part in evaluated)]
    assert [len(batch.images_BCHW) for batch in batches] == [8, 8, 8]


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_whole_epoch_reads_nothing(dataset: str) -> None:
    loader = TrainLoader(present(dataset, "train"), batch_size=4, seed=0)
    assert loader.made_at_once > 1  # as on every device but the CPU
    assert [len(batch.images_BCHW) for batch in loader] == [4] * (COUNT // 4) + [COUNT % 4]
