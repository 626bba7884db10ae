"""The rules across keys: allowed targets, impossible combinations, the canonical form."""

from collections.abc import Iterator, Mapping
from typing import Any

from capsweep.config import bounds, data_rules, device_rules
from capsweep.config.cell import get, plain_copy
from capsweep.errors import ConfigError

# How each loss may be taken together over the classes.
REDUCTIONS = {"margin": ("sum", "half_mean"), "spread": ("sum", "mean")}

ON_LOGITS = ("cross_entropy", "binary_cross_entropy")  # losses

# A configuration file names code to call, so it may name only these: what makes networks, losses,
# optimisers and data, and nothing that writes files or opens connections.
TARGETS = ("capsweep.data.", "capsweep.shards.", "capsweep.model.", "torch.nn.", "torch.optim.")


def check(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the key and the cure, unless the configuration can be run."""
    check_targets(config)
    bounds.check(config)
    for name, path in config["places"].items():
        if not path:
            raise ConfigError(f"places.{name} is empty; name a folder, or leave it out")
    device_rules.check(config)
    data_rules.check(config)
    _check_combinations(config)


def check_targets(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the key, where a `_target_` begins in no allowed way; imports
    nothing.
    """
    for key, target in targets(config):
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


def targets(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every `_target_` below `value`, with its key."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            if key == "_target_":
                yield path, item
            yield from targets(item, path)
    elif isinstance(value, list):  # Hydra looks into lists too
        for place, item in enumerate(value):
            yield from targets(item, f"{prefix}[{place}]")


def canonical(config: Mapping[str, Any]) -> dict[str, Any]:
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
