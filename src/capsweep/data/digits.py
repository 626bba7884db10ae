"""scikit-learn's embedded digits, dressed as MNIST."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsweep.data.cache import Decoded, DecodedReader
from capsweep.data.images import LabelledImages, stratified_sample
from capsweep.errors import DataError
from capsweep.files import hash_bytes

BOX, CANVAS = 20, 28  # pixels: MNIST's digit box and image
TEST_EXAMPLES = 360
SPLIT_SEED = 20171026  # the day the paper appeared; part of the data set, never of a cell


class DigitsReader(DecodedReader):
    """Reads the 1,797 digits; the test split is fixed and stratified."""

    name = "digits"

    def __init__(self, sha256: str) -> None:
        self.sha256 = sha256

    def declared(self) -> Mapping[str, object]:
        """The hash of scikit-learn's digits."""
        return {"sha256": self.sha256}

    def decode(self, folder: str) -> Decoded:
        """1,437 training and 360 test images [N, 1, 28, 28]; `folder` is not used.

        Raises DataError where the installed scikit-learn has other digits than the declared ones.
        """
        images_NHW, labels_N = self._source()
        examples = LabelledImages(on_canvas(images_NHW), labels_N)
        test = stratified_sample(labels_N.numpy(), TEST_EXAMPLES, SPLIT_SEED)
        rest = np.setdiff1d(np.arange(len(examples)), test)
        return {
            "train": examples.select(torch.from_numpy(rest)),
            "test": examples.select(torch.from_numpy(np.sort(test))),
        }

    def _source(self) -> tuple[Tensor, Tensor]:
        from sklearn.datasets import load_digits  # 1 s, and needed once on a machine

        pixels_NE, target_N = load_digits(return_X_y=True)  # E = 8 * 8
        images = np.asarray(pixels_NE, dtype=np.uint8).reshape(-1, 8, 8)
        labels = np.asarray(target_N, dtype=np.uint8)
        found = hash_bytes(images.tobytes() + labels.tobytes())
        if found != self.sha256:
            raise DataError(
                f"scikit-learn's load_digits has sha256 {found}, conf/dataset/digits.yaml declares "
                f"{self.sha256}; install the pinned scikit-learn: make setup"
            )
        return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def on_canvas(images_NHW: Tensor) -> Tensor:
    """8x8 images of intensity 0..16, anti-aliased up to 20x20, centred on 28x28, 0..255."""
    scaled_N1HW = images_NHW[:, None].float() * (255 / 16)
    box = F.interpolate(scaled_N1HW, size=(BOX, BOX), mode="bicubic", antialias=True)
    margin = (CANVAS - BOX) // 2
    return F.pad(box.clamp(0, 255).round().to(torch.uint8), [margin] * 4)
