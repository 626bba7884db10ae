"""The command that trains on a folder of shards, complete: whoever prints it prints this one."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from capsweep.config import compose
from capsweep.config.overrides import render
from capsweep.data.shards import sequence
from capsweep.data.shards.manifest import Content, Manifest
from capsweep.data.shards.reader import declaring
from capsweep.data_prep import jobs
from capsweep.errors import ConfigError
from capsweep.object_store import is_url

SHARDS = "multimnist_shards"  # the data set of conf/ that reads MultiMNIST
# Where `dataset=NAME` has the folders that are looked in.
FOLDERS: Mapping[str, str] = {
    sequence.DATASET: "dataset.shards.folders",
    "smallnorb": "dataset.reader.folders",
    "affnist": "dataset.test.folders",
}


def data_place(overrides: Sequence[str]) -> str:
    """Where all data sets are, absolute or a URL, by the overrides of places among others."""
    told = [text for text in overrides if text.startswith("places.")]
    return compose.cell(told).config["places"]["data"]


def data_folder(overrides: Sequence[str]) -> Path:
    """As `data_place`. Raises ConfigError for an object store: a job writes a file system."""
    data = data_place(overrides)
    if is_url(data):
        raise ConfigError(
            f"places.data={data}: shards are made in a folder of a file system; set "
            "STORAGE=FOLDER, and copy the finished folder into the object store"
        )
    return Path(data)


def command(folder: Path, manifest: Manifest, data: str) -> str | None:
    """`capsweep train ...`; None where no data set of conf/ reads it. data: of all data sets."""
    name, place = manifest.content.dataset, folder.resolve()
    if name not in FOLDERS:
        return None
    words = [f"dataset={name}"]
    if name == sequence.DATASET:
        try:
            words = [f"dataset={SHARDS}", *_pairs(manifest)]
        except ConfigError:  # of digits that this program does not know
            return None
    words.append(render("places.data", data))
    if is_url(data) or place != Path(data, jobs.kind(name).folder or name).resolve():
        words.append(render(FOLDERS[name], [str(place)]))
    return shlex.join(["capsweep", "train", *words])


def _pairs(manifest: Manifest) -> list[str]:
    """What declares it, and what its images and the number of its examples ask for."""
    content = manifest.content
    words = declaring(content)
    dataset = compose.cell([f"dataset={SHARDS}", *words]).config["dataset"]
    if (shape := _image_shape(content)) != list(dataset["image_shape"]):
        words.append(render("dataset.image_shape", shape))
    if (tests := content.splits.get("test", 0)) < dataset["batches"]["test_examples"]:
        words.append(f"dataset.batches.test_examples={tests}")
    return words


def _image_shape(content: Content) -> list[int]:
    """Of a digit, with the margins around it. Raises ConfigError where they are not known."""
    margin = content.settings.get("margin")
    if not isinstance(margin, int):
        raise ConfigError(f"margin must be a number of pixels, got {margin}")
    digit = compose.cell([f"dataset={content.origin.name}"]).config["dataset"]["image_shape"]
    channels, *sides = digit
    return [channels, *(side + 2 * margin for side in sides)]
