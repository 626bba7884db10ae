"""affNIST (Tieleman 2013): MNIST's test digits under affine transformations, 40x40 pixels.

Its use is that of Sabour et al. 2017: train on MNIST placed on the same canvas, test on affNIST.

Pixel order: `image` is [1600, N], a digit a column. Public programs that train on MNIST placed on
40x40 and test on these files take pixel 40 y + x of a column (rows first, numpy's default), which
upright digits alone make sensible; one that shows the images takes 40 x + y (columns first,
MATLAB's default). Rows first is read here. We do not have the file: where it is,
`tests/data/test_affnist.py` proves the order.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path

import numpy as np
import torch

from capsweep.data.images import LabelledImages, decode_once
from capsweep.data.official import as_matlab_array, load_matlab
from capsweep.errors import DataError
from capsweep.storage.official_files import UNKNOWN, Digest, OfficialFiles, read_content
from capsweep.storage.stores import join

STRUCT = "affNISTdata"
SIDE = 40  # pixels
NUM_CLASSES = 10
DATASET = "affnist"
WHOLE, BATCHES = "test", "test_batches"
PUBLISHER = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/"


class AffnistTest:
    """Test images from `test.mat` or `test_batches/1.mat ...`; the data set's own are not used.

    sha256: the fingerprint; `test` of test.mat, `test_batches` of the numbered files one after the
    other (`cat {1..32}.mat | sha256sum`), or the text `unknown`. folders: where to look below the
    data folder.
    """

    def __init__(self, sha256: Mapping[str, str], folders: Sequence[str]) -> None:
        self.sha256 = dict(sha256)
        self.files = OfficialFiles(folders, PUBLISHER, tuple(self.sha256.values()))
        self.batches = OfficialFiles([join(folder, BATCHES) for folder in folders], PUBLISHER)

    def check(self, folder: str) -> None:
        """Find, verify and decode all files. Raises DataError naming the file."""
        self._read_images(folder)

    def read(self, folder: str, test: LabelledImages) -> LabelledImages:
        """affNIST's test images [N, 1, 40, 40]. Raises DataError naming the file and the cure."""
        return self._read_images(folder)

    def _read_images(self, folder: str) -> LabelledImages:
        declared = {"sha256": self.sha256}
        return decode_once(DATASET, declared, lambda: {"test": self._decode_files(folder)})["test"]

    def _decode_files(self, folder: str) -> LabelledImages:
        whole = self.files.find(folder, f"{WHOLE}.mat")
        paths = [whole] if whole else self._find_batches(folder)
        contents = [read_content(path) for path in paths]
        digest = hashlib.sha256()
        for data in contents:
            digest.update(data)
        name, path = (WHOLE, whole) if whole else (BATCHES, paths[0].parent)
        declared, key = self.sha256.get(name, UNKNOWN), f"dataset.test.sha256.{name}"
        self.files.check_digests(Digest(path, digest.hexdigest(), declared, key))
        parts = [_parse_file(path, data) for path, data in zip(paths, contents, strict=True)]
        images_NCHW = torch.cat([part.images_NCHW for part in parts])
        return LabelledImages(images_NCHW, torch.cat([part.labels_N for part in parts]))

    def _find_batches(self, folder: str) -> list[Path]:
        """The numbered files, up to the first that is absent."""
        numbered = (self.batches.find(folder, f"{number}.mat") for number in count(1))
        paths = [path for path in takewhile(bool, numbered) if path]
        if not paths:
            needed = f"{WHOLE}.mat or {BATCHES}/1.mat ... 32.mat"
            cure = f"download {WHOLE}.mat.zip or {BATCHES}.zip from {PUBLISHER} and unpack it there"
            raise self.files.missing_error(folder, needed, cure)
        return paths


def _parse_file(path: Path, data: bytes) -> LabelledImages:
    """`image` is [1600, N] uint8, `label_int` [1, N], fields of one struct."""
    struct = np.asarray(load_matlab(path, data, (STRUCT,))[STRUCT])
    fields = struct.dtype.names or ()
    if struct.shape != (1, 1) or not {"image", "label_int"} <= set(fields):
        raise DataError(f"{path}: {STRUCT} has fields {list(fields)}, not image and label_int")
    record = struct[0, 0]
    image_EN = as_matlab_array(path, "image", record["image"], (SIDE * SIDE, None), np.uint8)
    label_1N = as_matlab_array(path, "label_int", record["label_int"], (1, image_EN.shape[1]))
    labels_N = label_1N[0].astype(np.int64)
    if labels_N.min() < 0 or labels_N.max() >= NUM_CLASSES or (labels_N != label_1N[0]).any():
        raise DataError(f"{path}: label_int {labels_N.min()}..{labels_N.max()}, not 0..9")
    images_NCHW = np.ascontiguousarray(image_EN.T).reshape(-1, 1, SIDE, SIDE)
    return LabelledImages(torch.from_numpy(images_NCHW), torch.from_numpy(labels_N))
