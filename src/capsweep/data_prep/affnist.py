"""affNIST: the official test digits as published, 40x40 pixels."""

from collections.abc import Sequence

import numpy as np

from capsweep.config import compose, places
from capsweep.data import converted
from capsweep.data.affnist import DATASET, LABELS, PIXELS, AffnistTest
from capsweep.data_prep.job import without_validation
from capsweep.data_prep.stored import Stored


def prepare(overrides: Sequence[str]) -> Stored:
    """The job of the test images that `dataset=affnist` declares.

    Raises ConfigError naming the key, DataError naming the file and the cure.
    """
    config = compose.cell([f"dataset={DATASET}", *without_validation(overrides)]).config
    declared = config["dataset"]["test"]
    reader = AffnistTest(declared["sha256"], declared["folders"])
    test, name = reader.official(str(places.resolve(config["places"]).data))
    sha256 = {name: declared["sha256"][name]}
    arrays = {
        PIXELS.name: test.images_NCHW.numpy(),
        LABELS.name: test.labels_N.numpy().astype(np.uint8),
    }
    return Stored(converted.content(DATASET, sha256, {"test": len(test)}), {"test": arrays})
