"""affNIST (Tieleman 2013): MNIST's test digits under affine transformations, 40x40 pixels.

Its use is that of Sabour et al. 2017: train on MNIST placed on the same canvas, test on affNIST.

Pixel order: `image` is [1600, N], a digit a column. Public programs that train on MNIST placed on
40x40 and test on these files take pixel 40 y + x of a column (rows first, numpy's default), which
upright digits alone make sensible; one that shows the images takes 40 x + y (columns first,
MATLAB's default). Rows first is read here. We do not have the file: where it is,
`tests/data/test_affnist.py` proves the order.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from capsweep.data.decoded_images import Decoded, decoded_once
from capsweep.data.images import LabelledImages
from capsweep.data.official import as_matlab_array, load_matlab
from capsweep.errors import DataError
from capsweep.storage import downloads
from capsweep.storage.official_files import UNKNOWN, OfficialFiles, content_of, refusal_of_unknown

STRUCT = "affNISTdata"
SIDE = 40  # pixels
NUM_CLASSES = 10
DATASET = "affnist"  # the job that makes shards of the files
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

    def check(self, folder: str) -> None:
        """Find, verify and decode all files. Raises DataError naming the file."""
        self._decoded(folder)

    def read(self, folder: str, test: LabelledImages) -> LabelledImages:
        """affNIST's test images [N, 1, 40, 40]. Raises DataError naming the file and the cure."""
        return self._decoded(folder)["test"]

    def _decoded(self, folder: str) -> Decoded:
        declared = {"sha256": self.sha256}
        return decoded_once(DATASET, declared, lambda: {"test": self.official(folder)[0]})

    def official(self, folder: str) -> tuple[LabelledImages, str]:
        """The test images of the official files, and by which hash these are known: WHOLE or
        BATCHES. Raises DataError.
        """
        whole = self.files.find(folder, f"{WHOLE}.mat")
        paths = [whole] if whole else self._batches(folder)
        name, named = (WHOLE, whole) if whole else (BATCHES, paths[0].parent)
        contents = [content_of(path) for path in paths]
        self._verify(named, contents, name)
        parts = [_examples(path, data) for path, data in zip(paths, contents, strict=True)]
        images_NCHW = torch.cat([part.images_NCHW for part in parts])
        return LabelledImages(images_NCHW, torch.cat([part.labels_N for part in parts])), name

    def _batches(self, folder: str) -> list[Path]:
        """The numbered files in their order; none may be missing in between."""
        place = self.files.find_folder(folder, BATCHES)
        files = [] if place is None else list(place.iterdir())
        numbered = {int(f.stem): f for f in files if re.fullmatch(r"[1-9]\d*\.mat", f.name)}
        if place is None or not numbered:
            needed = f"{WHOLE}.mat or {BATCHES}/1.mat ... 32.mat"
            cure = f"download {WHOLE}.mat.zip or {BATCHES}.zip from {PUBLISHER} and unpack it there"
            raise self.files.missing(folder, needed, cure)
        absent = [n for n in range(1, max(numbered) + 1) if n not in numbered]
        if absent:
            raise DataError(f"{place / f'{absent[0]}.mat'}: missing; download it from {PUBLISHER}")
        return [numbered[n] for n in sorted(numbered)]

    def _verify(self, path: Path, contents: Sequence[bytes], name: str) -> None:
        digest = hashlib.sha256()
        for data in contents:
            digest.update(data)
        found, declared = digest.hexdigest(), self.sha256.get(name, UNKNOWN)
        if declared == UNKNOWN:
            key = f"dataset.test.sha256.{name}"
            raise refusal_of_unknown({key: (path, found)}, PUBLISHER)
        if found != declared:
            raise DataError(
                f"{path}: truncated or altered (files: {len(contents)}, sha256 {found}, declared "
                f"{declared}); {self._cure(path, name)}"
            )

    def _cure(self, path: Path, name: str) -> str:
        copies = [path] if name == WHOLE else list(path.iterdir())
        removed = [downloads.forget(copy) for copy in copies if not copy.name.startswith(".")]
        if any(removed):
            return "these were copies from the object store and are removed; run it again"
        return f"download again from {PUBLISHER}"


def _examples(path: Path, data: bytes) -> LabelledImages:
    """`image` is [1600, N] uint8, `label_int` [1, N], fields of one struct."""
    struct = np.asarray(load_matlab(path, data, (STRUCT,))[STRUCT])
    fields = struct.dtype.names or ()
    if struct.shape != (1, 1) or not {"image", "label_int"} <= set(fields):
        raise DataError(f"{path}: {STRUCT} has fields {list(fields)}, not image and label_int")
    record = struct[0, 0]
    image_EN = as_matlab_array(path, "image", record["image"], (SIDE * SIDE, None), "u")
    if image_EN.dtype != np.uint8:
        raise DataError(f"{path}: image is {image_EN.dtype}, not uint8")
    label_1N = as_matlab_array(
        path, "label_int", record["label_int"], (1, image_EN.shape[1]), "uif"
    )
    labels_N = label_1N[0].astype(np.int64)
    _check_labels(path, labels_N, label_1N[0])
    images_NCHW = np.ascontiguousarray(image_EN.T).reshape(-1, 1, SIDE, SIDE)
    return LabelledImages(torch.from_numpy(images_NCHW), torch.from_numpy(labels_N))


def _check_labels(path: Path, labels_N: np.ndarray, stored_N: np.ndarray) -> None:
    if labels_N.min() < 0 or labels_N.max() >= NUM_CLASSES or (labels_N != stored_N).any():
        raise DataError(f"{path}: label_int {labels_N.min()}..{labels_N.max()}, not 0..9")
