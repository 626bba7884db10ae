"""SVHN, cropped digits (Netzer et al. 2011): the two official MATLAB files, without `extra`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from capsweep.data.cache import Decoded, DecodedReader
from capsweep.data.images import LabelledImages
from capsweep.data.matlab import array, variables
from capsweep.data.verified import DeclaredFile, OfficialFiles
from capsweep.errors import DataError

SPLITS = ("train", "test")
NUM_CLASSES = 10
PUBLISHER = "http://ufldl.stanford.edu/housenumbers/"


class SvhnReader(DecodedReader):
    """Reads `train_32x32.mat` and `test_32x32.mat`; the file's label 10 is the digit 0.

    sha256: the fingerprint, by name without `.mat`, or the text `unknown`. folders: where to look
    below the data folder.
    """

    name = "svhn"

    def __init__(self, sha256: Mapping[str, str], folders: Sequence[str]) -> None:
        self.sha256 = dict(sha256)
        self.files = OfficialFiles(folders, PUBLISHER, tuple(self.sha256.values()))

    def declared(self) -> Mapping[str, object]:
        """All hashes that the files are verified by."""
        return {"sha256": self.sha256}

    def decode(self, folder: str) -> Decoded:
        """Images [N, 3, 32, 32]. Raises DataError naming the file and the cure."""
        names = {split: f"{split}_32x32" for split in SPLITS}
        paths = self.files.find_all(folder, {split: [f"{names[split]}.mat"] for split in SPLITS})
        contents = self.files.read_all({s: self._declared(paths[s], names[s]) for s in SPLITS})
        return {split: _examples(paths[split], contents.pop(split)) for split in SPLITS}

    def _declared(self, path: Path, name: str) -> DeclaredFile:
        return DeclaredFile(path, self.sha256[name], f"dataset.reader.sha256.{name}")


def _examples(path: Path, data: bytes) -> LabelledImages:
    """X is [32, 32, 3, N], rows first; y is [N, 1], 1..10."""
    found = variables(path, data, ("X", "y"))
    pixels_HWCN = array(path, "X", found["X"], (32, 32, 3, None), "u")
    if pixels_HWCN.dtype != np.uint8:
        raise DataError(f"{path}: X is {pixels_HWCN.dtype}, not uint8")
    digits_N1 = array(path, "y", found["y"], (pixels_HWCN.shape[-1], 1), "uif")
    labels_N = digits_N1[:, 0].astype(np.int64)
    if labels_N.min() < 1 or labels_N.max() > NUM_CLASSES or (labels_N != digits_N1[:, 0]).any():
        raise DataError(f"{path}: y has labels {labels_N.min()}..{labels_N.max()}, not 1..10")
    images_NCHW = np.ascontiguousarray(pixels_HWCN.transpose(3, 2, 0, 1))
    return LabelledImages(torch.from_numpy(images_NCHW), torch.from_numpy(labels_N % NUM_CLASSES))
