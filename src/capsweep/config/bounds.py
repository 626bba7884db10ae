"""What a single key may be, whatever the others are: its type, that of its default, and bounds.

Upper bounds refuse slips of digits: torch aborts on threads that it cannot start.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from capsweep.config.cell import flat, get
from capsweep.errors import ConfigError

# Keys that take text or a number, so that their rule below is their type.
UNTYPED = ("resources.gpu", "trainer.devices", "logger.every_n_steps", "cluster.jobs")
REAL_OR_NULL = (  # or null: 0 is 0.0
    "stop_accuracy",
    "model.initial.bias",
    "optim.clip_norm",
)

LARGEST = 2**63 - 1  # whole numbers above are exact in few programs, and end others
LARGEST_SIZE = 10**9  # in a network
# Codes of viewpoints in smallNORB's info files: elevations of 30, 35 ... 70 degrees; azimuths in
# tens of degrees.
VIEWPOINTS: Mapping[str, Sequence[int]] = {"elevation": range(9), "azimuth": range(0, 36, 2)}
Rule = tuple[str, Callable[[Any], bool]]  # in words, and whether a value keeps it


def is_real(value: Any) -> bool:
    """Whether a value is a number that is finite, also as a float."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= LARGEST
    return isinstance(value, float) and math.isfinite(value)


def _at_least(low: float) -> Rule:
    return f">= {low}", lambda value: _is_number(value) and value >= low


def _is_gpu_share(value: Any) -> bool:
    return value == "auto" or (is_real(value) and 0 <= value <= 1)


def _in_interval(text: str) -> Rule:
    """`[0, 1)` is without its upper end, `(0, 1]` without its lower one."""
    low, high = map(float, text[1:-1].split(","))

    def is_within(value: Any) -> bool:
        is_open_end = (text[0] == "(" and value == low) or (text[-1] == ")" and value == high)
        return is_real(value) and low <= value <= high and not is_open_end

    return f"in {text}", is_within


def _one_of(*names: str) -> Rule:
    return f"one of {', '.join(names)}", lambda value: value in names


def _two_numbers(text: str, holds: Callable[[float, float], bool]) -> Rule:
    def is_pair(value: Any) -> bool:
        is_list = isinstance(value, list) and len(value) == 2 and all(map(is_real, value))
        return is_list and holds(*value)

    return f"two numbers {text}", is_pair


def _are_sizes(value: Any) -> bool:
    sizes = value if isinstance(value, list) else [value]
    return bool(sizes) and all(type(size) is int and size >= 1 for size in sizes)


def _or_null(rule: Rule, kind: type) -> Rule:
    text, holds = rule
    return f"null or {text}", lambda v: v is None or (type(v) is kind and holds(v))


POSITIVE: Rule = "> 0", lambda value: is_real(value) and value > 0
FINITE: Rule = "a finite number", is_real
AUTO_OR_COUNT: Rule = (
    "auto or a whole number >= 1",
    lambda value: value == "auto" or (type(value) is int and value >= 1),
)
ONE_DEVICE: Rule = (
    "auto or 1, since a sweep spreads its cells over devices, not the batches of a cell",
    lambda value: value == "auto" or (type(value) is int and value == 1),
)
SIZES: Rule = "whole numbers >= 1", _are_sizes
TEXT = _or_null(("a text", bool), str)
BETAS = _two_numbers("in [0, 1)", lambda one, other: 0 <= one < 1 and 0 <= other < 1)
RANGE = _two_numbers(">= 0, the lower first", lambda low, high: 0 <= low <= high)
SCALES = _two_numbers("> 0, the lower first", lambda low, high: 0 < low <= high)
SHA256: Rule = (
    "a sha256, 64 hexadecimal digits",
    lambda value: re.fullmatch("[0-9a-f]{64}", str(value)) is not None,
)

# By section, the keys that keep a rule; the keys of a section that a cell lacks are no error.
SECTIONS: Mapping[str, Mapping[str, Rule]] = {
    "": {
        "seed": _at_least(0),
        "epochs batch_size": _in_interval("[1, 1000000]"),
        "precision": _one_of("32", "tf32", "bf16-mixed"),
        "limit_batches": _or_null(_at_least(1), int),
        "stop_accuracy": _or_null(_in_interval("[0, 1]"), float),
        "rerun": _one_of("never", "stale", "always"),
    },
    "dataset.batches": {
        "seed margin shift brightness": _at_least(0),
        "canvas pairs test_examples epoch_examples crop": _at_least(1),
        "workers": _in_interval("[0, 64]"),
        "contrast": RANGE,
        "mean_over": _one_of("image", "crop"),
    },
    "dataset": {
        "validation shift examples.validation test.rotation test.shear test.seed": _at_least(0),
        "labels_per_image examples.train examples.test test.canvas": _at_least(1),
        "num_classes": _at_least(2),
        "test.scale": SCALES,
        "reader.viewpoint": _one_of(*VIEWPOINTS),
        "reader.axes": _one_of("chw", "hwc"),
        "shards.fingerprint": SHA256,
    },
    "model": {
        "initial.conv initial.pose initial.activation initial.votes initial.class_votes": (
            _at_least(0)
        ),
        "conv.stride primary.types primary.pose primary.kernel primary.stride class_pose": (
            _at_least(1)
        ),
        "conv.channels conv.kernel capsules.types capsules.kernel capsules.stride": SIZES,
        "decoder.hidden hidden": SIZES,
        "conv.pool": _or_null(SIZES, list),
        "padding": _one_of("valid", "same"),
        "initial.weights": _one_of("variance", "truncated_normal"),
        "initial.bias": _or_null(FINITE, float),
        "pose": _one_of("matrix", "vector"),
        "head": _one_of("length", "linear"),
        "coordinates.place": _one_of("right_column", "first", "none"),
        "coordinates.scale": _one_of("pixels", "grid"),
        "vote_gain": POSITIVE,
        "dropout": _in_interval("[0, 1)"),  # at 1 nothing is left to train
    },
    "routing": {
        "num_iters": _in_interval("[1, 1000]"),
        "impl": _one_of("auto", "reference", "fast", "triton"),
        "gradient": _one_of("full", "last"),
        "scale": _one_of("pose", "children"),
        "draw": _one_of("anew", "fixed"),
        "kappa": _at_least(0),
        "psi": POSITIVE,
        "norm": _one_of("all", "types", "positions"),
        "r0": _one_of("all", "types"),
        "mass_norm": _one_of("sum", "ratio"),
        "activation": _one_of("cost", "mixing"),
        "inverse_temperature floor beta_a_unit classes.temperature_scale": POSITIVE,
        "rate": _in_interval("[0, 1)"),
        "beta_u beta_a classes.beta_u classes.beta_a": FINITE,
    },
    "loss": {
        "classification.present classification.absent": _in_interval("[0, 1]"),
        "classification.first classification.last": _in_interval("[0, 1]"),
        "classification.down_weight reconstruction.weight": _at_least(0),
        "classification.reduction": _one_of("sum", "half_mean", "mean"),
        "classification.schedule": _one_of("linear", "sigmoid"),
        "on_logits": ("true or false", lambda value: isinstance(value, bool)),
    },
    "optim": {
        "optimizer.lr optimizer.eps": POSITIVE,
        "optimizer.betas": BETAS,
        "optimizer.weight_decay schedule.warmup schedule.floor": _at_least(0),
        "decayed": _one_of("all", "weights"),
        "clip_norm": _or_null(POSITIVE, float),
        "schedule.rate": _in_interval("(0, 1]"),  # at 0 only the floor would train
        "schedule.steps": _at_least(1),
    },
    "resources": {
        "cpu": _in_interval("[1, 4096]"),
        "gpu": ("auto or 0 to 1, a share of one GPU", _is_gpu_share),
    },
    "trainer": {
        "accelerator": _one_of("auto", "cpu", "gpu"),
        "devices": ONE_DEVICE,
        "threads": _in_interval("[1, 1024]"),
        "convolution": _one_of("auto", "direct", "transformed"),
        "graphs": _one_of("auto", "off"),
        "checkpoint_interval": _at_least(0),
    },
    "logger": {
        "project entity": (
            r"a name of at most 128 characters, none of / \ # ? % :",
            lambda value: re.fullmatch(r"[^/\\#?%:]{1,128}", str(value)) is not None,
        ),
        "mode": _one_of("auto", "online", "offline"),
        "max_seconds": POSITIVE,
        "every_n_steps": AUTO_OR_COUNT,
    },
    "cluster": {  # keys before what is drawn from them, so that the typed key is named
        "address": (
            "auto, HOST:PORT such as 127.0.0.1:6379, or of jobs http://HOST:PORT",
            lambda value: re.fullmatch(r"auto|https?://.*|[^/@]+:\d+", str(value)) is not None,
        ),
        "jobs partition account qos constraint memory setup": TEXT,
        "launcher": _one_of("sbatch"),
        "token": ("a file's path", bool),
        "nodes cpus array.parts array.parallel": _at_least(1),
        "gpus requeues grows_to.nodes grows_to.cpu grows_to.gpu": _at_least(0),
        "warn_seconds": _at_least(10),
        "node.storage node.data": TEXT,
    },
}
BOUNDS: Mapping[str, Rule] = {
    f"{section}.{key}".lstrip("."): rule
    for section, rules in SECTIONS.items()
    for keys, rule in rules.items()
    for key in keys.split()
}


def check_bounds(config: Mapping[str, Any]) -> None:
    """Raise ConfigError naming the first key that is out of its bounds."""
    for key, (text, is_allowed) in BOUNDS.items():
        value = get(config, key)
        if (value is not None or key in UNTYPED) and not is_allowed(value):
            raise ConfigError(f"{key} must be {text}, got {value}")
    for key, value in flat(config).items():
        if isinstance(value, (str, list)):
            check_resolved(key, value)
        most = LARGEST_SIZE if key.startswith("model.") else LARGEST
        numbers = _list_numbers(value)
        largest = max((abs(number) for number in numbers if isinstance(number, int)), default=0)
        if largest > most or not all(map(is_real, numbers)):
            raise ConfigError(f"{key} must be finite, and at most {most}")


def check_resolved(key: str, value: Any) -> None:
    """Raise ConfigError for text that whoever reads it next would take for an interpolation, which
    may draw on the environment there.
    """
    if "${" in str(value):
        raise ConfigError(f"{key} may not contain ${{, also not as text; write the value itself")


def _list_numbers(value: Any) -> list[int | float]:
    if isinstance(value, list):
        return [number for item in value for number in _list_numbers(item)]
    return [value] if _is_number(value) else []


def fit_types(plain: dict[str, Any], typed: Sequence[str], schema: Mapping[str, Any]) -> None:
    """Give every leaf, in place, the type its default has, so that `1` and `1.0` are one setting.

    The keys that were typed come first: what is drawn from them is wrong only because they are.
    Raises ConfigError naming the key.
    """
    values = flat(plain)
    for key in sorted(values, key=lambda key: key not in typed):
        if key not in schema:
            raise ConfigError(f"{key}: no such key; its section is drawn from another kind of one")
        fitted = _fit_type(key, values[key], schema[key])
        section = plain
        *parents, name = key.split(".")
        for parent in parents:
            section = section[parent]
        section[name] = fitted


def _fit_type(key: str, value: Any, default: Any) -> Any:
    """The value in the type of the key's default. Raises ConfigError naming the key."""
    if default is None or key in UNTYPED:
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
        names = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
        names[list] = f"a list such as {default}"
        expected = names.get(type(default), "a section")
        raise ConfigError(f"{key} must be {expected}, got {value!r}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
