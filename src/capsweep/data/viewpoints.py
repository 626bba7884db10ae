"""smallNORB seen from viewpoints that training never showed.

"Matrix capsules with EM routing" (Hinton, Sabour, Frosst 2018), section 5.1: networks are trained
on a third of the viewpoints and compared on the others, where they are equally good on the third.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from capsweep.config.data_rules import VIEWPOINTS
from capsweep.data.images import LabelledImages, Splits
from capsweep.data.smallnorb import INT32, PREFIXES, SmallNorbReader, matrix
from capsweep.errors import DataError

# A row of an `info` file, of one stereo pair: which of ten toys, two codes, which of six lights.
INFO: Mapping[str, Sequence[int]] = {
    "instance": range(10),
    "elevation": VIEWPOINTS["elevation"],
    "azimuth": VIEWPOINTS["azimuth"],
    "light": range(6),
}
INFOS = {split: f"{prefix}-info" for split, prefix in PREFIXES.items()}


class NovelViewpoints:
    """Trains on the training images of familiar viewpoints and tests on the test images of the
    others. Validates on the TEST images of familiar viewpoints: toys that training never showed,
    and the paper's protocol compares networks of equal error on them.

    sha256, sha256_plain, folders: as `SmallNorbReader` has them, of the `info` files too.
    viewpoint: azimuth or elevation. familiar: its codes that are trained on.
    """

    def __init__(
        self,
        sha256: Mapping[str, str],
        sha256_plain: Mapping[str, str],
        folders: Sequence[str],
        viewpoint: str,
        familiar: Sequence[int],
    ) -> None:
        self.smallnorb = SmallNorbReader(sha256, sha256_plain, folders)
        self.column, self.familiar = list(INFO).index(viewpoint), list(familiar)

    def check(self, folder: str) -> None:
        """Find, verify and decode all files. Raises DataError naming the file."""
        self.read(folder)

    def read(self, folder: str) -> Splits:
        """The three splits, each in the order of its file. Raises DataError."""
        info = self._info(folder)
        whole = self.smallnorb.read(folder)

        def is_familiar(split: str, examples: LabelledImages) -> Tensor:
            path, info_NE = info[split]
            check_info(path, info_NE, len(examples))
            return torch.from_numpy(np.isin(info_NE[:, self.column], self.familiar))

        trained_N = is_familiar("train", whole.train)
        tested_N = is_familiar("test", whole.test)
        return Splits(
            train=whole.train.select(trained_N),
            validation=whole.test.select(tested_N),
            test=whole.test.select(~tested_N),
        )

    def _info(self, folder: str) -> dict[str, tuple[Path, np.ndarray]]:
        """By split: the file that has the columns of INFO, and these."""
        paths, contents = self.smallnorb.contents(folder, list(INFOS.values()))
        return {s: (paths[n], matrix(paths[n], contents[n])) for s, n in INFOS.items()}


def check_info(path: Path, info_NE: np.ndarray, count: int) -> None:
    """Raise DataError unless this is int32 [N, 4], the columns of INFO, of `count` pairs."""
    if info_NE.dtype != INT32 or info_NE.shape != (count, len(INFO)):
        raise DataError(
            f"{path}: {info_NE.dtype} {list(info_NE.shape)}, not int32 [{count}, {len(INFO)}], "
            f"{', '.join(INFO)} of every stereo pair"
        )
    for column, (name, known) in enumerate(INFO.items()):
        unknown = sorted(set(info_NE[:, column].tolist()) - set(known))
        if unknown:
            raise DataError(f"{path}: {name} {unknown[0]} is none of {', '.join(map(str, known))}")
