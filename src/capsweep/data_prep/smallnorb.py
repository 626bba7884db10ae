"""smallNORB: the official matrices as published, with toy, viewpoint and light of every pair."""

from collections.abc import Sequence

import numpy as np

from capsweep.config import compose, places
from capsweep.data import converted, viewpoints
from capsweep.data.smallnorb import (
    DATASET,
    IMAGES,
    LABELS,
    PIXELS,
    PREFIXES,
    SmallNorbReader,
    matrix,
    pairs_and_labels,
)
from capsweep.data_prep.stored import Arrays, Stored

DECLARES = "smallnorb_azimuth"  # the data set that declares all six files


def prepare(overrides: Sequence[str]) -> Stored:
    """The job of all pairs of the six files that `dataset=smallnorb_azimuth` declares.

    Raises ConfigError naming the key, DataError naming the file and the cure.
    """
    config = compose.cell([f"dataset={DECLARES}", *overrides]).config
    declared = config["dataset"]["reader"]
    folder = str(places.resolve(config["places"]).data)
    reader = SmallNorbReader(declared["sha256"], declared["sha256_plain"], declared["folders"])
    arrays = _arrays(reader, folder)
    splits = {split: len(found[LABELS.name]) for split, found in arrays.items()}
    names = (*IMAGES, *viewpoints.INFOS.values())
    sha256 = {name: declared["sha256"][name] for name in names}
    return Stored(converted.content(DATASET, sha256, splits), arrays)


def _arrays(reader: SmallNorbReader, folder: str) -> dict[str, Arrays]:
    """By split and field; all codes fit into a byte."""
    paths, contents = reader.contents(folder, (*IMAGES, *viewpoints.INFOS.values()))
    arrays = {}
    for split in PREFIXES:
        pairs_NCHW, labels_N = pairs_and_labels(split, paths, contents)
        name = viewpoints.INFOS[split]
        info_NE = matrix(paths[name], contents[name])
        viewpoints.check_info(paths[name], info_NE, len(pairs_NCHW))
        columns = zip(viewpoints.INFO, info_NE.astype(np.uint8).T, strict=True)
        arrays[split] = {
            PIXELS.name: pairs_NCHW,
            LABELS.name: labels_N.astype(np.uint8),
            **{column: np.ascontiguousarray(codes_N) for column, codes_N in columns},
        }
    return arrays
