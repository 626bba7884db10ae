"""Numbers as images of one pixel, whose class is their sign: what a network of capsules cannot
learn without a bias (Peer, Stabinger, Rodriguez-Sanchez 2021, "Limitation of capsule networks").

A byte v stands for x = (2 v - 255) / 255, so that 255 - v stands for -x, and none for 0.

Shape letters: B batch, N examples, C H W image.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from capsweep.data.batches import Batch, DeviceSplit, Split
from capsweep.data.images import LabelledImages, Reader, Splits, label_images
from capsweep.errors import DataError
from capsweep.storage.files import hash_bytes

LARGEST = 255
TEST_STEP, TEST_PLACE = 4, 1  # which pairs are tested on; the first and the last are trained on


class SignReader(Reader):
    """All 256 bytes, with v and 255 - v in the same split; sha256: of both splits."""

    def __init__(self, sha256: str) -> None:
        self.sha256 = sha256

    def read(self, folder: str) -> Splits:
        """192 training and 64 test images [N, 1, 1, 1]; `folder` is not used.

        Raises DataError where they are others than the declared ones.
        """
        byte_N = np.arange(LARGEST + 1, dtype=np.uint8)
        pair_N = np.minimum(byte_N, LARGEST - byte_N)
        is_test_N = pair_N % TEST_STEP == TEST_PLACE
        train, test = (_label_bytes(byte_N[chosen_N]) for chosen_N in (~is_test_N, is_test_N))
        digest = hash_bytes(b"".join(map(_list_bytes, (train, test))))
        if digest != self.sha256:
            raise DataError(
                f"the numbers of capsweep.data.sign have sha256 {digest}, dataset.reader.sha256 "
                f"declares {self.sha256}; declare theirs, as another data set"
            )
        return Splits(train=train, test=test)


def _label_bytes(byte_N: np.ndarray) -> LabelledImages:
    return label_images(byte_N[:, None, None, None], byte_N > LARGEST // 2, classes=2)


def _list_bytes(examples: LabelledImages) -> bytes:
    labels_N = examples.labels_N.to(torch.uint8)
    return examples.images_NCHW.numpy().tobytes() + labels_N.numpy().tobytes()


class SignedImages(DeviceSplit):
    """Images whose bytes are numbers of -1..1, in all splits alike."""

    def __init__(self, examples: LabelledImages, split: Split) -> None:
        self.images_NCHW, self.labels_N = examples.images_NCHW, examples.labels_N
        self.device = examples.labels_N.device

    def __len__(self) -> int:
        return len(self.labels_N)

    def prepare_epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """Every epoch shows the same images."""
        return self._make_batch

    def evaluation_batch(self, part: slice) -> Batch:
        """Examples in order."""
        return self._make_batch(part)

    def _make_batch(self, index: Tensor | slice) -> Batch:
        return Batch(to_signed(self.images_NCHW[index]), self.labels_N[index])


def to_signed(images: Tensor) -> Tensor:
    """uint8 0..255 to float32 -1..1: v and 255 - v become x and -x, to the bit."""
    return images.to(torch.float32).mul_(2).sub_(LARGEST).div_(LARGEST)
