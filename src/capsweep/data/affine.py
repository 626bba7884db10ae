"""Test images of digits under small random affine transformations: affNIST, and a computed set.

affNIST is read from files. The other set is computed from the test digits, in fixed-point
arithmetic, so that its pixels are the same on every machine.

Shape letters: N examples, C H W image, V = 2 output axes, U = 2 input axes (row, column).
"""

from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path

import numpy as np
import torch

from capsweep.data.batches import seed_of
from capsweep.data.digits import load_matlab
from capsweep.data.images import LabelledImages, join_examples, label_images
from capsweep.data.official import decode_once
from capsweep.data.pairs import draw_integers
from capsweep.errors import ConfigError
from capsweep.storage import official_files
from capsweep.storage.files import hash_bytes
from capsweep.storage.stores import join

DRAWS = 8  # words of the random sequence that are reserved for each image
FRACTION = 8  # bits after the binary point of a pixel coordinate
AT_ONCE = 16  # images that are transformed together; they fit into the cache of a CPU
AFFNIST, AFFNIST_SIDE = "affNISTdata", 40  # name of the struct in a file; image side in pixels
AFFNIST_FILES = "test.mat or test_batches/1.mat ... 32.mat"
AFFNIST_PUBLISHER = (
    "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/ (test.mat.zip or "
    "test_batches.zip, unpacked)"
)


class AffineTest:
    """A source of test images: random affine transformations of the test digits.

    Each digit is scaled, sheared and rotated. Then it is shifted at random, so that all its ink is
    on the canvas. A shift need not be a whole number of pixels. The random numbers for an image
    depend only on `seed` and on the index of the image in the split.

    Args:
        rotation: Largest angle in degrees, in both directions.
        shear: Largest shear factor, in both directions.
        scale: Lowest and highest scale factor. For each image, a factor is drawn for the rows and
            another factor for the columns.
        canvas: Side of the transformed images in pixels.
        seed: Seed of the data set.
    """

    def __init__(
        self, rotation: float, shear: float, scale: Sequence[float], canvas: int, seed: int
    ) -> None:
        self.rotation, self.shear, self.canvas = rotation, shear, canvas
        self.lowest, self.highest = scale
        self.key = seed_of(seed, "affine")

    def read(self, folder: str, test: LabelledImages) -> LabelledImages:
        """Transform the test digits.

        Args:
            folder: Not used, since no file is read.
            test: The test digits, images [N, C, H, W].

        Returns:
            uint8 images [N, C, canvas, canvas] with the labels of `test`.

        Raises:
            ConfigError: If the ink of a transformed digit does not fit on the canvas.
        """
        images_NCHW = test.images_NCHW.numpy()
        matrix_NVU, shift_NV = self.draw_transformations(images_NCHW)
        moved = [
            _move_images(images_NCHW[part], matrix_NVU[part], shift_NV[part], self.canvas)
            for part in (slice(n, n + AT_ONCE) for n in range(0, len(test), AT_ONCE))
        ]
        return LabelledImages(torch.from_numpy(np.concatenate(moved)), test.labels_N)

    def draw_transformations(self, images_NCHW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw a random affine transformation for each image.

        Args:
            images_NCHW: uint8 images [N, C, H, W].

        Returns:
            The matrices [N, V, U] from input axes to output axes, and the shifts [N, V] in pixels.
            A shift is the vector from the middle of the canvas to the middle of the moved image.

        Raises:
            ConfigError: If the ink of a transformed image does not fit on the canvas.
        """
        place_ND = torch.arange(len(images_NCHW) * DRAWS).view(-1, DRAWS)
        uniform_ND = draw_integers(2**22, self.key, place_ND).numpy() / 2**22
        matrix_NVU = self._make_matrices(uniform_ND[:, :4])
        return matrix_NVU, self._make_shifts(images_NCHW, matrix_NVU, uniform_ND[:, 4:6])

    def _make_matrices(self, uniform_N4: np.ndarray) -> np.ndarray:
        """Compute matrices [N, V, U] that scale, then shear, then rotate about the middle."""
        angle_N = np.radians(self.rotation) * (2 * uniform_N4[:, 0] - 1)
        shear_N = self.shear * (2 * uniform_N4[:, 1] - 1)
        scale_N2 = self.lowest + (self.highest - self.lowest) * uniform_N4[:, 2:]
        cos, sin = np.cos(angle_N), np.sin(angle_N)
        rotation = np.array([[cos, -sin], [sin, cos]]).transpose(2, 0, 1)
        one, zero = np.ones_like(shear_N), np.zeros_like(shear_N)
        shear = np.array([[one, zero], [shear_N, one]]).transpose(2, 0, 1)
        return rotation @ shear * scale_N2[:, None, :]

    def _make_shifts(
        self, images_NCHW: np.ndarray, matrix_NVU: np.ndarray, uniform_N2: np.ndarray
    ) -> np.ndarray:
        """Compute shifts [N, V] that keep all ink on the canvas, from random numbers in 0..1."""
        height, width = images_NCHW.shape[2:]
        middle = (np.array([height, width]) - 1) / 2
        corners_NVK = matrix_NVU @ (_find_ink_corners(images_NCHW) - middle).transpose(0, 2, 1)
        half = (self.canvas + 1) / 2
        low_NV, high_NV = -half - corners_NVK.min(axis=2), half - corners_NVK.max(axis=2)
        too_large = int((low_NV > high_NV).any(axis=1).sum())
        if too_large:
            raise ConfigError(
                f"dataset.batches.canvas={self.canvas} is too small for {too_large} of the "
                f"{len(images_NCHW)} transformed test images; raise it, or lower dataset.test.scale"
            )
        return low_NV + (high_NV - low_NV) * uniform_N2


def _find_ink_corners(images_NCHW: np.ndarray) -> np.ndarray:
    """Return the four corners of the box around the ink of each image.

    The result has the shape [N, 4, 2]; the last axis is (row, column). The box is one pixel wider
    on each side, because bilinear interpolation spreads ink by up to one pixel. For an image
    without ink, the box is around the whole image.
    """
    ink_NHW = images_NCHW.any(axis=1)
    (top, bottom), (left, right) = (_find_ends(np.any(ink_NHW, axis=axis)) for axis in (2, 1))
    top, bottom, left, right = top - 1, bottom + 1, left - 1, right + 1
    corners_4N2 = np.array([(top, left), (top, right), (bottom, left), (bottom, right)])
    return corners_4N2.transpose(2, 0, 1)


def _find_ends(is_inked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the first and of the last True value for each image, [N] each.

    Args:
        is_inked: Whether each of the S rows (or columns) of an image has ink, bool [N, S].
    """
    first, last = is_inked.argmax(axis=1), is_inked[:, ::-1].argmax(axis=1)
    return first, is_inked.shape[1] - 1 - last


def _move_images(
    images_NCHW: np.ndarray, matrix_NVU: np.ndarray, shift_NV: np.ndarray, canvas: int
) -> np.ndarray:
    """Transform images by bilinear interpolation, and return uint8 [N, C, canvas, canvas].

    Pixels outside of an image count as 0.
    """
    size_U1 = np.array(images_NCHW.shape[2:])[:, None]
    axis = np.arange(canvas) - (canvas - 1) / 2
    row, column = np.meshgrid(axis, axis, indexing="ij")
    place_NVE = np.stack([row.ravel(), column.ravel()]) - shift_NV[:, :, None]
    from_NUE = np.linalg.inv(matrix_NVU) @ place_NVE + (size_U1 - 1) / 2
    fixed_NUE = np.rint(from_NUE * 2**FRACTION).astype(np.int64)
    # Two pixels of 0 are padded on each side. So a coordinate that is a pixel or more outside of
    # the image lies between two pixels of 0.
    whole_NUE = np.clip(fixed_NUE >> FRACTION, -2, size_U1) + 2
    part_NUE = (fixed_NUE & (2**FRACTION - 1)).astype(np.int32)
    padded_NCHW = np.pad(images_NCHW, ((0, 0), (0, 0), (2, 2), (2, 2))).astype(np.int32)
    moved_NCE = _interpolate_at(padded_NCHW, whole_NUE, part_NUE).astype(np.uint8)
    return moved_NCE.reshape(*images_NCHW.shape[:2], canvas, canvas)


def _interpolate_at(
    padded_NCHW: np.ndarray, whole_NUE: np.ndarray, part_NUE: np.ndarray
) -> np.ndarray:
    """Interpolate each image at E coordinates, and return the values, int32 [N, C, E].

    A coordinate, in pixels of the padded image, is `whole_NUE` + `part_NUE` / 2**FRACTION.
    """
    count, channels, height, width = padded_NCHW.shape
    pixels = padded_NCHW.ravel()
    plane_NC1 = height * width * np.arange(count * channels).reshape(count, channels, 1)
    place_NCE = (whole_NUE[:, 0] * width + whole_NUE[:, 1])[:, None] + plane_NC1
    down_N1E, right_N1E = part_NUE[:, :1], part_NUE[:, 1:]
    rows = []
    for below in (0, width):
        left_NCE, next_NCE = pixels[place_NCE + below], pixels[place_NCE + below + 1]
        rows.append((left_NCE << FRACTION) + (next_NCE - left_NCE) * right_N1E)
    upper_NCE, lower_NCE = rows
    total_NCE = (upper_NCE << FRACTION) + (lower_NCE - upper_NCE) * down_N1E
    return (total_NCE + 2 ** (2 * FRACTION - 1)) >> (2 * FRACTION)


class AffnistTest:
    """A source of the test images of affNIST (Tieleman 2013).

    The images are MNIST's test digits under affine transformations, on 40x40 pixels. They are read
    from `test.mat` or from `test_batches/1.mat`, `2.mat` and so on. Sabour, Frosst and Hinton 2017
    train a network on MNIST's digits on 40x40 pixels, and then test this network on affNIST.

    Args:
        sha256: The key "test" has the sha256 of `test.mat`. The key "test_batches" has the sha256
            of the concatenated numbered files (`cat {1..32}.mat | sha256sum`). If a hash is the
            text "unknown", reading raises a DataError that says which hash to declare.
        folders: Where to look for the files: names of folders below the data folder.
    """

    def __init__(self, sha256: Mapping[str, str], folders: Sequence[str]) -> None:
        self.sha256 = dict(sha256)
        self.files = official_files.OfficialFiles(folders, AFFNIST_PUBLISHER)
        numbered = [join(folder, "test_batches") for folder in folders]
        self.batches = official_files.OfficialFiles(numbered, AFFNIST_PUBLISHER)

    def read(self, folder: str, test: LabelledImages) -> LabelledImages:
        """Read affNIST's test images [N, 1, 40, 40].

        Args:
            folder: The data folder, a path or the URL of an object store.
            test: Not used, since affNIST replaces these images.

        Raises:
            DataError: If a file is missing, if its hash is not the declared one, or if it cannot be
                decoded.
            StoreError: If the object store does not answer.
        """
        declared = {"sha256": self.sha256}
        images = decode_once("affnist", declared, lambda: {"test": self._decode_files(folder)})
        return images["test"]

    def _decode_files(self, folder: str) -> LabelledImages:
        whole = self.files.find(folder, "test.mat")
        paths = [whole] if whole else self._find_batches(folder)
        contents = [official_files.read_content(path) for path in paths]
        computed = hash_bytes(b"".join(contents))
        name, path = ("test", whole) if whole else ("test_batches", paths[0].parent)
        declared, key = self.sha256.get(name, official_files.UNKNOWN), f"dataset.test.sha256.{name}"
        self.files.check_digests(official_files.Digest(path, computed, declared, key))
        return join_examples([*map(_parse_affnist, paths, contents)])

    def _find_batches(self, folder: str) -> list[Path]:
        """List the files 1.mat, 2.mat and so on, until a number is missing."""
        numbered = (self.batches.find(folder, f"{number}.mat") for number in count(1))
        paths = [path for path in takewhile(bool, numbered) if path]
        if not paths:
            raise self.files.build_missing_error(folder, AFFNIST_FILES)
        return paths


def _parse_affnist(path: Path, data: bytes) -> LabelledImages:
    """Parse one file of affNIST, with N examples.

    The file has a struct with two arrays: `image`, uint8 [1600, N], and `label_int` [1, N]. The
    value `image[40 * y + x, n]` is the pixel in row y and column x of example n. Public programs
    read the files in the same way.
    """
    with official_files.report_undecodable(path):
        fields = load_matlab(data)[AFFNIST][0, 0]
        images_NCHW = fields["image"].T.reshape(-1, 1, AFFNIST_SIDE, AFFNIST_SIDE)
        return label_images(images_NCHW, fields["label_int"][0], 10)
