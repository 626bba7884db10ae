"""The rules of `dataset`: what can be told without the data."""

from collections.abc import Mapping, Sequence
from typing import Any

from capsweep.config.cell import get
from capsweep.errors import ConfigError

# Codes of viewpoints in smallNORB's info files: elevations of 30, 35 ... 70 degrees; azimuths in
# tens of degrees.
VIEWPOINTS: Mapping[str, Sequence[int]] = {"elevation": range(9), "azimuth": range(0, 36, 2)}

# Keys that say how many pixels an image has in both axes when the network gets it.
SIDES = ("dataset.batches.crop", "dataset.batches.canvas", "dataset.test.canvas")


def check(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the key and the cure, for data that cannot be meant."""
    _check_held_out(config)
    _check_viewpoints(config["dataset"])
    _check_pixels(config["dataset"])


def validated(dataset: Mapping[str, Any]) -> int:
    """Validation examples: those that the data set's protocol names, or that are held out."""
    return dataset["examples"].get("validation", dataset["validation"])


def _check_held_out(config: Mapping[str, Any]) -> None:
    dataset = config["dataset"]
    trained = dataset["examples"]["train"]
    if "shards" in dataset:
        _check_shards(config)
    elif "validation" in dataset["examples"] and dataset["validation"] > 0:
        raise ConfigError(
            f"dataset.validation must be 0 for dataset={dataset['name']}, which is validated on "
            f"test images, got {dataset['validation']}; hold training examples out of "
            "dataset=smallnorb"
        )
    elif config["stop_accuracy"] is not None and validated(dataset) == 0:
        raise ConfigError(
            "stop_accuracy is reached by validation examples, and dataset.validation=0 holds none "
            "out; set it, to 5000 say"
        )
    if dataset["validation"] >= trained:
        raise ConfigError(
            f"dataset.validation must be below the {trained} training examples of "
            f"dataset={dataset['name']}, got {dataset['validation']}"
        )


def _check_shards(config: Mapping[str, Any]) -> None:
    """Which examples validate was decided when the data set was made."""
    dataset = config["dataset"]
    made = (
        "make the data set with dataset.validation=5000, say, and declare "
        "dataset.examples.validation=5000"
    )
    if dataset["validation"] > 0:
        raise ConfigError(
            f"dataset.validation must be 0 for dataset={dataset['name']}, got "
            f"{dataset['validation']}; {made}"
        )
    if config["stop_accuracy"] is not None and validated(dataset) == 0:
        raise ConfigError(f"stop_accuracy is reached by validation examples: {made}")


def _check_viewpoints(dataset: Mapping[str, Any]) -> None:
    familiar = get({"dataset": dataset}, "dataset.reader.familiar")
    if familiar is None:
        return
    viewpoint = dataset["reader"]["viewpoint"]
    known = VIEWPOINTS[viewpoint]
    if not set(familiar) <= set(known) or not 0 < len(familiar) == len(set(familiar)) < len(known):
        raise ConfigError(
            f"dataset.reader.familiar must be some of the codes of an {viewpoint}, each once and "
            f"not all ({', '.join(map(str, known))}), got {familiar}"
        )


def _check_pixels(dataset: Mapping[str, Any]) -> None:
    shape = dataset["image_shape"]
    if len(shape) != 3 or min(shape) < 1:
        raise ConfigError(f"dataset.image_shape must be [C, H, W], all >= 1, got {shape}")
    sides = shape[1:]
    for key in SIDES:
        side = get({"dataset": dataset}, key)
        if side is not None and sides != [side, side]:
            raise ConfigError(
                f"dataset.image_shape={shape} and {key}={side} are different sizes; leave "
                "dataset.image_shape out, it follows"
            )
    if dataset.get("shift", 0) >= min(sides):
        raise ConfigError(
            f"dataset.shift must be below the {min(sides)} pixels of an image, got "
            f"{dataset['shift']}"
        )
    shift = get({"dataset": dataset}, "dataset.batches.shift")
    if shift is not None and shift >= min(sides):
        raise ConfigError(
            f"dataset.batches.shift must be below the {min(sides)} pixels of an image, got {shift}"
        )
