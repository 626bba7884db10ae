"""Images and labels of one's own, in one .npz file.

Shape letters: N examples, C H W image.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from capsweep.data.images import Decoded, DecodedReader, LabelledImages, label_images
from capsweep.data.official import OfficialReader
from capsweep.errors import DataError
from capsweep.storage.npz import open_npz
from capsweep.storage.official_files import read_content

LAYOUT = (
    "train_images and test_images, uint8 [N, H, W] or [N, C, H, W], train_labels and test_labels, "
    "whole numbers from 0 on [N]"
)
MOST_CLASSES = 10**6


class NpzReader(OfficialReader, DecodedReader):
    """Reads the file that `sha256` names, without ending, as `decode_arrays` says."""

    publisher = "where you have it from"

    def __init__(self, sha256: Mapping[str, str], folders: Sequence[str], num_classes: int) -> None:
        super().__init__(sha256, folders)
        self.name, self.num_classes = f"arrays-of-{num_classes}-classes", num_classes

    def decode_files(self, folder: str) -> Decoded:
        """Images [N, C, H, W]. Raises DataError naming the file and the cure."""
        ((name, path),) = self.files.find_all(
            folder, {n: [f"{n}.npz"] for n in self.sha256}
        ).items()
        data = read_content(path)
        self.files.check_digests(self.digest_of(path, data, name))
        return decode_arrays(path, data, self.num_classes)


def decode_arrays(path: Path, data: bytes, num_classes: int = MOST_CLASSES) -> Decoded:
    """The splits in the bytes of a file. Raises DataError where it has other arrays than LAYOUT."""
    try:
        with open_npz(io.BytesIO(data)) as arrays:
            return {split: _decode_split(arrays, split, num_classes) for split in ("train", "test")}
    except Exception as error:  # what is in a file of a user's can make numpy raise anything
        raise DataError(f"{path}: {error}; write it by np.savez with {LAYOUT}") from error


def _decode_split(arrays: Mapping[str, np.ndarray], split: str, classes: int) -> LabelledImages:
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    if images.ndim not in (3, 4) or labels.ndim != 1:
        raise ValueError(f"{split} has images {images.shape} and labels {labels.shape}")
    if images.ndim == 4 and images.shape[3] <= 4 < images.shape[1]:
        raise ValueError(f"{split}_images {images.shape} have channels last: transpose(0, 3, 1, 2)")
    return label_images(images[:, None] if images.ndim == 3 else images, labels, classes)
