"""MultiMNIST: two digits of different classes, composed on the training device.

"Dynamic Routing Between Capsules", section 6.1. Example k of a split is a pure function of (seed,
split, k), so any example can be made again anywhere, and none has to be stored.

Shape letters: B batch, L = 2 digits of an image, N source digits, C H W image.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from capsweep.data import counter
from capsweep.data.augment import shift_windows, to_unit
from capsweep.data.images import LabelledImages
from capsweep.data.order import seed_of
from capsweep.data.presented import Batch, Split
from capsweep.data.shifted import centred
from capsweep.errors import ConfigError

DRAWS = 8  # places of the random sequence that belong to one example
PARTNER, FIRST_SHIFT = 0, 1


class Pairs(NamedTuple):
    """Composed uint8 images, the two digits alone, and where they come from.

    sources_BL: places of the two digits in the split; shifts_BL2: rows down, columns right.
    """

    images_BCHW: Tensor
    digits_BLCHW: Tensor
    labels_BL: Tensor
    sources_BL: Tensor
    shifts_BL2: Tensor


class PairSource:
    """The digits of one split, ready to be composed.

    seed: of the data set, not of a cell. margin: pixels added on each side of a digit's image;
    shift: by up to how many it moves. What is moved out of the canvas is cut off. Raises
    ConfigError when all digits are of one class.
    """

    def __init__(
        self, digits: LabelledImages, split: Split, seed: int, margin: int, shift: int
    ) -> None:
        canvas = digits.images_NCHW.shape[-1] + 2 * margin
        self.windows = shift_windows(centred(digits, canvas), shift)
        self.labels_N, self.shift = digits.labels_N, shift
        self.key = seed_of(seed, "pairs", split)
        self.by_class_N = torch.argsort(digits.labels_N, stable=True)
        self.count_K = torch.bincount(digits.labels_N)
        if (self.count_K > 0).sum() < 2:
            raise ConfigError(
                f"the {len(digits)} digits of {split} are all of one class, and a pair is of two "
                "classes; for validation raise dataset.validation"
            )
        self.start_K = self.count_K.cumsum(0) - self.count_K

    def compose(self, k_B: Tensor) -> Pairs:
        """Examples k: digit k modulo N below, one of another class drawn for it on top.

        Both are shifted independently; intensities are added and clipped at 255.
        """
        first_B = k_B % len(self.labels_N)
        sources_BL = torch.stack([first_B, self._partner(first_B, k_B)], dim=1)
        place_B1 = (k_B * DRAWS + FIRST_SHIFT)[:, None]
        draw_B4 = place_B1 + torch.arange(4, device=k_B.device)
        offsets_B4 = counter.below(2 * self.shift + 1, self.key, draw_B4)
        dy_BL, dx_BL = offsets_B4.unflatten(1, (2, 2)).unbind(2)
        digits_BLCHW = self.windows[sources_BL, :, dy_BL, dx_BL]
        summed_BCHW = digits_BLCHW.sum(dim=1, dtype=torch.int16).clamp_(max=255)
        return Pairs(
            images_BCHW=summed_BCHW.to(torch.uint8),
            digits_BLCHW=digits_BLCHW,
            labels_BL=self.labels_N[sources_BL],
            sources_BL=sources_BL,
            shifts_BL2=self.shift - torch.stack([dy_BL, dx_BL], dim=2),
        )

    def _partner(self, first_B: Tensor, k_B: Tensor) -> Tensor:
        """A digit of another class, each equally likely."""
        label_B = self.labels_N[first_B]
        count_B, start_B = self.count_K[label_B], self.start_K[label_B]
        others_B = len(self.labels_N) - count_B
        rank_B = counter.below(others_B, self.key, k_B * DRAWS + PARTNER)
        return self.by_class_N[torch.where(rank_B < start_B, rank_B, rank_B + count_B)]


class ComposedPairs:
    """Pairs as batches.

    An epoch has as many training pairs as the split has digits, and after `pairs` epochs they
    repeat: N * pairs different ones, 60 million for MNIST and 1,000. test_examples: the first so
    many of the test digits' sequence; validation has one per held-out digit.
    """

    def __init__(
        self,
        examples: LabelledImages,
        split: Split,
        *,
        seed: int,
        margin: int,
        shift: int,
        pairs: int,
        test_examples: int,
    ) -> None:
        self.source = PairSource(examples, split, seed, margin, shift) if len(examples) else None
        self.device = examples.labels_N.device
        self.count = test_examples if split == "test" else len(examples)
        self.pairs = pairs

    def __len__(self) -> int:
        return self.count

    def epoch(self, seed: int, epoch: int) -> Callable[[Tensor], Batch]:
        """The epoch's stretch of the sequence; the cell's seed decides their order alone."""
        first = (epoch % self.pairs) * len(self)
        return lambda index_B: self._batch(first + index_B)

    def evaluated(self, part: slice) -> Batch:
        """Examples in order."""
        start, stop, _ = part.indices(len(self))
        return self._batch(torch.arange(start, stop, device=self.device))

    def fingerprint(self) -> str:
        """sha256 of all evaluated images and labels."""
        digest = hashlib.sha256()
        for start in range(0, len(self), 1000):
            k_B = torch.arange(start, min(start + 1000, len(self)), device=self.device)
            pairs = self._compose(k_B)
            digest.update(pairs.images_BCHW.cpu().numpy().tobytes())
            digest.update(pairs.labels_BL.cpu().to(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _compose(self, k_B: Tensor) -> Pairs:
        assert self.source is not None, "a split without digits has no examples"
        return self.source.compose(k_B)

    def _batch(self, k_B: Tensor) -> Batch:
        pairs = self._compose(k_B)
        images_BCHW, targets_BLCHW = to_unit(pairs.images_BCHW), to_unit(pairs.digits_BLCHW)
        return Batch(images_BCHW, pairs.labels_BL, targets_BLCHW)
