"""The rules across keys: allowed targets, impossible combinations, data and devices; the canonical
form."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from capsweep.config import bounds
from capsweep.config.cell import get, plain_copy
from capsweep.errors import ConfigError

# What may be measured on each split of the data; cells of a configuration measure some of it.
METRICS = ("loss", "error", "reconstruction", "at_least_one", "segmentation")
# How each loss may be taken together over the classes.
REDUCTIONS = {"margin": ("sum", "half_mean"), "spread": ("sum", "mean")}

ON_LOGITS = ("cross_entropy", "binary_cross_entropy")  # losses

# Keys that say how many pixels an image has in both axes when the network gets it.
SIDES = ("dataset.batches.crop", "dataset.batches.canvas", "dataset.test.canvas")

# A configuration file names code to call, so it may name only these: what makes networks, losses,
# optimisers and data, and nothing that writes files or opens connections.
TARGETS = ("capsweep.data.", "capsweep.shards.", "capsweep.model.", "torch.nn.", "torch.optim.")


def check_config(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the key and the cure, unless the configuration can be run."""
    check_targets(config)
    bounds.check_bounds(config)
    for name, path in config["places"].items():
        if not path:
            raise ConfigError(f"places.{name} is empty; name a folder, or leave it out")
    _check_devices(config)
    _check_data(config)
    _check_combinations(config)


def check_targets(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the key, where a `_target_` begins in no allowed way; imports
    nothing.
    """
    for key, target in find_targets(config):
        check_target(key, target)


def check_target(key: str, target: object) -> None:
    """As `check_targets`, of one."""
    if not (isinstance(target, str) and target.startswith(TARGETS)):
        allowed = ", ".join(TARGETS)
        raise ConfigError(f"{key}: {target!r} may not be called; have {allowed}")


def _check_combinations(config: Mapping[str, Any]) -> None:
    model, loss = config["model"], config["loss"]
    capsules = "routing" in model
    if loss["name"] in ("margin", "spread") and not capsules:
        raise ConfigError(
            f"loss={loss['name']} needs capsules, and model={model['name']} gives logits; "
            "set loss=cross_entropy"
        )
    if loss["reconstruction"]["weight"] > 0 and not model.get("decoder"):
        raise ConfigError(
            f"loss.reconstruction.weight needs a decoder, which model={model['name']} has not; "
            "set loss.reconstruction.weight=0"
        )
    shown = config["dataset"].get("labels_per_image", 1)
    if loss["name"] == "cross_entropy" and shown > 1:
        raise ConfigError(
            f"loss=cross_entropy is for images of one class, and those of dataset="
            f"{config['dataset']['name']} show {shown}; set loss="
            f"{'margin' if capsules else 'binary_cross_entropy'}"
        )
    reduction, known = get(config, "loss.classification.reduction"), REDUCTIONS.get(loss["name"])
    if known is not None and reduction not in known:
        raise ConfigError(
            f"loss.classification.reduction must be one of {', '.join(known)} for "
            f"loss={loss['name']}, got {reduction}"
        )
    if get(config, "loss.classification.absent") is not None and (
        loss["classification"]["absent"] >= loss["classification"]["present"]
    ):
        raise ConfigError("loss.classification.absent must be below loss.classification.present")
    lr, floor = get(config, "optim.optimizer.lr"), get(config, "optim.schedule.floor")
    if lr is not None and floor > lr:
        raise ConfigError(
            f"optim.optimizer.lr={lr} is below optim.schedule.floor={floor}, which would train "
            "instead; set optim.schedule.floor=0"
        )
    first = get(config, "loss.classification.first")
    if first is not None and first > loss["classification"]["last"]:
        raise ConfigError(
            "loss.classification.first must not be above loss.classification.last: the margin grows"
        )
    if capsules and config["routing"]["impl"] == "triton":
        _check_kernels(config)


def _check_kernels(config: Mapping[str, Any]) -> None:
    """What Triton's kernels route; whether a node has a GPU is known there alone."""
    model, routing = config["model"], config["routing"]
    if routing["name"] != "dynamic" or "capsules" in model:
        raise ConfigError(
            f"routing.impl=triton is for dynamic routing of vector capsules, and this is "
            f"routing={routing['name']} in model={model['name']}; set routing.impl=fast"
        )


def _check_data(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the key and the cure, for data that cannot be meant."""
    _check_held_out(config)
    _check_viewpoints(config["dataset"])
    _check_pixels(config["dataset"])


def count_validation_examples(dataset: Mapping[str, Any]) -> int:
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
    elif config["stop_accuracy"] is not None and count_validation_examples(dataset) == 0:
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
    if config["stop_accuracy"] is not None and count_validation_examples(dataset) == 0:
        raise ConfigError(f"stop_accuracy is reached by validation examples: {made}")


def _check_viewpoints(dataset: Mapping[str, Any]) -> None:
    familiar = get({"dataset": dataset}, "dataset.reader.familiar")
    if familiar is None:
        return
    viewpoint = dataset["reader"]["viewpoint"]
    known = bounds.VIEWPOINTS[viewpoint]
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


def count_requested_devices(config: Mapping[str, Any]) -> int:
    """The devices that a configuration asks for; auto: as many as whole GPUs, where those are
    several.
    """
    devices = config["trainer"]["devices"]
    if devices != "auto":
        return devices
    gpu = config["resources"]["gpu"]
    return int(gpu) if gpu != "auto" and gpu > 1 else 1


def _check_devices(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the key and the cure, for devices that cannot be had."""
    gpu, devices = get(config, "resources.gpu"), get(config, "trainer.devices")
    if gpu != "auto" and not (bounds.is_real(gpu) and gpu >= 0 and (gpu < 1 or gpu == int(gpu))):
        raise ConfigError(f"resources.gpu must be auto, a fraction or a whole number, got {gpu}")
    if devices != "auto" and not (type(devices) is int and devices >= 1):
        raise ConfigError(f"trainer.devices must be auto or a whole number >= 1, got {devices}")
    count, accelerator = count_requested_devices(config), get(config, "trainer.accelerator")
    whole = 1 if gpu == "auto" and accelerator == "gpu" else gpu
    if count > 1 and accelerator != "cpu" and whole != "auto" and 0 < whole < count:
        raise ConfigError(
            f"trainer.devices={count} needs as many GPUs, and resources.gpu={gpu}; set "
            f"resources.gpu={count}, or trainer.accelerator=cpu"
        )
    if config["batch_size"] < count:
        raise ConfigError(
            f"batch_size={config['batch_size']} is over all devices together, and "
            f"{count} devices are to share it; set trainer.devices={config['batch_size']} or less"
        )


def find_targets(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every `_target_` below `value`, with its key."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            if key == "_target_":
                yield path, item
            yield from find_targets(item, path)
    elif isinstance(value, list):  # Hydra looks into lists too
        for place, item in enumerate(value):
            yield from find_targets(item, f"{prefix}[{place}]")


def make_canonical(config: Mapping[str, Any]) -> dict[str, Any]:
    """One form for all settings that mean the same run, so that they share a signature.

    Without a reconstruction loss there is no decoder; a network that does not route has no routing.
    The network's own reference to the routing is wiring, and is drawn when the network is built.
    """
    one = plain_copy(config)
    if "routing" in one["model"]:
        del one["model"]["routing"]
    else:
        one["routing"] = None
    if one["loss"]["reconstruction"]["weight"] == 0:
        one["loss"]["reconstruction"] = {"weight": 0.0}
        one["model"].pop("decoder", None)
    return one


def list_metrics(config: Mapping[str, Any]) -> tuple[str, ...]:
    """`train/loss`, `test/error` and so on, of a canonical configuration."""
    draws = config["loss"]["reconstruction"]["weight"] > 0
    several = config["dataset"].get("labels_per_image", 1) > 1
    measures = {"reconstruction": draws, "at_least_one": several, "segmentation": draws and several}
    splits = ("train", *(["val"] if count_validation_examples(config["dataset"]) else []), "test")
    return tuple(
        f"{split}/{name}" for split in splits for name in METRICS if measures.get(name, True)
    )


def check_metric(where: str, metric: str, configs: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError, with the nearest name, for a metric that none of the cells measures."""
    known = dict.fromkeys(name for config in configs for name in list_metrics(config))
    if metric not in known:
        close = difflib.get_close_matches(metric, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"{where}: {metric} is not measured; {hint}have {', '.join(known)}")
