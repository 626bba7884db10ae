"""The rules of `dataset`: what can be told without the data."""

from collections.abc import Mapping
from typing import Any

from capsweep.config.cell import get
from capsweep.errors import ConfigError

# Keys that say how many pixels an image has in both axes when the network gets it.
SIDES = ("dataset.batches.crop", "dataset.batches.canvas", "dataset.test.canvas")


def check(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the key and the cure, for data that cannot be meant."""
    _check_held_out(config)
    _check_pixels(config["dataset"])


def _check_held_out(config: Mapping[str, Any]) -> None:
    dataset = config["dataset"]
    trained = dataset["examples"]["train"]
    if config["stop_accuracy"] is not None and dataset["validation"] == 0:
        raise ConfigError(
            "stop_accuracy is reached by validation examples, and dataset.validation=0 holds none "
            "out; set it, to 5000 say"
        )
    if dataset["validation"] >= trained:
        raise ConfigError(
            f"dataset.validation must be below the {trained} training examples of "
            f"dataset={dataset['name']}, got {dataset['validation']}"
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
