"""Bounds: what a single key may be, whatever the others are."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from capsweep.config.cell import get
from capsweep.errors import ConfigError

# Keys that take text or a number, so that their rule below is their type.
UNTYPED = ("resources.gpu", "trainer.devices")
REAL_OR_NULL = (  # or null: 0 is 0.0
    "stop_accuracy",
    "model.initial.bias",
    "optim.clip_norm",
    "cluster.price_per_gpu_hour",
)

LARGEST = 2**63 - 1  # whole numbers above are exact in few programs, and end others
# Slips of digits, refused before anything is built. torch aborts on threads that it cannot start.
MOST = {
    "batch_size": 1_000_000,
    "epochs": 1_000_000,
    "model": 1_000_000_000,
    "resources.cpu": 4096,
    "routing.num_iters": 1000,
    "trainer.threads": 1024,
}
# Codes of viewpoints in smallNORB's info files: elevations of 30, 35 ... 70 degrees; azimuths in
# tens of degrees.
VIEWPOINTS: Mapping[str, Sequence[int]] = {"elevation": range(9), "azimuth": range(0, 36, 2)}
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")

# Keys by which clusters are launched, of the files of conf/cluster.
LAUNCHERS = ("sbatch",)
CLUSTER_TEXTS = ("partition", "account", "qos", "constraint", "memory", "setup")
CLUSTER_NUMBERS = {  # the least
    **dict.fromkeys(("nodes", "cpus", "array.parts", "array.parallel"), 1),
    **dict.fromkeys(("gpus", "requeues"), 0),
    "warn_seconds": 10,
}

Rule = tuple[str, Callable[[Any], bool]]  # in words, and whether a value keeps it


def _require_at_least(low: float) -> Rule:
    return f">= {low}", lambda value: is_real(value) and value >= low


def _require_between(low: float, high: float) -> Rule:
    return f"in [{low}, {high}]", lambda value: is_real(value) and low <= value <= high


def _require_below(low: float, high: float) -> Rule:
    return f"in [{low}, {high})", lambda value: is_real(value) and low <= value < high


def _require_above(low: float, high: float) -> Rule:
    return f"in ({low}, {high}]", lambda value: is_real(value) and low < value <= high


def _require_pair(low: float, high: float) -> Rule:
    """Two numbers of a half-open interval."""

    def holds(value: Any) -> bool:
        pair = isinstance(value, list) and len(value) == 2
        return pair and all(is_real(number) and low <= number < high for number in value)

    return f"two numbers in [{low}, {high})", holds


def _require_range(is_positive: bool = False) -> Rule:
    """The lowest and the highest of a range."""

    def holds(value: Any) -> bool:
        pair = isinstance(value, list) and len(value) == 2 and all(map(is_real, value))
        return pair and 0 <= value[0] <= value[1] and not (is_positive and value[0] == 0)

    return f"two numbers {'>' if is_positive else '>='} 0, the lower first", holds


def _require_text() -> Rule:
    return "a text", bool


def _require_finite() -> Rule:
    return "a finite number", is_real


def _require_positive() -> Rule:
    return "> 0", lambda value: is_real(value) and value > 0


def _require_sizes() -> Rule:
    def holds(value: Any) -> bool:
        sizes = value if isinstance(value, list) else [value]
        return bool(sizes) and all(type(size) is int and size >= 1 for size in sizes)

    return "whole numbers >= 1", holds


def _require_sha256() -> Rule:
    def holds(value: Any) -> bool:
        return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None

    return "a sha256, 64 hexadecimal digits", holds


def _require_one_of(*names: str) -> Rule:
    return f"one of {', '.join(names)}", lambda value: value in names


def is_real(value: Any) -> bool:
    """Whether a value is a number that is finite, also as a float."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= LARGEST
    return isinstance(value, float) and math.isfinite(value)


def _or_null(rule: Rule, kind: type) -> Rule:
    text, holds = rule
    return f"null or {text}", lambda v: v is None or (type(v) is kind and holds(v))


BOUNDS: Mapping[str, Rule] = {
    "seed": _require_at_least(0),
    "epochs": _require_at_least(1),
    "batch_size": _require_at_least(1),
    "precision": _require_one_of("32", "bf16-mixed"),
    "limit_batches": _or_null(_require_at_least(1), int),
    "stop_accuracy": _or_null(_require_between(0, 1), float),
    "rerun": _require_one_of("never", "stale", "always"),
    "dataset.validation": _require_at_least(0),
    "dataset.shift": _require_at_least(0),
    "dataset.num_classes": _require_at_least(2),
    "dataset.labels_per_image": _require_at_least(1),
    "dataset.batches.seed": _require_at_least(0),
    "dataset.batches.margin": _require_at_least(0),
    "dataset.batches.shift": _require_at_least(0),
    "dataset.batches.canvas": _require_at_least(1),
    "dataset.batches.pairs": _require_at_least(1),
    "dataset.batches.test_examples": _require_at_least(1),
    "dataset.batches.epoch_examples": _require_at_least(1),
    "dataset.batches.workers": _require_between(0, 64),  # processes: a slip would start any number
    "dataset.shards.fingerprint": _require_sha256(),
    "dataset.batches.crop": _require_at_least(1),
    "dataset.batches.brightness": _require_at_least(0),
    "dataset.batches.contrast": _require_range(),
    "dataset.batches.mean_over": _require_one_of("image", "crop"),
    "dataset.test.rotation": _require_at_least(0),
    "dataset.test.shear": _require_at_least(0),
    "dataset.test.scale": _require_range(is_positive=True),
    "dataset.test.canvas": _require_at_least(1),
    "dataset.test.seed": _require_at_least(0),
    "dataset.examples.train": _require_at_least(1),
    "dataset.examples.test": _require_at_least(1),
    "dataset.examples.validation": _require_at_least(0),
    "dataset.reader.viewpoint": _require_one_of(*VIEWPOINTS),
    "model.conv.channels": _require_sizes(),
    "model.conv.kernel": _require_sizes(),
    "model.conv.pool": _or_null(_require_sizes(), list),
    "model.padding": _require_one_of("valid", "same"),
    "model.initial.weights": _require_one_of("variance", "truncated_normal"),
    "model.initial.bias": _or_null(_require_finite(), float),
    "model.initial.conv": _require_at_least(0),
    "model.initial.pose": _require_at_least(0),
    "model.initial.activation": _require_at_least(0),
    "model.initial.votes": _require_at_least(0),
    "model.initial.class_votes": _require_at_least(0),
    "model.conv.stride": _require_at_least(1),
    "model.primary.types": _require_at_least(1),
    "model.primary.pose": _require_at_least(1),
    "model.primary.kernel": _require_at_least(1),
    "model.primary.stride": _require_at_least(1),
    "model.capsules.types": _require_sizes(),
    "model.capsules.kernel": _require_sizes(),
    "model.capsules.stride": _require_sizes(),
    "model.pose": _require_one_of("matrix", "vector"),
    "model.coordinates.place": _require_one_of("right_column", "first", "none"),
    "model.coordinates.scale": _require_one_of("pixels", "grid"),
    "model.class_pose": _require_at_least(1),
    "model.vote_gain": _require_positive(),
    "model.decoder.hidden": _require_sizes(),
    "model.hidden": _require_sizes(),
    "model.dropout": _require_below(0, 1),  # at 1 nothing is left to train
    "routing.num_iters": _require_at_least(1),
    "routing.impl": _require_one_of("reference", "fast", "triton"),
    "routing.gradient": _require_one_of("full", "last"),
    "routing.norm": _require_one_of("all", "types", "positions"),
    "routing.r0": _require_one_of("all", "types"),
    "routing.mass_norm": _require_one_of("sum", "ratio"),
    "routing.activation": _require_one_of("cost", "mixing"),
    "routing.inverse_temperature": _require_positive(),
    "routing.rate": _require_below(0, 1),
    "routing.floor": _require_positive(),
    "routing.beta_u": _require_finite(),
    "routing.beta_a": _require_finite(),
    "routing.beta_a_unit": _require_positive(),
    "routing.classes.temperature_scale": _require_positive(),
    "routing.classes.beta_u": _require_finite(),
    "routing.classes.beta_a": _require_finite(),
    "loss.classification.present": _require_between(0, 1),
    "loss.classification.absent": _require_between(0, 1),
    "loss.classification.down_weight": _require_at_least(0),
    "loss.classification.reduction": _require_one_of("sum", "half_mean", "mean"),
    "loss.classification.first": _require_between(0, 1),
    "loss.classification.last": _require_between(0, 1),
    "loss.classification.schedule": _require_one_of("linear", "sigmoid"),
    "loss.reconstruction.weight": _require_at_least(0),
    "optim.optimizer.lr": _require_positive(),
    "optim.optimizer.betas": _require_pair(0, 1),
    "optim.optimizer.eps": _require_positive(),
    "optim.optimizer.weight_decay": _require_at_least(0),
    "optim.decayed": _require_one_of("all", "weights"),
    "optim.clip_norm": _or_null(_require_positive(), float),
    "optim.schedule.warmup": _require_at_least(0),
    "optim.schedule.rate": _require_above(0, 1),  # at 0 only the floor would train
    "optim.schedule.steps": _require_at_least(1),
    "optim.schedule.floor": _require_at_least(0),
    "resources.cpu": _require_at_least(1),
    "trainer.accelerator": _require_one_of("auto", "cpu", "gpu"),
    "trainer.threads": _require_at_least(1),
    "trainer.compile": _or_null(_require_one_of(*COMPILE_MODES), str),
    "trainer.checkpoint_interval": _require_at_least(0),
    "logger.mode": _require_one_of("auto", "online", "offline"),
    "logger.max_seconds": _require_positive(),
    "cluster.address": _or_null(_require_text(), str),
    "cluster.jobs": _or_null(_require_text(), str),
    # Before what is drawn from these keys, so that the typed key is named.
    "cluster.launcher": _require_one_of(*LAUNCHERS),
    "cluster.token": ("a file's path", bool),
    "cluster.array.through": _require_one_of("slurm", "local", "debug"),
    **{f"cluster.{key}": _or_null(_require_text(), str) for key in CLUSTER_TEXTS},
    **{f"cluster.{key}": _require_at_least(low) for key, low in CLUSTER_NUMBERS.items()},
    "cluster.grows_to.nodes": _require_at_least(0),
    "cluster.grows_to.cpu": _require_at_least(0),
    "cluster.grows_to.gpu": _require_at_least(0),
    "cluster.price_per_gpu_hour": _or_null(_require_at_least(0), float),
    "cluster.node.storage": _or_null(_require_text(), str),
    "cluster.node.data": _or_null(_require_text(), str),
}


def check_bounds(config: Mapping[str, Any]) -> None:
    """Raise ConfigError naming the first key that is out of its bounds."""
    for key, value in _iterate_values(config, int):
        if abs(value) > LARGEST:
            raise ConfigError(f"{key} must be below 2^63; it has {value.bit_length()} bits")
        most = MOST.get(key, MOST.get(key.partition(".")[0], LARGEST))
        if value > most:
            raise ConfigError(f"{key} must be at most {most}, got {value}")
    for key, (text, holds) in BOUNDS.items():
        if _has_key(config, key) and not holds(get(config, key)):
            raise ConfigError(f"{key} must be {text}, got {get(config, key)}")
    for key, value in _iterate_values(config, float):
        if not math.isfinite(value):
            raise ConfigError(f"{key} must be finite, got {value}")


def _has_key(config: Mapping[str, Any], key: str) -> bool:
    section, _, name = key.rpartition(".")
    parent = get(config, section) if section else config
    return isinstance(parent, Mapping) and name in parent


def _iterate_values(value: Any, kind: type, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a type below `value`, with its key."""
    if isinstance(value, kind):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _iterate_values(item, kind, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_values(item, kind, key)
