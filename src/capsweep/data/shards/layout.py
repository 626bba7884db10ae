"""How examples lie in a shard: one data set of HDF5 for each field, in chunks of BLOCK examples.

    images   uint8  [N, C, H, W]      what a network is shown
    labels   uint8  [N, L], or [N]    classes; of two digits first the one below
    indices  uint32 [N, L], or [N]    places of the source images in their split
    shifts   int8   [N, L, 2]         rows down, columns right
    digits   uint8  [N, L, C, H, W]   the source digits alone, moved; where they were asked for

The attributes of the file say what it is without `index.json`.
"""

import math
from dataclasses import dataclass

import numpy as np

BLOCK = 500  # examples of a chunk: about 0.6 MB of MultiMNIST


@dataclass(frozen=True)
class Field:
    """One data set of a shard: dtype and shape of a single example."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one example."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)
