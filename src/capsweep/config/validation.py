"""The rules across keys: allowed targets, impossible combinations, data; the canonical form."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from capsweep.config import bounds
from capsweep.config.cell import get, name_nearest
from capsweep.errors import ConfigError

# What may be measured on each split of the data; cells of a configuration measure some of it.
METRICS = ("loss", "error", "reconstruction", "at_least_one", "segmentation")
# How these losses may be taken together over the classes.
REDUCTIONS = {"margin": ("sum", "half_mean"), "spread": ("sum", "mean")}

# Losses on logits, of which every network has some; the files of others say `on_logits: true`.
ON_LOGITS = ("cross_entropy", "binary_cross_entropy")

# Keys that say how many pixels an image has in both axes when the network gets it.
SIDES = ("dataset.batches.crop", "dataset.batches.canvas", "dataset.test.canvas")

# A configuration file names code to call, so it may name only these: what makes networks, losses,
# optimisers and data, and nothing that writes files or opens connections.
SHARDS = ("capsweep.shards.batches.", "capsweep.shards.reader.")
TARGETS = ("capsweep.data.", *SHARDS, "capsweep.model.", "torch.nn.", "torch.optim.")


def check_config(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the key and the cure, unless the configuration can be run."""
    optim = config["optim"]
    if missing := {"optimizer", "decayed", "clip_norm", "schedule"} - {*optim}:
        keys = ", ".join(sorted(missing))
        raise ConfigError(
            f"optim={optim.get('name')}: {keys} missing; conf/optim/adam.yaml has all"
        )
    check_targets(config)
    bounds.check_bounds(config)
    for find_faults in (_find_faults_of_data, _find_faults_of_choices):
        for fault in find_faults(config):
            raise ConfigError(fault)


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


def _find_faults_of_choices(config: Mapping[str, Any]) -> Iterator[str]:
    """Parts that do not fit together; what a routing asks of its network, the network refuses."""
    model, loss = config["model"], config["loss"]
    name, classes = loss["name"], loss["classification"]
    known = REDUCTIONS.get(name, ())
    lr, floor = get(config, "optim.optimizer.lr"), get(config, "optim.schedule.floor")
    if "routing" not in model and not is_on_logits(loss):
        yield f"loss={name} needs capsules, not model={model['name']}; set loss=cross_entropy"
    if loss["reconstruction"]["weight"] > 0 and not model.get("decoder"):
        yield f"loss.reconstruction.weight needs a decoder; set it to 0 for model={model['name']}"
    if model.get("head") == "linear" and not is_on_logits(loss):
        yield f"model.head=linear gives logits, not lengths for loss={name}; set loss=cross_entropy"
    if known and classes.get("reduction", known[0]) not in known:
        yield f"loss.classification.reduction must be one of {', '.join(known)} for loss={name}"
    if "absent" in classes and classes["absent"] >= classes["present"]:
        yield "loss.classification.absent must be below loss.classification.present"
    if "first" in classes and classes["first"] > classes["last"]:
        yield "loss.classification.first must be at most loss.classification.last"
    if lr is not None and floor > lr:
        yield (
            f"optim.optimizer.lr={lr} is below optim.schedule.floor={floor}, which would train "
            "instead; set optim.schedule.floor=0"
        )


def is_on_logits(loss: Mapping[str, Any]) -> bool:
    """Whether a loss takes logits, and any network; others take what capsules give."""
    return loss["name"] in ON_LOGITS or loss.get("on_logits", False)


def count_validation_examples(dataset: Mapping[str, Any]) -> int:
    """Validation examples: those that the data set's protocol names, or that are held out."""
    return dataset["examples"].get("validation", dataset["validation"])


def _find_faults_of_data(config: Mapping[str, Any]) -> Iterator[str]:
    dataset = config["dataset"]
    yield from (f"places.{n} is empty; name a folder" for n, p in config["places"].items() if not p)
    yield from _find_faults_of_held_out(dataset, config["stop_accuracy"] is not None)
    yield from _find_faults_of_images(dataset)
    familiar = get(dataset, "reader.familiar")
    if familiar is not None:
        known, codes = bounds.VIEWPOINTS[dataset["reader"]["viewpoint"]], set(familiar)
        if not 0 < len(familiar) == len(codes & set(known)) < len(known):
            texts = ", ".join(map(str, known))
            yield f"dataset.reader.familiar must be some of {texts}, each once and not all"


def _find_faults_of_held_out(dataset: Mapping[str, Any], is_stopped: bool) -> Iterator[str]:
    """Faults of the validation examples; those of shards were chosen when these were made."""
    trained, held_out = dataset["examples"]["train"], dataset["validation"]
    has_own = "shards" in dataset or "validation" in dataset["examples"]
    if has_own and held_out > 0:
        yield (
            f"dataset.validation must be 0 for dataset={dataset['name']}, got {held_out}: its "
            "validation examples are those of dataset.examples.validation"
        )
    if is_stopped and count_validation_examples(dataset) == 0:
        key = "dataset.examples.validation" if has_own else "dataset.validation"
        yield f"stop_accuracy is reached by validation examples; set {key}, to 5000 say"
    if held_out >= trained:
        yield f"dataset.validation must be below the {trained} training examples, got {held_out}"


def _find_faults_of_images(dataset: Mapping[str, Any]) -> Iterator[str]:
    shape = dataset["image_shape"]
    if len(shape) != 3 or min(shape) < 1:
        yield f"dataset.image_shape must be [C, H, W], all >= 1, got {shape}"
    for key in SIDES:
        side = get({"dataset": dataset}, key)
        if side is not None and shape[1:] != [side, side]:
            yield f"dataset.image_shape={shape} and {key}={side} are different; leave the first out"
    for key in ("shift", "batches.shift"):
        shift, side = get(dataset, key) or 0, min(shape[1:])
        if shift >= side:
            yield f"dataset.{key} must be below the {side} pixels of an image, got {shift}"


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
    model, loss, routing = dict(config["model"]), config["loss"], config["routing"]
    if model.pop("routing", None) is None:
        routing = None
    if loss["reconstruction"]["weight"] == 0:
        loss = {**loss, "reconstruction": {"weight": 0.0}}
        model.pop("decoder", None)
    return {**config, "model": model, "loss": loss, "routing": routing}


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
        text = f"{where}: {metric} is not measured; have {', '.join(known)}"
        nearest = name_nearest(metric, known)
        raise ConfigError(f"{text}; {nearest}" if nearest else text)
