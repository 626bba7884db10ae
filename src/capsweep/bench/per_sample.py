"""The rival of our batches: torchvision's transforms, image after image, in a DataLoader."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.transforms import v2

from capsweep.bench.noise import SIDE
from capsweep.data.images import LabelledImages

Transform = Callable[[Tensor], Tensor]


class PerSample(Dataset[tuple[Tensor, Tensor]]):
    """Labelled images, each transformed when it is asked for."""

    def __init__(self, examples: LabelledImages, transform: Transform) -> None:
        self.examples, self.transform = examples, transform

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image_CHW = self.transform(self.examples.images_NCHW[index])
        return image_CHW, self.examples.labels_N[index]


def shifting(shift: int) -> Transform:
    """Moved by up to so many pixels in both axes, zero fill; numbers of 0..1."""
    return v2.Compose([v2.RandomCrop(SIDE, padding=shift), v2.ToDtype(torch.float32, scale=True)])


def loader(
    examples: LabelledImages, transform: Transform, batch_size: int, batches: int, workers: int
) -> DataLoader[tuple[Tensor, Tensor]]:
    """So many shuffled batches, made by processes of their own."""
    part = Subset(PerSample(examples, transform), range(batches * batch_size))
    return DataLoader(part, batch_size, shuffle=True, num_workers=workers)
