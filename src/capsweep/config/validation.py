"""Checks of a configuration: the type and bound of each key, and rules between keys.

The type of a key is the type of its default. conf/bounds.yaml has the bounds, in the words that
error messages print. The module also defines the canonical form, which is the same for all
configurations that mean the same run.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import yaml

from capsweep.config import package_files
from capsweep.config.cell import flatten, get, put
from capsweep.config.code_identity import check_targets
from capsweep.errors import ConfigError

# Keys that take text or a number: only their bound is checked, not their type.
UNTYPED = ("resources.gpu", "trainer.devices", "logger.every_n_steps", "cluster.jobs")
# Keys that take null, numbers or a word. Numbers become floats, so that 0 and 0.0 are one setting.
REAL_OR_NULL = ("stop_accuracy", "model.initial.bias", "optim.clip_norm", "loss.class_weight")
TYPES = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
LARGEST = 2**63 - 1  # larger whole numbers are inexact in many programs; some programs fail
LARGEST_SIZE = 10**9  # largest number at a key of `model`
# Codes of viewpoints in smallNORB's info files: elevations are 0 to 8 for 30, 35, ... 70 degrees;
# azimuths are in tens of degrees.
VIEWPOINTS: Mapping[str, Sequence[int]] = {"elevation": range(9), "azimuth": range(0, 36, 2)}

# Metrics of each split of the data; each configuration measures some of them.
METRICS = ("loss", "error", "balanced_error", "reconstruction", "at_least_one", "segmentation")
# The reductions over classes that these losses allow; the first is the default.
REDUCTIONS = {"margin": ("sum", "half_mean"), "spread": ("sum", "mean")}

# Losses that take logits. Every network can compute logits. If another loss takes logits, the file
# of the loss has `on_logits: true`.
ON_LOGITS = ("cross_entropy", "binary_cross_entropy")

# Keys for the side, in pixels, of the square images that the network gets.
SIDES = ("dataset.batches.crop", "dataset.batches.canvas", "dataset.test.canvas")


def is_real(value: Any) -> bool:
    """Return whether a value is a finite float, or an int from -LARGEST to LARGEST (not a bool)."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= LARGEST
    return isinstance(value, float) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_count, value))


def _matches(pattern: str) -> Callable[[Any], bool]:
    return lambda value: re.fullmatch(pattern, str(value)) is not None


# The value that each of these rules of conf/bounds.yaml allows.
LITERALS = {"null": None, "auto": "auto", "balanced": "balanced", "true": True, "false": False}
# A test for each other rule. The rule `A or B` allows a value that obeys A or B.
TESTS: Mapping[str, Callable[[Any], bool]] = {
    "a finite number": is_real,
    "a whole number >= 1": _is_count,
    "a list of whole numbers >= 1": _are_counts,
    "a list of numbers > 0": lambda value: (
        isinstance(value, list) and all(is_real(number) and number > 0 for number in value)
    ),
    "whole numbers >= 1": lambda value: _is_count(value) or _are_counts(value),
    "0 to 1, a share of one GPU": lambda value: is_real(value) and 0 <= value <= 1,
    "1, since a sweep spreads its cells over devices, not the batches of a cell": (
        lambda value: type(value) is int and value == 1
    ),
    "text": lambda value: isinstance(value, str) and value != "",
    "the path of a file": bool,
    r"a name of at most 128 characters, none of / \ # ? % :": _matches(r"[^/\\#?%:]{1,128}"),
    "a sha256, 64 hexadecimal digits": _matches("[0-9a-f]{64}"),
    "auto, HOST:PORT such as 127.0.0.1:6379, or of jobs http://HOST:PORT": (
        _matches(r"auto|https?://.*|[^/@]+:\d+")
    ),
}


def keeps_rule(value: Any, rule: str) -> bool:
    """Return whether a value obeys a rule of conf/bounds.yaml."""
    if rule in LITERALS:
        return type(value) is type(LITERALS[rule]) and value == LITERALS[rule]
    if rule in TESTS:
        return TESTS[rule](value)
    if rule.startswith("one of "):
        return value in rule.removeprefix("one of ").split(", ")
    if rule.startswith("two numbers "):
        bound, _, order = rule.removeprefix("two numbers ").partition(", the ")
        is_pair = isinstance(value, list) and len(value) == 2
        is_pair = is_pair and all(keeps_rule(number, bound) for number in value)
        return is_pair and (not order or value[0] <= value[1])
    if " or " in rule:
        return any(keeps_rule(value, each) for each in rule.split(" or "))
    return _is_number(value) and _is_within(value, rule)


def _is_within(value: float, rule: str) -> bool:
    """Return whether a number obeys a rule such as `>= 1`, `> 0` or `in [0, 1)` (without 1)."""
    if (match := re.fullmatch(r"in ([\[(])(\S+), (\S+)([\])])", rule)) is not None:
        begins, low, high, ends = match.groups()
        above = value >= float(low) if begins == "[" else value > float(low)
        return above and (value <= float(high) if ends == "]" else value < float(high))
    sign, low = rule.split()
    return value >= float(low) if sign == ">=" else value > float(low)


@cache
def _read_rules() -> Mapping[str, str]:
    return flatten(yaml.safe_load((package_files.find_folder("conf") / "bounds.yaml").read_bytes()))


def check_config(config: Mapping[str, Any]) -> None:
    """Raise ConfigError if a configuration cannot be run; the message names the key to change."""
    optim = config["optim"]
    if missing := {"optimizer", "decayed", "clip_norm", "schedule"} - {*optim}:
        keys = ", ".join(sorted(missing))
        raise ConfigError(
            f"optim={optim.get('name')}: {keys} missing; conf/optim/adam.yaml has all"
        )
    check_targets(config)
    _check_bounds(config)
    for find_faults in (_find_faults_of_data, _find_faults_of_choices):
        for fault in find_faults(config):
            raise ConfigError(fault)


def _check_bounds(config: Mapping[str, Any]) -> None:
    """Raise ConfigError at the first value that is not allowed; the message names its key."""
    for key, rule in _read_rules().items():
        value = get(config, key)
        if (value is not None or key in UNTYPED) and not keeps_rule(value, rule):
            raise ConfigError(f"{key} must be {rule}, got {value}")
    for key, value in flatten(config).items():
        check_resolved(key, value)
        most = LARGEST_SIZE if key.startswith("model.") else LARGEST
        for number in _list_numbers(value):
            if not is_real(number) or (isinstance(number, int) and abs(number) > most):
                raise ConfigError(f"{key} must be finite, and at most {most}")


def check_resolved(key: str, value: Any) -> None:
    """Raise ConfigError if a value contains `${`.

    A program that reads the value later would treat `${` as an interpolation. The interpolation
    could read the environment of that program.
    """
    if "${" in str(value):
        raise ConfigError(f"{key} may not contain ${{, not even as text; write the value itself")


def _list_numbers(value: Any) -> list[int | float]:
    if isinstance(value, list):
        return [number for item in value for number in _list_numbers(item)]
    return [value] if _is_number(value) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def fit_types(plain: dict[str, Any], typed: Sequence[str], schema: Mapping[str, Any]) -> None:
    """Convert each value to the type of its default, so that `1` and `1.0` are one setting.

    Keys that the user typed are checked first, because other keys can take their values from typed
    keys. So a message about a wrong value names the key that the user typed.

    Args:
        plain: The configuration. Its values are changed in place.
        typed: The keys that the user typed.
        schema: The default of each key.

    Raises:
        ConfigError: If a value has the wrong type, or if the schema does not have the key. The
            message names the key.
    """
    values = flatten(plain)
    for key in sorted(values, key=lambda key: key not in typed):
        if key not in schema:
            raise ConfigError(f"{key}: no such key; its section is a copy of one with other keys")
        put(plain, key, _fit_type(key, values[key], schema[key]))


def _fit_type(key: str, value: Any, default: Any) -> Any:
    """Convert a value to the type of the key's default; raise ConfigError if that is impossible."""
    if default is None or key in UNTYPED:
        if key in REAL_OR_NULL and isinstance(value, list):
            return [float(number) if _is_number(number) else number for number in value]
        return float(value) if key in REAL_OR_NULL and _is_number(value) else value
    if isinstance(default, list) and isinstance(value, list):
        if not default:
            return value
        return [_fit_type(f"{key}[{i}]", v, default[0]) for i, v in enumerate(value)]
    if isinstance(default, float) and _is_number(value):
        return float(value)
    if isinstance(default, str) and _is_number(value):
        return str(value)
    if type(value) is not type(default):
        is_list = isinstance(default, list)
        expected = f"a list such as {default}" if is_list else TYPES.get(type(default), "a section")
        raise ConfigError(f"{key} must be {expected}, got {value!r}")
    return value


def _find_faults_of_choices(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each choice of model, loss or optimiser that contradicts another choice.

    Whether a network can use the routing is not checked here; the network itself checks it.
    """
    model, loss, dataset = config["model"], config["loss"], config["dataset"]
    name, classes, weights = loss["name"], loss["classification"], loss["class_weight"]
    known = REDUCTIONS.get(name, ())
    lr, floor = get(config, "optim.optimizer.lr"), get(config, "optim.schedule.floor")
    if not model.get("routes") and not is_on_logits(loss):
        yield f"loss={name} needs capsules, not model={model['name']}; set loss=cross_entropy"
    if loss["reconstruction"]["weight"] > 0 and not model.get("decoder"):
        yield f"loss.reconstruction.weight needs a decoder; set it to 0 for model={model['name']}"
    if (head := model.get("head", "length")).endswith("linear") and not is_on_logits(loss):
        yield f"model.head={head} gives logits, loss={name} needs lengths; set loss=cross_entropy"
    if known and classes.get("reduction", known[0]) not in known:
        yield f"loss.classification.reduction must be one of {', '.join(known)} for loss={name}"
    if isinstance(weights, list) and len(weights) != (wanted := dataset["num_classes"]):
        number = f"{wanted} numbers, one for each class of dataset={dataset['name']}"
        yield f"loss.class_weight must be {number}, got {len(weights)}; or set it to balanced"
    if "absent" in classes and classes["absent"] >= classes["present"]:
        yield "loss.classification.absent must be below loss.classification.present"
    if "first" in classes and classes["first"] > classes["last"]:
        yield "loss.classification.first must be at most loss.classification.last"
    if lr is not None and floor > lr:
        yield (
            f"optim.optimizer.lr={lr} is below optim.schedule.floor={floor}, which would replace "
            "it; set optim.schedule.floor=0"
        )


def is_on_logits(loss: Mapping[str, Any]) -> bool:
    """Return whether a loss takes logits; a loss that does not take logits needs capsules."""
    return loss["name"] in ON_LOGITS or loss.get("on_logits", False)


def count_validation_examples(dataset: Mapping[str, Any]) -> int:
    """Count the validation examples: the data set's own, or else held-out training examples."""
    return dataset["examples"].get("validation", dataset["validation"])


def _find_faults_of_data(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each fault in the settings of places and of the data set."""
    dataset = config["dataset"]
    yield from (f"places.{n} is empty; name a folder" for n, p in config["places"].items() if not p)
    yield from _find_faults_of_held_out(dataset, config["stop_accuracy"] is not None)
    yield from _find_faults_of_images(dataset)
    familiar = get(dataset, "reader.familiar")
    if familiar is not None:
        known, codes = VIEWPOINTS[dataset["reader"]["viewpoint"]], set(familiar)
        if not 0 < len(familiar) == len(codes & set(known)) < len(known):
            texts = ", ".join(map(str, known))
            yield f"dataset.reader.familiar must be some of {texts}, each once and not all"


def _find_faults_of_held_out(dataset: Mapping[str, Any], is_stopped: bool) -> Iterator[str]:
    """Yield a message for each fault in the number of validation examples.

    If the data set has shards or its own validation examples, `dataset.validation` must be 0. For
    shards, the number of validation examples was fixed when the shards were made.
    """
    trained, held_out = dataset["examples"]["train"], dataset["validation"]
    has_own = "shards" in dataset or "validation" in dataset["examples"]
    if has_own and held_out > 0:
        yield (
            f"dataset.validation must be 0 for dataset={dataset['name']}, got {held_out}: this "
            "data set has its own validation examples (dataset.examples.validation)"
        )
    if is_stopped and count_validation_examples(dataset) == 0:
        key = "dataset.examples.validation" if has_own else "dataset.validation"
        yield f"stop_accuracy needs validation examples; set {key}, for example to 5000"
    if held_out >= trained:
        yield f"dataset.validation must be below the {trained} training examples, got {held_out}"


def _find_faults_of_images(dataset: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each fault in the sizes, shifts and classes of images."""
    shape = dataset["image_shape"]
    if len(shape) != 3 or min(shape) < 1:
        yield f"dataset.image_shape must be [channels, height, width], each >= 1, got {shape}"
    names = dataset.get("class_names", [])
    if names and len(names) != dataset["num_classes"]:
        yield f"dataset.class_names has {len(names)} names for {dataset['num_classes']} classes"
    for key in SIDES:
        side = get({"dataset": dataset}, key)
        if side is not None and shape[1:] != [side, side]:
            yield f"dataset.image_shape={shape} contradicts {key}={side}; set only {key}"
    for key in ("shift", "batches.shift"):
        shift, side = get(dataset, key) or 0, min(shape[1:])
        if shift >= side:
            yield f"dataset.{key} must be below the {side} pixels of an image, got {shift}"


def make_canonical(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the canonical form of a configuration, so that equal runs have equal signatures.

    If the weight of the reconstruction loss is 0, the decoder and all other settings of the
    reconstruction are removed. If the network does not route, the routing is None. The key
    `model.routes` is always removed.
    """
    model, loss = dict(config["model"]), config["loss"]
    routing = config["routing"] if model.pop("routes", False) else None
    if loss["reconstruction"]["weight"] == 0:
        loss = {**loss, "reconstruction": {"weight": 0.0}}
        model.pop("decoder", None)
    return {**config, "model": model, "loss": loss, "routing": routing}


def list_metrics(config: Mapping[str, Any]) -> tuple[str, ...]:
    """List the metrics of a canonical configuration, such as `train/loss` and `test/error`."""
    draws = config["loss"]["reconstruction"]["weight"] > 0
    several = config["dataset"].get("labels_per_image", 1) > 1
    measures = {"reconstruction": draws, "at_least_one": several, "segmentation": draws and several}
    splits = ("train", *(["val"] if count_validation_examples(config["dataset"]) else []), "test")
    names = [name for name in METRICS if measures.get(name, True)]
    return tuple(f"{split}/{name}" for split in splits for name in names)


def check_metric(where: str, metric: str, configs: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError if no cell measures a metric; the message lists the measured metrics.

    Args:
        where: The key or file that names the metric.
        metric: The name of the metric.
        configs: The canonical configurations of the cells.
    """
    known = dict.fromkeys(name for config in configs for name in list_metrics(config))
    if metric not in known:
        raise ConfigError(f"{where}: {metric} is not measured; have {', '.join(known)}")
